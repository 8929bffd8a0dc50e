package loadstest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// runEngines holds a store to the contract about what engines say of themselves.
func runEngines(t *testing.T, open Open) {
	t.Run("an engine's load", func(t *testing.T) { engineLoad(t, open) })
	t.Run("an engine that runs fewer", func(t *testing.T) { engineLacks(t, open) })
	t.Run("an engine that lags", func(t *testing.T) { engineLags(t, open) })
	t.Run("turns", func(t *testing.T) { turns(t, open) })
	t.Run("engines refused", func(t *testing.T) { enginesRefused(t, open) })
	t.Run("truths", func(t *testing.T) { truths(t, open) })
	t.Run("claims", func(t *testing.T) { claims(t, open) })
	t.Run("engines' histories", func(t *testing.T) { engineHistories(t, open) })
}

// tell has the engine of a pod say what runs at rank 0.
func tell(t tester, s loads.Store, pod string, e loads.Engine) {
	t.Helper()
	must.OK(t, s.PutEngine(ctx, "m", pod, []loads.Engine{e}))
}

// said is what an engine counts as saying, without the times.
func said(t tester, s loads.Store, at store.RankRef) (e loads.Engine, fresh bool) {
	t.Helper()
	p := must.Get(s.Loads(ctx, "m"))(t)
	e, fresh = p.Engines[at]
	return plain(e), fresh
}

// plain is what an engine said without what no two stores have alike.
func plain(e loads.Engine) loads.Engine {
	return loads.Engine{
		Rank: e.Rank, Generation: e.Generation, Running: e.Running, Waiting: e.Waiting, WaitingTokens: e.WaitingTokens,
		KVUsage: e.KVUsage, KVTokens: e.KVTokens, Progress: e.Progress, Booked: e.Booked, Gone: e.Gone,
	}
}

func engineLoad(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a, a3 := pod("a b:1", 0), pod("a b:1", 3)
	book(t, s, call("r1", chain(1, 1, 0, 10), a3))
	e := loads.Engine{Rank: 3, Generation: 5, Running: 2, Waiting: 4, WaitingTokens: 700, KVUsage: 0.123456, KVTokens: 1 << 20}
	must.OK(t, s.PutEngine(ctx, "m", a.Pod, []loads.Engine{{WaitingTokens: -1, KVUsage: -1}, e}))
	got, _ := said(t, s, a3)
	e.Booked = loads.Load{} // what was booked belongs to an earlier generation, 0, and goes on
	want := e
	want.Booked = loads.Load{Work: 326, Prefill: 163, Blocks: 11, Requests: 1}
	equal(t, want, got)
	got, fresh := said(t, s, a)
	equal(t, true, fresh)
	equal(t, loads.Engine{WaitingTokens: -1, KVUsage: -1}, got)
	p := must.Get(s.Loads(ctx, "another model"))(t)
	zero(t, len(p.Engines))

	clock.Advance(loads.EngineStale - time.Second)
	must.OK(t, s.PutEngine(ctx, "m", a.Pod, []loads.Engine{{Running: 1}}))
	clock.Advance(2 * time.Second)
	_, fresh = said(t, s, a3)
	equal(t, false, fresh, "the rank that nobody told of any more")
	got, fresh = said(t, s, a)
	equal(t, true, fresh)
	equal(t, 1, got.Running)
	clock.Advance(2 * loads.EngineForget)
	_, fresh = said(t, s, a)
	equal(t, false, fresh)

	// A load that the engine's generation has voided is not what was booked.
	c := call("r2", nil, a)
	c.Candidates[0].Generation = 5
	book(t, s, c)
	tell(t, s, a.Pod, loads.Engine{Generation: 6})
	got, _ = said(t, s, a)
	zero(t, got.Booked)
}

