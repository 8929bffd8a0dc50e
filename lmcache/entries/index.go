package entries

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
)

// worker is a registration whose writes pass by.
type worker struct {
	pod   store.Pod
	until time.Time // its lease
	place place
	keys  map[blockkey.Key]struct{} // what it holds
}

// place is where chunks become whole: an instance of a rank of a pod.
type place struct {
	pod   string
	rank  int
	name  string // the instance's
	world int
	model string
}

// chunk is a chunk of a place.
type chunk struct {
	hash  lmcache.Hash
	owner string
	tiers map[int]uint8 // of each worker that has it
	whole bool          // and the hash's field is wanted
	plain map[int]bool  // workers whose string is wanted
}

// Index returns an index for the services that hear workers: what they apply to it is applied to
// x, and then written as entries.
func (w *Writer) Index(x store.Index) store.Index { return &index{x, w} }

type index struct {
	store.Index
	w *Writer
}

// Register implements store.Index.
func (x *index) Register(ctx context.Context, p store.Pod) (created bool, err error) {
	created, err = x.Index.Register(ctx, p)
	if err == nil && p.PartOf != nil {
		x.w.registered(p, created)
	}
	return created, err
}

// Retire implements store.Index.
func (x *index) Retire(ctx context.Context, pod string) (known bool, err error) {
	known, err = x.Index.Retire(ctx, pod)
	if err == nil {
		x.w.end(pod, true)
	}
	return known, err
}

// Begin implements store.Index.
func (x *index) Begin(ctx context.Context, pod string, rank int, fence uint64) (store.Generation, error) {
	gen, err := x.Index.Begin(ctx, pod, rank, fence)
	if err == nil {
		x.w.clear(pod, store.AllTiers)
	}
	return gen, err
}

// Apply implements store.Index. Batches that others have fenced off are of workers that
// another process hears, which writes their entries from now on.
func (x *index) Apply(ctx context.Context, batches ...store.Batch) error {
	err := x.Index.Apply(ctx, batches...)
	if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrEnded) || errors.Is(err, store.ErrUnknownPod) {
		for i := range batches {
			x.w.end(batches[i].Pod, errors.Is(err, store.ErrUnknownPod))
		}
	}
	if err != nil {
		return err // it is made again, or its worker is cleared
	}
	for i := range batches {
		x.w.applied(&batches[i])
	}
	return nil
}

