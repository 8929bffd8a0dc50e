package rechunk

import (
	"github.com/kvatlas/kvatlas/store"
)

// Changes are what a series of events changes in the index and in the map of its
// generation. They belong together and are made as one.
type Changes struct {
	// Ops are the changes of blocks, in order: a key can come and go again.
	Ops []store.Op
	// Map are the net changes of the map, no key twice.
	Map []store.MapOp
	// Reuse is what the events have shown of the engine. The zero value is nothing.
	Reuse store.Reuse
}

// Empty reports whether nothing changes. The sequence goes on all the same: an owner that keeps count of it
// in the index writes a batch without ops.
func (c *Changes) Empty() bool { return len(c.Ops) == 0 && len(c.Map) == 0 }

// AppendBatches appends the changes to dst as batches that the store accepts, all
// with the pod, rank, model and guard of b. There is one, or more when there are
// more map ops than a batch can carry. They are one content and go in one call of
// Apply. There is always at least one, which carries the guard's sequence on.
func (c *Changes) AppendBatches(dst []store.Batch, b store.Batch) []store.Batch {
	b.Ops, b.Map, b.Reuse = c.Ops, c.Map, c.Reuse
	for len(b.Map) > store.MaxMapOps {
		next := b
		b.Map = b.Map[:store.MaxMapOps]
		dst = append(dst, b)
		b, b.Ops, b.Map = next, nil, next.Map[store.MaxMapOps:]
	}
	return append(dst, b)
}
