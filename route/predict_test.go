package route_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	loadsredis "github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/route/notes"
	notesredis "github.com/kvatlas/kvatlas/route/notes/redis"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	storeredis "github.com/kvatlas/kvatlas/store/redis"
)

// fleet is what several routers share, and how its time passes.
type fleet struct {
	*testing.T
	index   store.Index
	routers []*route.Router
	scorers []*scorer.Scorer
	pass    func(time.Duration) // nil where time cannot be made pass
	fill    func()              // takes what memory the notes and the loads have left; nil where it cannot be taken
	told    []error             // of predictions
}

// fleets runs a test on one router with all in memory, and on two that share Redis.
func fleets(t *testing.T, settings string, run func(f *fleet)) {
	t.Run("memory", func(t *testing.T) {
		f := &fleet{T: t}
		now := time.UnixMilli(1_800_000_000_000)
		clock := func() time.Time { return now }
		f.pass = func(d time.Duration) { now = now.Add(d) }
		index := must.Get(memory.New(memory.Config{Clock: clock}))(t)
		f.index = index
		t.Cleanup(func() { _ = index.Close() })
		f.add(index, loads.NewMemory(clock), notes.NewMemory(clock), clock)
		f.begin(settings)
		run(f)
	})
	t.Run("Redis", func(t *testing.T) {
		f := &fleet{T: t}
		server := redistest.Start(t)
		f.fill = func() { must.OK(t, server.Client().ConfigSet(t.Context(), "maxmemory", "1").Err()) }
		for range 2 {
			index := must.Get(storeredis.Open(storeredis.Config{URL: server.URL(), Timeout: 10 * time.Second}))(t)
			t.Cleanup(func() { _ = index.Close() })
			f.index = index
			kept, err1 := loadsredis.New(loadsredis.Config{Client: server.Client(), Prefix: storeredis.DefaultPrefix, Timeout: 10 * time.Second})
			noted, err2 := notesredis.New(notesredis.Config{Client: server.Client(), Prefix: storeredis.DefaultPrefix, Timeout: 10 * time.Second})
			must.OK(t, errors.Join(err1, err2))
			f.add(index, kept, noted, nil)
		}
		f.begin(settings)
		run(f)
	})
}

func (f *fleet) add(index store.Index, kept loads.Store, noted notes.Store, now func() time.Time) {
	f.Helper()
	s := must.Get(scorer.New(scorer.Config{Index: index, BlockSize: 16, Budget: 10 * time.Second}))(f)
	r := must.Get(route.New(route.Config{
		Scorer: s, Pods: index, Loads: kept, Index: index, Notes: noted, Now: now, Seed: uint64(len(f.routers) + 1),
		Predicted: func(_ int, err error) { f.told = append(f.told, err) },
	}))(f)
	f.routers, f.scorers = append(f.routers, r), append(f.scorers, s)
}

// begin registers pods a to d and sets the model's settings.
func (f *fleet) begin(settings string) {
	f.Helper()
	for _, name := range []string{"a", "b", "c", "d"} {
		f.register(store.Pod{Name: name})
	}
	must.Get(f.routers[0].PutSettings(f.Context(), "m", []byte(settings)))(f)
}

func (f *fleet) register(p store.Pod) {
	f.Helper()
	p.Model = "m"
	must.Get(f.index.Register(f.Context(), p))(f)
}

// words are blocks of 16 tokens that only prompts with the same seed have.
func words(seed, blocks int) []uint32 {
	out := make([]uint32, 16*blocks)
	for i := range out {
		out[i] = uint32(seed*1_000_000 + i)
	}
	return out
}

// book routes a prompt by the routers in turn and ends it, so that loads decide nothing.
func (f *fleet) book(q route.Request) *route.Decision {
	f.Helper()
	r := f.routers[0]
	f.routers = append(f.routers[1:], r)
	q.Score.Model, q.Reserve = "m", true
	d := must.Get(r.Route(f.Context(), q))(f)
	must.Get(r.End(f.Context(), "m", d.Reservation))(f)
	return d
}

func of(tokens []uint32) route.Request {
	return route.Request{Score: scorer.Request{Input: scorer.Tokens(tokens)}}
}

// held is what a pod is said to hold of a prompt, with predictions and without: blocks.
func (f *fleet) held(pod string, tokens []uint32) (with, without int) {
	f.Helper()
	for i, predicted := range []bool{true, false} {
		s := f.scorers[0]
		f.scorers = append(f.scorers[1:], s)
		r := must.Get(s.Score(f.Context(), scorer.Request{Model: "m", Input: scorer.Tokens(tokens), Pods: []string{pod}, Predicted: predicted}))(f)
		if i == 0 {
			with = r.Pods[0].Blocks
			if r.Pods[0].Predicted > with {
				f.Fatalf("%d of %d blocks are predicted", r.Pods[0].Predicted, with)
			}
		} else if without = r.Pods[0].Blocks; r.Pods[0].Predicted != 0 {
			f.Fatalf("%d blocks are predicted and nobody has asked", r.Pods[0].Predicted)
		}
	}
	return with, without
}

