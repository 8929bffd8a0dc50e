package ingest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// eventsVariable is the environment variable that says how many events
// TestReleasesUnderFaults publishes altogether.
const eventsVariable = "KVATLAS_TEST_EVENTS"

// pagedIndex is an index that can be walked through.
type pagedIndex interface {
	store.Index
	store.Pager
}

// faulty is an index between which and its user things go wrong.
type faulty struct {
	pagedIndex
	dead   atomic.Bool  // the process has been killed: nothing is asked or answered any more
	paused sync.RWMutex // locked while calls hang
}

var errKilled = fmt.Errorf("%w: killed", store.ErrUnavailable)

func (f *faulty) Apply(ctx context.Context, batches ...store.Batch) error {
	f.paused.RLock()
	defer f.paused.RUnlock()
	if f.dead.Load() {
		return errKilled
	}
	err := f.pagedIndex.Apply(ctx, batches...)
	if f.dead.Load() {
		return errKilled // it has been done, without an answer
	}
	return err
}

// enginePod is a pod with an engine that really publishes, and what it has published.
type enginePod struct {
	name    string
	o       enginetest.Options
	pub     *enginetest.Publisher
	cache   *fakeCache
	log     [][]enginetest.Event // of this life, by sequence
	ts      float64
	links   [2]*enginetest.Link // events, replay
	mu      sync.Mutex          // protects gen, from, began
	gen     store.Generation
	from    uint64 // with which sequence the generation's events begin
	started bool
	began   map[Reason]int
}

func (p *enginePod) start(t *testing.T, rng *rand.Rand) {
	p.pub = enginetest.Start(t, p.o)
	p.cache = newFakeCache(rng, p.o.Release != enginetest.Release{Engine: "vllm", Version: "0.9.0"} && p.o.Release != enginetest.Release{Engine: "sglang", Version: "0.5.5"})
	p.cache.unique = p.o.Release.Engine == "sglang"
	p.log = nil
}

func (p *enginePod) publish(n int) {
	var events []enginetest.Event
	for range n {
		events = append(events, p.cache.event())
	}
	p.ts++
	p.pub.Publish(p.ts, events...)
	p.log = append(p.log, events)
}

// want is what the index must hold: what a plain model does of the events since the
// generation has begun.
func (p *enginePod) want() *plain {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &plain{blocks: map[int64]*cached{}, unique: p.cache.unique}
	if p.started && p.from < uint64(len(p.log)) {
		for _, events := range p.log[p.from:] {
			m.apply(events)
		}
	}
	return m
}

func (p *enginePod) source() Source {
	return Source{
		Pod: p.name, Model: testModel, Engine: p.o.Release.Engine,
		Events: fmt.Sprintf("tcp://127.0.0.1:%d", p.links[0].Port), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", p.links[1].Port), Topic: "kv",
	}
}

// fleet is an Ingester that reads some pods, as one process does.
type fleet struct {
	in     *Ingester
	index  *faulty
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func startFleet(t *testing.T, x pagedIndex, c Config, pods []*enginePod, fence uint64) *fleet {
	t.Helper()
	f := &fleet{index: &faulty{pagedIndex: x}}
	by := map[string]*enginePod{}
	for _, p := range pods {
		by[p.name] = p
	}
	c.Index = f.index
	c.Observer = Observer{
		Began: func(pod string, _ int, gen store.Generation, r Reason) {
			p := by[pod]
			p.mu.Lock()
			defer p.mu.Unlock()
			p.gen, p.started = gen, false
			p.began[r]++
		},
		Started: func(pod string, _ int, gen store.Generation, seq uint64) {
			p := by[pod]
			p.mu.Lock()
			defer p.mu.Unlock()
			p.gen, p.from, p.started = gen, seq, true
		},
		TookOver: func(pod string, _ int, gen store.Generation, _ uint64) {
			p := by[pod]
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.gen != gen {
				t.Errorf("%s: generation %d was taken over, the last that began is %d", pod, gen, p.gen)
			}
		},
		Undecodable: func(pod string, _ int, seq uint64, n int, err error) {
			t.Errorf("%s: message %d: %d events: %v", pod, seq, n, err)
		},
	}
	var err error
	if f.in, err = New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for _, p := range pods {
		f.wg.Go(func() {
			if err := f.in.Read(ctx, p.source(), fence); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: Read returned %v", p.name, err)
			}
		})
	}
	return f
}

// kill ends the process without a last word to the index.
func (f *fleet) kill() {
	f.index.dead.Store(true)
	f.stop()
}

func (f *fleet) stop() {
	f.cancel()
	f.wg.Wait()
	f.in.Close()
}

