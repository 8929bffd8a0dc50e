package redis

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// TestBlocksStayInOrder holds writes to the order of the batches, which the time of
// lookups hangs on; on a cluster within each partition.
func TestBlocksStayInOrder(t *testing.T) {
	chain := benchChain(2*callKeys + 100)
	again := slices.Clone(chain[:200]) // what comes once more stays where it was
	slices.Reverse(again)
	for _, cluster := range []bool{false, true} {
		x := &Index{space: &keyspace.Space{Cluster: cluster, Names: keyspace.NewNames(DefaultPrefix)}}
		none := func(string, int) []int64 { return nil }
		p := newPlan([]store.Batch{
			batchOf("a", store.Add, chain...), batchOf("b", store.Add, chain...), batchOf("a", store.Add, again...),
		}, none)
		p.refs[0].id, p.refs[1].id = 17, 5
		got := map[int][]blockkey.StoreKey{}
		for _, calls := range x.applyCalls(p, nil, p.steps()) {
			for _, c := range calls {
				for _, e := range c.edits {
					got[c.Place] = append(got[c.Place], e.key)
				}
			}
		}
		want := map[int][]blockkey.StoreKey{}
		for _, k := range chain {
			k := k.In(blockkey.ModelOf("m"))
			place := keyspace.AtRegistry
			if cluster {
				place = k.Partition()
			}
			want[place] = append(want[place], k)
		}
		for place := range want {
			if !slices.Equal(got[place], want[place]) {
				t.Errorf("cluster %v: the blocks written at %d are not in the order of their chain", cluster, place)
			}
		}
	}
}

// TestBlockTable compares the table with a Go map, on keys that come again.
func TestBlockTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{0, 1, 2, 31, 32, 1000} {
		table, want := newBlockTable(n), map[blockkey.StoreKey]int{}
		for range n {
			k := blockkey.StoreKey(rng.IntN(n)) << (32 * rng.IntN(2))
			if _, ok := want[k]; !ok {
				want[k] = len(want)
			}
			if got := table.number(k); got != want[k] {
				t.Fatalf("block %x has number %d among %d, want %d", k, got, n, want[k])
			}
		}
	}
}
