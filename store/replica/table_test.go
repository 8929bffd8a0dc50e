package replica

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// recorder is a folder that writes down the holders of each block.
type recorder struct {
	blocks [][]store.HolderID
	stop   int // after so many blocks; 0 is never
}

func (r *recorder) Begin(*store.Registry) {}

func (r *recorder) Run(n int, holders []store.HolderID) bool {
	for range n {
		r.blocks = append(r.blocks, slices.Clone(holders))
	}
	return r.stop == 0 || len(r.blocks) < r.stop
}

func lookupAll(t *table, keys []blockkey.StoreKey) [][]store.HolderID {
	q := &store.Query{}
	for _, k := range keys {
		q.Keys = append(q.Keys, blockkey.Key(k)) // model 0 has no mask
	}
	r := &recorder{}
	q.Fold = r
	t.lookup(q)
	return r.blocks
}

// checkTable compares the table's counters with what is in it.
func checkTable(tb interface{ Fatalf(string, ...any) }, t *table) {
	refs := map[uint32]int{}
	live, bytes := 0, int64(0)
	for p := range t.shards {
		sh := &t.shards[p]
		slots := *sh.slots.Load()
		bytes += int64(len(slots)) * slotBytes
		n, used := 0, 0
		for i := range slots {
			if slots[i].set != 0 {
				used++
			}
			if slots[i].set != 0 && slots[i].set != dead {
				n++
				refs[slots[i].set]++
			}
		}
		if n != sh.live || used != sh.used {
			tb.Fatalf("shard %d has %d blocks in %d slots, and counts %d in %d", p, n, used, sh.live, sh.used)
		}
		live += n
	}
	if int64(live) != t.blocks.Load() || bytes != t.bytes.Load() {
		tb.Fatalf("there are %d blocks in %d bytes, counted are %d in %d", live, bytes, t.blocks.Load(), t.bytes.Load())
	}
	sets, size := 0, int64(0)
	for n := uint32(1); n <= t.sets.top; n++ {
		e := t.sets.get(n)
		if e == nil {
			continue
		}
		sets++
		size += setBytes + 4*int64(len(e.list))
		if e.refs != refs[n] {
			tb.Fatalf("set %d has %d slots and counts %d", n, refs[n], e.refs)
		}
	}
	if sets != t.sets.live || size != t.sets.bytes.Load() {
		tb.Fatalf("there are %d sets of %d bytes, counted are %d of %d", sets, size, t.sets.live, t.sets.bytes.Load())
	}
}

// TestTable holds the table against a map through random histories of changes
// and walks that begin anew.
func TestTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tab := newTable(1 << 30)
		model := map[blockkey.StoreKey][]store.HolderID{}
		told := map[blockkey.StoreKey]bool{} // since the last Anew
		walking := uint64(0)
		var keys []blockkey.StoreKey
		for i := range 200 {
			keys = append(keys, blockkey.StoreKey(uint64(i%7)|uint64(i)*0x9e3779b97f4a7c15<<6))
		}
		keys = append(keys, 0, ^blockkey.StoreKey(0))
		key := rapid.SampledFrom(keys)
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) {
				ids := rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) store.HolderID {
					return store.HolderID(rapid.Uint32Range(1, 9).Draw(rt, "id"))
				}), 0, 4, rapid.ID).Draw(rt, "holders")
				slices.Sort(ids)
				those := rapid.SliceOfN(key, 1, 40).Draw(rt, "keys")
				must.OK(rt, tab.Set(those, ids))
				for _, k := range those {
					delete(model, k)
					if len(ids) > 0 {
						model[k] = ids
					}
					told[k] = true
				}
			},
			"anew": func(rt *rapid.T) {
				walking = rapid.Uint64Range(0, 1<<8-1).Draw(rt, "partitions")
				clear(told)
				tab.Anew(walking)
			},
			"whole": func(*rapid.T) {
				tab.Whole(walking)
				for k := range model {
					if walking>>k.Partition()&1 != 0 && !told[k] {
						delete(model, k)
					}
				}
			},
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "really") == 0 {
					tab.clear()
					clear(model)
				}
			},
			"": func(rt *rapid.T) {
				checkTable(rt, tab)
				for i, got := range lookupAll(tab, keys) {
					if !slices.Equal(got, model[keys[i]]) {
						rt.Fatalf("block %x is held by %v, want %v", keys[i], got, model[keys[i]])
					}
				}
			},
		})
	})
}

