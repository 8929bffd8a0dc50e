package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

var errCut = errors.New("cut off")

// scene is an index and the replicas that share it, in a bubble of synctest.
type scene struct {
	t     *testing.T
	index *memory.Index

	mu   sync.Mutex // protects all below
	cut  map[string]bool
	down bool
	// reading has the readers of each rank, with their fences: more than one while a replica is cut off.
	reading map[store.RankRef]map[string]uint64
	highest map[store.RankRef]uint64
	starts  int
	// answer is what Read returns at once, if anything.
	answer func(s ingest.Source, fence uint64) error
	// linger, unless nil, is what readings that are to end wait for.
	linger chan struct{}

	fault chan error // ends one reading that goes on, with what is sent
	wg    sync.WaitGroup
}

// pass lets time go by, and all come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func newScene(t *testing.T) *scene { return sceneOf(t, memory.Config{}) }

func sceneOf(t *testing.T, c memory.Config) *scene {
	x := must.Get(memory.New(c))(t)
	return &scene{t: t, index: x, cut: map[string]bool{}, reading: map[store.RankRef]map[string]uint64{}, highest: map[store.RankRef]uint64{}, fault: make(chan error)}
}

// line is a replica's way to the index.
type line struct {
	s    *scene
	name string
}

func (l line) Lease(ctx context.Context, c store.LeaseCall) (store.LeaseView, error) {
	l.s.mu.Lock()
	gone := l.s.cut[l.name] || l.s.down
	l.s.mu.Unlock()
	if gone {
		return store.LeaseView{}, errCut
	}
	return l.s.index.Lease(ctx, c)
}

// lives is an index that can be kept from saying how generations stand.
type lives struct {
	store.Index
	frozen atomic.Bool
	asked  atomic.Int64
}

func (x *lives) Life(ctx context.Context, pod string, rank int) (store.Life, error) {
	x.asked.Add(1)
	if x.frozen.Load() {
		<-ctx.Done()
		return store.Life{}, ctx.Err()
	}
	return x.Index.Life(ctx, pod, rank)
}

// replica is one that runs.
type replica struct {
	*Fleet
	stop   context.CancelFunc
	ended  chan error
	lapsed int
	failed atomic.Int64
	told   []string
}

func (s *scene) replica(name string, change ...func(*Config)) *replica {
	s.t.Helper()
	r := &replica{ended: make(chan error, 1)}
	c := Config{
		Index: s.index, Leases: line{s, name}, Name: name,
		Read: func(ctx context.Context, src ingest.Source, fence uint64) error {
			ref := store.RankRef{Pod: src.Pod, Rank: src.Rank}
			s.mu.Lock()
			if s.reading[ref] == nil {
				s.reading[ref] = map[string]uint64{}
			}
			if fence <= s.highest[ref] {
				s.t.Errorf("%v is read under the fence %d after %d", ref, fence, s.highest[ref])
			}
			s.highest[ref] = fence
			s.starts++
			answer := s.answer
			s.mu.Unlock()
			if answer != nil {
				if err := answer(src, fence); err != nil {
					return err
				}
			}
			s.mu.Lock()
			s.reading[ref][name] = fence
			s.mu.Unlock()
			var err error
			select {
			case <-ctx.Done():
				err = ctx.Err()
				s.mu.Lock()
				linger := s.linger
				s.mu.Unlock()
				if linger != nil {
					<-linger
				}
			case err = <-s.fault:
			}
			s.mu.Lock()
			delete(s.reading[ref], name)
			s.mu.Unlock()
			return err
		},
		Observer: Observer{
			Lapsed:     func(time.Duration) { r.lapsed++ },
			Failed:     func(error) { r.failed.Add(1) },
			Unreadable: func(pod string, err error) { r.told = append(r.told, pod) },
		},
	}
	for _, f := range change {
		f(&c)
	}
	f := must.Get(New(c))(s.t)
	r.Fleet = f
	ctx, cancel := context.WithCancel(s.t.Context())
	r.stop = cancel
	s.wg.Go(func() { r.ended <- f.Run(ctx) })
	return r
}

