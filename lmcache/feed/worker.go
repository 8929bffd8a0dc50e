package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
)

// Config is what a Worker is made of.
type Config struct {
	// Index is written to.
	Index store.Index
	// Lease is how long a worker's registration lives without being renewed.
	Lease time.Duration
	// Timeout bounds a call of the index; one that writes many keys may take longer, as
	// much again for each 50,000 of them.
	Timeout time.Duration
}

// ID is what LMCache calls a worker.
type ID struct {
	// Instance is lmcache_instance_id, Worker the number of the worker in it.
	Instance string
	Worker   int
}

// String is instance/worker.
func (id ID) String() string { return fmt.Sprintf("%s/%d", id.Instance, id.Worker) }

// Validate returns an error that says what is wrong with the id.
func (id ID) Validate() error {
	if id.Worker < 0 || id.Worker >= store.MaxRanks {
		return fmt.Errorf("%w: worker is %d, it can be 0 to %d", store.ErrInvalid, id.Worker, store.MaxRanks-1)
	}
	if id.Instance == "" {
		return fmt.Errorf("%w: no instance", store.ErrInvalid)
	}
	name := lmcache.WorkerName(id.Instance, "", id.Worker)
	if more := len(name) - store.MaxPodName; more > 0 {
		// The rest of the name is not the caller's.
		return fmt.Errorf("%w: instance has %d bytes, the limit is %d", store.ErrInvalid, len(id.Instance), len(id.Instance)-more)
	}
	if err := store.CheckPodName(name); err != nil {
		// The name begins with the instance, and what is wrong is at the same byte of it.
		return fmt.Errorf("%w: instance%s", store.ErrInvalid, strings.TrimPrefix(err.Error(), store.ErrInvalid.Error()+": pod name"))
	}
	return nil
}

// Worker is the registration of a worker for one target, and the writing for it. It is
// for one goroutine.
type Worker struct {
	config Config
	id     ID
	target Target
	// IP and Peer are what the worker reports itself. Host is where its connections come
	// from, and Shared the others that have its id; see the labels.
	IP, Peer, Host, Shared string
	// Incarnation is the number of the instance's life, "" where it has none.
	Incarnation string
	// Workers is how many workers the target has; it is raised to what has been seen.
	Workers int

	name  string
	gen   store.Generation
	fence uint64
	seq   uint64
}

// NewWorker returns a Worker that has written nothing yet. shared says that the instance
// has several targets, so that their names need to differ.
func NewWorker(c Config, id ID, t Target, shared bool) *Worker {
	pod := ""
	if shared {
		pod = t.Pod
	}
	return &Worker{config: c, id: id, target: t, Workers: id.Worker + 1, name: lmcache.WorkerName(id.Instance, pod, id.Worker)}
}

// Name is the registration's.
func (w *Worker) Name() string { return w.name }

// Target is the rank that it works for.
func (w *Worker) Target() Target { return w.target }

// Open reports whether there is a generation to write to.
func (w *Worker) Open() bool { return w.gen != 0 }

// Shut forgets the generation, without a call of the index.
func (w *Worker) Shut() { w.gen = 0 }

func (w *Worker) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, w.config.Timeout)
}

// Renew registers the worker or renews its lease. created says that the index did not know
// it: what it has held is lost.
func (w *Worker) Renew(ctx context.Context) (created bool, err error) {
	ctx, cancel := w.within(ctx)
	defer cancel()
	p := store.Pod{
		Name: w.name, Model: w.target.Model, Engine: "lmcache", Lease: store.Seconds(w.config.Lease),
		Labels: map[string]string{LabelInstance: w.id.Instance},
		PartOf: &store.PartOf{Pod: w.target.Pod, Rank: w.target.Rank, Worker: w.id.Worker, Workers: max(w.Workers, w.id.Worker+1)},
	}
	for label, v := range map[string]string{LabelIP: w.IP, LabelPeer: w.Peer, LabelHost: w.Host, LabelShared: w.Shared, LabelIncarnation: w.Incarnation} {
		if v != "" {
			p.Labels[label] = v
		}
	}
	return w.config.Index.Register(ctx, p)
}

// Retire ends the registration.
func (w *Worker) Retire(ctx context.Context) error {
	ctx, cancel := w.within(ctx)
	defer cancel()
	w.gen = 0
	_, err := w.config.Index.Retire(ctx, w.name)
	return err
}

// fenceBits is how many bits of a fence are random.
const fenceBits = 20

// nextFence is a fence above another one that no other chooses.
func nextFence(last uint64) uint64 {
	return (last>>fenceBits+1)<<fenceBits | rand.Uint64N(1<<fenceBits)
}

// Begin registers the worker and begins a generation: it holds nothing.
func (w *Worker) Begin(ctx context.Context) error {
	w.gen = 0
	if _, err := w.Renew(ctx); err != nil {
		return err
	}
	life, err := w.life(ctx)
	if err != nil {
		return err
	}
	return w.begin(ctx, life.Fence)
}

