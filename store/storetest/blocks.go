package storetest

import (
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

var blockCases = []testCase{
	{"an empty index holds nothing", func(b *bench) {
		b.want(b.find(chain(1, 3)...), nil, nil, nil)
	}},
	{"an added block is found, its neighbours are not", func(b *bench) {
		k := chain(1, 3)
		b.add("a", 0, store.GPU, k[1])
		b.want(b.find(k...), nil, by(on("a", store.GPU)), nil)
	}},
	{"adding twice is adding once", func(b *bench) {
		k := chain(1, 3)
		b.add("a", 0, store.GPU, k...)
		b.add("a", 0, store.GPU, append(k, k...)...)
		b.want(b.find(k...), times(3, on("a", store.GPU))...)
		b.remove("a", 0, store.GPU, k[1])
		b.want(b.find(k...), by(on("a", store.GPU)), nil, by(on("a", store.GPU)))
	}},
	{"removing what is not held is harmless", func(b *bench) {
		k := chain(1, 3)
		b.add("a", 0, store.GPU, k[0])
		b.remove("a", 0, store.GPU, k[1], k[1], k[2])
		b.remove("a", 0, store.CPU, k...)
		b.remove("b", 0, store.AllTiers, k...)
		b.want(b.find(k...), by(on("a", store.GPU)), nil, nil)
	}},
	{"pods, ranks and tiers hold a block side by side", func(b *bench) {
		k := chain(1, 2)
		var all []At
		for _, pod := range []string{"a", "b", "c"} {
			for _, rank := range []int{0, 1, store.MaxRanks - 1} {
				for tier := range store.Tier(store.NumTiers) {
					b.add(pod, rank, tier, k[0])
					all = append(all, At{Pod: pod, Rank: rank, Tier: tier})
					b.want(b.find(k...), all, nil)
				}
			}
		}
		for i, at := range all {
			b.remove(at.Pod, at.Rank, at.Tier, k[0])
			b.want(b.find(k...), all[i+1:], nil)
		}
	}},
	{"remove from one tier leaves the others", func(b *bench) {
		k := chain(1, 2)
		b.add("a", 0, store.GPU, k...)
		b.add("a", 0, store.CPU, k...)
		b.remove("a", 0, store.GPU, k[0])
		b.want(b.find(k...), by(on("a", store.CPU)), by(on("a", store.GPU), on("a", store.CPU)))
	}},
	{"remove from all tiers leaves other ranks and pods", func(b *bench) {
		k := chain(1, 2)
		for tier := range store.Tier(store.NumTiers) {
			b.add("a", 0, tier, k...)
		}
		b.add("a", 1, store.GPU, k...)
		b.add("b", 0, store.Disk, k...)
		b.remove("a", 0, store.AllTiers, k[0])
		b.want(b.find(k...),
			by(At{"a", 1, store.GPU, 0}, on("b", store.Disk)),
			by(on("a", store.GPU), on("a", store.CPU), on("a", store.Disk), on("a", store.Shared), At{"a", 1, store.GPU, 0}, on("b", store.Disk)))
	}},
	{"clear of a tier takes that tier of that rank", func(b *bench) {
		k := chain(1, 2)
		for _, at := range []At{{"a", 0, store.GPU, 0}, {"a", 0, store.CPU, 0}, {"a", 1, store.GPU, 0}, {"b", 0, store.GPU, 0}} {
			b.add(at.Pod, at.Rank, at.Tier, k...)
		}
		b.clear("a", 0, store.GPU)
		b.want(b.find(k...), times(2, on("a", store.CPU), At{"a", 1, store.GPU, 0}, on("b", store.GPU))...)
	}},
	{"clear of all tiers takes that rank", func(b *bench) {
		k := chain(1, 2)
		for _, at := range []At{{"a", 0, store.GPU, 0}, {"a", 0, store.CPU, 0}, {"a", 1, store.GPU, 0}, {"b", 0, store.GPU, 0}} {
			b.add(at.Pod, at.Rank, at.Tier, k...)
		}
		b.clear("a", 0, store.AllTiers)
		b.want(b.find(k...), times(2, At{"a", 1, store.GPU, 0}, on("b", store.GPU))...)
	}},
	{"clear of all ranks takes the pod's tier or all of it", func(b *bench) {
		k := chain(1, 2)
		for _, at := range []At{{"a", 0, store.GPU, 0}, {"a", 0, store.CPU, 0}, {"a", 1, store.GPU, 0}, {"a", 5, store.Disk, 0}, {"b", 0, store.GPU, 0}} {
			b.add(at.Pod, at.Rank, at.Tier, k...)
		}
		b.apply(batch("a", 3, store.Op{Kind: store.Clear, Tier: store.GPU, AllRanks: true}))
		b.want(b.find(k...), times(2, on("a", store.CPU), At{"a", 5, store.Disk, 0}, on("b", store.GPU))...)
		b.apply(batch("a", 3, store.Op{Kind: store.Clear, Tier: store.AllTiers, AllRanks: true}))
		b.want(b.find(k...), times(2, on("b", store.GPU))...)
	}},
	{"clear is of all models", func(b *bench) {
		k := chain(1, 2)
		other := store.Batch{Pod: "a", Model: "other", Ops: []store.Op{adds(store.GPU, k...)}}
		b.apply(batch("a", 0, adds(store.GPU, k...)), other)
		b.clear("a", 0, store.GPU)
		b.want(b.find(k...), nil, nil)
		b.want(b.findIn(blockkey.ModelOf("other"), k...), nil, nil)
	}},
	{"what is added after a clear is found alone", func(b *bench) {
		k := chain(1, 4)
		b.add("a", 0, store.GPU, k...)
		before := b.ids(k...)
		b.clear("a", 0, store.GPU)
		b.add("a", 0, store.GPU, k[2])
		b.want(b.find(k...), nil, nil, by(on("a", store.GPU)), nil)
		after := b.ids(k...)
		b.failIf(len(before) != 1 || len(after) != 1 || after[0] <= before[0], "holder ids %v before the clear and %v after it, want one each, ascending", before, after)
	}},
	{"clearing over and over gives no id twice", func(b *bench) {
		k := chain(1, 1)
		var last store.HolderID
		for i := range 50 {
			b.add("a", i%2, store.Tier(i%store.NumTiers), k...)
			for _, id := range b.ids(k...) {
				b.failIf(id <= last, "round %d: id %d after %d", i, id, last)
				last = id
			}
			b.clear("a", i%2, store.Tier(i%store.NumTiers))
		}
	}},
	{"clear of a pod that is not known is harmless", func(b *bench) {
		k := chain(1, 1)
		b.add("b", 0, store.GPU, k...)
		b.clear("a", 0, store.AllTiers)
		b.want(b.find(k...), by(on("b", store.GPU)))
	}},
	{"ops are applied in order", func(b *bench) {
		k := chain(1, 5)
		b.apply(
			batch("a", 0,
				adds(store.GPU, k[0], k[1]), removes(store.GPU, k[0]), // add, remove
				removes(store.GPU, k[2]), adds(store.GPU, k[2]), // remove, add
				adds(store.CPU, k[3]), store.Op{Kind: store.Clear, Tier: store.CPU}, // add, clear
				store.Op{Kind: store.Clear, Tier: store.Disk}, adds(store.Disk, k[4])), // clear, add
			batch("b", 0, adds(store.GPU, k[0])),
			batch("a", 0, removes(store.GPU, k[1])),
			batch("b", 0, adds(store.GPU, k[1])),
		)
		b.want(b.find(k...),
			by(on("b", store.GPU)), by(on("b", store.GPU)), by(on("a", store.GPU)), nil, by(on("a", store.Disk)))
	}},
	{"one op may add, remove and add a key anew in neighbouring batches", func(b *bench) {
		k := chain(1, 1)
		var all []store.Batch
		for range 7 {
			all = append(all, batch("a", 0, adds(store.GPU, k...)), batch("a", 0, removes(store.AllTiers, k...)))
		}
		b.apply(all...)
		b.want(b.find(k...), nil)
		b.apply(append(all, batch("a", 0, adds(store.GPU, k...)))...)
		b.want(b.find(k...), by(on("a", store.GPU)))
	}},
	{"every key is a key", func(b *bench) {
		// Values that a table could have taken for "empty" or "deleted", before
		// and after the model is mixed in.
		m := blockkey.Key(mask)
		k := []blockkey.Key{0, 1, 2, ^blockkey.Key(0), ^blockkey.Key(0) - 1, m, m ^ 1, m ^ 2, ^m, ^m - 1, 1 << 63, 1 << 32, 64, 128}
		b.want(b.find(k...), make([][]At, len(k))...)
		for i := range k {
			b.add("a", 0, store.GPU, k[i])
			want := append(times(i+1, on("a", store.GPU)), make([][]At, len(k)-i-1)...)
			b.want(b.find(k...), want...)
		}
		for i := range k {
			b.remove("a", 0, store.GPU, k[i])
			want := append(make([][]At, i+1), times(len(k)-i-1, on("a", store.GPU))...)
			b.want(b.find(k...), want...)
		}
	}},
	{"keys that share their low or high bits are apart", func(b *bench) {
		var low, high []blockkey.Key
		for i := range blockkey.Key(300) {
			low = append(low, i<<48|5)
			high = append(high, 7<<56|i<<6)
		}
		b.add("a", 0, store.GPU, low...)
		b.add("b", 0, store.GPU, high...)
		b.want(b.find(low...), times(len(low), on("a", store.GPU))...)
		b.want(b.find(high...), times(len(high), on("b", store.GPU))...)
		for i := 0; i < len(low); i += 2 {
			b.remove("a", 0, store.GPU, low[i])
		}
		for i, at := range b.find(low...) {
			if held := len(at) == 1; held != (i%2 == 1) {
				b.Fatalf("block %d: held %v", i, held)
			}
		}
	}},
	{"models with the same keys are apart", func(b *bench) {
		k := chain(1, 2)
		b.apply(
			store.Batch{Pod: "a", Model: "m1", Ops: []store.Op{adds(store.GPU, k...)}},
			store.Batch{Pod: "b", Model: "m2", Ops: []store.Op{adds(store.CPU, k[0])}},
		)
		b.want(b.findIn(blockkey.ModelOf("m1"), k...), times(2, on("a", store.GPU))...)
		b.want(b.findIn(blockkey.ModelOf("m2"), k...), by(on("b", store.CPU)), nil)
		b.want(b.findIn(blockkey.ModelOf("m3"), k...), nil, nil)
		b.want(b.findIn(0, k...), nil, nil)
		b.apply(store.Batch{Pod: "a", Model: "m2", Ops: []store.Op{removes(store.AllTiers, k...)}})
		b.want(b.findIn(blockkey.ModelOf("m1"), k...), times(2, on("a", store.GPU))...)
	}},
	{"ops of many keys and chains of many blocks", func(b *bench) {
		k := chain(9, store.MaxOpKeys)
		more := chain(10, 3000)
		b.add("a", 0, store.GPU, k...)
		b.add("a", 0, store.GPU, more...)
		b.add("b", 0, store.GPU, k[:5000]...)
		all := append(slices.Clone(k), more...)
		want := append(times(5000, on("a", store.GPU), on("b", store.GPU)), times(len(all)-5000, on("a", store.GPU))...)
		b.want(b.find(all...), want...)
		b.remove("a", 0, store.AllTiers, k...)
		want = append(times(5000, on("b", store.GPU)), times(len(k)-5000)...)
		b.want(b.find(all...), append(want, times(len(more), on("a", store.GPU))...)...)
	}},
	{"many holders of one block", func(b *bench) {
		k := chain(1, 2)
		var want []At
		for rank := range 300 {
			b.add("a", rank, store.GPU, k[0])
			want = append(want, At{"a", rank, store.GPU, 0})
		}
		b.want(b.find(k...), want, nil)
		for rank := 0; rank < 300; rank += 3 {
			b.remove("a", rank, store.GPU, k[0])
		}
		want = slices.DeleteFunc(want, func(a At) bool { return a.Rank%3 == 0 })
		b.want(b.find(k...), want, nil)
	}},
}

// ids returns the live holder ids that a lookup tells.
func (b *bench) ids(keys ...blockkey.Key) []store.HolderID {
	b.Helper()
	c := &Collector{Keys: len(keys)}
	must.OK(b, b.Index.Lookup(b.ctx, &store.Query{Model: mask, Keys: keys, Fold: c}))
	b.checked(c)
	return c.IDs
}
