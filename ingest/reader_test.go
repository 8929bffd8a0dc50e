package ingest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/store"
)

// stage is an Ingester that reads one rank of a publisher within the process.
type stage struct {
	t      *testing.T
	x      store.Index
	in     *Ingester
	source Source
	o      zmq.PublisherConfig
	pub    *zmq.Publisher
	cache  *fakeCache
	log    [][]enginetest.Event
	seq    uint64
	ended  chan error // what Read has returned
	cancel context.CancelFunc

	mu   sync.Mutex // protects all below
	told []string
	from uint64
}

func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

// heard reports whether something that begins like this has been told.
func (s *stage) heard(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.told, func(t string) bool { return strings.HasPrefix(t, what) })
}

func newStage(t *testing.T, x store.Index, replay bool, c Config) *stage {
	t.Helper()
	dir := t.TempDir()
	s := &stage{t: t, x: x, ended: make(chan error, 1), cache: newFakeCache(rand.New(rand.NewPCG(7, 8)), true)}
	s.source = Source{Pod: "pod", Model: testModel, Events: "ipc://" + filepath.Join(dir, "e")}
	s.o = zmq.PublisherConfig{Endpoint: s.source.Events}
	if replay {
		s.source.Replay = "ipc://" + filepath.Join(dir, "r")
		s.o.Replay = s.source.Replay
	}
	c.Index = x
	if c.Quiet == 0 {
		c.Quiet = 50 * time.Millisecond
	}
	if c.ReplayPatience == 0 {
		c.ReplayPatience = time.Minute // of a machine that is busy
	}
	c.Wire.MaxBackoff = 60 * time.Millisecond
	c.Observer = Observer{
		Began: func(_ string, _ int, _ store.Generation, r Reason) { s.note("began %v", r) },
		Started: func(_ string, _ int, _ store.Generation, seq uint64) {
			s.note("started %d", seq)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.from = seq
		},
		TookOver:     func(_ string, _ int, _ store.Generation, next uint64) { s.note("took over %d", next) },
		Gap:          func(_ string, _ int, first, next uint64) { s.note("gap %d %d", first, next) },
		Doubted:      func(_ string, _ int, live, next uint64) { s.note("doubted %d %d", live, next) },
		Undecodable:  func(_ string, _ int, seq uint64, n int, err error) { s.note("undecodable %d %d %v", seq, n, err) },
		OtherRank:    func(_ string, rank, named int) { s.note("other rank %d %d", rank, named) },
		Failed:       func(_ string, _ int, err error) { s.note("failed %v", err) },
		Events:       func(_ string, _ int, k event.Kind, n int) { s.note("events %d %d", k, n) },
		Lag:          func(_ string, _ int, lag time.Duration) { s.note("lag") },
		Replayed:     func(_ string, _ int, from uint64, n int, err error) { s.note("replayed %d %d %v", from, n, err) },
		Connected:    func(string, int, string) { s.note("connected") },
		Disconnected: func(_ string, _ int, err error) { s.note("disconnected %v", err) },
	}
	s.in = newIngester(t, c)
	s.publisher()
	t.Cleanup(func() { s.pub.Close() })
	return s
}

// publisher begins a life of the engine.
func (s *stage) publisher() {
	s.t.Helper()
	if s.pub != nil {
		s.pub.Close()
	}
	var err error
	if s.pub, err = zmq.NewPublisher(s.o); err != nil {
		s.t.Fatal(err)
	}
	s.cache = newFakeCache(rand.New(rand.NewPCG(9, 10)), true)
	s.log, s.seq = nil, 0
}

// publisher0 goes on with a publisher that has published nothing yet.
func (s *stage) publisher0(p *zmq.Publisher) {
	s.pub, s.cache = p, newFakeCache(rand.New(rand.NewPCG(9, 10)), true)
	s.log, s.seq = nil, 0
}

// read begins to read.
func (s *stage) read(fence uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.ended <- s.in.Read(ctx, s.source, fence) }()
	s.t.Cleanup(cancel)
	s.until("a connection", func() bool { return s.pub.Subscribers() > 0 })
}

// stop ends reading.
func (s *stage) stop() {
	s.t.Helper()
	s.cancel()
	if err := <-s.ended; !errors.Is(err, context.Canceled) {
		s.t.Fatalf("Read returned %v", err)
	}
}