// TestTableStops: a folder that has enough is told no more.
func TestTableStops(t *testing.T) {
	tab := newTable(1 << 20)
	q := &store.Query{Keys: keysOf(1, 500)}
	r := &recorder{stop: 1}
	q.Fold = r
	if read := tab.lookup(q); read != window || len(r.blocks) != window {
		t.Errorf("read %d blocks, told %d", read, len(r.blocks))
	}
}

// TestTableLimit fills a table until it refuses, and finds its memory bounded.
func TestTableLimit(t *testing.T) {
	const limit = 1 << 20
	tab := newTable(limit)
	var err error
	n := 0
	for ; err == nil && n < 1<<20; n += 100 {
		var keys []blockkey.StoreKey
		for _, k := range keysOf(uint64(n), 100) {
			keys = append(keys, blockkey.StoreKey(k))
		}
		err = tab.Set(keys, []store.HolderID{store.HolderID(n + 1)})
	}
	if !errors.Is(err, errFull) {
		t.Fatalf("%d blocks fit into %d bytes: %v", n, limit, err)
	}
	if size := tab.size(); size > limit+limit/64 || n < limit/64 {
		t.Errorf("%d blocks took %d bytes", n, size)
	}
	tab.clear()
	checkTable(t, tab)
	if size := tab.size(); size > 64*minSlots*slotBytes {
		t.Errorf("%d bytes are left", size)
	}
}

// TestTableShrinks: what goes gives its memory back.
func TestTableShrinks(t *testing.T) {
	tab := newTable(1 << 30)
	var keys []blockkey.StoreKey
	for _, k := range keysOf(1, 100_000) {
		keys = append(keys, blockkey.StoreKey(k))
	}
	must.OK(t, tab.Set(keys, []store.HolderID{7}))
	full := tab.size()
	if per := full / int64(len(keys)); per > 40 {
		t.Errorf("a block takes %d bytes", per)
	}
	must.OK(t, tab.Set(keys[100:], nil))
	checkTable(t, tab)
	if size := tab.size(); size > full/40 {
		t.Errorf("100 blocks take %d bytes, %d took %d", size, len(keys), full)
	}
}

// TestTableConcurrently looks up while sets are made, given up and used again. Each
// block has one set, of a number that tells the block, or none.
func TestTableConcurrently(t *testing.T) {
	tab := newTable(1 << 30)
	const blocks = 512
	keys := make([]blockkey.StoreKey, blocks)
	for i := range keys {
		keys[i] = blockkey.StoreKey(uint64(i) * 0x9e3779b97f4a7c15)
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for i, ids := range lookupAll(tab, keys) {
					for _, id := range ids {
						if int(id)%blocks != i {
							t.Errorf("block %d is held by %d", i, id)
							return
						}
					}
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30_000 {
		i := rng.IntN(blocks)
		var ids []store.HolderID
		if rng.IntN(3) > 0 {
			ids = []store.HolderID{store.HolderID(i + blocks*rng.IntN(100) + blocks)}
		}
		must.OK(t, tab.Set(keys[i:i+1], ids))
	}
	close(stop)
	readers.Wait()
	checkTable(t, tab)
}

func BenchmarkTableSet(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			tab := newTable(1 << 30)
			all := keysOf(1, 1<<18)
			batch := make([]blockkey.StoreKey, n)
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				for i := range batch {
					batch[i] = blockkey.StoreKey(all[(at+i)%len(all)])
				}
				at += n
				must.OK(b, tab.Set(batch, []store.HolderID{store.HolderID(at/len(all)%8 + 1)}))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/block")
		})
	}
}
