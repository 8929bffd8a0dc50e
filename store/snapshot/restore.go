package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Mode is what becomes of what an index has when a dump is restored into it.
type Mode uint8

const (
	// Merge adds to what is there. A pod that is registered already keeps its
	// registration. A model that is indexed with other settings is refused.
	Merge Mode = iota
	// Replace resets the whole index once the dump's first line has been read.
	Replace
)

// ParseMode reads merge or replace.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "merge":
		return Merge, nil
	case "replace":
		return Replace, nil
	}
	return 0, fmt.Errorf("%w: mode %q is not one of merge, replace", store.ErrInvalid, clip([]byte(s)))
}

// String returns merge or replace.
func (m Mode) String() string {
	if m == Replace {
		return "replace"
	}
	return "merge"
}

// Report is what a restore has done, also when it ended with an error.
type Report struct {
	// Lines is how many lines were read, Models how many models were ensured and
	// Pods how many pods were registered that were not there.
	Lines  int `json:"lines"`
	Models int `json:"models"`
	Pods   int `json:"pods"`
	// Blocks is how many blocks were loaded, Credits how many (block, holder)
	// pairs.
	Blocks  int64 `json:"blocks"`
	Credits int64 `json:"credits"`
	// Skipped is how many pairs were not. Their pod had been retired, or its lease had run
	// out, while the restore went on, or it is registered for another model.
	Skipped int64 `json:"skipped"`
	// TrueAt is the moment that the dump is true at: the first segment's.
	TrueAt TrueAt `json:"true_at"`
}

// Restore reads a dump, which is not compressed, into an index. Each page is
// loaded once its sum has been found right. Pods get their registration with a
// lease that begins now. The first error ends it: of the dump (ErrCorrupt, ErrCut,
// ErrVersion), of the index, or of ctx. What has been loaded by then stays; to
// restore the same dump again is harmless.
//
// With Replace the index must be a store.Forgetter.
func Restore(ctx context.Context, r io.Reader, into store.Index, mode Mode) (Report, error) {
	d := &restorer{in: NewReader(r), into: into, mode: mode, pods: map[string]*restoredPod{}}
	err := d.run(ctx)
	d.report.Lines = d.in.Lines()
	return d.report, err
}

const (
	// applyKeys is how many blocks are applied in one call, and applyPairs how
	// many blocks times holders.
	applyKeys  = 8192
	applyPairs = 1 << 16
)

// restorer is one restore.
type restorer struct {
	in     *Reader
	into   store.Index
	mode   Mode
	report Report

	known   *store.Registry // as of the segment's beginning
	pods    map[string]*restoredPod
	holders map[store.HolderID]restoredHolder // of the present segment
	paged   bool                              // a page has been loaded

	// The page that is being read: its keys and holders joined, and where its
	// lines are in them.
	keys  []blockkey.StoreKey
	ids   []store.HolderID
	lines []lineSpan
}

type lineSpan struct{ keys, ids int } // ends

type restoredPod struct {
	reg  store.Pod
	mask blockkey.Model
	ours bool      // it was registered by this restore
	at   time.Time // when
	// lives are the generations that this restore has begun, by rank.
	lives map[int]store.Guard
}

type restoredHolder struct {
	pod  *restoredPod
	rank int
	tier store.Tier
	// reuse is what was known of the rank's engine.
	reuse store.Reuse
}

func (d *restorer) run(ctx context.Context) error {
	for {
		l, err := d.in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = d.line(ctx, l)
		}
		if err != nil {
			return err
		}
	}
}

