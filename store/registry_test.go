package store_test

import (
	"fmt"
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
		"far apart":     {1, 1 << 20, 1 << 31, store.FirstLocal - 1},
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
				for _, other := range []store.HolderID{0, 77, id - 1, id + 1, id + 256, id - 256, id + 1<<20, store.FirstLocal - 1} {
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

// TestLocalHolders: ids that no index gives are known to Holder alone.
func TestLocalHolders(t *testing.T) {
	r := store.NewRegistry(1, []store.Pod{{Name: "a"}, {Name: "b"}}, []store.Holder{
		{ID: store.FirstLocal + 1, Pod: "b", Tier: store.GPU}, {ID: 7, Pod: "a", Rank: 1, Tier: store.CPU}, {ID: 900, Pod: "b", Rank: 2, Tier: store.Disk},
	}, nil, time.Time{})
	for id, want := range map[store.HolderID]string{store.FirstLocal + 1: "b 0 gpu", 7: "a 1 cpu", 900: "b 2 disk"} {
		slot, tier, live := r.Holder(id)
		if !live {
			t.Errorf("%d is not known", id)
			continue
		}
		if got := fmt.Sprint(r.Pods[r.Slots[slot].Pod].Name, " ", r.Slots[slot].Rank, " ", tier); got != want {
			t.Errorf("%d is %s, want %s", id, got, want)
		}
	}
	for _, id := range []store.HolderID{store.FirstLocal, store.FirstLocal + 2, 8, ^store.HolderID(0)} {
		if _, _, live := r.Holder(id); live {
			t.Errorf("%d is known", id)
		}
	}
	if len(r.Holders()) != 2 {
		t.Errorf("%v", r.Holders())
	}
}

// TestEngineOf wants one word of all pods of a model.
func TestEngineOf(t *testing.T) {
	for _, c := range []struct {
		pods []store.Pod
		want string
	}{
		{nil, ""},
		{[]store.Pod{{Name: "a", Model: "m", Engine: "sglang"}}, "sglang"},
		{[]store.Pod{{Name: "a", Model: "m", Engine: "sglang"}, {Name: "b", Model: "m", Engine: "sglang"}, {Name: "c", Model: "n", Engine: "vllm"}}, "sglang"},
		{[]store.Pod{{Name: "a", Model: "m", Engine: "sglang"}, {Name: "b", Model: "m", Engine: "vllm"}}, ""},
		{[]store.Pod{{Name: "a", Model: "m", Engine: "sglang"}, {Name: "b", Model: "m"}}, ""},
		{[]store.Pod{{Name: "a", Model: "m"}, {Name: "b", Model: "m", Engine: "sglang"}}, ""},
	} {
		if got := store.NewRegistry(1, c.pods, nil, nil, time.Time{}).EngineOf("m"); got != c.want {
			t.Errorf("%+v: %q, want %q", c.pods, got, c.want)
		}
	}
}
