package ingest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
)

// load makes messages as an engine sends them. Each stores 16 blocks of 16 tokens, of
// prompts of four messages, and evicts as many once there are keep.
type load struct {
	keep int // messages

	b      event.Batch
	n      uint64
	parent event.Hash
	past   [][]event.Hash
	tokens [256]uint32
}

func (l *load) next() []byte {
	const blocks, size = 16, 16
	hashes := make([]event.Hash, blocks)
	for i := range hashes {
		hashes[i] = event.Hash((l.n*blocks + uint64(i) + 1) * 0x9E3779B97F4A7C15)
	}
	for i := range l.tokens {
		l.tokens[i] = uint32((l.n*7919 + uint64(i)*131) % 150_000)
	}
	e := event.Event{Kind: event.Stored, Hashes: hashes, Tokens: l.tokens[:], BlockSize: size, Medium: "GPU"}
	if l.n%4 != 0 {
		e.Parent, e.HasParent = l.parent, true
	}
	l.parent = hashes[blocks-1]
	l.past = append(l.past, hashes)
	l.n++
	l.b.Events = append(l.b.Events[:0], e)
	if len(l.past) > l.keep {
		l.b.Events = append(l.b.Events, event.Event{Kind: event.Removed, Hashes: l.past[0], Medium: "GPU"})
		l.past = l.past[1:]
	}
	l.b.Time = float64(time.Now().UnixMicro()) / 1e6
	return encode.Append(nil, &l.b, encode.VLLM24)
}

// residentBytes is the memory of this process that is in RAM.
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var all, resident int64
	fmt.Sscan(string(text), &all, &resident)
	return resident * int64(os.Getpagesize())
}

// benchIndexes runs a benchmark with both indexes; other is the CPU time that the index
// takes outside of this process.
func benchIndexes(b *testing.B, run func(b *testing.B, x store.Index, other func() time.Duration)) {
	b.Run("memory", func(b *testing.B) {
		x := must.Get(memory.New(memory.Config{}))(b)
		defer x.Close()
		run(b, x, func() time.Duration { return 0 })
	})
	b.Run("redis", func(b *testing.B) {
		server := redistest.Start(b)
		x := must.Get(redis.Open(redis.Config{URL: "redis://" + server.Addr}))(b)
		defer x.Close()
		run(b, x, server.CPUTime)
	})
}

// inProcess reports whether an index is memory of this process, as Config.InProcess says.
func inProcess(x store.Index) bool {
	_, ok := x.(*memory.Index)
	return ok
}

// BenchmarkWire is from bytes on a TCP connection to the index, for one rank. An op is a
// message of 16 engine blocks of 16 tokens stored and 16 removed. The messages are made
// before, and sent by another goroutine, whose CPU time is in the figure.
func BenchmarkWire(b *testing.B) {
	benchIndexes(b, func(b *testing.B, x store.Index, other func() time.Duration) {
		must.Get(x.Register(b.Context(), store.Pod{Name: "pod", Model: testModel}))(b)
		endpoint := redistest.FreeEndpoint(b, 1)
		pub := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: endpoint, Queue: 1 << 16, Keep: 1}))(b)
		defer pub.Close()
		in := must.Get(New(Config{Index: x, InProcess: inProcess(x), QueueMessages: 1 << 16, QueueBytes: 128 << 20, RelayMessages: -1}))(b)
		defer in.Close()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() { in.Read(ctx, Source{Pod: "pod", Model: testModel, Events: endpoint}, 1) })
		defer wg.Wait()
		defer cancel()
		for pub.Subscribers() == 0 {
			time.Sleep(time.Millisecond)
		}
		l := load{keep: 2000}
		messages := make([]zmq.Message, b.N)
		for i := range messages {
			messages[i] = zmq.Message{Seq: uint64(i), Payload: l.next()}
		}
		runtime.GC()
		b.ReportAllocs()
		b.ResetTimer()
		before, server := cputime.Process(), other()
		for i := range messages {
			for i%256 == 0 && i-int(in.Stats().Ranks[0].Next) > 1<<13 {
				time.Sleep(time.Millisecond)
			}
			pub.Publish(messages[i])
		}
		for {
			if life, err := x.Life(b.Context(), "pod", 0); err == nil && life.Seq == uint64(b.N) {
				break
			}
			time.Sleep(200 * time.Microsecond)
		}
		used := cputime.Process() - before
		b.StopTimer()
		b.ReportMetric(float64((other()-server).Microseconds())/float64(16*b.N), "server-us/block")
		b.ReportMetric(float64(16*b.N)/b.Elapsed().Seconds(), "blocks/s")
		b.ReportMetric(float64(16*b.N)/used.Seconds(), "blocks/cpu-s")
		if s := in.Stats().Ranks[0]; s.Gaps > 0 {
			b.Fatalf("%+v", s)
		}
	})
}

// fanInVariable is the environment variable that says of how many ranks
// BenchmarkFanIn is.
const fanInVariable = "KVATLAS_TEST_RANKS"

