package redis

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// mapBatch is a guarded batch that changes a map too.
func mapBatch(pod string, gen store.Generation, seq uint64) store.Batch {
	b := guardedBatch(pod, gen, 1, seq, store.Add, manyKeys(1)...)
	b.Map = []store.MapOp{{MapKey: store.MapKey{Hash: seq}, Value: []byte("v")}}
	return b
}

// TestAcksOfTheLivingStay: beyond the limit the one goes that was used the longest time ago.
// Of those that were used since, lost writes are still noticed.
func TestAcksOfTheLivingStay(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, Config{URL: s.URL(), NoSweep: true, MaxHolders: 3})
	a := mustBegin(t, x, "a", 1)
	for i := range 5 {
		apply(t, x, guardedBatch("a", a, 1, uint64(i+1), store.Add, manyKeys(1)...))
		mustBegin(t, x, fmt.Sprintf("other-%d", i), 1)
	}
	must.OK(t, s.Client().HSet(t.Context(), x.space.Names.Records, fmt.Sprint(a), "1,2").Err())
	for range 2 { // the writer may try again, and the server would take it now
		err := x.Apply(t.Context(), guardedBatch("a", a, 1, 6, store.Add, manyKeys(1)...))
		if !errors.Is(err, store.ErrEnded) {
			t.Errorf("got %v, want ErrEnded: the server has lost writes", err)
		}
	}
}

// TestEndedGenerationsAreForgotten: what is remembered of a generation goes when this
// process hears of its end.
func TestEndedGenerationsAreForgotten(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		c := Config{URL: url, NoSweep: true}
		x, y := open(t, c), open(t, c)
		wantKnown := func(when string, x *Index, gens ...store.Generation) {
			t.Helper()
			acks, lists := x.acks.acks.Keys(), x.lists.logs.Keys()
			if fmt.Sprint(acks) != fmt.Sprint(gens) || fmt.Sprint(lists) != fmt.Sprint(gens) || x.views.Len() > len(gens) || len(x.acks.latest) > len(gens) {
				t.Errorf("%s: acks of %v, logs of %v, %d views, pods %v; want %v", when, acks, lists, x.views.Len(), x.acks.latest, gens)
			}
		}
		var ended, gen store.Generation
		for range 3 {
			ended, gen = gen, mustBegin(t, x, "a", 1)
			apply(t, x, mapBatch("a", gen, 1))
			must.Get(x.ReadMap(t.Context(), gen, store.MapKey{}))(t)
		}
		wantKnown("after Begin of a later one", x, gen)

		if err := x.Apply(t.Context(), mapBatch("a", ended, 2)); !errors.Is(err, store.ErrEnded) {
			t.Errorf("got %v, want ErrEnded", err)
		}
		wantKnown("after a straggler", x, gen)

		// It goes over to another process, which begins the next one.
		must.Get(y.TakeOver(t.Context(), gen, 1))(t)
		apply(t, y, mapBatch("a", gen, 2))
		next := mustBegin(t, y, "a", 1)
		wantKnown("after the other's Begin", y, next)
		if _, err := x.TakeOver(t.Context(), gen, 1); !errors.Is(err, store.ErrEnded) {
			t.Errorf("got %v, want ErrEnded", err)
		}
		wantKnown("after TakeOver in vain", x)

		must.Get(y.Retire(t.Context(), "a"))(t)
		wantKnown("after Retire", y)
	})
}

// TestLogsAreBounded: a generation that is written without having been begun here counts
// as well.
func TestLogsAreBounded(t *testing.T) {
	l := newMapLogs(1, 2)
	for gen := range store.Generation(5) {
		l.due(gen, 1)
	}
	if n := l.logs.Len(); n != 2 {
		t.Errorf("%d logs, want 2", n)
	}
}
