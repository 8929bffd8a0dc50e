package memory

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/store"
)

const (
	// firstWindow is how many blocks are read before the folder is asked for the
	// first time: most chains that nobody holds end there.
	firstWindow = 32
	// window is how many are read at once from then on. More would overlap no
	// more cache misses.
	window = 128
	// checkEvery is after how many blocks a lookup looks at its context.
	checkEvery = 1024
)

// Lookup implements [store.Index]. It allocates nothing.
func (x *Index) Lookup(ctx context.Context, queries ...*store.Query) error {
	for i, q := range queries {
		if q == nil || q.Fold == nil {
			return fmt.Errorf("%w: query %d has no folder", store.ErrInvalid, i)
		}
	}
	// The registry comes first: whoever is found to hold a block that was added
	// before is in it.
	r := x.registry.current()
	for _, q := range queries {
		q.Fold.Begin(r)
	}
	var read int
	err := x.enter(ctx)
	for _, q := range queries {
		if err != nil {
			break
		}
		var n int
		n, err = x.walk(ctx, q)
		read += n
	}
	x.read.add(uint64(read))
	return err
}

// walk answers one query. It returns the number of blocks that were read.
//
// A window is read by one view in four steps:
//
//  1. touch the home bucket of each block; the loads do not wait for each other;
//  2. read each block's set from its bucket;
//  3. for each run of equal sets, fetch the set's holders;
//  4. look whether the view still stands. If it does, no set id has been given
//     to another set since step 2, so these are the holders; tell the folder.
//     If not, go back to step 1 with the blocks that have not been told.
func (x *Index) walk(ctx context.Context, q *store.Query) (read int, err error) {
	var (
		hashes [window]uint64
		homes  [window]*bucket
		size   = firstWindow
		check  = checkEvery
	)
	for keys := q.Keys; len(keys) > 0; {
		if read >= check {
			if err := x.enter(ctx); err != nil {
				return read, err
			}
			check = read + checkEvery
		}
		n := min(len(keys), size)
		size = window
		v := x.view.Load()
		for i, k := range keys[:n] {
			h := x.hash(k.In(q.Model))
			t := v.tables[shardOf(h)]
			b := &t[home(slotKey(h), len(t))]
			atomic.LoadUint32(&b.meta)
			hashes[i], homes[i] = h, b
		}
		x.readSets(v, hashes[:n], homes[:n])
		read += n
		told := 0
		for told < n {
			set, end := hashes[told], told+1
			for end < n && hashes[end] == set {
				end++
			}
			ids := x.sets.ids(uint32(set))
			if x.view.Load() != v {
				break
			}
			if !q.Fold.Run(end-told, ids) {
				return read, nil
			}
			told = end
		}
		keys = keys[told:]
	}
	return read, nil
}

// readSets puts the set of each block in the place of its hash.
func (x *Index) readSets(v *view, hashes []uint64, homes []*bucket) {
	touching := x.touching.Load()
	for i, h := range hashes {
		b := homes[i]
		ref, slot, more := b.read(slotKey(h))
		if more {
			ref, b, slot = v.tables[shardOf(h)].readOn(slotKey(h))
		}
		if touching && ref != 0 {
			x.touch(b, slot, ref)
		}
		hashes[i] = uint64(ref & setMask)
	}
}

// touch renews the age of a block, once an age. When the slot has changed in
// the meantime nothing happens, or at worst another block looks younger.
func (x *Index) touch(b *bucket, slot int, ref uint32) {
	if age := x.age.Load() & ageMask; ref>>setBits != age {
		atomic.CompareAndSwapUint32(&b.refs[slot], ref, makeRef(ref&setMask, age))
	}
}