func (f *fleet) wantHeld(pod string, tokens []uint32, with, without int) {
	f.Helper()
	if w, o := f.held(pod, tokens); w != with || o != without {
		f.Errorf("%s holds %d blocks with predictions and %d without, want %d and %d", pod, w, o, with, without)
	}
}

// A prompt that was sent to a pod which never tells counts as held there, for every router,
// until the time is over.
func TestApproximate(t *testing.T) {
	fleets(t, `{"predict":{"approximate":true,"ttl_s":7200}}`, func(f *fleet) {
		p := words(1, 10)
		first := f.book(of(p))
		if first.Predicts != 10 || first.Predicted != 0 {
			f.Fatalf("%+v", first)
		}
		f.wantHeld(first.Pod, p, 10, 0)
		for range 10 { // of four places the same, though each is free
			d := f.book(of(append(words(1, 10), words(2, 2)...)))
			if d.RankRef != first.RankRef || d.Predicted < 10*16 || d.Cached() < 10*16 {
				f.Fatalf("went to %v with %d tokens, %d predicted; want %v", d.RankRef, d.Cached(), d.Predicted, first.RankRef)
			}
		}
		if f.pass == nil {
			return
		}
		f.pass(7199 * time.Second)
		f.wantHeld(first.Pod, p, 10, 0)
		f.pass(1801 * time.Second)
		f.wantHeld(first.Pod, p, 0, 0)
		if d := f.book(of(p)); d.Cached() != 0 {
			f.Errorf("%d tokens are held after their time", d.Cached())
		}
	})
}

// A pod of its own may be approximate, beside others that tell.
func TestApproximatePod(t *testing.T) {
	fleets(t, `{}`, func(f *fleet) {
		f.register(store.Pod{Name: "silent", Approximate: true, Events: "tcp://10.0.0.9:5557"})
		p := words(1, 4)
		for _, name := range []string{"a", "silent"} {
			q := of(p)
			q.Score.Pods = []string{name}
			f.book(q)
		}
		f.wantHeld("a", p, 0, 0)
		f.wantHeld("silent", p, 4, 0)
	})
}

// A prediction bridges the time until an engine's events come. What the engine then tells
// counts by itself, and what it takes away is not predicted any more.
func TestPredictionIsReplacedByEvents(t *testing.T) {
	fleets(t, `{"predict":{"bridge_s":3600,"approximate":true,"ttl_s":0}}`, func(f *fleet) {
		f.register(store.Pod{Name: "a", Events: "tcp://10.0.0.1:5557"})
		p := words(1, 8)
		q := of(p)
		q.Score.Pods = []string{"a"}
		f.book(q)
		f.wantHeld("a", p, 8, 0)
		f.apply("a", store.Op{Kind: store.Add, Tier: store.GPU, Keys: keysOf(p)[:6]})
		f.wantHeld("a", p, 8, 6)
		if d := f.book(q); d.Predicted != 2*16 || d.Cached() != 8*16 || d.Predicts != 2 {
			f.Errorf("%d of %d tokens are predicted, and %d blocks written", d.Predicted, d.Cached(), d.Predicts)
		}
		f.apply("a", store.Op{Kind: store.Remove, Tier: store.GPU, Keys: keysOf(p)[4:]})
		f.wantHeld("a", p, 4, 4)
		f.apply("a", store.Op{Kind: store.Clear, Tier: store.GPU})
		f.wantHeld("a", p, 0, 0)
		f.book(q)
		f.wantHeld("a", p, 8, 0)
		if _, err := f.index.Begin(f.Context(), "a", 0, 1); err != nil { // the engine restarts
			f.Fatal(err)
		}
		f.wantHeld("a", p, 0, 0)
		// b has no endpoint of events: it is approximate, and that is off.
		q.Score.Pods = []string{"b"}
		f.book(q)
		f.wantHeld("b", p, 0, 0)
	})
}

