package redis

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/enginemap"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// Compacting: the owner of a generation puts the changes of its map into the pages, and no
// write waits for it. It does so when there are compactEntries of them, or half of what the
// pages have.
//
//  1. read the list: its state, and changes; announce the compaction (compact.lua)
//  2. for some pages at a time: read them, put the changes in, write them (compact.lua)
//  3. with the last of them: take the changes from the list, and write the new state
//
// A compaction that stops anywhere leaves a map that is read as it was: the list still has all changes,
// and wins over the pages. An owner whose fence is not the record's any more writes
// nothing. Nor does a compaction after which another has been announced. Two processes may write a
// generation in turn under one fence. The slower would put older pages over newer ones whose
// changes have been taken from the list. When there are more than pageEntries entries a page,
// step 2 reads all pages and writes twice as many, or more, under other names. After step 3 the
// old ones go.
const (
	compactEntries = 4096
	pageEntries    = 256
	// compactBytes is how many bytes of pages one run of compact.lua writes, about.
	compactBytes = 64 << 10
	// compactElements is how many elements of a list are read at a time at most. While it is not
	// known how long they are, it is firstElements. About listBytes bytes are read at a time: a
	// megabyte takes a server half a millisecond.
	compactElements = 1024
	firstElements   = 16
	listBytes       = 256 << 10
	// maxChanges is more changes than any list is to have, 80 to 160 MB.
	maxChanges = 4 << 20
	// maxCompactBytes is how much of a list is compacted at once.
	maxCompactBytes = 8 << 20
	// compactWait bounds the wait for a compaction's turn in the background, and compactTimeout the
	// compaction itself; after one that failed there is a rest.
	compactWait    = 10 * time.Minute
	compactTimeout = 30 * time.Second
	compactRest    = time.Second
)

// compact compacts the map of a generation when those before it are done. The compactions of a
// process come one after the other, which bounds the memory that they take.
func (x *Index) compact(ctx context.Context, gen store.Generation, fence uint64) error {
	f := compaction{x: x, gen: gen, fence: fence}
	if err := f.turn(ctx); err != nil {
		return err
	}
	return f.inTurn(ctx)
}

// compactLater is compact for the background. What others take for their compactions does not count
// as time of this one.
func (x *Index) compactLater(gen store.Generation, fence uint64) error {
	f := compaction{x: x, gen: gen, fence: fence}
	wait, cancel := context.WithTimeout(x.space.Life, compactWait)
	defer cancel()
	if err := f.turn(wait); err != nil {
		return fmt.Errorf("waiting until other maps are compacted: %w", err)
	}
	ctx, cancel := context.WithTimeout(x.space.Life, compactTimeout)
	defer cancel()
	return f.inTurn(ctx)
}

// turn waits for the compaction's turn.
func (f *compaction) turn(ctx context.Context) error {
	select {
	case f.x.compacting <- struct{}{}:
		return nil
	case <-ctx.Done():
		f.x.lists.end(f, ctx.Err()) // or it would never be due again
		return ctx.Err()
	}
}

// inTurn compacts, and ends the turn.
func (f *compaction) inTurn(ctx context.Context) error {
	defer func() { <-f.x.compacting }()
	f.x.lists.begin(f.gen, f.fence)
	err := f.run(ctx)
	f.x.lists.end(f, err)
	if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrEnded) {
		return nil // which the next write hears
	}
	return err
}

// compaction is one of them.
type compaction struct {
	x     *Index
	gen   store.Generation
	fence uint64

	state      enginemap.State
	token      string
	elements   int  // of the list, without the state
	had, taken int  // changes that have been read, and put into pages
	more       bool // there are changes that have not been read
	lost       bool // a part of the map is; run's error says which
	entries    int  // in the pages, after it
}

func (f *compaction) run(ctx context.Context) error {
	changes, err := f.read(ctx)
	if err != nil {
		return err
	}
	f.had = changes.Len()
	f.entries = f.state.Entries
	if !f.more && f.had < f.x.lists.worth(f.state.Entries) {
		return nil // it was not known how long the list is
	}
	if err := f.announce(ctx); err != nil {
		return err
	}
	changes = changes.Last()
	pages := f.state.Pages
	if most := f.state.Entries + changes.Len(); pages == 0 || most > pages*pageEntries {
		pages = min(enginemap.MaxPages, 1<<bits.Len(uint(most/(pageEntries/2))))
	}
	if pages == f.state.Pages {
		err = f.change(ctx, changes)
	} else {
		err = f.spread(ctx, changes, pages)
	}
	if err == nil {
		f.taken = f.had
	}
	return err
}