func engineLacks(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a := pod("a", 0)
	for i := range 5 {
		c := call(fmt.Sprint(i), nil, a)
		c.Lease = time.Hour
		book(t, s, c)
	}
	gone := func(running int64) int64 {
		tell(t, s, "a", loads.Engine{Running: running})
		e, _ := said(t, s, a)
		return e.Gone
	}
	zero(t, gone(1), "they may be on their way")
	clock.Advance(2 * time.Second)
	zero(t, gone(2))
	clock.Advance(4 * time.Second)
	equal(t, 3, gone(1), "for long enough three were missing all the time")
	equal(t, 1, gone(4), "never more than are missing now")
	clock.Advance(6 * time.Second)
	equal(t, 1, gone(0))
	zero(t, gone(5), "all are there")
	clock.Advance(loads.EngineStale + time.Second)
	zero(t, gone(0), "what was told long ago proves nothing")
	clock.Advance(6 * time.Second)
	equal(t, 5, gone(0))
	tell(t, s, "a", loads.Engine{Generation: 1})
	e, _ := said(t, s, a)
	zero(t, e.Gone, "another generation begins anew")
}

func engineLags(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a := pod("a", 0)
	book(t, s, call("r", nil, a))
	tell(t, s, "a", loads.Engine{Running: 7, Progress: 10})
	_, fresh := said(t, s, a)
	equal(t, false, fresh, "who knows how old that is")
	clock.Advance(time.Second)
	tell(t, s, "a", loads.Engine{Running: 9, Progress: 11})
	e, fresh := said(t, s, a)
	equal(t, true, fresh)
	equal(t, 9, e.Running)
	for range 11 {
		clock.Advance(time.Second)
		tell(t, s, "a", loads.Engine{Running: 9, Progress: 11})
	}
	_, fresh = said(t, s, a)
	equal(t, false, fresh, "it has ended none since")
	tell(t, s, "a", loads.Engine{Running: 0, Progress: 12})
	clock.Advance(6 * time.Second)
	tell(t, s, "a", loads.Engine{Running: 0, Progress: 13})
	e, _ = said(t, s, a)
	zero(t, e.Gone, "numbers that lag prove that nothing is gone")
}

func turns(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	pods := []string{"a", "b b", "c"}
	take := func(most int) []string {
		got := must.Get(s.Turns(ctx, "m", pods, most))(t)
		return got
	}
	same := func(want, got []string) {
		t.Helper()
		if !slices.Equal(want, got) {
			t.Fatalf("turns of %q, expected %q", got, want)
		}
	}
	same([]string{"a", "b b"}, take(2))
	same([]string{"c"}, take(9))
	same(nil, take(9))
	clock.Advance(loads.EngineEvery + time.Millisecond)
	must.OK(t, s.PutEngine(ctx, "m", "a", []loads.Engine{{}})) // by itself
	must.OK(t, s.Missed(ctx, "m", "b b"))
	same([]string{"c"}, take(9))
	clock.Advance(loads.EngineEvery + time.Millisecond)
	same([]string{"a", "c"}, take(9))
	clock.Advance(loads.EngineEvery + time.Millisecond)
	same([]string{"a", "b b", "c"}, take(9))
	must.OK(t, s.Missed(ctx, "m", "b b")) // twice in a row: four times as long
	clock.Advance(2*loads.EngineEvery + time.Millisecond)
	same([]string{"a", "c"}, take(9))
	for range 100 {
		must.OK(t, s.Missed(ctx, "m", "b b"))
	}
	clock.Advance(loads.MaxMissed + time.Millisecond)
	same([]string{"a", "b b", "c"}, take(9))
	must.OK(t, s.PutEngine(ctx, "m", "b b", []loads.Engine{{}}))
	must.OK(t, s.Missed(ctx, "m", "b b"))
	clock.Advance(2*loads.EngineEvery + time.Millisecond)
	same([]string{"a", "b b", "c"}, take(9)) // once it has answered, patience is as at first
}