// publish publishes a batch; lost is one that is received by replay alone.
func (s *stage) publish() {
	events := []enginetest.Event{s.cache.event(), s.cache.event()}
	s.log = append(s.log, events)
	b := event.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Events: eventsOf(events)}
	s.pub.Publish(zmq.Message{Seq: s.seq, Payload: encode.Append(nil, &b, encode.VLLM24)})
	s.seq++
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	eventually.NoError(s.t, what, func() error {
		if ok() {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("told at last: %q", s.told[max(0, len(s.told)-50):])
	})
}

// hears waits until a report has come that begins like each of these: those of a window come when the index
// has it.
func (s *stage) hears(what ...string) {
	s.t.Helper()
	for _, w := range what {
		s.until(fmt.Sprintf("%q to be told", w), func() bool { return s.heard(w) })
	}
}

// settled waits until the index has all that was published and checks it.
func (s *stage) settled() {
	s.t.Helper()
	s.until("the index", func() bool {
		life, err := s.x.Life(s.t.Context(), "pod", 0)
		return err == nil && life.Seq == s.seq
	})
	m := &plain{blocks: map[int64]*cached{}}
	s.mu.Lock()
	from := s.from
	s.mu.Unlock()
	for _, events := range s.log[from:] {
		m.apply(events)
	}
	checkHeldOf(s.t, s.x, m, s.source.Model)
}

// TestLagOfNoTime has a record whose times are 2, 3, ..., as one that was made by hand.
func TestLagOfNoTime(t *testing.T) {
	s := newStage(t, newIndex(t), false, Config{})
	s.read(1)
	b := event.Batch{Time: 2, Events: eventsOf([]enginetest.Event{s.cache.event()})}
	s.pub.Publish(zmq.Message{Seq: 0, Payload: encode.Append(nil, &b, encode.VLLM24)})
	s.hears("events ")
	b.Time = earliestEvent - 1
	s.pub.Publish(zmq.Message{Seq: 1, Payload: encode.Append(nil, &b, encode.VLLM24)})
	s.until("2 messages", func() bool { life, err := s.x.Life(t.Context(), "pod", 0); return err == nil && life.Seq == 2 })
	b.Time = float64(time.Now().UnixMicro()) / 1e6
	s.pub.Publish(zmq.Message{Seq: 2, Payload: encode.Append(nil, &b, encode.VLLM24)})
	s.hears("lag")
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, told := range s.told {
		if told == "lag" {
			n++
		}
	}
	if lag := s.in.Stats().Ranks[0].Lag; n != 1 || lag > time.Hour {
		t.Errorf("told of %d lags, the last is %v", n, lag)
	}
}

// TestReadAndTakeOver reads an engine, and goes on after a pause. It goes on with what the map
// has, and where the index is of this process with what the reader has left.
func TestReadAndTakeOver(t *testing.T) {
	for name, inProcess := range map[string]bool{"by the map": false, "in process": true} {
		t.Run(name, func(t *testing.T) { readAndTakeOver(t, inProcess) })
	}
}

