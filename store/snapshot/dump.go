package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Source is an index that can be dumped.
type Source interface {
	store.Pager
	// Registry and Life are store.Index's.
	Registry(ctx context.Context) (*store.Registry, error)
	Life(ctx context.Context, pod string, rank int) (store.Life, error)
}

// Options say what to dump. The zero value dumps all that the index has.
type Options struct {
	// Model limits the dump to the pods that are registered for a model, and Pod
	// to one pod. What they hold of other models is in it too, since a block does
	// not tell its model.
	Model, Pod string
	// After is the cursor to go on from.
	After string
	// Pages is how many pages to write at most; 0 is all.
	Pages int
	// PageBlocks is about how many blocks a page has; 0 is 16384, store.MaxPage is
	// the most. A page is what a dump needs memory for.
	PageBlocks int
	// Rate is how many blocks are read from the index in a second at most; 0 is
	// as many as there are.
	Rate int
	// Logs, if not nil, returns the ends of the index's logs of changes, which
	// the header then has. An error leaves them out: a user without the right to read them gets a dump all
	// the same.
	Logs func(ctx context.Context) (map[string]string, error)
	// Patience is for how long a page that the index is unavailable for is tried
	// again; 0 is 10 s, negative not at all.
	Patience time.Duration
}

func (o *Options) validate() error {
	o.PageBlocks = cmp.Or(o.PageBlocks, 16384)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	switch {
	case o.PageBlocks < 1 || o.PageBlocks > store.MaxPage:
		return fmt.Errorf("%w: pages of %d blocks, they can have 1 to %d", store.ErrInvalid, o.PageBlocks, store.MaxPage)
	case o.Pages < 0:
		return fmt.Errorf("%w: %d pages", store.ErrInvalid, o.Pages)
	case o.Rate < 0:
		return fmt.Errorf("%w: a rate of %d blocks a second", store.ErrInvalid, o.Rate)
	}
	return nil
}

// Summary is what a dump has come to.
type Summary struct {
	End
	// Bytes is how many bytes were written.
	Bytes int64
	// TrueAt is the moment that the dump is true at.
	TrueAt TrueAt
}

// Dump writes a segment: one page a call of w, the first after all that can be
// wrong with the options has been found. It returns with the first error of w,
// of the index or of ctx. Then the dump has no end, and can be gone on with
// behind its last whole page.
func Dump(ctx context.Context, w io.Writer, from Source, o Options) (Summary, error) {
	if err := o.validate(); err != nil {
		return Summary{}, err
	}
	var logs map[string]string
	if o.Logs != nil {
		if ends, err := o.Logs(ctx); err == nil {
			logs = ends
		}
	}
	reg, err := from.Registry(ctx)
	if err != nil {
		return Summary{}, err
	}
	now := time.Now().UTC()
	d := &dumper{
		w: w, o: o, sum: xxh3.New(), end: End{Kvatlas: kvatlasEnd},
		pods: map[string]bool{}, holders: map[store.HolderID]bool{}, groups: map[uint64]int{},
	}
	head := Header{
		Kvatlas: kvatlasDump, Version: Version, Schema: Schema, Partitions: blockkey.Partitions,
		Created: now, Epoch: reg.Epoch, TrueAt: TrueAt{Time: now, Epoch: reg.Epoch, Logs: logs}, Model: o.Model, Pod: o.Pod, After: o.After,
	}
	err = d.run(ctx, from, reg, head)
	return Summary{End: d.end, Bytes: d.written, TrueAt: head.TrueAt}, err
}

// dumper writes one segment.
type dumper struct {
	w       io.Writer
	o       Options
	sum     *xxh3.Hasher
	buf     []byte // what is not written yet
	summed  int    // how much of it is in sum
	written int64
	end     End

	reg     *store.Registry // whose pods and holders have been written
	pods    map[string]bool
	holders map[store.HolderID]bool

	// The blocks of a page by their holders.
	groups map[uint64]int // the place of a group by the hash of its holders
	sets   []group
	ids    []store.HolderID
}

// group is the blocks of a page that are held by the same.
type group struct {
	holders []store.HolderID
	keys    []blockkey.StoreKey
}

func (d *dumper) run(ctx context.Context, from Source, reg *store.Registry, head Header) error {
	d.object("", head)
	for _, name := range slices.Sorted(maps.Keys(reg.Models)) {
		if d.o.Model == "" || d.o.Model == name {
			d.object("model", reg.Models[name])
			d.end.Models++
		}
	}
	d.names(reg)
	if err := d.sequences(ctx, from, reg); err != nil {
		return err
	}
	// All that is wrong with the request shows by the first page: nothing is
	// written before.
	cursor, limit := d.o.After, d.o.PageBlocks
	for {
		began := time.Now()
		page, err := d.page(ctx, from, cursor, limit)
		if err != nil {
			return err
		}
		limit = d.writePage(page)
		done := page.Next == ""
		if done || d.end.Pages == d.o.Pages {
			d.end.Next, d.end.Sum = page.Next, d.seal()
			d.object("", d.end)
			return d.flush()
		}
		if err := d.flush(); err != nil {
			return err
		}
		cursor = page.Next
		if err := d.rest(ctx, len(page.Blocks), began); err != nil {
			return err
		}
	}
}

// page reads a page, and tries again while the index is unavailable.
func (d *dumper) page(ctx context.Context, from Source, cursor string, limit int) (store.Page, error) {
	var since time.Time
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		p, err := from.Page(ctx, cursor, limit)
		if err == nil || !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return p, err
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since)+wait > d.o.Patience {
			return p, err
		}
		if err := sleep(ctx, wait); err != nil {
			return p, err
		}
	}
}

