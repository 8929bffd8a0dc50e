package route_test

import (
	"context"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// TestPrefixes has several routers count, each its part, and any of them tell the sum.
func TestPrefixes(t *testing.T) {
	fleets(t, `{}`, func(f *fleet) {
		system := words(1, 10)
		f.apply("a", store.Op{Kind: store.Add, Keys: keysOf(system)})
		seed := 100
		for i := range 60 {
			seed++
			p := append(slices.Clone(system), words(seed, 3)...)
			if i%3 == 2 {
				p = words(seed, 13)
			}
			r := f.routers[i%len(f.routers)]
			q := route.Request{Score: scorer.Request{Model: "m", Input: scorer.Tokens(p)}}
			must.Get(r.Route(t.Context(), q))(f)
		}
		for _, r := range f.routers {
			u := &route.Upkeep{Router: r, Index: f.index, Failed: func(model string, err error) { f.Errorf("%s: %v", model, err) }}
			u.Look(t.Context())
		}
		for i, r := range f.routers {
			all, err := r.Prefixes(t.Context(), "m", 5)
			if err != nil || len(all.List) != 1 || all.Alone || all.Unheld != "" || all.BlockSize != 16 {
				f.Fatalf("router %d: %+v, %v", i, all, err)
			}
			p := &all.List[0]
			if p.Blocks != 10 || p.Requests < 32 || p.Requests > 40.1 || p.Missed > 0 || all.Requests < 59 || all.Requests > 60.1 {
				f.Errorf("router %d: %+v of %v requests", i, p, all.Requests)
			}
			if want := []route.Holder{{RankRef: store.RankRef{Pod: "a"}}}; !slices.Equal(p.Holders, want) {
				f.Errorf("router %d: held by %v", i, p.Holders)
			}
			// Two thirds of all requests on four pods: three should have it.
			if p.Copies != 3 || len(p.Lacking) != 2 || slices.Contains(p.Lacking, store.RankRef{Pod: "a"}) {
				f.Errorf("router %d: %d copies, lacking on %v", i, p.Copies, p.Lacking)
			}
		}
	})
}

// TestPrefixesAlone looks where the notes of other processes cannot be read, where one of them
// cannot be understood, and where the index is away.
func TestPrefixesAlone(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*route.Config)
		want route.Prefixes
	}{
		"no notes":     {func(*route.Config) {}, route.Prefixes{}},
		"broken notes": {func(c *route.Config) { c.Notes = brokenNotes{notes.NewMemory(nil)} }, route.Prefixes{Alone: true}},
		"a later version": {func(c *route.Config) {
			n := notes.NewMemory(nil)
			must.OK(t, n.PutDemand(t.Context(), "m", "later", []byte("v2")))
			c.Notes = n
		}, route.Prefixes{Alone: true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.with)
			w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
			for range 5 {
				w.route(ask(prompt(1, 100)))
			}
			all, err := w.Prefixes(t.Context(), "m", 10)
			if err != nil || len(all.List) != 1 || all.Alone != c.want.Alone || all.List[0].Blocks != 6 {
				t.Errorf("%+v, %v", all, err)
			}
			if l := all.List[0]; len(l.Lacking) != 1 || len(l.Holders) != 0 || l.Copies != 1 {
				t.Errorf("no pod holds it: %+v", l)
			}
		})
	}
}

// PutDemand implements notes.Store.
func (brokenNotes) PutDemand(context.Context, string, string, []byte) error {
	return errBroken
}

// Demand implements notes.Store.
func (brokenNotes) Demand(context.Context, string) (map[string][]byte, error) {
	return nil, errBroken
}