func readAndTakeOver(t *testing.T, inProcess bool) {
	x := newIndex(t)
	s := newStage(t, x, true, Config{WindowMessages: 4, InProcess: inProcess})
	for range 20 {
		s.publish() // before a reader listens
	}
	s.read(1)
	s.settled()
	for range 50 {
		s.publish()
	}
	s.settled()
	s.hears("began first", "started 0", "events 1", "lag")
	if err := s.in.Read(t.Context(), s.source, 1); !errors.Is(err, ErrReading) {
		t.Errorf("read twice: %v", err)
	}
	if _, err := s.in.Push(t.Context(), Pushed{Pod: "pod", Model: testModel, Ranks: ofRank0(nil)}); !errors.Is(err, ErrReading) {
		t.Errorf("pushed and read: %v", err)
	}
	got, err := s.in.Recent("pod", 0, 60, ^uint64(0))
	if err != nil || len(got.Messages) != 10 || got.Last != 69 {
		t.Errorf("%d recent messages to %d: %v", len(got.Messages), got.Last, err)
	}
	if _, err := s.in.Recent("pod", 1, 0, 1); !errors.Is(err, ErrNotRead) {
		t.Errorf("a rank that is not read: %v", err)
	}
	var st RankStats
	s.until("70 messages to be counted", func() bool { st = s.in.Stats().Ranks[0]; return st.Messages == 70 })
	if st.Next != 70 || !st.Connected || st.Messages != 70 || st.Events[event.Stored] == 0 || st.LastMessage.IsZero() || st.Unmatched(0) {
		t.Errorf("%+v", st)
	}
	s.in.Asked("nothing")
	if st := s.in.Stats().Ranks[0]; st.Unmatched(0) {
		t.Errorf("another model was asked for: %+v", st)
	}
	s.in.Asked(s.source.Model)
	if st := s.in.Stats().Ranks[0]; st.Unmatched(time.Hour) || !st.Unmatched(0) {
		t.Errorf("asked: %+v", st)
	}
	s.in.Matched("pod")
	s.in.Matched("nobody")
	if st := s.in.Stats().Ranks[0]; st.Unmatched(0) {
		t.Errorf("matched: %+v", st)
	}
	dump := 0
	for cursor, first := "", true; first || cursor != ""; first = false {
		h, err := s.in.Held(t.Context(), "pod", 0, cursor, 0)
		if err != nil || h.Seq != 70 {
			t.Fatalf("%+v, %v", h, err)
		}
		cursor = h.Next
		for _, keys := range h.Keys {
			dump += len(keys)
		}
	}
	if got, _ := held(t.Context(), x, "pod", 0); dump != len(got[store.GPU])+len(got[store.CPU]) {
		t.Errorf("a dump of %d keys, not %d and %d", dump, len(got[store.GPU]), len(got[store.CPU]))
	}
	s.stop()
	// While no reader is there.
	for range 30 {
		s.publish()
	}
	s.read(2)
	s.settled()
	s.hears("took over 70")
	if s.heard("began lost") || s.heard("began restarted") {
		t.Errorf("told: %q", s.told)
	}
	s.stop()
	// The engine is another one, and has come further than the last.
	s.publisher()
	for range 150 {
		s.publish()
	}
	s.read(3)
	s.settled()
	s.hears("began restarted")
	// Another process reads, under a higher fence.
	life := must.Get(x.Life(t.Context(), "pod", 0))(t)
	must.Get(x.TakeOver(t.Context(), life.Generation, 9))(t)
	s.publish()
	if err := <-s.ended; !errors.Is(err, store.ErrFenced) {
		t.Errorf("under an old fence: %v", err)
	}
	if err := s.in.Read(t.Context(), s.source, 3); !errors.Is(err, store.ErrFenced) {
		t.Errorf("under an old fence from the beginning: %v", err)
	}
}

// TestReadRenamed reads an engine that lives on under another model's name. What the
// engine can replay is filed under the new one, and nothing under the old one.
func TestReadRenamed(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) []pagedIndex{
		"memory": func(t *testing.T) []pagedIndex { x := newIndex(t); return []pagedIndex{x, x} },
		"redis":  func(t *testing.T) []pagedIndex { return newRedis(t, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			xs := open(t)
			for _, m := range []string{testModel, "renamed"} {
				must.Get(xs[0].EnsureModel(t.Context(), store.ModelInfo{Name: m, BlockSize: indexBlock, Scheme: store.SchemeNative}))(t)
			}
			register := func(x store.Index, model string) {
				t.Helper()
				must.Get(x.Register(t.Context(), store.Pod{Name: "pod", Model: model}))(t)
			}
			register(xs[0], testModel)
			s := newStage(t, xs[0], true, Config{})
			for range 30 {
				s.publish()
			}
			s.read(1)
			s.settled()
			begun := 0
			checkBegun := func(want string) {
				t.Helper()
				s.mu.Lock()
				defer s.mu.Unlock()
				var told []string
				for _, what := range s.told {
					if strings.HasPrefix(what, "began ") || strings.HasPrefix(what, "took over ") {
						told = append(told, what)
					}
				}
				if begun++; len(told) != begun || told[begun-1] != want {
					t.Fatalf("told %q, want %s at last", told, want)
				}
			}
			checkBegun("began first")
			for i, c := range []struct {
				model      string
				registered bool // else the pod's registration for it is not heard of yet
				want       string
			}{
				{"renamed", true, "began first"}, {"renamed", false, "took over 31"}, {testModel, false, "began renamed"}, {testModel, false, "took over 33"},
				{"renamed", false, "began renamed"}, {testModel, true, "began first"},
			} {
				s.stop()
				s.publish() // while no reader is there
				if c.registered {
					register(xs[1], c.model)
				}
				s.source.Model = c.model
				s.read(uint64(i) + 2)
				s.settled()
				checkBegun(c.want)
			}
		})
	}
}

