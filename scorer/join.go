package scorer

import (
	"math"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// What a cache beside the engine holds, such as LMCache, is told in chunks, of another size
// than the index's blocks. Each chain of chunks is a source beside the chain of blocks, and
// the two are joined by the tokens that they stand for:
//
//	tokens   0        256       512       768
//	chunks   |  A B    |  A      |   -     |      holders of each, in some tier
//	blocks   | | | | | | | | | | | | | | |
//	         A B   (4) A     (4) none             and native holders of blocks besides
//
// A holder of a block holds every chunk that has a token of it. Its tier is the
// slowest of the tiers that these are in: what it takes to have all of it. A chunk
// that the source does not have, behind the prompt's last whole one or behind the
// first image, has no holder.
//
// The sources are told of chunks before the fold is told of blocks, so that it decides
// at once whether more can change the result. Where an index does it otherwise, blocks
// wait for the chunks that lie in them.

// Chunks says in which chunks a prompt lies, beside its blocks. chunks.Source of LMCache is
// one. It is safe for concurrent use.
type Chunks interface {
	// AppendQueries appends to dst a query for each chain of chunks that may hold a beginning
	// of a prompt of the model. A query has its Keys or Entries, and its Span. The tokens are
	// those before the first image, audio or video of a prompt without adapter and salt, and
	// must not be kept. Chunks that begin behind the first covered of them count for nothing.
	// What lies in dst behind its end is of an earlier call, and its memory may be used
	// again.
	AppendQueries(dst []store.Query, model string, tokens []uint32, covered int) []store.Query
}

// held is a slot that holds something, and the best tier that it does so in. The unit
// is the slot too or, of an instance of cache workers, a number above those of slots.
// For chunks of two instances do not complete each other.
type held struct {
	unit, slot int32
	tier       store.Tier
}

// source is what a query beside the chain of blocks has told so far.
type source struct {
	f    *fold
	span int // tokens in a chunk
	end  int // tokens that the chunks cover

	reg        *store.Registry
	runs       []chunkRun
	at         int    // the first run that a block to come can lie in
	read       int    // chunks reported
	now        []held // holders of the blocks that ahead was asked about
	arena, met []held
}

// chunkRun is a run of chunks with the same holders, up to the chunk end.
type chunkRun struct {
	end  int
	held []held
}

var _ store.Folder = (*source)(nil)

// Begin implements store.Folder.
func (s *source) Begin(reg *store.Registry) {
	s.reg = reg
	s.runs, s.at, s.read = s.runs[:0], 0, 0
	s.now, s.arena = nil, s.arena[:0]
}

// Run implements store.Folder.
func (s *source) Run(n int, holders []store.HolderID) (more bool) {
	f := s.f
	if f.begun && f.over() {
		return false
	}
	s.read += n
	s.runs = append(s.runs, chunkRun{end: s.read, held: s.resolve(holders)})
	if !f.begun {
		return true
	}
	return f.settle()
}

// resolve returns the holders of a chunk: each slot once, each instance of cache workers
// once if all its workers do.
func (s *source) resolve(holders []store.HolderID) []held {
	if len(holders) == 0 {
		return nil
	}
	if holders[0] == store.Everyone {
		return s.f.everyone(s.reg)
	}
	begin := len(s.arena)
	u := &s.f.units
	u.next(len(s.reg.Slots) + s.reg.Instances())
	for _, id := range holders {
		slot, tier, live := s.reg.Holder(id)
		if !live {
			continue
		}
		if u.see(slot) {
			s.arena = append(s.arena, held{unit: int32(slot), slot: int32(slot)})
			u.of[slot].place = s.f.place[tier]
		}
		u.of[slot].place = min(u.of[slot].place, s.f.place[tier])
	}
	found := s.arena[begin:]
	kept := found[:0]
	for _, h := range found {
		place := u.of[h.slot].place
		if w, ok := s.reg.Worker(int(h.slot)); ok {
			if w.For < 0 {
				continue
			}
			n := len(s.reg.Slots) + w.Instance
			if u.see(n) {
				u.of[n].place = place
			}
			all := &u.of[n]
			all.place = max(all.place, place)
			if all.count++; int(all.count) < w.Workers {
				continue
			}
			h, place = held{unit: int32(n), slot: int32(w.For)}, all.place
		}
		h.tier = s.f.tierAt[place]
		kept = append(kept, h)
	}
	s.arena = s.arena[:begin+len(kept)]
	return kept[:len(kept):len(kept)]
}

// ahead finds the holders of the block by this source, which are then in now. It
// returns for how many blocks from it on they are the same. Result ok is false when the
// source has not been told yet.
func (s *source) ahead(block, size int) (blocks int, ok bool) {
	if (block+1)*size > s.end {
		s.now = nil
		return math.MaxInt, true
	}
	first, last := block*size/s.span, ((block+1)*size-1)/s.span
	if last >= s.read {
		if !s.f.flushed {
			return 0, false
		}
		s.now = nil
		return math.MaxInt, true
	}
	for s.runs[s.at].end <= first {
		s.at++
	}
	run := s.runs[s.at]
	if last >= run.end {
		s.now = s.meet(last)
		return 1, true
	}
	s.now = run.held
	return min(run.end*s.span, s.end)/size - block, true
}

// meet returns the holders of all chunks from those of the present run to last.
func (s *source) meet(last int) []held {
	u := &s.f.units
	u.next(len(s.reg.Slots) + s.reg.Instances())
	s.met = s.met[:0]
	runs := 0
	for at := s.at; ; at++ {
		run := s.runs[at]
		runs++
		for _, h := range run.held {
			place := s.f.place[h.tier]
			if u.see(int(h.unit)) {
				u.of[h.unit].place = place
				if runs == 1 {
					s.met = append(s.met, h)
				}
			}
			u.of[h.unit].place = max(u.of[h.unit].place, place)
			u.of[h.unit].count++
		}
		if last < run.end {
			break
		}
	}
	all := s.met[:0]
	for _, h := range s.met {
		if e := u.of[h.unit]; int(e.count) == runs {
			h.tier = s.f.tierAt[e.place]
			all = append(all, h)
		}
	}
	return all
}

// units are notes on slots and instances. next forgets all of them, in O(1).
type units struct {
	of    []unit
	round uint32
}

type unit struct {
	round uint32
	count uint32
	place uint8
}

func (u *units) next(n int) {
	if len(u.of) < n || u.round == math.MaxUint32 {
		u.of, u.round = cleared(u.of, n), 0
	}
	u.round++
}

// see begins the notes on a unit; false when there are some already.
func (u *units) see(i int) (first bool) {
	e := &u.of[i]
	if e.round == u.round {
		return false
	}
	*e = unit{round: u.round}
	return true
}

// everyone returns all slots of the model's pods, and of those that are named and not
// registered. They hold what lies in a store that they share.
func (f *fold) everyone(reg *store.Registry) []held {
	if f.all != nil {
		return f.all
	}
	f.all = make([]held, 0, len(reg.Slots))
	for i, s := range reg.Slots {
		if p := &reg.Pods[s.Pod]; (p.Model == f.model || f.only != nil && unregistered(p)) && p.PartOf == nil {
			f.all = append(f.all, held{unit: int32(i), slot: int32(i), tier: store.Shared})
		}
	}
	return f.all
}

// waitingRun is a run of blocks that waits for its chunks.
type waitingRun struct {
	n       int
	holders []store.HolderID
}

// over reports whether no later run matters.
func (f *fold) over() bool { return f.done && (!f.explain || f.full) }

// runJoined is Run of a fold with sources.
func (f *fold) runJoined(n int, holders []store.HolderID) (more bool) {
	if len(f.waiting) == 0 {
		n -= f.join(n, holders)
	}
	if n > 0 && !f.over() {
		f.waiting = append(f.waiting, waitingRun{n: n, holders: append([]store.HolderID(nil), holders...)})
	}
	return !f.over()
}

// settle takes in the blocks that wait, as far as the sources go by now.
func (f *fold) settle() (more bool) {
	for len(f.waiting) > 0 && !f.over() {
		w := &f.waiting[0]
		if w.n -= f.join(w.n, w.holders); w.n > 0 {
			break
		}
		f.waiting = f.waiting[1:]
	}
	return !f.over()
}

// flush ends the fold when the index has told all that it will. It takes in the blocks that still
// wait: chunks that it has not reported have no holder.
func (f *fold) flush() {
	if f.byChange {
		f.creditAll()
	}
	if len(f.waiting) == 0 {
		return
	}
	f.flushed = true
	f.settle()
	f.waiting = nil
}

// join takes in up to n blocks with these holders, as many as the sources know, and returns how many those
// were.
func (f *fold) join(n int, holders []store.HolderID) (used int) {
	for used < n && !f.over() {
		part := n - used
		for i := range f.sources {
			same, told := f.sources[i].ahead(f.block, f.BlockSize)
			if !told {
				return used
			}
			part = min(part, same)
		}
		f.touch(holders)
		for i := range f.sources {
			f.touchHeld(f.sources[i].now)
		}
		if f.explain {
			f.note(part, holders)
		}
		if !f.done {
			f.done = !f.count(int32(part))
		}
		f.block += part
		used += part
	}
	return used
}

// touchHeld adds to the slots that the present run touches.
func (f *fold) touchHeld(list []held) {
	for _, h := range list {
		if f.wants(int(h.slot)) {
			f.touchSlot(int(h.slot), h.tier)
		}
	}
}

// askForChunks sets up the sources of a job.
func (s *Scorer) askForChunks(j *job, size int) {
	if j.req.Input.kind == inputKeys || j.req.LoRA != "" || j.req.Salt != "" {
		return
	}
	c := j.chain
	tokens := j.tokens[:beforeObjects(len(j.tokens), j.objects)]
	c.chunks = s.cfg.Chunks.AppendQueries(c.chunks[:0], j.req.Model, tokens, len(c.fold.Keys)*size)
	for i := range c.chunks {
		c.addSource(c.chunks[i].Span, min(c.chunks[i].Len()*c.chunks[i].Span, len(tokens)))
	}
}

// addSource adds a source, of those that the chain has had before if it can.
func (c *chain) addSource(span, end int) {
	n := len(c.fold.sources)
	if n == len(c.spare) {
		c.spare = append(c.spare, new(source))
	}
	src := c.spare[n]
	src.f, src.span, src.end = &c.fold, span, end
	src.Begin(nil)
	c.fold.sources = append(c.fold.sources, src)
}

// beforeObjects returns how many of n tokens stand before the first object.
func beforeObjects(n int, objects []blockkey.Object) int {
	for i := range objects {
		for _, r := range objects[i].Ranges {
			if r.Start < r.End {
				n = min(n, max(r.Start, 0))
			}
		}
	}
	return n
}
