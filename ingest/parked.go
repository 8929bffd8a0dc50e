package ingest

import (
	"context"

	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// parked is what a reader has left that was called off, where the index is memory of this process. The
// rank's next reader here goes on with it, as the map has none of it. A change of the generation by
// another has moved its sequence.
type parked struct {
	gen   store.Generation
	seq   uint64 // in the index, when the reader ended
	size  int    // the index block size
	chunk *rechunk.Chunker
}

// park keeps what r knows until the rank is read again, if it has written all of it.
func (in *Ingester) park(ctx context.Context, r *reader) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.parked == nil {
		in.parked = map[rankKey]parked{}
	}
	in.parked[rankKey{r.s.Pod, r.s.Rank}] = parked{r.gen, r.written.seq + 1, r.model.BlockSize, r.chunk}
	// No reader comes for a generation that has ended.
	for key, p := range in.parked {
		if life, err := in.config.Index.Life(ctx, key.pod, key.rank); err == nil && life.Generation != p.gen {
			delete(in.parked, key)
		}
	}
}

// unpark takes what is kept of a rank, the zero value for nothing.
func (in *Ingester) unpark(key rankKey) parked {
	in.mu.Lock()
	defer in.mu.Unlock()
	p := in.parked[key]
	delete(in.parked, key)
	return p
}