func enginesRefused(t *testing.T, open Open) {
	s := open(t, NewClock())
	for _, e := range []loads.Engine{
		{Rank: -1}, {Rank: store.MaxRanks}, {Running: -1}, {Waiting: -1}, {Waiting: 1 << 41}, {WaitingTokens: -2}, {KVUsage: 1.01},
		{KVUsage: -0.5}, {KVTokens: -1}, {Progress: -1}, {KVTokens: 1 << 50},
	} {
		equal(t, true, errors.Is(s.PutEngine(ctx, "m", "a", []loads.Engine{e}), loads.ErrInvalid), e)
	}
	equal(t, true, errors.Is(s.PutEngine(ctx, "m", "", nil), loads.ErrInvalid))
	equal(t, true, errors.Is(s.PutEngine(ctx, "m", "a", make([]loads.Engine, loads.MaxEngineRanks+1)), loads.ErrInvalid))
	_, err := s.Turns(ctx, "m", make([]string, loads.MaxTurns+1), 1)
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	equal(t, true, errors.Is(s.Missed(ctx, "m", ""), loads.ErrInvalid))
	must.OK(t, s.PutEngine(ctx, "m", "a", nil))
	many := make([]loads.Engine, loads.MaxEngineRanks)
	for i := range many {
		many[i].Rank = i
	}
	must.OK(t, s.PutEngine(ctx, "m", "a", many))
	p := must.Get(s.Loads(ctx, "m"))(t)
	equal(t, len(many), len(p.Engines))
}

// engineHistories holds a store to what Memory says after any history.
func engineHistories(t *testing.T, open Open) {
	n := 0
	clock := NewClock()
	s := open(t, clock)
	rapid.Check(t, func(t *rapid.T) {
		clock.Advance(25 * time.Hour) // all of the history before is forgotten
		must.Get(s.Loads(ctx, "m"))(t)
		m := loads.NewMemory(clock.Now)
		places := []store.RankRef{pod("a", 0), pod("a", 1), pod("b", 0)}
		var ids []string
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				n++
				c := call(fmt.Sprint("h", n), chain(1, uint64(n), 2, 4), places[rapid.IntRange(0, 2).Draw(t, "place")])
				c.Candidates[0].Generation = store.Generation(rapid.IntRange(0, 2).Draw(t, "generation"))
				ids = append(ids, c.ID)
				book(t, s, c)
				book(t, m, c)
			case 1:
				if len(ids) > 0 {
					id := rapid.SampledFrom(ids).Draw(t, "id")
					end(t, s, id)
					end(t, m, id)
				}
			case 2:
				clock.Advance(time.Duration(rapid.SampledFrom([]int{1, 7, 13, 41, 107}).Draw(t, "time")) * 100 * time.Millisecond)
			default:
				var list []loads.Engine
				name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pod")
				for rank := range rapid.IntRange(1, 2).Draw(t, "ranks") {
					list = append(list, loads.Engine{
						Rank: rank, Generation: store.Generation(rapid.IntRange(0, 2).Draw(t, "of")), Running: rapid.Int64Range(0, 4).Draw(t, "running"),
						Waiting: rapid.Int64Range(0, 2).Draw(t, "waiting"), Progress: rapid.SampledFrom([]int64{0, 0, 0, 1, 2}).Draw(t, "progress"),
						WaitingTokens: rapid.Int64Range(-1, 500).Draw(t, "tokens"),
					})
				}
				must.OK(t, s.PutEngine(ctx, "m", name, list))
				must.OK(t, m.PutEngine(ctx, "m", name, list))
			}
			got := must.Get(s.Loads(ctx, "m"))(t)
			want := must.Get(m.Loads(ctx, "m"))(t)
			equal(t, len(want.Engines), len(got.Engines))
			for at, e := range want.Engines {
				equal(t, plain(e), plain(got.Engines[at]), at)
			}
			gotTurns := must.Get(s.Turns(ctx, "m", []string{"a", "b"}, 2))(t)
			wantTurns := must.Get(m.Turns(ctx, "m", []string{"a", "b"}, 2))(t)
			equal(t, fmt.Sprint(wantTurns), fmt.Sprint(gotTurns))
		}
	})
}
