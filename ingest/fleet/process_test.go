package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// runAsReplica is the variable with the name under which the test binary is a replica;
// redisOfReplica has the index's URL.
const (
	runAsReplica   = "KVATLAS_TEST_RUN_AS_REPLICA"
	redisOfReplica = "KVATLAS_TEST_REDIS"
)

// line of a replica's output.
type report struct {
	What  string // started, stopped, or wrote
	Pod   string
	Rank  int
	Fence uint64
	Took  string
	Seq   uint64 // that it goes on behind
	Err   string
}

// beReplica is a replica with a reader that writes a block each few milliseconds under the
// fence that it has been given. A reader whose engine is busy would do so.
func beReplica() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	x, err := redis.Open(redis.Config{URL: os.Getenv(redisOfReplica), NoSweep: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer x.Close()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(r) // the reader is the test
	}
	f, err := New(Config{
		Index: x, Leases: x, Name: os.Getenv(runAsReplica),
		Read: func(ctx context.Context, s ingest.Source, fence uint64) error {
			return writeOn(ctx, x, s, fence, func(seq uint64) {
				say(report{What: "reads", Pod: s.Pod, Rank: s.Rank, Fence: fence, Seq: seq})
			})
		},
		Observer: Observer{
			Failed: func(err error) { fmt.Fprintln(os.Stderr, os.Getenv(runAsReplica), err) },
			Started: func(s ingest.Source, fence uint64, took string) {
				say(report{What: "started", Pod: s.Pod, Rank: s.Rank, Fence: fence, Took: took})
			},
			Stopped: func(s ingest.Source, fence uint64, err error) {
				r := report{What: "stopped", Pod: s.Pod, Rank: s.Rank, Fence: fence}
				if err != nil {
					r.Err = err.Error()
				}
				say(r)
			},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := f.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// writeOn goes on with a rank's generation where it stands, or begins one.
func writeOn(ctx context.Context, x *redis.Index, s ingest.Source, fence uint64, told func(seq uint64)) error {
	life, err := x.Life(ctx, s.Pod, s.Rank)
	if err != nil {
		return err
	}
	seq := uint64(0)
	gen := life.Generation
	if gen == 0 {
		gen, err = x.Begin(ctx, s.Pod, s.Rank, fence)
	} else {
		seq, err = x.TakeOver(ctx, gen, fence)
	}
	if err != nil {
		return err
	}
	told(seq)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
		seq++
		key := blockkey.Key(seq<<20 | uint64(s.Rank))
		batch := store.Batch{
			Pod: s.Pod, Rank: s.Rank, Model: s.Model, Guard: &store.Guard{Generation: gen, Fence: fence, Seq: seq},
			Ops: []store.Op{{Kind: store.Add, Keys: []blockkey.Key{key}}},
		}
		err := x.Apply(ctx, batch)
		for errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil { // as after a stop that outlasts a timeout
			err = x.Apply(ctx, batch)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// process is a replica in a process of its own.
type process struct {
	*exec.Cmd
	name string
	said chan<- saying
}

type saying struct {
	by string
	report
	at time.Time
}

func startProcess(t *testing.T, name, url string, said chan<- saying) *process {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(), runAsReplica+"="+name, redisOfReplica+"="+url)
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			s := saying{by: name, at: time.Now()}
			if json.Unmarshal(lines.Bytes(), &s.report) == nil {
				said <- s
			}
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait()
	})
	return &process{Cmd: cmd, name: name, said: said}
}

// board follows what the replicas say.
type board struct {
	t    *testing.T
	said chan saying
	// reads has the reader of each rank under the highest fence of all, and where it went on.
	// Lines of several processes come in any order.
	reads  map[store.RankRef]saying
	newest map[store.RankRef]uint64
	log    []saying
}

// until waits until ok holds.
func (b *board) until(what string, ok func() bool) {
	b.t.Helper()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case s := <-b.said:
			b.log = append(b.log, s)
			r := store.RankRef{Pod: s.Pod, Rank: s.Rank}
			switch s.What {
			case "reads":
				if s.Fence > b.newest[r] {
					b.newest[r], b.reads[r] = s.Fence, s
				}
			case "stopped":
				if b.reads[r].by == s.by && b.reads[r].Fence == s.Fence {
					delete(b.reads, r)
				}
			}
		case <-end:
			b.t.Fatalf("%s did not come; read are %v", what, b.reads)
		}
	}
}

// count is how many ranks are read by a replica.
func (b *board) count(name string) (n int) {
	for _, s := range b.reads {
		if s.by == name {
			n++
		}
	}
	return n
}

// TestProcesses runs three replicas as processes of their own on a real Redis. One is
// killed, one is stopped and comes back, one ends in order. What each rank's generation
// says in the end is one unbroken series.
func TestProcesses(t *testing.T) {
	s := redistest.Start(t)
	x := must.Get(redis.Open(redis.Config{URL: s.URL(), NoSweep: true}))(t)
	defer x.Close()
	const ranks = 12
	must.Get(x.Register(t.Context(), store.Pod{Name: "a:1", Model: "m", Events: "tcp://*:5557", Ranks: ranks}))(t)
	life := func(rank int) store.Life {
		l := must.Get(x.Life(t.Context(), "a:1", rank))(t)
		return l
	}
	b := &board{t: t, said: make(chan saying, 10000), reads: map[store.RankRef]saying{}, newest: map[store.RankRef]uint64{}}
	all := map[string]*process{}
	for _, name := range []string{"one", "two", "three"} {
		all[name] = startProcess(t, name, s.URL(), b.said)
	}
	b.until("an even spread", func() bool {
		return len(b.reads) == ranks && b.count("one") == 4 && b.count("two") == 4 && b.count("three") == 4
	})
	var before [ranks]store.Life
	for r := range before {
		before[r] = life(r)
	}

	// One is killed as by kill -9.
	must.OK(t, all["one"].Process.Kill())
	killed := time.Now()
	b.until("the takeover of the dead", func() bool { return b.count("two")+b.count("three") == ranks })
	t.Logf("the ranks of a killed replica were taken over in %v", time.Since(killed).Round(time.Millisecond))
	for r := range before {
		said := b.reads[store.RankRef{Pod: "a:1", Rank: r}]
		if l := life(r); l.Generation != before[r].Generation || l.Seq < before[r].Seq {
			t.Errorf("rank %d: %+v became %+v", r, before[r], l)
		}
		if said.at.After(killed) && said.Seq < before[r].Seq {
			t.Errorf("rank %d goes on behind %d; %d had been applied before", r, said.Seq, before[r].Seq)
		}
	}

	// Another is stopped, so long that it is taken for dead. When it goes on, it
	// writes under the fences that it had.
	stop := all["two"].Process
	must.OK(t, stop.Signal(syscall.SIGSTOP))
	b.until("the takeover of the stopped", func() bool { return b.count("three") == ranks })
	must.OK(t, stop.Signal(syscall.SIGCONT))
	b.until("an even spread again", func() bool { return b.count("two") == ranks/2 && b.count("three") == ranks/2 })
	stale := 0
	for _, s := range b.log {
		if s.by == "two" && s.What == "stopped" && s.Err == "" && s.Fence != 0 {
			continue
		}
		if s.by == "two" && s.What == "stopped" {
			if !strings.Contains(s.Err, store.ErrFenced.Error()) {
				t.Errorf("a reading of the stopped one ended with %q", s.Err)
			}
			stale++
		}
	}
	t.Logf("%d readings of the stopped replica were refused by their fence", stale)

	// The last of all ends in order.
	must.OK(t, all["three"].Process.Signal(syscall.SIGTERM))
	ended := time.Now()
	b.until("the takeover of the ended", func() bool { return b.count("two") == ranks })
	t.Logf("those of one that ended, in %v", time.Since(ended).Round(time.Millisecond))
	for r := range before {
		if l := life(r); l.Generation != before[r].Generation {
			t.Errorf("rank %d: the generation %d became %d", r, before[r].Generation, l.Generation)
		}
	}
	// Each reading had a fence of its own, and each replica's came one after the other.
	type reader struct {
		store.RankRef
		by string
	}
	type reading struct {
		store.RankRef
		fence uint64
	}
	fences, readings := map[reader]uint64{}, map[reading]string{}
	for _, s := range b.log {
		if s.What != "started" {
			continue
		}
		r := store.RankRef{Pod: s.Pod, Rank: s.Rank}
		if last := fences[reader{r, s.by}]; s.Fence <= last {
			t.Errorf("%v: %s read under the fence %d after %d", r, s.by, s.Fence, last)
		}
		fences[reader{r, s.by}] = s.Fence
		if other, ok := readings[reading{r, s.Fence}]; ok {
			t.Errorf("%v: %s and %s read under the fence %d", r, other, s.by, s.Fence)
		}
		readings[reading{r, s.Fence}] = s.by
	}
}