func (w *Writer) registered(p store.Pod, created bool) {
	if created {
		w.end(p.Name, true)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	in := p.Name
	if i := len(in) - len(strconv.Itoa(p.PartOf.Worker)); i > 0 && in[i:] == strconv.Itoa(p.PartOf.Worker) {
		in = in[:i]
	}
	at := place{pod: p.PartOf.Pod, rank: p.PartOf.Rank, name: in, world: p.PartOf.Workers, model: p.Model}
	wk := w.workers[p.Name]
	if wk != nil && wk.place != at {
		w.move(wk, p, at)
	}
	if wk == nil {
		if len(w.workers) >= w.c.MaxEntries {
			return
		}
		wk = &worker{place: at, keys: map[blockkey.Key]struct{}{}}
		w.workers[p.Name] = wk
	}
	wk.pod, wk.until = p, time.Time{}
	if p.Lease > 0 {
		wk.until = time.Now().Add(time.Duration(p.Lease))
	}
}

// move makes a worker one of another place: its keys have other names when the instance
// turns out to have more workers.
func (w *Writer) move(wk *worker, p store.Pod, at place) {
	type had struct {
		hash  lmcache.Hash
		tiers uint8
	}
	held := map[blockkey.Key]had{}
	for key := range wk.keys {
		if c := w.places[wk.place][key]; c != nil {
			held[key] = had{c.hash, c.tiers[wk.pod.PartOf.Worker]}
		}
	}
	w.endLocked(wk)
	wk.pod, wk.place = p, at
	for key, h := range held {
		w.hashes.Add(key, h.hash)
		for tier := range store.Tier(store.NumTiers) {
			if h.tiers>>tier&1 != 0 {
				w.come(wk, key, tier)
			}
		}
	}
}

// silence ends workers whose leases have run out.
func (w *Writer) silence(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, wk := range w.workers {
		if !wk.until.IsZero() && now.After(wk.until) {
			w.endLocked(wk)
			delete(w.workers, name)
		}
	}
}

// end ends a worker; without removal its entries are left to their present writer.
func (w *Writer) end(name string, removal bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wk := w.workers[name]
	if wk == nil {
		return
	}
	if !removal {
		w.abandon = true
	}
	w.endLocked(wk)
	w.abandon = false
	delete(w.workers, name)
}

func (w *Writer) endLocked(wk *worker) {
	for key := range wk.keys {
		w.leave(wk, key, store.AllTiers)
	}
}

// clear ends what a worker holds in a tier.
func (w *Writer) clear(name string, tier store.Tier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wk := w.workers[name]; wk != nil {
		for key := range wk.keys {
			w.leave(wk, key, tier)
		}
	}
}

// applied takes in what has been applied.
func (w *Writer) applied(b *store.Batch) {
	for _, op := range b.Ops {
		if op.Kind == store.Clear {
			w.clear(b.Pod, op.Tier)
			continue
		}
		w.mu.Lock()
		if wk := w.workers[b.Pod]; wk != nil {
			for _, key := range op.Keys {
				if op.Kind == store.Add {
					w.come(wk, key, op.Tier)
				} else {
					w.leave(wk, key, op.Tier)
				}
			}
		}
		w.mu.Unlock()
	}
}

// come makes a worker hold a chunk; w.mu is held.
func (w *Writer) come(wk *worker, key blockkey.Key, tier store.Tier) {
	chunks := w.places[wk.place]
	c := chunks[key]
	if c == nil {
		hash, known := w.hashes.Get(key)
		owner := w.owner(wk)
		if !known || owner == "" {
			w.stats.Nameless++
			return
		}
		if w.chunks >= w.c.MaxEntries {
			w.stats.Full++
			return
		}
		if chunks == nil {
			chunks = map[blockkey.Key]*chunk{}
			w.places[wk.place] = chunks
		}
		c = &chunk{hash: hash, owner: owner, tiers: map[int]uint8{}, plain: map[int]bool{}}
		chunks[key] = c
		w.chunks++
	}
	n := wk.pod.PartOf.Worker
	c.tiers[n] |= 1 << tier
	wk.keys[key] = struct{}{}
	if w.c.Shapes&Strings != 0 && !c.plain[n] {
		if t, ok := w.plain(wk.place, n, c.hash); !ok {
			w.stats.Nameless++
		} else if c.plain[n] = w.want(t, c.owner); !c.plain[n] {
			w.stats.Full++
		}
	}
	if w.c.Shapes&Hashes != 0 && !c.whole && len(c.tiers) == wk.place.world {
		t, meta := w.field(wk.place, c)
		if c.whole = w.want(t, meta); !c.whole {
			w.stats.Full++
		}
	}
}

// leave ends that a worker holds a chunk in a tier; w.mu is held.
func (w *Writer) leave(wk *worker, key blockkey.Key, tier store.Tier) {
	chunks := w.places[wk.place]
	c := chunks[key]
	n := wk.pod.PartOf.Worker
	if c == nil {
		return
	}
	left := c.tiers[n] &^ (1 << tier)
	if tier == store.AllTiers {
		left = 0
	}
	if left != 0 {
		c.tiers[n] = left
		return
	}
	delete(c.tiers, n)
	delete(wk.keys, key)
	if c.plain[n] {
		delete(c.plain, n)
		if t, ok := w.plain(wk.place, n, c.hash); ok {
			w.drop(t, c.owner)
		}
	}
	if c.whole {
		c.whole = false
		w.drop(w.field(wk.place, c))
	}
	if len(c.tiers) > 0 {
		return
	}
	w.chunks--
	if delete(chunks, key); len(chunks) == 0 {
		delete(w.places, wk.place)
	}
}

// owner is what stands in entries for a worker's pod, "" when it is not registered.
func (w *Writer) owner(wk *worker) string {
	reg := w.c.Registry()
	i, ok := reg.PodIndex(wk.place.pod)
	if !ok {
		return ""
	}
	return endpoint(&reg.Pods[i])
}

// naming is the model's name in keys, what stands before it, and the form of hashes.
func (w *Writer) naming(model string) (name, format string, form lmcache.Form) {
	p := w.c.Profiles[model]
	name, format, form = p.Model, p.Fmt, lmcache.FormHex
	name = cmp.Or(name, model)
	format = cmp.Or(format, "vllm")
	if _, known := w.c.Profiles[model]; known && p.Version.Form() == lmcache.FormDecimal {
		form = lmcache.FormDecimal
	}
	return name, format, form
}

// plain is the string of a worker's chunk; ok is false when there is no such key.
func (w *Writer) plain(at place, n int, h lmcache.Hash) (t target, ok bool) {
	name, format, form := w.naming(at.model)
	k := lmcache.Key{Form: form, Fmt: format, Model: name, WorldSize: at.world, WorkerID: n, Hash: h}
	if _, bytes := h.Bytes(); bytes {
		k.Form = lmcache.FormHex
	}
	return target{name: k.String()}, k.Validate() == nil
}

// field is the field of a pod in a chunk's hash, and its value but for the time.
func (w *Writer) field(at place, c *chunk) (t target, meta string) {
	name, format, _ := w.naming(at.model)
	// Which worker wrote it last is of no use: all have the chunk.
	meta = format + "@" + strconv.Itoa(at.world) + "@0"
	return target{name: name + "@" + c.hash.String(), field: c.owner}, meta
}

// Names returns the keys that there should be now, ascending and each once, for tests and
// for people.
func (w *Writer) Names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for t, e := range w.entries {
		if len(e.values) > 0 {
			out = append(out, t.name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