// rest waits so that the rate is kept.
func (d *dumper) rest(ctx context.Context, blocks int, began time.Time) error {
	if d.o.Rate == 0 {
		return ctx.Err()
	}
	due := time.Duration(float64(blocks) / float64(d.o.Rate) * float64(time.Second))
	return sleep(ctx, due-time.Since(began))
}

// names writes the pods and holders of a registry that have not been written.
func (d *dumper) names(reg *store.Registry) {
	if d.reg == reg {
		return
	}
	d.reg = reg
	wanted := func(p *store.Pod) bool {
		return (d.o.Pod == "" || d.o.Pod == p.Name) && (d.o.Model == "" || d.o.Model == p.Model)
	}
	for i := range reg.Pods {
		if p := &reg.Pods[i]; wanted(p) && !d.pods[p.Name] {
			d.pods[p.Name] = true
			d.object("pod", p)
			d.end.Pods++
		}
	}
	for _, h := range reg.Holders() {
		if d.pods[h.Pod] && !d.holders[h.ID] && h.Tier != store.Predicted {
			d.holders[h.ID] = true
			d.object("holder", Holder{ID: h.ID, Pod: h.Pod, Rank: h.Rank, Tier: h.Tier.String(), EngineBlock: h.Reuse.Block, Window: h.Reuse.Window})
			d.end.Holders++
		}
	}
}

// sequences writes up to where the events of each rank have been applied. It
// comes before the first page is read: what came before is in the dump.
func (d *dumper) sequences(ctx context.Context, from Source, reg *store.Registry) error {
	for _, slot := range reg.Slots {
		pod := reg.Pods[slot.Pod].Name
		if !d.pods[pod] {
			continue
		}
		life, err := from.Life(ctx, pod, slot.Rank)
		if err != nil {
			return err
		}
		if life.Generation != 0 {
			d.object("seq", Seq{Pod: pod, Rank: slot.Rank, Generation: life.Generation, Seq: life.Seq})
		}
	}
	return nil
}

// writePage writes a page and says how large the next one should be.
func (d *dumper) writePage(p store.Page) (limit int) {
	d.names(p.Registry)
	clear(d.groups)
	clear(d.sets)
	d.sets = d.sets[:0]
	all := d.o.Pod == "" && d.o.Model == ""
	blocks, held := 0, 0
	for _, b := range p.Blocks {
		ids := b.Holders
		if !all {
			ids = d.ids[:0]
			for _, id := range b.Holders {
				if d.holders[id] {
					ids = append(ids, id)
				}
			}
			d.ids = ids
			if len(ids) == 0 {
				continue
			}
		}
		g := d.group(ids, !all)
		g.keys = append(g.keys, b.Key)
		blocks++
		held += len(ids)
	}
	for i := range d.sets {
		d.buf = appendBlocks(d.buf, d.sets[i].keys, d.sets[i].holders)
	}
	d.end.Pages++
	// A line of many blocks is repeated for many holders: what is read counts.
	read := 0
	for i := range d.sets {
		lines := (len(d.sets[i].holders) + lineHolders - 1) / lineHolders
		read += len(d.sets[i].keys) * lines
	}
	d.end.Blocks += int64(read)
	d.object("", PageEnd{Page: d.end.Pages, Blocks: read, Sum: d.seal(), Next: p.Next})
	// Where each block has many holders of its own, pages have fewer blocks.
	const most = 1 << 20
	limit = d.o.PageBlocks
	if held > most {
		limit = max(256, int(int64(limit)*most/int64(held)))
	}
	return min(limit, d.o.PageBlocks)
}

// group returns the group of the blocks with these holders. With own false the
// holders may be kept.
func (d *dumper) group(ids []store.HolderID, own bool) *group {
	h := hashIDs(ids)
	for ; ; h++ {
		i, ok := d.groups[h]
		if !ok {
			break
		}
		if g := &d.sets[i]; &g.holders[0] == &ids[0] && len(g.holders) == len(ids) || slices.Equal(g.holders, ids) {
			return g
		}
	}
	if own {
		ids = slices.Clone(ids)
	}
	d.groups[h] = len(d.sets)
	d.sets = append(d.sets, group{holders: ids})
	return &d.sets[len(d.sets)-1]
}

func hashIDs(ids []store.HolderID) uint64 {
	h := uint64(len(ids))
	for _, id := range ids {
		h = (h ^ uint64(id)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// seal returns the sum of all lines so far.
func (d *dumper) seal() Sum {
	_, _ = d.sum.Write(d.buf[d.summed:]) // never fails
	d.summed = len(d.buf)
	return Sum(d.sum.Sum64())
}

// object appends a line, {"name":v} or v itself.
func (d *dumper) object(name string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers and strings only
	}
	if name == "" {
		d.buf = append(append(d.buf, text...), '\n')
		return
	}
	d.buf = append(append(append(d.buf, `{"`...), name...), `":`...)
	d.buf = append(append(d.buf, text...), "}\n"...)
}

// flush writes what there is.
func (d *dumper) flush() error {
	d.seal()
	n, err := d.w.Write(d.buf)
	d.written += int64(n)
	d.buf, d.summed = d.buf[:0], 0
	if err != nil {
		return fmt.Errorf("snapshot: writing: %w", err)
	}
	return nil
}

// sleep waits for d or the context's end, which is then its error.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
