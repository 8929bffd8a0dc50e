package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

const (
	// model is the model whose blocks they are.
	model = "meta-llama/Llama-3.1-8B-Instruct"
	// prefix is the default one. A longer one would cost memory.
	prefix = "kva"
)

// ours is the layout of store/redis, by its own code.
type ours struct {
	x     *redis.Index
	steps atomic.Int64 // of sweeps
}

func openOurs(url string) (*ours, error) {
	o := &ours{}
	x, err := redis.Open(redis.Config{
		URL: url, Prefix: prefix, NoSweep: true,
		Observer: redis.Observer{Swept: func(redis.SweepProgress) { o.steps.Add(1) }},
	})
	if err != nil {
		return nil, err
	}
	o.x = x
	return o, nil
}

func (o *ours) name() string  { return "kvatlas" }
func (o *ours) trips() uint64 { return o.x.Stats().RoundTrips }

func (o *ours) batch(pod string, kind store.OpKind, keys []blockkey.Key) store.Batch {
	return store.Batch{Pod: pod, Model: model, Ops: []store.Op{{Kind: kind, Keys: keys}}}
}

func (o *ours) fill(ctx context.Context, pods []string, keys []blockkey.Key) error {
	batches := make([]store.Batch, len(pods))
	for i, p := range pods {
		batches[i] = o.batch(p, store.Add, keys)
	}
	return o.x.Apply(ctx, batches...)
}

func (o *ours) store(ctx context.Context, pod string, keys []blockkey.Key) error {
	return o.x.Apply(ctx, o.batch(pod, store.Add, keys))
}

func (o *ours) remove(ctx context.Context, pod string, keys []blockkey.Key) error {
	return o.x.Apply(ctx, o.batch(pod, store.Remove, keys))
}

func (o *ours) lookup(ctx context.Context, keys []blockkey.Key) (prefixes, error) {
	f := &prefixFolder{}
	if err := o.x.Lookup(ctx, &store.Query{Model: store.Mask(model), Keys: keys, Fold: f}); err != nil {
		return nil, err
	}
	return f.prefixes(), nil
}

// forget removes blocks from whoever holds them, which are the pods of the
// registry.
func (o *ours) forget(ctx context.Context, keys []blockkey.Key) error {
	reg, err := o.x.Registry(ctx)
	if err != nil {
		return err
	}
	batches := make([]store.Batch, 0, len(reg.Pods))
	for _, p := range reg.Pods {
		batches = append(batches, o.batch(p.Name, store.Remove, keys))
	}
	return o.x.Apply(ctx, batches...)
}

// useUp gives away so many holder ids, as years of restarts do.
func (o *ours) useUp(ctx context.Context, ids int) error {
	const pod = "10.255.255.1:8000"
	block := []blockkey.Key{1}
	for ids > 0 {
		var batches []store.Batch
		for rank := range min(ids, store.MaxRanks) {
			b := store.Batch{Pod: pod, Rank: rank, Model: model, Ops: []store.Op{
				{Kind: store.Add, Keys: block}, {Kind: store.Remove, Keys: block},
			}}
			batches = append(batches, b)
		}
		ids -= len(batches)
		if err := o.x.Apply(ctx, batches...); err != nil {
			return err
		}
		if _, err := o.x.Retire(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// prefixFolder counts for each (pod, rank) the blocks that it holds from the
// start, and stops when none goes on: what a scorer does at least.
type prefixFolder struct {
	reg    *store.Registry
	length []int // by slot
	at     int
}

// Begin implements store.Folder.
func (f *prefixFolder) Begin(r *store.Registry) {
	f.reg, f.at = r, 0
	if cap(f.length) < len(r.Slots) {
		f.length = make([]int, len(r.Slots))
	}
	f.length = f.length[:len(r.Slots)]
	clear(f.length)
}

// Run implements store.Folder.
func (f *prefixFolder) Run(n int, holders []store.HolderID) (more bool) {
	for _, id := range holders {
		if slot, _, live := f.reg.Holder(id); live && f.length[slot] == f.at {
			f.length[slot] += n
			more = true
		}
	}
	f.at += n
	return more
}

func (f *prefixFolder) prefixes() prefixes {
	out := make(prefixes, len(f.length))
	for slot, n := range f.length {
		if n > 0 {
			pod := f.reg.Pods[f.reg.Slots[slot].Pod].Name
			out[pod] = max(out[pod], n)
		}
	}
	return out
}

// designedMap writes the map from engine hashes to index keys in the form of the
// design: hashes of about 64 fields, a map for each generation.
//
//	key    kva:{generation}:m:bucket
//	field  engine hash 8, tier and group 1
//	value  index key 8, part 1, copies 1
type designedMap struct {
	s *server
	// buckets is how many buckets a generation has.
	buckets int
}

func newDesignedMap(s *server, entries int) designedMap {
	return designedMap{s: s, buckets: max(1, entries/64)}
}

// fill writes the entries of blocks for generations 1 to n.
func (m designedMap) fill(ctx context.Context, generations int, keys []blockkey.Key) error {
	pipe := m.s.client.Pipeline()
	for g := range generations {
		for _, k := range keys {
			hash := uint64(k) ^ engineMask
			name := prefix + ":{" + strconv.Itoa(g+1) + "}:m:" + strconv.FormatUint(hash>>1%uint64(m.buckets), 10)
			field := append(be64(hash), 0)
			pipe.HSet(ctx, name, field, append(be64(uint64(k)), 0, 1))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("the designed map: %w", err)
	}
	return nil
}

func be64(v uint64) []byte {
	return []byte{byte(v >> 56), byte(v >> 48), byte(v >> 40), byte(v >> 32), byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
}

// engineMask makes engines' own hashes of index keys.
const engineMask = 0xe6e5_1234_9abc_def1
