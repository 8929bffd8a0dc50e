package ingest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/store"
)

// publishVariable is the environment variable by which BenchmarkPublished makes this program a
// process of publishers. It says where they listen, how many, messages of each, blocks of each.
const publishVariable = "KVATLAS_TEST_PUBLISH"

// promptBlocks is how many blocks a prompt of a chain has.
const promptBlocks = 128

// chain makes messages of new blocks of 16 tokens, as vLLM writes them: prompts of
// promptBlocks blocks, each told in messages of so many.
func chain(rank, messages, blocks int) []zmq.Message {
	out := make([]zmq.Message, messages)
	tokens := make([]uint32, 16*blocks)
	var parent event.Hash
	random := rand.New(rand.NewPCG(16, uint64(rank))) // or else it is soon known how wide tokens are
	for i := range out {
		hashes := make([]event.Hash, blocks)
		for j := range hashes {
			hashes[j] = event.Hash((uint64(rank)<<32 + uint64(i*blocks+j+1)) * 0x9E3779B97F4A7C15)
		}
		for j := range tokens {
			tokens[j] = random.Uint32N(150_000)
		}
		e := event.Event{Kind: event.Stored, Hashes: hashes, Tokens: tokens, BlockSize: 16, Medium: "GPU", Parent: parent, HasParent: i*blocks%promptBlocks != 0}
		parent = hashes[blocks-1]
		b := event.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Events: []event.Event{e}}
		out[i] = zmq.Message{Seq: uint64(i), Payload: encode.Append(nil, &b, encode.VLLM24)}
	}
	return out
}

// publish is the process of publishers: each sends all it has when a line comes in.
func publish(what string) error {
	var dir string
	var ranks, messages, blocks int
	if _, err := fmt.Sscan(what, &dir, &ranks, &messages, &blocks); err != nil {
		return err
	}
	pubs, all := make([]*zmq.Publisher, ranks), make([][]zmq.Message, ranks)
	for i := range pubs {
		var err error
		if pubs[i], err = zmq.NewPublisher(zmq.PublisherConfig{Endpoint: fmt.Sprintf("ipc://%s/%d", dir, i), Replay: fmt.Sprintf("ipc://%s/r%d", dir, i), Queue: messages + 1, Keep: 16}); err != nil {
			return err
		}
		all[i] = chain(i, messages, blocks)
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	for _, p := range pubs {
		for p.Subscribers() == 0 { // connected, and what it subscribes to is still on its way
			time.Sleep(time.Millisecond)
		}
	}
	for i := range messages {
		for j, p := range pubs {
			p.Publish(all[j][i])
		}
	}
	_, err := io.Copy(io.Discard, in)
	for _, p := range pubs {
		p.Close()
	}
	return err
}

// BenchmarkPublished is from ten publishers in a process of their own to the index, over unix
// sockets, as fast as it goes. An op is a message of each, of 1, 16 or 128 new blocks of 16
// tokens. The CPU time is of this process, without the publishers.
func BenchmarkPublished(b *testing.B) {
	const ranks = 10
	for _, blocks := range []int{1, 16, 128} {
		b.Run(fmt.Sprint(blocks), func(b *testing.B) {
			benchIndexes(b, func(b *testing.B, x store.Index, other func() time.Duration) {
				dir := b.TempDir()
				child := exec.CommandContext(b.Context(), os.Args[0])
				child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %d", publishVariable, dir, ranks, b.N, blocks))
				child.Stderr = os.Stderr
				stdin := must.Get(child.StdinPipe())(b)
				stdout := must.Get(child.StdoutPipe())(b)
				must.OK(b, child.Start())
				defer func() {
					_ = stdin.Close()
					_ = child.Wait()
				}()
				if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
					b.Fatalf("the publishers say %q, %v", line, err)
				}
				var applied atomic.Int64
				connected, done := make(chan struct{}, ranks), make(chan struct{})
				in := must.Get(New(Config{Index: x, InProcess: inProcess(x), RelayMessages: -1, Observer: Observer{
					Connected: func(string, int, string) { connected <- struct{}{} },
					Events: func(_ string, _ int, _ event.Kind, n int) {
						if applied.Add(int64(n)) == int64(ranks*b.N) {
							close(done)
						}
					},
				}}))(b)
				defer in.Close()
				var wg sync.WaitGroup
				ctx, cancel := context.WithCancel(b.Context())
				defer wg.Wait()
				defer cancel()
				for i := range ranks {
					pod := fmt.Sprintf("pod-%d", i)
					must.Get(x.Register(b.Context(), store.Pod{Name: pod, Model: testModel}))(b)
					wg.Go(func() {
						_ = in.Read(ctx, Source{Pod: pod, Model: testModel, Events: fmt.Sprintf("ipc://%s/%d", dir, i)}, 1)
					})
				}
				for range ranks {
					<-connected
				}
				runtime.GC()
				b.ReportAllocs()
				b.ResetTimer()
				before, server := cputime.Process(), other()
				must.Get(io.WriteString(stdin, "go\n"))(b)
				<-done
				used := cputime.Process() - before
				b.StopTimer()
				all := float64(ranks * b.N * blocks)
				b.ReportMetric(float64((other()-server).Nanoseconds())/1e3/all, "server-us/block")
				b.ReportMetric(float64(used.Nanoseconds())/1e3/all, "cpu-us/block")
				b.ReportMetric(all/used.Seconds(), "blocks/cpu-s")
				for _, s := range in.Stats().Ranks {
					if s.Gaps > 0 || s.Generations > 1 || s.Blocks.IndexAdded != uint64(b.N*blocks/4) && blocks > 1 {
						b.Fatalf("not all of it came: %+v", s)
					}
				}
			})
		})
	}
}