func (s *scene) pods(n, ranks int) {
	s.t.Helper()
	for i := range n {
		s.register(store.Pod{Name: fmt.Sprintf("10.0.0.%d:8000", i), Model: "m", Events: "tcp://*:5557", Ranks: ranks})
	}
}

func (s *scene) register(p store.Pod) {
	s.t.Helper()
	must.Get(s.index.Register(s.t.Context(), p))(s.t)
}

// loads is how many ranks each replica reads.
func (s *scene) loads() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for _, by := range s.reading {
		for name := range by {
			out[name]++
		}
	}
	return out
}

// once fails the test unless each of n ranks is read by exactly one replica.
func (s *scene) once(n int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	read := 0
	for ref, by := range s.reading {
		if len(by) > 1 {
			s.t.Errorf("%v is read by %v", ref, by)
		}
		read += len(by)
	}
	if read != n {
		s.t.Errorf("%d ranks are read, want %d", read, n)
	}
}

func (s *scene) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// ended waits for a replica to end.
func (s *scene) ended(r *replica) error {
	s.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(time.Hour): // of the bubble's
		s.t.Error("it has not ended")
		return nil
	}
}

// end ends all that runs.
func (s *scene) end(replicas ...*replica) {
	s.t.Helper()
	for _, r := range replicas {
		r.stop()
	}
	s.wg.Wait()
	if err := s.index.Close(); err != nil {
		s.t.Error(err)
	}
}

func TestReplicasShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(15, 2)
		a := s.replica("a")
		pass(time.Second)
		s.once(30)
		b, c := s.replica("b"), s.replica("c")
		pass(10 * time.Second)
		s.once(30)
		for name, n := range s.loads() {
			if n < 9 || n > 11 {
				t.Errorf("%s reads %d of 30", name, n)
			}
		}
		if got := a.Stats(); got.Replicas != 3 || got.Ranks != 30 || got.Unread != 0 || got.Reading != s.loads()["a"] {
			t.Errorf("got %+v", got)
		}
		// At rest nothing moves.
		before := s.starts
		pass(time.Minute)
		if s.starts != before {
			t.Errorf("%d ranks moved at rest", s.starts-before)
		}

		// One that ends leaves its ranks to the others at once.
		b.stop()
		pass(time.Second)
		s.once(30)
		if n := s.loads()["b"]; n != 0 {
			t.Errorf("b reads %d", n)
		}
		s.end(a, c)
		if err := s.ended(b); err != nil {
			t.Error(err)
		}
	})
}

// A replica that cannot be heard of is replaced within 3 s. It reads on, since it
// cannot know, under fences that are over; and stops when it hears of it.
func TestDeadReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(30, 1)
		a, b, c := s.replica("a"), s.replica("b"), s.replica("c")
		pass(10 * time.Second)
		s.once(30)
		had := s.loads()["c"]
		s.set(func() { s.cut["c"] = true })
		pass(3 * time.Second)
		s.mu.Lock()
		twice := 0
		for ref, by := range s.reading {
			if by["c"] == 0 {
				continue
			}
			if len(by) != 2 || by["c"] >= s.highest[ref] {
				t.Errorf("%v is read by %v", ref, by)
			}
			twice++
		}
		s.mu.Unlock()
		if twice != had || had == 0 {
			t.Errorf("%d of %d ranks have been taken over", twice, had)
		}
		s.set(func() { s.cut["c"] = false })
		pass(10 * time.Second)
		s.once(30)
		if n := s.loads()["c"]; n < 9 || n > 11 || c.lapsed != 1 {
			t.Errorf("c reads %d, and was told %d times that it had lapsed", n, c.lapsed)
		}
		s.end(a, b, c)
	})
}