// read reads the list.
func (f *compaction) read(ctx context.Context) (changes enginemap.Changes, err error) {
	list := f.x.space.Names.Changes(f.gen)
	for from := 0; ; {
		step := listStep(from, changes.Bytes())
		f.x.space.Trips.Add(1)
		part, err := f.x.space.Client.LRange(ctx, list, int64(from), int64(from+step-1)).Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			f.lost = true
			return changes, fmt.Errorf("%w: the list of its map is of another type: %w", store.ErrEnded, err)
		}
		if err != nil {
			return changes, err
		}
		f.more = len(part) == step
		if from == 0 {
			if f.state, err = enginemap.ParseState(part); err != nil {
				f.lost = true
				return changes, err
			}
			most := min(f.x.lists.worth(f.state.Entries), maxCompactBytes/16)
			changes = enginemap.NewChanges(most, 24*most)
			part = part[1:]
			from++
		}
		for _, element := range part {
			if !changes.AddRows(element) {
				f.x.space.Garbled.Add(1)
			}
		}
		from += len(part)
		f.elements = from - 1
		if !f.more || changes.Bytes() > maxCompactBytes {
			return changes, nil
		}
	}
}

// listStep is how many elements of a list to read next, when so many have had so many
// bytes. They are as many as keep the server from others for a part of a millisecond.
func listStep(elements, bytes int) int {
	if elements < firstElements {
		return firstElements
	}
	return max(1, min(compactElements, listBytes/(1+bytes/elements)))
}

// announce keeps compactions that were before from writing on.
func (f *compaction) announce(ctx context.Context) error {
	f.token = strconv.FormatUint(rand.Uint64(), 36)
	return f.send(ctx, f.call())
}

// call begins a run of compact.lua.
func (f *compaction) call() *keyspace.Call {
	return &keyspace.Call{
		Script: lua.Compact,
		Keys:   []string{f.x.space.Names.MapRecords(f.gen, f.x.space.Cluster), f.x.space.Names.Changes(f.gen), f.x.space.Names.Compactor(f.gen)},
		Args:   []string{strconv.FormatUint(uint64(f.gen), 10), strconv.FormatUint(f.fence, 10), f.token, f.state.Text, "", "0"},
	}
}

// send makes a run of compact.lua.
func (f *compaction) send(ctx context.Context, c *keyspace.Call) error {
	cmds, err := f.x.space.Run(ctx, c)
	if err != nil {
		return err
	}
	switch n, _ := cmds[0].Int64(); lua.Result(n) {
	case lua.Applied:
		return nil
	case lua.Fenced:
		return store.ErrFenced
	case lua.Ended:
		return store.ErrEnded
	default:
		return errCompacted
	}
}

// change puts changes into the pages that are there.
func (f *compaction) change(ctx context.Context, all enginemap.Changes) error {
	changes := all.ByPage(f.state.Pages)
	w := f.writer(f.state.Pages)
	for part := range slices.Chunk(changes, w.step) {
		numbers := make([]int, len(part))
		for i, c := range part {
			numbers[i] = c.N
		}
		have, err := f.pages(ctx, numbers)
		if err != nil {
			return err
		}
		for i, c := range part {
			page, entries, had, ok := all.Merge(have[i], c)
			if !ok {
				f.x.space.Garbled.Add(1)
			}
			f.entries += entries - had
			if err := w.write(ctx, c.N, page); err != nil {
				return err
			}
		}
	}
	return w.end(ctx)
}