// What is predicted of a rank is bounded; the oldest goes first.
func TestPredictionsAreBounded(t *testing.T) {
	fleets(t, `{"predict":{"approximate":true,"ttl_s":7200,"max_blocks":100,"prune":0.5}}`, func(f *fleet) {
		only := func(p []uint32) route.Request {
			q := of(p)
			q.Score.Pods = []string{"a"}
			return q
		}
		f.book(only(words(1, 40)))
		if f.pass != nil {
			f.pass(time.Hour) // so that it is in a slice of its own
		}
		f.book(only(words(2, 40)))
		f.wantHeld("a", words(1, 40), 40, 0)
		f.book(only(words(3, 40)))
		f.wantHeld("a", words(1, 40), 0, 0)
		f.wantHeld("a", words(3, 40), 40, 0)
		// A prompt that is longer than the bound is predicted up to it.
		f.book(only(words(4, 150)))
		f.wantHeld("a", words(4, 150), 100, 0)
		for i := range 20 { // a flood
			f.book(only(words(10+i, 60)))
		}
		sum := 0
		for i := range 20 {
			with, _ := f.held("a", words(10+i, 60))
			sum += with
		}
		if sum == 0 || sum > 100 {
			f.Errorf("%d blocks are predicted, want up to 100", sum)
		}
		reg, err := f.index.Registry(f.Context())
		if err != nil || len(reg.Predicted("a", 0)) > store.MaxPredicted {
			f.Errorf("%d predictions, %v", len(reg.Predicted("a", 0)), err)
		}
	})
}

// A query, a request that is booked again, and one whose prompt has no whole block predict
// nothing. Nor does a pod that has gone come back by a prediction.
func TestNotPredicted(t *testing.T) {
	fleets(t, `{"predict":{"approximate":true}}`, func(f *fleet) {
		p := words(1, 4)
		q := of(p)
		q.Score.Model = "m"
		if d, err := f.routers[0].Route(f.Context(), q); err != nil || d.Predicts != 0 {
			f.Fatalf("%+v, %v", d, err)
		}
		if d := f.book(of(p[:15])); d.Predicts != 0 {
			f.Errorf("%d blocks of 15 tokens", d.Predicts)
		}
		q.Reserve, q.ID = true, "r"
		for i, want := range []int{4, 0} {
			if d, err := f.routers[0].Route(f.Context(), q); err != nil || d.Predicts != want {
				f.Errorf("call %d predicts %d blocks, want %d: %v", i, d.Predicts, want, err)
			}
		}
	})
}

// That a prediction cannot be written is no fault of the decision's, and is told.
func TestPredictionFails(t *testing.T) {
	for name, broken := range map[string]func(*route.Config){
		"notes": func(c *route.Config) { c.Notes = brokenNotes{c.Notes} },
		"index": func(c *route.Config) { c.Index = brokenIndex{} },
	} {
		t.Run(name, func(t *testing.T) {
			var told []error
			w := newWorld(t, func(c *route.Config) {
				c.Notes, c.Index = notes.NewMemory(nil), nil
				s := route.DefaultSettings()
				s.Predict.Approximate = true
				c.Settings = &s
				c.Index = c.Pods.(store.Index)
				c.Predicted = func(n int, err error) { told = append(told, err) }
				broken(c)
			})
			w.register(store.Pod{Name: "a"})
			d, err := w.Route(t.Context(), route.Request{Reserve: true, Score: scorer.Request{Model: "m", Input: scorer.Tokens(words(1, 2))}})
			if err != nil || d.Pod != "a" || d.Predicts != 0 || len(told) != 1 || !errors.Is(told[0], errBroken) {
				t.Errorf("%+v, %v; told %v", d, err, told)
			}
		})
	}
}

var errBroken = errors.New("broken")

type brokenIndex struct{}

func (brokenIndex) Apply(context.Context, ...store.Batch) error { return errBroken }

type brokenNotes struct{ notes.Store }

func (brokenNotes) Slice(context.Context, notes.Slice) (notes.Sliced, error) {
	return notes.Sliced{}, errBroken
}

// A burst of equal prompts goes to one pod while nothing of the first has come back, up to where
// the load there weighs more. With eta it does since it sees what runs, with others by
// predictions.
func TestBurstGoesToOnePod(t *testing.T) {
	for _, c := range []struct {
		policy, bridge string
		together       bool
	}{{"eta", "0", true}, {"eta", "3600", true}, {"longest_prefix", "3600", true}, {"longest_prefix", "0", false}} {
		fleets(t, fmt.Sprintf(`{"policy":%q,"predict":{"bridge_s":%s},"speed":16}`, c.policy, c.bridge), func(f *fleet) {
			pods := map[string]int{}
			for range 6 {
				r := f.routers[0]
				f.routers = append(f.routers[1:], r)
				q := of(words(1, 400))
				q.Score.Model, q.Reserve = "m", true
				d := must.Get(r.Route(f.Context(), q))(f)
				pods[d.Pod]++
			}
			if together := len(pods) == 1; together != c.together {
				f.Errorf("%+v: a burst goes to %v", c, pods)
			}
		})
	}
}

func (f *fleet) apply(pod string, ops ...store.Op) {
	f.Helper()
	must.OK(f, f.index.Apply(f.Context(), store.Batch{Pod: pod, Model: "m", Ops: ops}))
}

func keysOf(tokens []uint32) []blockkey.Key {
	chain := blockkey.Chain{BlockSize: 16, Seed: blockkey.NativeSeed("", "")}
	return chain.Append(nil, tokens)
}
