package bench

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
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
	url   string
	x     *redis.Index
	steps atomic.Int64 // of sweeps
	// guarded makes writes those of an ingester: numbered batches of a generation,
	// with the map from the engine's hashes. Else they are unguarded.
	guarded bool
	lives   map[string]*life
}

// life is the generation of a pod. Its batches are written one after the other.
type life struct {
	mu  sync.Mutex // protects seq, and keeps the order
	gen store.Generation
	seq uint64
}

func openOurs(url string) (*ours, error) {
	o := &ours{url: url}
	if err := o.open(); err != nil {
		return nil, err
	}
	return o, nil
}

func (o *ours) open() (err error) {
	o.x, err = redis.Open(redis.Config{
		URL: o.url, Prefix: prefix, NoSweep: true,
		Observer: redis.Observer{Swept: func(redis.SweepProgress) { o.steps.Add(1) }},
	})
	return err
}

// reopen forgets what the index remembers of a database that has been emptied.
func (o *ours) reopen() error {
	if err := o.x.Close(); err != nil {
		return err
	}
	return o.open()
}

// withMaps is the same index as an ingester writes it, for the pods.
func (o *ours) withMaps(ctx context.Context, pods []string) (*ours, error) {
	g := &ours{url: o.url, x: o.x, guarded: true, lives: map[string]*life{}}
	for _, pod := range pods {
		if _, err := o.x.Register(ctx, store.Pod{Name: pod, Model: model}); err != nil {
			return nil, err
		}
		gen, err := o.x.Begin(ctx, pod, 0, 1)
		if err != nil {
			return nil, err
		}
		g.lives[pod] = &life{gen: gen}
	}
	return g, nil
}

func (o *ours) name() string {
	if o.guarded {
		return "kvatlas + map"
	}
	return "kvatlas"
}
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
	return o.apply(ctx, o.event(pod, store.Add, keys))
}

func (o *ours) remove(ctx context.Context, pod string, keys []blockkey.Key) error {
	return o.apply(ctx, o.event(pod, store.Remove, keys))
}

// event is an engine's event as a batch.
func (o *ours) event(pod string, kind store.OpKind, keys []blockkey.Key) store.Batch {
	b := o.batch(pod, kind, keys)
	if o.guarded {
		b.Map = mapOps(kind, keys)
	}
	return b
}

// mapOps are the entries of an engine's hashes. Of the value the block key takes 8
// bytes, the part of the block and the copies one each.
func mapOps(kind store.OpKind, keys []blockkey.Key) []store.MapOp {
	ops := make([]store.MapOp, len(keys))
	for i, k := range keys {
		ops[i].MapKey = store.MapKey{Hash: uint64(k) ^ engineMask}
		if kind == store.Add {
			ops[i].Value = append(binary.BigEndian.AppendUint64(make([]byte, 0, 10), uint64(k)), 0, 1)
		}
	}
	return ops
}

// apply writes batches, at most one of a pod, under the next numbers of their
// generations if they are guarded.
func (o *ours) apply(ctx context.Context, batches ...store.Batch) error {
	if !o.guarded {
		return o.x.Apply(ctx, batches...)
	}
	// In one order, so that writers do not wait for each other in a ring.
	slices.SortFunc(batches, func(a, b store.Batch) int { return strings.Compare(a.Pod, b.Pod) })
	lives := make([]*life, len(batches))
	for i := range batches {
		lives[i] = o.lives[batches[i].Pod]
		lives[i].mu.Lock()
		lives[i].seq++
		batches[i].Guard = &store.Guard{Generation: lives[i].gen, Fence: 1, Seq: lives[i].seq}
	}
	defer func() {
		for _, l := range lives {
			l.mu.Unlock()
		}
	}()
	return o.x.Apply(ctx, batches...)
}

// coalesce puts the batches of one pod together, as an ingester does with what
// comes within a few milliseconds.
func coalesce(batches []store.Batch) []store.Batch {
	var out []store.Batch
	for _, b := range batches {
		i := slices.IndexFunc(out, func(o store.Batch) bool { return o.Pod == b.Pod })
		if i < 0 {
			out = append(out, b)
			continue
		}
		out[i].Ops = append(out[i].Ops, b.Ops...)
		out[i].Map = append(out[i].Map, b.Map...)
	}
	return out
}

func (o *ours) lookup(ctx context.Context, keys []blockkey.Key) (prefixes, error) {
	f := &prefixFolder{}
	if err := o.x.Lookup(ctx, &store.Query{Model: blockkey.ModelOf(model), Keys: keys, Fold: f}); err != nil {
		return nil, err
	}
	return f.prefixes(), nil
}

// forget removes blocks from their holders, which are the pods of the registry.
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
// start, and stops when none goes on. A scorer does that at least.
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

// fillMaps writes the map entries of blocks for all generations.
func (o *ours) fillMaps(ctx context.Context, pods []string, keys []blockkey.Key) error {
	batches := make([]store.Batch, len(pods))
	for i, p := range pods {
		batches[i] = store.Batch{Pod: p, Model: model, Map: mapOps(store.Add, keys)}
	}
	return o.apply(ctx, batches...)
}

// engineMask makes engines' own hashes of index keys.
const engineMask = 0xe6e5_1234_9abc_def1