// When the index was away for long, all replicas look dead. Each keeps what it had.
func TestIndexWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(30, 1)
		a, b, c := s.replica("a"), s.replica("b"), s.replica("c")
		pass(10 * time.Second)
		before := s.starts
		s.set(func() { s.down = true })
		pass(time.Minute)
		s.set(func() { s.down = false })
		pass(10 * time.Second)
		s.once(30)
		if s.starts != before || a.lapsed+b.lapsed+c.lapsed != 3 || a.failed.Load() == 0 {
			t.Errorf("%d ranks moved; told to have lapsed %d times", s.starts-before, a.lapsed+b.lapsed+c.lapsed)
		}
		s.end(a, b, c)
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(10, 2)
		limit := func(n int) func(*Config) { return func(c *Config) { c.MaxRanks = n } }
		a, b := s.replica("a", limit(5)), s.replica("b", limit(8))
		pass(10 * time.Second)
		s.once(13)
		if l := s.loads(); l["a"] != 5 || l["b"] != 8 || a.Stats().Unread != 7 {
			t.Errorf("got %v, %+v", l, a.Stats())
		}
		c := s.replica("c")
		pass(10 * time.Second)
		s.once(20)
		s.end(a, b, c)
	})
}

func TestPodsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(4, 1)
		s.register(store.Pod{Name: "no-events", Model: "m"})
		s.register(store.Pod{Name: "odd", Model: "m", Events: "tcp://*:1"})
		a, b := s.replica("a"), s.replica("b")
		pass(10 * time.Second)
		s.once(4)
		if !slices.Equal(a.told, []string{"odd"}) {
			t.Errorf("told of %v", a.told)
		}
		must.Get(s.index.Retire(t.Context(), "10.0.0.2:8000"))(t)
		pass(2 * time.Second)
		s.once(3)
		v, err := s.index.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "test"}, TTL: time.Second})
		if err != nil || len(v.Leases) != 3 {
			t.Errorf("the leases are %v, %v", v.Leases, err)
		}
		// Other endpoints are read anew, under a new fence.
		before := s.starts
		s.register(store.Pod{Name: "10.0.0.1:8000", Model: "m", Events: "tcp://*:7000"})
		pass(2 * time.Second)
		s.once(3)
		if s.starts != before+1 {
			t.Errorf("%d readings began", s.starts-before)
		}
		s.end(a, b)
	})
}

// A reading that ends is begun again, with growing pauses; one that is refused gets a
// fence above the one that refused it.
func TestReadingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(1, 1)
		const pod = "10.0.0.0:8000"
		must.Get(s.index.Begin(t.Context(), pod, 0, 1<<40))(t)
		var refused, fence uint64
		s.answer = func(_ ingest.Source, f uint64) error {
			if f <= 1<<40 {
				refused++
				return store.ErrFenced
			}
			fence = f
			return nil
		}
		a := s.replica("a")
		pass(3 * time.Second)
		s.once(1)
		if refused != 1 || fence != 1<<40+1 {
			t.Errorf("refused %d times, then the fence is %d", refused, fence)
		}
		s.end(a)

		s = newScene(t)
		s.pods(1, 1)
		s.answer = func(ingest.Source, uint64) error { return errCut }
		a = s.replica("a")
		pass(5 * time.Minute)
		if s.starts < 10 || s.starts > 30 {
			t.Errorf("tried %d times in 5 minutes", s.starts)
		}
		s.set(func() { s.answer = nil })
		pass(maxPause + time.Second)
		s.once(1)
		s.end(a)
	})
}

// An index that does not say which fences were in the way keeps the replica from
// beginning those ranks again, and from nothing else. The replica goes on to live.
func TestFencesCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(20, 1)
		const high = 1 << 40
		for i := range 20 {
			must.Get(s.index.Begin(t.Context(), fmt.Sprintf("10.0.0.%d:8000", i), 0, high))(t)
		}
		s.answer = func(_ ingest.Source, fence uint64) error {
			if fence <= high {
				return store.ErrFenced
			}
			return nil
		}
		x := &lives{Index: s.index}
		x.frozen.Store(true)
		a := s.replica("a", func(c *Config) { c.Index = x })
		pass(time.Minute)
		s.once(0)
		// It is reported once a beat, not for each rank.
		if n := a.failed.Load(); a.lapsed != 0 || n == 0 || n > 121 || s.starts != 20 {
			t.Errorf("lapsed %d times, told of %d failures, began %d readings", a.lapsed, n, s.starts)
		}
		x.frozen.Store(false)
		pass(5 * time.Second)
		s.once(20)
		if s.starts != 40 {
			t.Errorf("began %d readings", s.starts)
		}
		s.end(a)
	})
}