func (d *restorer) line(ctx context.Context, l *Line) error {
	switch l.Kind {
	case KindHeader:
		return d.begin(ctx, l)
	case KindModel:
		if _, err := d.into.EnsureModel(ctx, l.Model); err != nil {
			return d.failed(err)
		}
		d.report.Models++
	case KindPod:
		return d.pod(ctx, l)
	case KindHolder:
		h := &l.Holder
		pod := d.pods[h.Pod]
		if pod == nil {
			return d.in.bad("holder %d is of pod %s, which no line before it has", h.ID, clip([]byte(h.Pod)))
		}
		if _, twice := d.holders[h.ID]; twice {
			return d.in.bad("holder %d is given twice", h.ID)
		}
		tier, err := store.ParseHolderTier(h.Tier)
		if err != nil {
			return d.in.bad("%w", err)
		}
		d.holders[h.ID] = restoredHolder{pod, h.Rank, tier, h.reuse()}
	case KindSeq:
		return d.beginRank(ctx, &l.Seq)
	case KindBlocks:
		for _, id := range l.Holders {
			if _, known := d.holders[id]; !known {
				return d.in.bad("holder %d is given by no line before it", id)
			}
		}
		d.keys = append(d.keys, l.Keys...)
		d.ids = append(d.ids, l.Holders...)
		d.lines = append(d.lines, lineSpan{len(d.keys), len(d.ids)})
	case KindPage:
		d.paged = true
		return d.load(ctx)
	case KindEnd:
		if l.End.Next == "" {
			return d.sequence(ctx)
		}
	}
	return nil
}

// restoreFence is the fence under which a restore owns the generations that it
// begins: the lowest, so that any writer can take them over.
const restoreFence = 1

// beginRank begins a generation for a rank whose events were numbered. So their reader can take it over and
// go on where the dump is true at:
//
//	dump:    all batches up to 4711 are in it
//	restore: begins generation 9, loads, and numbers it 4711
//	reader:  takes generation 9 over, is told 4711, and replays from there
//
// It does so for pods that it has registered, and before their first block.
func (d *restorer) beginRank(ctx context.Context, q *Seq) error {
	p := d.pods[q.Pod]
	if p == nil {
		return d.in.bad("the sequence is of pod %s, which no line before it has", clip([]byte(q.Pod)))
	}
	if !p.ours || d.paged {
		return nil
	}
	if p.lives == nil {
		p.lives = map[int]store.Guard{}
	}
	if _, twice := p.lives[q.Rank]; twice {
		return d.in.bad("the sequence of pod %s rank %d is given twice", clip([]byte(q.Pod)), q.Rank)
	}
	gen, err := d.into.Begin(ctx, q.Pod, q.Rank, restoreFence)
	switch {
	case errors.Is(err, store.ErrUnknownPod) || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrNoRank): // it has ended, or has another owner
		return nil
	case err != nil:
		return d.failed(err)
	}
	p.lives[q.Rank] = store.Guard{Generation: gen, Fence: restoreFence, Seq: q.Seq}
	return nil
}

// sequence numbers the generations, now that all of the dump is loaded.
func (d *restorer) sequence(ctx context.Context) error {
	var batches []store.Batch
	for _, p := range d.pods {
		for rank, g := range p.lives {
			if g.Seq > 0 {
				batches = append(batches, store.Batch{Pod: p.reg.Name, Model: p.reg.Model, Rank: rank, Guard: &g})
			}
		}
	}
	for part := range slices.Chunk(batches, clearsAtOnce) {
		// A rank that was taken over meanwhile, or has ended, needs no number.
		if err := d.into.Apply(ctx, part...); err != nil && !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrEnded) {
			return d.failed(err)
		}
	}
	return nil
}

// failed says at which line the index refused.
func (d *restorer) failed(err error) error {
	return fmt.Errorf("snapshot: line %d: %w", d.in.Lines(), err)
}

// begin begins a segment. Its ids are its own.
func (d *restorer) begin(ctx context.Context, l *Line) (err error) {
	d.holders = map[store.HolderID]restoredHolder{}
	if d.in.Lines() == 1 {
		d.report.TrueAt = l.Header.TrueAt
		if d.mode == Replace {
			if _, err := Reset(ctx, d.into, Target{All: true}); err != nil {
				return d.failed(err)
			}
		}
	}
	if d.known, err = d.into.Registry(ctx); err != nil {
		return d.failed(err)
	}
	return nil
}

