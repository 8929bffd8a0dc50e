package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// MemoryConfig says what Memory measures. The zero value of a field means its
// default.
type MemoryConfig struct {
	// Blocks is the number of blocks of the index; 1 Mi by default, at most 64 Mi.
	Blocks int
	// Sizes are the lengths of chains in blocks; 128, 1,024 and 8,192 by default.
	Sizes []int
	// Holders are the numbers of pods that hold a block; 1, 10 and 100 by default.
	Holders []int
	// Events are the numbers of blocks of an engine's event; 1, 16 and 128 by
	// default.
	Events []int
	// Rounds is the number of samples of each figure; 20 by default.
	Rounds int
	// Progress receives what is going on; it may be nil.
	Progress func(string)
}

func (c MemoryConfig) withDefaults() (MemoryConfig, error) {
	c.Blocks = cmp.Or(c.Blocks, 1<<20)
	c.Rounds = cmp.Or(c.Rounds, 20)
	if len(c.Sizes) == 0 {
		c.Sizes = []int{128, 1024, 8192}
	}
	if len(c.Holders) == 0 {
		c.Holders = []int{1, 10, 100}
	}
	if len(c.Events) == 0 {
		c.Events = []int{1, 16, 128}
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if c.Blocks < 1 || c.Blocks > 64<<20 || c.Rounds < 1 || c.Rounds > 10_000 {
		return c, fmt.Errorf("bench: %d blocks and %d rounds; they can be 1 to 64 Mi and 1 to 10,000", c.Blocks, c.Rounds)
	}
	for what, list := range map[string][]int{"a chain's number of blocks": c.Sizes, "the number of holders": c.Holders, "an event's number of blocks": c.Events} {
		for _, v := range list {
			if v < 1 || v > 1<<16 {
				return c, fmt.Errorf("bench: %s is %d, it can be 1 to 65536", what, v)
			}
		}
	}
	return c, nil
}

// MemoryReport is what Memory has measured. All times are CPU time of the
// measuring thread where the system has it (Linux), else by the clock.
type MemoryReport struct {
	Machine    string        `json:"machine"`
	Began      time.Time     `json:"began"`
	Took       time.Duration `json:"took_ns"`
	LoadBefore string        `json:"load_before"`
	LoadAfter  string        `json:"load_after"`
	Blocks     int           `json:"blocks"`
	Find       []FindRow     `json:"find"`
	Apply      []ApplyRow    `json:"apply"`
	Size       []SizeRow     `json:"size"`
}

// FindRow is the lookup of a whole chain, folded into a prefix a pod.
type FindRow struct {
	// Shape is one of whole, forks and stairs.
	Shape   string `json:"shape"`
	Holders int    `json:"holders"`
	Blocks  int    `json:"blocks"`
	// Cold is the time in microseconds for a chain out of all, Hot for the same
	// again and again.
	Cold Spread `json:"cold_us"`
	Hot  Spread `json:"hot_us"`
}

// ApplyRow is the writing of events of a size.
type ApplyRow struct {
	Blocks int `json:"blocks"`
	// New, Again and Remove are in million blocks a second and core: blocks that
	// no pod holds, that the pod holds already, and their removal.
	New    Spread `json:"new_mblocks"`
	Again  Spread `json:"again_mblocks"`
	Remove Spread `json:"remove_mblocks"`
}

// SizeRow is the memory of an index.
type SizeRow struct {
	// What says which index.
	What   string `json:"what"`
	Blocks int64  `json:"blocks"`
	// Counted and Heap are bytes a block: as the index counts them, and by which
	// Go's heap has grown.
	Counted float64 `json:"counted"`
	Heap    float64 `json:"heap"`
}

// The shapes of the chains that are found.
const (
	// shapeWhole has all pods hold all blocks.
	shapeWhole = "whole"
	// shapeForks has, at every 16th block, a sibling that one of the pods holds.
	// So an edge of a compressed tree is no longer than 16 blocks.
	shapeForks = "forks"
	// shapeStairs has forks, and pods that each hold another length of the chain,
	// as evenly spread as 16 blocks allow.
	shapeStairs = "stairs"
)

const forkEvery = 16

// Memory measures store/memory.
func Memory(ctx context.Context, c MemoryConfig) (*MemoryReport, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &MemoryReport{Machine: Machine(), Began: time.Now(), LoadBefore: LoadAverage(), Blocks: c.Blocks}
	for _, holders := range c.Holders {
		for _, shape := range []string{shapeWhole, shapeForks, shapeStairs} {
			for _, n := range c.Sizes {
				c.Progress(fmt.Sprintf("find: %d blocks, %d holders, %s", n, holders, shape))
				row, err := find(ctx, c, shape, holders, n)
				if err != nil {
					return nil, err
				}
				r.Find = append(r.Find, row)
			}
		}
	}
	for _, n := range c.Events {
		c.Progress(fmt.Sprintf("apply: events of %d blocks", n))
		row, err := apply(ctx, c, n)
		if err != nil {
			return nil, err
		}
		r.Apply = append(r.Apply, row)
	}
	if r.Size, err = sizes(ctx, c); err != nil {
		return nil, err
	}
	r.Took, r.LoadAfter = time.Since(r.Began), LoadAverage()
	return r, nil
}

// Write writes the report as Markdown.
func (r *MemoryReport) Write(w io.Writer) error { return writeMemory(w, r) }

// shaped is an index with chains of a shape.
type shaped struct {
	x      *memory.Index
	corpus corpus
}

func newShaped(ctx context.Context, blocks int, shape string, holders, n int) (*shaped, error) {
	x, err := memory.New(memory.Config{MaxBytes: 16 << 30, MaxBlocks: 1 << 28})
	if err != nil {
		return nil, err
	}
	s := &shaped{x: x, corpus: newCorpus(5, blocks, n)}
	if err := s.fill(ctx, shape, holders); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return s, nil
}

func (s *shaped) fill(ctx context.Context, shape string, holders int) error {
	n := s.corpus.depth
	var keys []blockkey.Key
	for chain := range s.corpus.chains {
		for h := range holders {
			keys = s.corpus.append(keys[:0], chain, 0, s.held(shape, holders, h))
			if err := addChain(ctx, s.x, podName(h), keys); err != nil {
				return err
			}
		}
		if shape == shapeWhole {
			continue
		}
		keys = keys[:0]
		for at := forkEvery; at < n; at += forkEvery {
			keys = append(keys, s.corpus.key(chain, n+at))
		}
		if err := addChain(ctx, s.x, podName(chain%holders), keys); err != nil {
			return err
		}
	}
	return nil
}

// held is how many blocks of a chain a holder has.
func (s *shaped) held(shape string, holders, h int) int {
	n := s.corpus.depth
	if shape != shapeStairs || h == 0 {
		return n
	}
	return max(1, n*(holders-h)/holders/forkEvery) * forkEvery
}

// addChain adds a chain in events of 1,024 blocks.
func addChain(ctx context.Context, x store.Index, pod string, keys []blockkey.Key) error {
	for part := range slices.Chunk(keys, 1024) {
		b := store.Batch{Pod: pod, Model: model, Ops: []store.Op{{Kind: store.Add, Keys: part}}}
		if err := x.Apply(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// find measures lookups.
func find(ctx context.Context, c MemoryConfig, shape string, holders, n int) (row FindRow, err error) {
	s, err := newShaped(ctx, c.Blocks, shape, holders, n)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, s.x.Close()) }()
	fold := &prefixFolder{}
	q := &store.Query{Model: blockkey.ModelOf(model), Fold: fold}
	chains := make([][]blockkey.Key, s.corpus.chains)
	for i := range chains {
		chains[i] = s.corpus.append(nil, i, 0, n)
	}
	// The answer is checked before it is timed.
	q.Keys = chains[0]
	if err := s.x.Lookup(ctx, q); err != nil {
		return row, err
	}
	got := fold.prefixes()
	for h := range holders {
		if want := s.held(shape, holders, h); got[podName(h)] != want {
			return row, fmt.Errorf("bench: %s, %d holders: pod %d holds %d blocks of %d, not %d", shape, holders, h, got[podName(h)], n, want)
		}
	}
	runtime.GC()
	rng := rand.New(rand.NewPCG(1, 2))
	perSample := max(1, 1<<20/n)
	sample := func(chains [][]blockkey.Key) (float64, error) {
		t := startThread()
		defer t.end()
		for range perSample {
			q.Keys = chains[rng.IntN(len(chains))]
			if err := s.x.Lookup(ctx, q); err != nil {
				return 0, err
			}
		}
		return t.used().Seconds() * 1e6 / float64(perSample), nil
	}
	var cold, hot []float64
	for range c.Rounds {
		a, err1 := sample(chains)
		b, err2 := sample(chains[:1])
		if err := errors.Join(err1, err2, ctx.Err()); err != nil {
			return row, err
		}
		cold, hot = append(cold, a), append(hot, b)
	}
	return FindRow{Shape: shape, Holders: holders, Blocks: n, Cold: SpreadOf(cold), Hot: SpreadOf(hot)}, nil
}

// apply measures events of n blocks: all blocks of an index are added, added
// again and removed.
func apply(ctx context.Context, c MemoryConfig, n int) (row ApplyRow, err error) {
	keys := newCorpus(6, c.Blocks, c.Blocks).append(nil, 0, 0, c.Blocks)
	batch := []store.Batch{{Pod: podName(0), Model: model, Ops: []store.Op{{}}}}
	op := &batch[0].Ops[0]
	var samples [3][]float64
	rounds := max(3, c.Rounds/4) // an index of all blocks each time
	for range rounds {
		x, err := memory.New(memory.Config{})
		if err != nil {
			return row, err
		}
		for i, kind := range []store.OpKind{store.Add, store.Add, store.Remove} {
			runtime.GC()
			op.Kind = kind
			t := startThread()
			for part := range slices.Chunk(keys, n) {
				op.Keys = part
				if err = x.Apply(ctx, batch...); err != nil {
					break
				}
			}
			used := t.used()
			t.end()
			samples[i] = append(samples[i], float64(len(keys))/1e6/max(used.Seconds(), 1e-9))
		}
		if err := errors.Join(err, x.Close(), ctx.Err()); err != nil {
			return row, err
		}
	}
	return ApplyRow{Blocks: n, New: SpreadOf(samples[0]), Again: SpreadOf(samples[1]), Remove: SpreadOf(samples[2])}, nil
}

// heapInUse is what Go's heap holds after a collection.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools have let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// sizes measures memory: of indexes of all blocks, and of one of a tenth of them
// through which ten times as many have gone.
func sizes(ctx context.Context, c MemoryConfig) ([]SizeRow, error) {
	var rows []SizeRow
	for _, holders := range c.Holders {
		c.Progress(fmt.Sprintf("size: %d holders", holders))
		before := heapInUse()
		s, err := newShaped(ctx, c.Blocks, shapeWhole, holders, 1024)
		if err != nil {
			return nil, err
		}
		row := sizeOf(s.x, before)
		row.What = fmt.Sprintf("%d holders a block", holders)
		rows = append(rows, row)
		if err := s.x.Close(); err != nil {
			return nil, err
		}
	}
	c.Progress("size after churn")
	before := heapInUse()
	x, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	churn := newCorpus(7, c.Blocks, 1024)
	step := func(kind store.OpKind, chain int) error {
		b := store.Batch{Pod: podName(chain % 10), Model: model, Ops: []store.Op{{Kind: kind, Keys: churn.append(nil, chain, 0, churn.depth)}}}
		return x.Apply(ctx, b)
	}
	// A tenth of the blocks lives at a time, and each is replaced a hundred times.
	live := max(1, churn.chains/10)
	turns := 100 * live
	for chain := range turns {
		err = errors.Join(err, step(store.Add, chain))
		if chain >= live {
			err = errors.Join(err, step(store.Remove, chain-live))
		}
		if err != nil {
			return nil, errors.Join(err, x.Close())
		}
	}
	row := sizeOf(x, before)
	row.What = fmt.Sprintf("1 holder, after %d times as many have come and gone", turns/live)
	rows = append(rows, row)
	for chain := turns - live; chain < turns-max(1, live/10); chain++ {
		err = errors.Join(err, step(store.Remove, chain))
	}
	row = sizeOf(x, before)
	row.What = "1 holder, after nine of ten of the rest are gone"
	return append(rows, row), errors.Join(err, x.Close())
}

func sizeOf(x *memory.Index, before int64) SizeRow {
	heap := heapInUse() - before
	st := x.Stats()
	n := float64(max(1, st.Blocks))
	return SizeRow{Blocks: st.Blocks, Counted: float64(st.Bytes) / n, Heap: float64(heap) / n}
}