// A lease call that fails ends the beat. The figures are those of now all the same.
func TestLeaseCallFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(2, 1)
		x := &lives{Index: s.index}
		a := s.replica("a", func(c *Config) { c.Index = x })
		pass(time.Second)
		s.once(2)
		s.set(func() { s.down = true })
		s.fault <- store.ErrFenced
		s.pods(3, 1)
		was := a.Stats().Asked
		pass(10 * time.Second)
		if got, want := a.Stats(), (Stats{Replicas: 1, Ranks: 3, Reading: 1, Asked: was}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if n := x.asked.Load(); n != 0 || a.failed.Load() == 0 {
			t.Errorf("asked for %d fences, told of %d failures", n, a.failed.Load())
		}
		s.set(func() { s.down = false })
		pass(3 * time.Second)
		s.once(3)
		if n := x.asked.Load(); n != 1 || a.Stats().Reading != 3 {
			t.Errorf("asked for %d fences, %+v", n, a.Stats())
		}
		s.end(a)
	})
}

// Pods that come when all replicas are full are unread, though there is nothing to do
// about it.
func TestUnreadIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(5, 1)
		a := s.replica("a", func(c *Config) { c.MaxRanks = 5 })
		pass(10 * time.Second)
		for _, pods := range []int{5, 8, 9} {
			s.pods(pods, 1)
			pass(10 * time.Second)
			if got := a.Stats(); got.Unread != pods-5 || got.Ranks != pods {
				t.Errorf("%d pods: %+v", pods, got)
			}
		}
		s.end(a)
	})
}

// Ranks for which the index has no room take neither a replica's life nor the ranks of
// one that has died.
func TestTooManyRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sceneOf(t, memory.Config{MaxHolders: 4})
		s.pods(4, 1)
		a := s.replica("a")
		pass(5 * time.Second)
		s.once(4)
		s.pods(6, 1)
		pass(time.Minute)
		s.once(4)
		if got := a.Stats(); time.Since(got.Asked) > time.Minute/2 || got.Unread != 2 || a.lapsed != 0 {
			t.Errorf("%d lapses, %+v", a.lapsed, got)
		}
		b := s.replica("b")
		pass(10 * time.Second)
		s.set(func() { s.cut["a"] = true })
		pass(time.Minute)
		if got := b.Stats(); got.Reading != 4 || got.Unread != 2 {
			t.Errorf("the one that lives: %+v", got)
		}
		s.end(a, b)
	})
}

// When the ingester is closed nothing more is taken to be read.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(2, 1)
		a := s.replica("a")
		pass(time.Second)
		s.once(2)
		s.pods(3, 1)
		s.fault <- ingest.ErrClosed
		if err := s.ended(a); !errors.Is(err, ingest.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		s.once(0)
		if s.starts != 2 || a.Stats().Reading != 0 {
			t.Errorf("%d readings began, %+v", s.starts, a.Stats())
		}
		v, err := s.index.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "test"}, TTL: time.Second})
		if err != nil || len(v.Readers) != 1 {
			t.Errorf("the readers are %v, %v", v.Readers, err)
		}
		s.end(a)
	})
}

// A rank is another's only when its reading has ended, and can come back.
func TestHandOverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(8, 1)
		a := s.replica("a")
		pass(10 * time.Second)
		s.once(8)
		let := make(chan struct{})
		s.set(func() { s.linger = let })
		b := s.replica("b")
		pass(10 * time.Second)
		s.once(8)
		if n := s.loads()["a"]; n != 8 || s.starts != 8 {
			t.Errorf("a reads %d, %d readings began", n, s.starts)
		}
		v := must.Get(s.index.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "a", Ranks: 10_000}, TTL: 2 * time.Second}))(t)
		for r, l := range v.Leases {
			if l.Reader != "a" {
				t.Errorf("%v is %s's", r, l.Reader)
			}
		}
		close(let)
		pass(10 * time.Second)
		s.once(8)
		if l := s.loads(); l["a"] != 4 || l["b"] != 4 {
			t.Errorf("got %v", l)
		}
		b.stop()
		pass(10 * time.Second)
		s.once(8)
		if s.starts != 16 {
			t.Errorf("%d readings began", s.starts)
		}
		s.end(a)
	})
}