func TestReadWithoutReplay(t *testing.T) {
	x := newIndex(t)
	s := newStage(t, x, false, Config{})
	s.read(1)
	for range 20 {
		s.publish()
	}
	s.settled()
	// One is lost: what follows begins anew.
	s.seq++
	s.log = append(s.log, nil)
	for range 20 {
		s.publish()
	}
	s.settled()
	s.hears("gap 20 21", "began lost", "started 21")
	// The link breaks, and what came of the engine is not known.
	s.publisher()
	s.until("a connection", func() bool { return s.pub.Subscribers() > 0 })
	for range 20 {
		s.publish()
	}
	s.settled()
	s.hears("began no_replay")
	if s.heard("replayed") {
		t.Errorf("told: %q", s.told)
	}
}

func TestReadEndedElsewhere(t *testing.T) {
	x := newIndex(t)
	s := newStage(t, x, true, Config{})
	s.read(1)
	for range 20 {
		s.publish()
	}
	s.settled()
	// The pod is deleted and registered anew.
	must.Get(x.Retire(t.Context(), "pod"))(t)
	must.Get(x.Register(t.Context(), store.Pod{Name: "pod", Model: testModel}))(t)
	for range 20 {
		s.publish()
	}
	s.settled()
	s.hears("began ended")
	// And for good.
	must.Get(x.Retire(t.Context(), "pod"))(t)
	s.publish()
	if err := <-s.ended; !errors.Is(err, store.ErrUnknownPod) {
		t.Errorf("a pod that is gone: %v", err)
	}
}

// paused waits until the connection is not read because the queue is full.
func (s *stage) paused() {
	s.t.Helper()
	s.until("a pause", func() bool { r := s.in.Stats().Ranks; return len(r) == 1 && r[0].Paused })
}

// lossless checks that the generation that began first goes on, and nothing was missing.
func (s *stage) lossless() {
	s.t.Helper()
	if r := s.in.Stats().Ranks[0]; r.Generations != 1 || r.Gaps > 0 || r.Undecodable > 0 || r.Connections != 1 || s.pub.Lost() > 0 {
		s.t.Errorf("something was lost: %+v, by the publisher %d", r, s.pub.Lost())
	}
}

// TestReadIndexAway takes the index away while the engine goes on, until the queue has no room.
// The engine's connection is not read, and all of it is there in the end.
func TestReadIndexAway(t *testing.T) {
	for _, inProcess := range []bool{false, true} {
		t.Run(fmt.Sprintf("in process %v", inProcess), func(t *testing.T) {
			broken := &faulty{pagedIndex: newIndex(t)}
			s := newStage(t, broken, true, Config{QueueMessages: 16, WindowMessages: 8, InProcess: inProcess})
			s.read(1)
			for range 20 {
				s.publish()
			}
			s.settled()
			broken.dead.Store(true)
			for range 200 {
				s.publish()
			}
			s.hears("failed")
			s.paused()
			broken.dead.Store(false)
			s.settled()
			s.lossless()
			// Another reader goes on where this one is.
			s.stop()
			for range 20 {
				s.publish()
			}
			s.read(2)
			s.hears("took over")
			s.settled()
		})
	}
}

// TestReadBurst sends much more than finds room, of an engine without a replay socket, to an
// index that hangs. What waits here stays bounded, and nothing is lost.
func TestReadBurst(t *testing.T) {
	const messages = 20_000
	hung := &faulty{pagedIndex: newIndex(t)}
	s := newStage(t, hung, false, Config{QueueMessages: 512})
	s.o.Queue = messages
	s.publisher()
	s.read(1)
	s.publish()
	s.settled()
	hung.paused.Lock()
	b := event.Batch{Events: []event.Event{{Kind: event.Stored, BlockSize: indexBlock, Tokens: make([]uint32, indexBlock), Hashes: make([]event.Hash, 1), Medium: "GPU"}}}
	for ; s.seq < messages; s.seq++ {
		b.Events[0].Hashes[0], b.Events[0].Tokens[0] = event.Hash(s.seq), uint32(s.seq)
		s.pub.Publish(zmq.Message{Seq: s.seq, Payload: encode.Append(nil, &b, encode.VLLM24)})
		if s.seq == messages/2 {
			s.paused()
		}
	}
	r := s.in.Stats().Ranks[0]
	if !r.Paused || r.Pauses != 1 || r.QueueMessages > 512 || s.pub.Waiting() < messages/2 {
		t.Errorf("half of the burst has come here: %+v, %d wait there", r, s.pub.Waiting())
	}
	hung.paused.Unlock()
	s.until("the burst", func() bool { return s.in.Stats().Ranks[0].Events[event.Stored] >= messages-1 })
	s.lossless()
	keys, err := held(t.Context(), hung, "pod", 0)
	if err != nil || len(keys[store.GPU]) < messages-1 {
		t.Errorf("%d blocks are held: %v", len(keys[store.GPU]), err)
	}
}

