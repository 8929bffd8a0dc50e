// Package loadstest holds every loads.Store to one contract.
package loadstest

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// Open returns an empty store whose time is the clock's.
type Open func(t *testing.T, c *Clock) loads.Store

// Run holds a store to the contract.
func Run(t *testing.T, open Open) {
	t.Run("books and ends", func(t *testing.T) { bookAndEnd(t, open) })
	t.Run("shared blocks count once", func(t *testing.T) { sharedBlocks(t, open) })
	t.Run("a call repeated", func(t *testing.T) { repeated(t, open) })
	t.Run("unknown, late and double reports", func(t *testing.T) { reports(t, open) })
	t.Run("costs", func(t *testing.T) { costs(t, open) })
	t.Run("a request beside its twin", func(t *testing.T) { twins(t, open) })
	t.Run("limits", func(t *testing.T) { limits(t, open) })
	t.Run("a restart voids a load", func(t *testing.T) { restart(t, open) })
	t.Run("leases", func(t *testing.T) { lease(t, open) })
	t.Run("output", func(t *testing.T) { output(t, open) })
	t.Run("speeds are learnt", func(t *testing.T) { learns(t, open) })
	t.Run("caches are filled", func(t *testing.T) { fills(t, open) })
	t.Run("models are apart", func(t *testing.T) { models(t, open) })
	t.Run("settings", func(t *testing.T) { settings(t, open) })
	t.Run("refuses", func(t *testing.T) { refuses(t, open) })
	t.Run("a burst is spread", func(t *testing.T) { burst(t, open) })
	t.Run("softmax", func(t *testing.T) { softmax(t, open) })
	runPairs(t, open)
	t.Run("histories", func(t *testing.T) { histories(t, open) })
	runEngines(t, open)
}

var ctx = context.Background()

// tester is a *testing.T or a *rapid.T.
type tester interface {
	must.TB
	Fatalf(format string, args ...any)
}

func equal[T comparable](t tester, want, got T, about ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%v, expected %v %v", got, want, about)
	}
}

func zero[T comparable](t tester, got T, about ...any) {
	t.Helper()
	var none T
	equal(t, none, got, about...)
}

func near(t tester, want, got, within float64, about ...any) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Fatalf("%v, expected %v %v", got, want, about)
	}
}

// blockSize is the index block size of all calls.
const blockSize = 16

// chain returns the keys of the first n blocks of a prompt. Prompts with the same head
// share the blocks before fork.
func chain(head, tail uint64, fork, n int) []blockkey.Key {
	keys := make([]blockkey.Key, n)
	for i := range keys {
		seed := head
		if i >= fork {
			seed = tail
		}
		keys[i] = blockkey.Key(seed<<32 | uint64(i)<<8) // with zero bytes, which a script must not end at
	}
	return keys
}

func pod(name string, rank int) store.RankRef { return store.RankRef{Pod: name, Rank: rank} }

// call is a request of n blocks that may go to the places.
func call(id string, keys []blockkey.Key, places ...store.RankRef) *loads.Call {
	c := &loads.Call{Model: "m", ID: id, Lease: time.Minute, Tokens: len(keys)*blockSize + 3, BlockSize: blockSize, Keys: keys, WantLoads: true}
	for _, p := range places {
		c.Candidates = append(c.Candidates, loads.Candidate{RankRef: p, Uncached: c.Tokens, Work: int64(c.Tokens) * 2, Factor: 1, Speed: 1})
	}
	return c
}

func book(t tester, s loads.Store, c *loads.Call) loads.Booked {
	b := must.Get(s.Book(ctx, c))(t)
	return b
}

func end(t tester, s loads.Store, id string) loads.Report {
	r := must.Get(s.End(ctx, "m", id))(t)
	return r
}

// load returns the load of a place, without what its cache was filled with.
func load(t tester, s loads.Store, at store.RankRef) loads.Load {
	p := must.Get(s.Loads(ctx, "m"))(t)
	return unfilled(p.Loads[at])
}

// unfilled returns a load without what its cache was filled with.
func unfilled(l loads.Load) loads.Load {
	l.Filled, l.FilledAt = 0, 0
	return l
}