// spread writes all entries, and changes, into more pages.
func (f *compaction) spread(ctx context.Context, all enginemap.Changes, pages int) error {
	changes := all.ByPage(pages)
	f.entries = 0
	w := f.writer(pages)
	olds := max(1, f.state.Pages)
	step := max(1, w.step/(pages/olds))
	for from := 0; from < olds; from += step {
		var numbers []int
		for n := from; n < min(olds, from+step) && f.state.Pages > 0; n++ {
			numbers = append(numbers, n)
		}
		have, err := f.pages(ctx, numbers)
		if err != nil {
			return err
		}
		// What was in one page is in several, that stand next to each other.
		first, last := from*(pages/olds), min(olds, from+step)*(pages/olds)
		parts := make([][]byte, last-first)
		for n, page := range have {
			for i := range pages / olds { // an even share of it, about
				parts[n*(pages/olds)+i] = make([]byte, 0, len(page)/(pages/olds)*5/4+64)
			}
			ok := enginemap.Each(page, func(e enginemap.Entry) {
				i := enginemap.PageOf(e.Hash, pages) - first
				if i >= 0 && i < len(parts) { // or it was written by another process
					parts[i] = e.AppendTo(parts[i])
				}
			})
			if !ok {
				f.x.space.Garbled.Add(1)
			}
		}
		for i, page := range parts {
			var c enginemap.PageChanges
			if len(changes) > 0 && changes[0].N == first+i {
				c, changes = changes[0], changes[1:]
			}
			page, entries, _, _ := all.Merge(page, c)
			f.entries += entries
			if err := w.write(ctx, first+i, page); err != nil {
				return err
			}
		}
	}
	if err := w.end(ctx); err != nil {
		return err
	}
	f.drop(ctx)
	return nil
}

// drop deletes the pages that were before a spread. Those that cannot be deleted now go
// with the generation.
func (f *compaction) drop(ctx context.Context) {
	for from := 0; from < f.state.Pages; from += compactElements {
		var names []string
		for n := from; n < min(f.state.Pages, from+compactElements); n++ {
			names = append(names, f.x.space.Names.Page(f.gen, f.state.Pages, n))
		}
		f.x.space.Trips.Add(1)
		if f.x.space.Client.Unlink(ctx, names...).Err() != nil {
			return
		}
	}
}

// pages reads the entries of pages.
func (f *compaction) pages(ctx context.Context, numbers []int) ([][]byte, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = f.x.space.Names.Page(f.gen, f.state.Pages, n)
	}
	f.x.space.Trips.Add(1)
	values, err := f.x.space.Client.MGet(ctx, names...).Result()
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(values))
	for i, v := range values {
		s, _ := v.(string)
		if out[i], err = enginemap.OpenPage(s); err == nil {
			continue
		}
		// Or another process has compacted it since the list was read.
		if now, asked := f.x.space.Client.LIndex(ctx, f.x.space.Names.Changes(f.gen), 0).Result(); asked != nil || now != f.state.Text {
			return nil, errors.Join(errCompacted, asked)
		}
		f.lost = true
		return nil, err
	}
	return out, nil
}

// pageWriter writes pages, some at a time.
type pageWriter struct {
	f     *compaction
	pages int
	step  int // how many pages to read at a time
	c     *keyspace.Call
	bytes int
}

func (f *compaction) writer(pages int) *pageWriter {
	w := &pageWriter{f: f, pages: pages}
	// An entry takes 20 to 30 bytes.
	w.step = max(1, min(512, compactBytes/(1+30*max(f.state.Entries, f.had)/pages)))
	return w
}

func (w *pageWriter) write(ctx context.Context, n int, page []byte) error {
	if w.c == nil {
		w.c = w.f.call()
	}
	c := w.c
	c.Keys = append(c.Keys, w.f.x.space.Names.Page(w.f.gen, w.pages, n))
	c.Args = append(c.Args, string(page))
	if w.bytes += len(page); w.bytes < compactBytes && len(c.Keys) < callKeys {
		return nil
	}
	return w.flush(ctx)
}

func (w *pageWriter) flush(ctx context.Context) error {
	c := w.c
	w.c, w.bytes = nil, 0
	return w.f.send(ctx, c)
}

// errCompacted says that another process has compacted the map.
var errCompacted = errors.New("redis: the map has other pages than were read")

// end writes what is left, and the new state.
func (w *pageWriter) end(ctx context.Context) error {
	if w.c == nil {
		w.c = w.f.call()
	}
	w.c.Args[4], w.c.Args[5] = w.f.state.After(w.pages, w.f.entries).Text, strconv.Itoa(w.f.elements)
	return w.flush(ctx)
}