// TestReadOverflow lets the publisher's own queue overflow, too: what it drops is a gap by
// its numbers, and what follows begins anew.
func TestReadOverflow(t *testing.T) {
	broken := &faulty{pagedIndex: newIndex(t)}
	s := newStage(t, broken, false, Config{QueueMessages: 8})
	s.o.Queue = 8
	s.publisher()
	s.read(1)
	s.publish()
	s.settled()
	broken.dead.Store(true)
	for s.pub.Lost() == 0 {
		s.publish()
	}
	broken.dead.Store(false)
	s.until("room", func() bool { return s.pub.Waiting() == 0 })
	s.publish()
	s.settled()
	s.hears("gap", "began lost")
}

// TestReadEndsPaused ends reading while the connection is not read.
func TestReadEndsPaused(t *testing.T) {
	broken := &faulty{pagedIndex: newIndex(t)}
	s := newStage(t, broken, false, Config{QueueMessages: 1})
	s.read(1)
	s.publish()
	s.settled()
	broken.dead.Store(true)
	for range 200 {
		s.publish()
	}
	s.paused()
	s.stop()
	if n := s.in.Stats().QueueBytes; n != 0 {
		t.Errorf("%d bytes stay", n)
	}
}

func TestReadUndecodable(t *testing.T) {
	x := newIndex(t)
	s := newStage(t, x, true, Config{})
	s.read(1)
	s.publish()
	s.pub.Publish(zmq.Message{Seq: s.seq, Payload: []byte("\xc1 rubbish")})
	s.log, s.seq = append(s.log, nil), s.seq+1
	// One bad event among good ones, and another rank.
	b := event.Batch{Rank: 3, HasRank: true, Events: eventsOf(nil)}
	payload := encode.Append(nil, &b, encode.VLLM24)
	i := slices.Index(payload, 0x90)
	payload = slices.Replace(payload, i, i+1, []byte("\x91\x91\xa8Nonsense")...)
	s.pub.Publish(zmq.Message{Seq: s.seq, Payload: payload})
	s.log, s.seq = append(s.log, nil), s.seq+1
	s.publish()
	s.settled()
	s.hears("undecodable 1 1 event: not a message", "undecodable 2 1 ingest: event 0: unknown_kind", "other rank 0 3")
}

func TestReadRefuses(t *testing.T) {
	x := newIndex(t)
	in := newIngester(t, Config{Index: x})
	good := Source{Pod: "pod", Model: testModel, Events: "tcp://127.0.0.1:1"}
	for name, c := range map[string]struct {
		change func(*Source)
		fence  uint64
		want   error
	}{
		"no pod":       {func(s *Source) { s.Pod = "" }, 1, store.ErrInvalid},
		"rank":         {func(s *Source) { s.Rank = 1 << 20 }, 1, store.ErrInvalid},
		"no model":     {func(s *Source) { s.Model = "" }, 1, store.ErrInvalid},
		"no endpoint":  {func(s *Source) { s.Events = "" }, 1, zmq.ErrEndpoint},
		"replay":       {func(s *Source) { s.Replay = "tcp://*:1" }, 1, zmq.ErrEndpoint},
		"fence":        {func(*Source) {}, 0, store.ErrInvalid},
		"unregistered": {func(s *Source) { s.Pod = "nobody" }, 1, store.ErrUnknownPod},
	} {
		s := good
		c.change(&s)
		if err := in.Read(t.Context(), s, c.fence); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- in.Read(t.Context(), good, 1) }()
	eventually.True(t, "the reading", func() bool { return len(in.Stats().Ranks) > 0 })
	in.Close()
	select {
	case err := <-done:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("it reads on when closed")
	}
	if err := in.Read(t.Context(), good, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after closing: %v", err)
	}
	for _, c := range []Config{{}, {Index: x, BlockSize: -1}, {Index: x, QueueBytes: 5}, {Index: x, Quiet: -1}, {Index: x, Writers: 1000}} {
		if _, err := New(c); !errors.Is(err, errConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