// BenchmarkFanIn reads 500 ranks at once over loopback: an op is a message of each. It
// reports the memory that each rank takes, with the index in memory and the replay buffer
// of the publisher. It also reports how that grows while the content of the caches goes
// through. The relay keeps 32 messages.
func BenchmarkFanIn(b *testing.B) {
	ranks := 500
	if s := os.Getenv(fanInVariable); s != "" {
		ranks, _ = strconv.Atoi(s)
	}
	benchIndexes(b, func(b *testing.B, x store.Index, other func() time.Duration) {
		pubs := make([]*zmq.Publisher, ranks)
		var sources []Source
		dir := b.TempDir()
		for i := range pubs {
			pod := store.Pod{Name: fmt.Sprintf("pod-%d", i), Model: testModel}
			must.Get(x.Register(b.Context(), pod))(b)
			s := Source{Pod: pod.Name, Model: testModel, Events: fmt.Sprintf("ipc://%s/%d", dir, i), Replay: fmt.Sprintf("ipc://%s/r%d", dir, i)}
			var err error
			if pubs[i], err = zmq.NewPublisher(zmq.PublisherConfig{Endpoint: s.Events, Replay: s.Replay, Keep: 16, Queue: 512}); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { pubs[i].Close() })
			sources = append(sources, s)
		}
		debug.FreeOSMemory()
		base := residentBytes()
		in := must.Get(New(Config{Index: x, InProcess: inProcess(x), RelayMessages: 32}))(b)
		defer in.Close()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		defer wg.Wait()
		defer cancel()
		for _, s := range sources {
			wg.Go(func() { in.Read(ctx, s, 1) })
		}
		for i := range pubs {
			for pubs[i].Subscribers() == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		debug.FreeOSMemory()
		idle := residentBytes()
		loads := make([]load, ranks)
		seq := uint64(0)
		round := func() {
			for i := range pubs {
				loads[i].keep = 16
				pubs[i].Publish(zmq.Message{Seq: seq, Payload: loads[i].next()})
			}
			seq++
			for in.Stats().QueueBytes > 64<<20 {
				time.Sleep(time.Millisecond)
			}
		}
		settle := func() {
			for _, s := range sources {
				for {
					if life, err := x.Life(b.Context(), s.Pod, 0); err == nil && life.Seq == seq {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
		}
		// Until every queue and cache has had its fill.
		for range 40 {
			round()
		}
		settle()
		debug.FreeOSMemory()
		full := residentBytes()
		b.ReportAllocs()
		b.ResetTimer()
		began, before, server := time.Now(), cputime.Process(), other()
		for range b.N {
			round()
		}
		settle()
		took, used := time.Since(began), cputime.Process()-before
		b.StopTimer()
		debug.FreeOSMemory()
		blocks := float64(16 * ranks * b.N)
		b.ReportMetric(float64((other()-server).Microseconds())/blocks, "server-us/block")
		b.ReportMetric(blocks/took.Seconds(), "blocks/s")
		b.ReportMetric(blocks/used.Seconds(), "blocks/cpu-s")
		b.ReportMetric(float64(idle-base)/float64(ranks)/1024, "idle-KiB/rank")
		b.ReportMetric(float64(full-base)/float64(ranks)/1024, "KiB/rank")
		b.ReportMetric(float64(residentBytes()-full)/float64(ranks)/1024, "growth-KiB/rank")
	})
}

// BenchmarkOneEngine is what one engine costs at 100 messages a second, the most that a
// rank of vLLM sends. Each has 16 engine blocks stored and 16 removed. It reports the CPU
// time as percent of a core, and the memory beside the index.
func BenchmarkOneEngine(b *testing.B) {
	benchIndexes(b, func(b *testing.B, x store.Index, other func() time.Duration) {
		must.Get(x.Register(b.Context(), store.Pod{Name: "pod", Model: testModel}))(b)
		dir := b.TempDir()
		s := Source{Pod: "pod", Model: testModel, Events: "ipc://" + dir + "/e", Replay: "ipc://" + dir + "/r"}
		pub := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: s.Events, Replay: s.Replay, Keep: 16, Queue: 512}))(b)
		defer pub.Close()
		in := must.Get(New(Config{Index: x, InProcess: inProcess(x)}))(b)
		defer in.Close()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() { in.Read(ctx, s, 1) })
		defer wg.Wait()
		defer cancel()
		for pub.Subscribers() == 0 {
			time.Sleep(time.Millisecond)
		}
		// A cache of 100,000 blocks, full.
		l, seq := load{keep: 100_000 / 16}, uint64(0)
		send := func() {
			pub.Publish(zmq.Message{Seq: seq, Payload: l.next()})
			seq++
		}
		wait := func() {
			for {
				if life, err := x.Life(b.Context(), "pod", 0); err == nil && life.Seq == seq {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
		debug.FreeOSMemory()
		base := residentBytes()
		for i := range l.keep {
			send()
			if i%256 == 255 {
				wait()
			}
		}
		wait()
		debug.FreeOSMemory()
		full := residentBytes()
		b.ReportAllocs()
		b.ResetTimer()
		began, before, server := time.Now(), cputime.Process(), other()
		for i := range b.N {
			time.Sleep(time.Until(began.Add(time.Duration(i) * 10 * time.Millisecond)))
			send()
		}
		wait()
		used := cputime.Process() - before
		b.StopTimer()
		b.ReportMetric(100*(other()-server).Seconds()/time.Since(began).Seconds(), "server-percent")
		b.ReportMetric(100*used.Seconds()/time.Since(began).Seconds(), "percent-of-core")
		b.ReportMetric(float64(full-base)/1024/1024, "MiB")
		r := in.Stats().Ranks[0]
		if r.Gaps > 0 || r.Generations > 1 {
			b.Fatalf("not all of it came: %+v", r)
		}
		b.ReportMetric(float64(r.Lag.Microseconds()), "last-lag-us")
	})
}