// pod registers a pod that is not there.
func (d *restorer) pod(ctx context.Context, l *Line) error {
	if d.pods[l.Pod.Name] != nil {
		return nil
	}
	p := &restoredPod{reg: l.Pod, mask: blockkey.ModelOf(l.Pod.Model)}
	d.pods[l.Pod.Name] = p
	if _, known := d.known.PodIndex(l.Pod.Name); known {
		return nil
	}
	p.ours = true
	d.report.Pods++
	return d.renew(ctx, p)
}

func (d *restorer) renew(ctx context.Context, p *restoredPod) error {
	p.at = time.Now()
	if _, err := d.into.Register(ctx, p.reg); err != nil {
		return d.failed(err)
	}
	return nil
}

// load loads the page that has been read.
func (d *restorer) load(ctx context.Context) error {
	keys, ids := 0, 0
	for len(d.lines) > 0 {
		n, pairs := 0, 0
		from := lineSpan{keys, ids}
		for _, l := range d.lines {
			if pairs += (l.keys - keys) * (l.ids - ids); n > 0 && (l.keys-from.keys > applyKeys || pairs > applyPairs) {
				break
			}
			keys, ids = l.keys, l.ids
			n++
		}
		if err := d.apply(ctx, d.lines[:n], from); err != nil {
			return err
		}
		d.lines = d.lines[n:]
	}
	d.keys, d.ids, d.lines = d.keys[:0], d.ids[:0], nil
	return nil
}

// apply loads lines. The keys go in as block keys of the model that their pod is
// registered for, whatever their own. They are XORed with its mask, which the index
// takes off again: that gives the store keys that the dump has.
//
// A pod that has ended since it was met stays so: its blocks are left out, since
// to apply them would register it again. So are those of a pod that is registered for
// another model by now, which is another life.
func (d *restorer) apply(ctx context.Context, lines []lineSpan, from lineSpan) error {
	reg, err := d.alive(ctx)
	if err != nil {
		return err
	}
	var batches []store.Batch
	byMask := map[blockkey.Model][]blockkey.Key{}
	for _, l := range lines {
		keys, ids := d.keys[from.keys:l.keys], d.ids[from.ids:l.ids]
		from = l
		clear(byMask)
		credited := false
		for _, id := range ids {
			h := d.holders[id]
			if pod, alive := reg.PodIndex(h.pod.reg.Name); !alive || reg.Pods[pod].CheckRank(h.rank) != nil || reg.Pods[pod].Model != h.pod.reg.Model {
				d.report.Skipped += int64(len(keys))
				continue
			}
			list := byMask[h.pod.mask]
			if list == nil {
				list = make([]blockkey.Key, len(keys))
				for i, k := range keys {
					list[i] = blockkey.Key(blockkey.Key(k).In(h.pod.mask))
				}
				byMask[h.pod.mask] = list
			}
			b := store.Batch{Pod: h.pod.reg.Name, Rank: h.rank, Model: h.pod.reg.Model, Reuse: h.reuse}
			for len(list) > 0 {
				n := min(len(list), store.MaxOpKeys)
				b.Ops = append(b.Ops, store.Op{Kind: store.Add, Tier: h.tier, Keys: list[:n:n]})
				list = list[n:]
			}
			batches = append(batches, b)
			d.report.Credits += int64(len(keys))
			credited = true
		}
		if credited {
			d.report.Blocks += int64(len(keys))
		}
	}
	if err := d.into.Apply(ctx, batches...); err != nil {
		return d.failed(err)
	}
	return nil
}

// alive renews the pods of this restore, so that none ends because the restore
// takes long, and returns the registered pods.
func (d *restorer) alive(ctx context.Context) (*store.Registry, error) {
	reg, err := d.into.Registry(ctx)
	if err != nil {
		return nil, d.failed(err)
	}
	for _, p := range d.pods {
		if !p.ours || p.reg.Lease == 0 || time.Since(p.at) < time.Duration(p.reg.Lease)/3 {
			continue
		}
		if _, alive := reg.PodIndex(p.reg.Name); alive {
			if err := d.renew(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return reg, nil
}