// TestReleasesUnderFaults has the publishers of all releases publish random events under
// faults. Processes are killed and started again, the index hangs, the reader dies and
// another one takes over, and links are cut and replays too. In the end the index must
// hold for each pod what a plain model holds of the events since its generation began.
func TestReleasesUnderFaults(t *testing.T) {
	total := 12_000
	if testing.Short() {
		total = 700 // Start skips
	}
	if s := os.Getenv(eventsVariable); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%s: %v", eventsVariable, err)
		}
		total = n
	}
	server := redistest.Start(t)
	x := must.Get(redis.Open(redis.Config{URL: "redis://" + server.Addr}))(t)
	defer x.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))

	must.Get(x.EnsureModel(t.Context(), store.ModelInfo{Name: testModel, BlockSize: indexBlock, Scheme: store.SchemeNative}))(t)
	var pods []*enginePod
	for i, r := range enginetest.Releases {
		ports := [2]int{redistest.FreePort(t), redistest.FreePort(t)}
		p := &enginePod{name: r.String(), began: map[Reason]int{}, o: enginetest.Options{
			Release: r, Endpoint: fmt.Sprintf("tcp://*:%d", ports[0]), Replay: fmt.Sprintf("tcp://*:%d", ports[1]), Topic: "kv@" + r.String(),
			BufferSteps: []int{200, 10_000, 10_000}[i%3],
		}}
		for j := range p.links {
			p.links[j] = enginetest.NewLink(t, ports[j])
		}
		must.Get(x.Register(t.Context(), store.Pod{Name: p.name, Model: testModel}))(t)
		p.start(t, rng)
		pods = append(pods, p)
	}
	config := Config{
		QueueMessages: 100, WindowMessages: 32, Quiet: 100 * time.Millisecond, ReplayTries: 2, ReplayIdle: 300 * time.Millisecond,
		Wire: zmq.Config{Heartbeat: 300 * time.Millisecond, MaxBackoff: 200 * time.Millisecond},
	}
	fence := uint64(1)
	f := startFleet(t, x, config, pods, fence)
	faults := map[string]int{}
	published, lastFault := 0, 0
	every := max(total/60, 50)
	for published < total {
		p := pods[rng.IntN(len(pods))]
		n := 1 + rng.IntN(6)
		p.publish(n)
		published += n
		if published-lastFault < every {
			continue
		}
		lastFault = published
		switch fault := []string{"restart", "restart at once", "pause", "kill", "cut link", "cut replay link", "hold link", "cut replays", "heal replays", "burn"}[rng.IntN(10)]; fault {
		case "restart":
			faults[fault]++
			p.pub.Flush()
			p.pub.Kill()
			p.start(t, rng)
		case "restart at once":
			// And beyond the old numbers before a reader is connected.
			faults[fault]++
			next := len(p.log)
			p.pub.Kill()
			p.links[0].Hold()
			p.start(t, rng)
			for range min(next+rng.IntN(10), 300) {
				p.publish(1)
				published++
			}
			p.pub.Flush()
			p.links[0].Release()
			p.links[0].Cut()
		case "pause":
			faults[fault]++
			f.index.paused.Lock()
			for range 400 {
				pods[rng.IntN(len(pods))].publish(1)
				published++
			}
			for _, p := range pods {
				p.pub.Flush()
			}
			f.index.paused.Unlock()
		case "kill":
			faults[fault]++
			f.kill()
			fence++
			f = startFleet(t, x, config, pods, fence)
		case "cut link":
			faults[fault]++
			p.links[0].Cut()
		case "cut replay link":
			faults[fault]++
			p.links[1].Cut()
		case "hold link":
			faults[fault]++
			p.links[0].Hold()
			for range 150 {
				p.publish(1)
				published++
			}
			p.pub.Flush()
			p.links[0].Cut()
			p.links[0].Release()
		case "cut replays":
			faults[fault]++
			p.pub.Cut(rng.IntN(50), rng.IntN(2) == 0)
		case "heal replays":
			for _, p := range pods {
				p.pub.Cut(-1, false)
			}
		case "burn":
			if p.o.Release.Engine == "vllm" {
				faults[fault]++
				p.pub.Burn()
				p.log = append(p.log, nil)
				p.publish(1)
			}
		}
	}
	for _, p := range pods {
		p.pub.Cut(-1, false)
		p.publish(1)
	}
	t.Logf("%d events published, faults %v", published, faults)
	defer func() { f.stop() }()
	for _, p := range pods {
		next := p.pub.Flush()
		if next != uint64(len(p.log)) {
			t.Fatalf("%s has published %d messages, not %d", p.name, next, len(p.log))
		}
		eventually.NoError(t, p.name, func() error {
			life := must.Get(x.Life(t.Context(), p.name, 0))(t)
			got := must.Get(held(t.Context(), x, p.name, 0))(t)
			diff := differ(got, p.want().keys())
			p.mu.Lock() // the reader may still begin generations
			defer p.mu.Unlock()
			switch {
			case life.Seq != next:
				return fmt.Errorf("the watermark is %d, not %d; generations began %v; %+v", life.Seq, next, p.began, f.in.Stats())
			case diff != "":
				return fmt.Errorf("%s; generations began %v; %+v", diff, p.began, f.in.Stats())
			case life.Generation != p.gen:
				return fmt.Errorf("generation %d, and %d was the last that began", life.Generation, p.gen)
			}
			t.Logf("%-14s %5d messages of its last life, generation from %d; %d keys in gpu, %d in cpu; began %v", p.name, len(p.log), p.from, len(got[store.GPU]), len(got[store.CPU]), p.began)
			return nil
		})
	}
}
