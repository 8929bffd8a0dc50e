package store_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

func TestRegistryFindsHolders(t *testing.T) {
	for name, ids := range map[string][]store.HolderID{
		"none":          nil,
		"few":           {1, 2, 3},
		"over a page":   {255, 256, 257},
		"far from 0":    {1 << 30, 1<<30 + 700},
		"far apart":     {1, 1 << 20, 1 << 31, math.MaxUint32},
		"just too far":  {0x100, 0x100 + 4096*256},
		"just not that": {0x100, 0x100 + 4095*256},
	} {
		t.Run(name, func(t *testing.T) {
			var holders []store.Holder
			for i, id := range ids {
				holders = append(holders, store.Holder{ID: id, Pod: fmt.Sprint("pod", i), Rank: i, Tier: store.Tier(i % store.NumTiers)})
			}
			var pods []store.Pod
			for i := range ids {
				pods = append(pods, store.Pod{Name: fmt.Sprint("pod", len(ids)-1-i)})
			}
			r := store.NewRegistry(1, pods, append(slices.Clone(holders), store.Holder{ID: 77, Pod: "stranger"}), nil, time.Time{})
			if got := r.Holders(); !slices.Equal(got, holders) {
				t.Fatalf("got %v, want %v", got, holders)
			}
			for i, h := range holders {
				slot, tier, live := r.Holder(h.ID)
				if !live || tier != h.Tier || r.Slots[slot].Rank != h.Rank || r.Pods[r.Slots[slot].Pod].Name != h.Pod {
					t.Fatalf("holder %d: got slot %d, tier %v, live %v", i, slot, tier, live)
				}
			}
			for _, id := range ids {
				for _, other := range []store.HolderID{0, 77, id - 1, id + 1, id + 256, id - 256, id + 1<<20, math.MaxUint32} {
					if slices.Contains(ids, other) {
						continue
					}
					if _, _, live := r.Holder(other); live {
						t.Fatalf("%d is live", other)
					}
				}
			}
		})
	}
}
