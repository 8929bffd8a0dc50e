package ingest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
)

// flatVariable is the environment variable that makes TestFanInIsFlat a long one: ranks
// and minutes, as in 500,4. They are on TCP then, and with an index in memory and in
// Redis, half of the time each.
const flatVariable = "KVATLAS_TEST_FAN_IN"

// fanIn are ranks that publish, and an Ingester that reads them all. Each has a cache of
// 256 engine blocks, all of which 16 messages replace.
type fanIn struct {
	t     *testing.T
	x     store.Index
	in    *Ingester
	pubs  []*zmq.Publisher
	loads []load
	pods  []string
	seq   uint64
}

func newFanIn(t *testing.T, x store.Index, ranks int, tcp bool) *fanIn {
	t.Helper()
	f := &fanIn{t: t, x: x, loads: make([]load, ranks)}
	var err error
	// A rank that is late is not to be asked for a replay. That begins far behind what it has
	// had, and its generation with it.
	if f.in, err = New(Config{Index: x, RelayMessages: 32, Quiet: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		if err := f.in.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range f.pubs {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	dir := t.TempDir()
	for i := range ranks {
		f.loads[i].keep = 16
		s := Source{Pod: fmt.Sprint("pod-", i), Model: testModel, Events: fmt.Sprintf("ipc://%s/%d", dir, i), Replay: fmt.Sprintf("ipc://%s/r%d", dir, i)}
		if tcp {
			s.Events, s.Replay = redistest.FreeEndpoint(t, 1), redistest.FreeEndpoint(t, 1)
		}
		must.Get(x.Register(t.Context(), store.Pod{Name: s.Pod, Model: testModel}))(t)
		p := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: s.Events, Replay: s.Replay, Keep: 16, Queue: 512}))(t)
		f.pubs, f.pods = append(f.pubs, p), append(f.pods, s.Pod)
		reading.Go(func() {
			if err := f.in.Read(ctx, s, 1); ctx.Err() == nil {
				t.Errorf("reading %s has ended: %v", s.Pod, err)
			}
		})
	}
	for _, p := range f.pubs {
		f.until("a connection", func() bool { return p.Subscribers() > 0 })
	}
	return f
}

func (f *fanIn) until(what string, ok func() bool) {
	f.t.Helper()
	eventually.True(f.t, what, ok)
}

// round is a message of each rank.
func (f *fanIn) round() {
	for i, p := range f.pubs {
		p.Publish(zmq.Message{Seq: f.seq, Payload: f.loads[i].next()})
	}
	f.seq++
	f.until("room", func() bool { return f.in.Stats().QueueBytes < 16<<20 })
}

// burst is many messages of each rank at once. Its batches become as large as they can, as they
// do for a rank that falls behind. So all that is as large as they are becomes so too.
func (f *fanIn) burst() {
	const messages = 256
	for i, p := range f.pubs {
		for n := range uint64(messages) {
			p.Publish(zmq.Message{Seq: f.seq + n, Payload: f.loads[i].next()})
		}
		f.until("room", func() bool { return f.in.Stats().QueueBytes < 16<<20 })
	}
	f.seq += messages
}

// settle waits until all that was sent is in the index.
func (f *fanIn) settle() {
	f.t.Helper()
	for _, pod := range f.pods {
		f.until("what was sent", func() bool {
			life, err := f.x.Life(f.t.Context(), pod, 0)
			return err == nil && life.Seq == f.seq
		})
	}
}

// flatSample is the memory of the process at a time. It has the heap that is in use when
// everything that was sent is applied and the garbage is collected. It also has what the
// process had in RAM before that.
type flatSample struct{ heap, resident int64 }

func (f *fanIn) sample() flatSample {
	f.settle()
	s := flatSample{resident: residentBytes()}
	runtime.GC()
	runtime.GC() // of what pools kept through the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap = int64(m.HeapAlloc)
	return s
}

// TestFanInIsFlat: the memory for many ranks does not grow with what they send, once their
// caches and rings are full. It is of the whole process, publishers included.
func TestFanInIsFlat(t *testing.T) {
	ranks, samples, rounds := 12, 4, 48
	pause := time.Nanosecond // a round takes this long at least
	long := os.Getenv(flatVariable)
	if long != "" {
		a, b, _ := strings.Cut(long, ",")
		n, err := strconv.Atoi(a)
		minutes, err2 := strconv.ParseFloat(b, 64)
		if err != nil || err2 != nil || n < 1 || minutes <= 0 {
			t.Fatalf("%s is %q, it is RANKS,MINUTES", flatVariable, long)
		}
		// Two messages a second of each.
		ranks, samples, rounds, pause = n, max(4, int(minutes*60/2/10)), 20, 500*time.Millisecond
	}
	indexes := map[string]func(t *testing.T) store.Index{"memory": func(t *testing.T) store.Index {
		t.Helper()
		x := must.Get(memory.New(memory.Config{}))(t)
		return x
	}}
	if long != "" {
		indexes["redis"] = func(t *testing.T) store.Index {
			t.Helper()
			x := must.Get(redis.Open(redis.Config{URL: redistest.Start(t).URL()}))(t)
			return x
		}
	}
	for name, open := range indexes {
		t.Run(name, func(t *testing.T) {
			x := open(t)
			t.Cleanup(func() { _ = x.Close() })
			f := newFanIn(t, x, ranks, long != "")
			t.Logf("%d ranks that are connected and silent: %.1f MiB in RAM", ranks, float64(residentBytes())/1024/1024)
			f.burst() // caches, rings and buffers get full
			first := f.sample()
			t.Logf("%6s %9s %14s %10s %10s", "after", "messages", "engine blocks", "heap MiB", "RSS MiB")
			began, largest := time.Now(), first
			pace := time.NewTicker(pause)
			defer pace.Stop()
			for i := range samples {
				for range rounds {
					f.round()
					<-pace.C
				}
				s := f.sample()
				if i < samples/2 {
					first.heap = max(first.heap, s.heap)
				}
				largest = flatSample{max(largest.heap, s.heap), max(largest.resident, s.resident)}
				n := int(f.seq) * ranks
				t.Logf("%6v %9d %14d %10.1f %10.1f", time.Since(began).Round(time.Second), n, 16*n, float64(s.heap)/1024/1024, float64(s.resident)/1024/1024)
			}
			// The second half has no more than the first, but for what happens to be under way.
			if limit := first.heap + first.heap/5; largest.heap > limit {
				t.Errorf("the heap has grown from %d to %d bytes", first.heap, largest.heap)
			}
			for _, r := range f.in.Stats().Ranks {
				if r.Gaps > 0 || r.Generations > 1 || r.Undecodable > 0 {
					t.Errorf("not all of it came: %+v", r)
				}
			}
		})
	}
}