func (w *Worker) life(ctx context.Context) (store.Life, error) {
	ctx, cancel := w.within(ctx)
	defer cancel()
	return w.config.Index.Life(ctx, w.name, 0)
}

func (w *Worker) begin(ctx context.Context, last uint64) error {
	ctx, cancel := w.within(ctx)
	defer cancel()
	fence := nextFence(last)
	gen, err := w.config.Index.Begin(ctx, w.name, 0, fence)
	if err != nil {
		return err
	}
	w.gen, w.fence, w.seq = gen, fence, 0
	return nil
}

// TakeOver registers the worker and goes on with its generation, wherever that was
// written. It returns the marks of these kinds, 0 for each that is not there. Result
// took is false when a new generation has begun. Then there was none, or one that has
// none of these marks and so cannot be gone on with.
func (w *Worker) TakeOver(ctx context.Context, kinds ...uint64) (marks []uint64, took bool, err error) {
	w.gen = 0
	if _, err := w.Renew(ctx); err != nil {
		return nil, false, err
	}
	life, err := w.life(ctx)
	if err != nil {
		return nil, false, err
	}
	marks = make([]uint64, len(kinds))
	if life.Generation == 0 {
		return marks, false, w.begin(ctx, life.Fence)
	}
	fence := nextFence(life.Fence)
	within, cancel := w.within(ctx)
	defer cancel()
	seq, err := w.config.Index.TakeOver(within, life.Generation, fence)
	if errors.Is(err, store.ErrEnded) {
		return marks, false, w.begin(ctx, life.Fence)
	} else if err != nil {
		return nil, false, err
	}
	keys := make([]store.MapKey, len(kinds))
	for i, k := range kinds {
		keys[i].Hash = k
	}
	values, err := w.config.Index.ReadMap(within, life.Generation, keys...)
	if errors.Is(err, store.ErrEnded) {
		return marks, false, w.begin(ctx, fence)
	} else if err != nil {
		return nil, false, err
	}
	for i, v := range values {
		if len(v) == 8 {
			marks[i], took = binary.BigEndian.Uint64(v), true
		}
	}
	if !took {
		return marks, false, w.begin(ctx, fence)
	}
	w.gen, w.fence, w.seq = life.Generation, fence, seq
	return marks, true, nil
}

// Mark is a number that is written with blocks, for the next writer.
type Mark struct{ Kind, Value uint64 }

// Batch is one write: ops and marks together. It is applied under the next sequence.
// An error may leave open what has been applied. Then the caller makes another batch
// that has all of its ops too, or that clears what they change. Written tells how it
// went.
func (w *Worker) Batch(ops []store.Op, marks ...Mark) store.Batch {
	w.seq++
	b := store.Batch{
		Pod: w.name, Model: w.target.Model, Ops: ops,
		Guard: &store.Guard{Generation: w.gen, Fence: w.fence, Seq: w.seq},
	}
	for _, m := range marks {
		b.Map = append(b.Map, store.MapOp{MapKey: store.MapKey{Hash: m.Kind}, Value: binary.BigEndian.AppendUint64(nil, m.Value)})
	}
	return b
}

// Write applies a Batch. An error of a writer that is not the generation's any more is
// store.ErrFenced, store.ErrEnded or store.ErrUnknownPod, and the generation is
// forgotten.
func (w *Worker) Write(ctx context.Context, ops []store.Op, marks ...Mark) error {
	return Apply(ctx, w.config, []*Worker{w}, []store.Batch{w.Batch(ops, marks...)})
}

// Apply applies a batch for each of several workers in one call of the index.
func Apply(ctx context.Context, c Config, workers []*Worker, batches []store.Batch) error {
	keys := 0
	for i := range batches {
		for j := range batches[i].Ops {
			keys += len(batches[i].Ops[j].Keys)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout*time.Duration(1+keys/50_000))
	defer cancel()
	err := c.Index.Apply(ctx, batches...)
	if Final(err) {
		for _, w := range workers {
			w.gen = 0
		}
	}
	return err
}

// Final reports whether the writer has lost the generation.
func Final(err error) bool {
	return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrEnded) || errors.Is(err, store.ErrUnknownPod)
}

// Ops is a list of changes in the making. Those of a kind that follow each other become
// one.
type Ops struct{ List []store.Op }

// Key adds a change of a key.
func (o *Ops) Key(kind store.OpKind, tier store.Tier, key blockkey.Key) {
	if n := len(o.List); n > 0 {
		last := &o.List[n-1]
		if last.Kind == kind && last.Tier == tier && len(last.Keys) < store.MaxOpKeys {
			last.Keys = append(last.Keys, key)
			return
		}
	}
	o.List = append(o.List, store.Op{Kind: kind, Tier: tier, Keys: []blockkey.Key{key}})
}

// Clear adds the end of all that is held in a tier; store.AllTiers is all.
func (o *Ops) Clear(tier store.Tier) {
	o.List = append(o.List, store.Op{Kind: store.Clear, Tier: tier})
}