// calls are leases that keep what they were called for.
type calls struct {
	store.Leases
	got []store.LeaseCall
}

func (c *calls) Lease(ctx context.Context, l store.LeaseCall) (store.LeaseView, error) {
	c.got = append(c.got, l)
	return c.Leases.Lease(ctx, l)
}

// Ranks to be given up are given up as fast as the calls allow. None of them is begun
// again, not even one that waits for its next try.
func TestGivingUpMany(t *testing.T) {
	x := must.Get(memory.New(memory.Config{}))(t)
	defer x.Close()
	c := &calls{Leases: x}
	f := must.Get(New(Config{Index: x, Leases: c, Name: "a", TTL: time.Minute, Read: func(ctx context.Context, s ingest.Source, _ uint64) error {
		t.Errorf("%v is read", s)
		return nil
	}}))(t)
	const extra = 100
	ranks := make([]store.RankRef, store.MaxLeaseRanks+extra)
	for i := range ranks {
		ranks[i] = store.RankRef{Pod: fmt.Sprint("p", i)}
	}
	call := func(p plan) store.LeaseCall {
		t.Helper()
		if !f.call(t.Context(), &p) {
			t.Fatal("the call has failed")
		}
		f.settle(t.Context())
		return c.got[len(c.got)-1]
	}
	for _, some := range [][]store.RankRef{ranks[:extra], ranks[extra:]} {
		must.Get(x.Lease(t.Context(), store.LeaseCall{Reader: store.Reader{Name: "a"}, TTL: time.Minute, Acquire: some}))(t)
	}
	call(plan{})
	if len(f.failed) != len(ranks) {
		t.Fatalf("%d ranks are to be begun, want %d", len(f.failed), len(ranks))
	}
	if got := call(plan{release: ranks}); len(got.Release) != store.MaxLeaseRanks || len(got.Acquire) != 0 || len(f.giving) != extra {
		t.Errorf("%d are released, %d acquired, %d wait", len(got.Release), len(got.Acquire), len(f.giving))
	}
	if got := call(plan{}); len(got.Release) != extra || len(got.Acquire) != 0 || len(f.giving) != 0 {
		t.Errorf("%d are released, %d acquired, %d wait", len(got.Release), len(got.Acquire), len(f.giving))
	}
	if len(f.leases) != 0 || len(f.failed) != 0 {
		t.Errorf("%d leases are left, %d to be begun", len(f.leases), len(f.failed))
	}
}

// A reading that does not end does not make others wait for ever.
func TestStubbornReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pods(1, 1)
		let := make(chan struct{})
		s.answer = func(ingest.Source, uint64) error { <-let; return errCut }
		a := s.replica("a")
		pass(time.Second)
		a.stop()
		if err := s.ended(a); err != nil {
			t.Error(err)
		}
		close(let)
		b := s.replica("b")
		pass(time.Second)
		s.end(b)
	})
}

func TestConfig(t *testing.T) {
	x := must.Get(memory.New(memory.Config{}))(t)
	defer x.Close()
	read := func(context.Context, ingest.Source, uint64) error { return nil }
	for what, c := range map[string]Config{
		"nothing":      {},
		"no Read":      {Index: x, Leases: x},
		"a short TTL":  {Index: x, Leases: x, Read: read, TTL: time.Millisecond},
		"a slow beat":  {Index: x, Leases: x, Read: read, TTL: time.Second, Beat: time.Second},
		"no ranks":     {Index: x, Leases: x, Read: read, MaxRanks: -1},
		"no hand-over": {Index: x, Leases: x, Read: read, HandOver: -1},
		"a bad name":   {Index: x, Leases: x, Read: read, Name: "a b"},
		"no stop":      {Index: x, Leases: x, Read: read, Stop: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	f, err := New(Config{Index: x, Leases: x, Read: read})
	if err != nil || f.config.Name == "" {
		t.Error(f.config.Name, err)
	}
}
