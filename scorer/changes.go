package scorer

import (
	"github.com/kvatlas/kvatlas/store"
)

// Where a thousand pods hold a prompt, its runs differ from their neighbours in a few holders:
//
//	run 1   blocks 0-7    1 2 3 4 5 6 7 8 9 ...
//	run 2   blocks 8-15   1 2 3 4 _ 6 7 8 9 ...
//	run 3   block  16     1 2 3 4 _ 6 7 8 _ ...
//
// So a fold looks at the holders that came or went, and credits a slot when it goes, or at
// the end. Two kinds of folds look at all holders of each run instead. Those with limits depend
// on where runs end; the others join blocks with chunks.

// stretch is what a slot has held without a break up to the present run, all of it in one
// tier. The zero value is nothing.
type stretch struct {
	// holders are how many of its holders, by tier, have the present run. The last are
	// predictions.
	holders [store.NumTiers + 1]uint16
	best    uint8 // the tier that counts; onlyPredicted for predictions
	holds   bool
	since   int32 // its first block
}

// foldChanges takes a run of n blocks into the counts, and reports whether a later block can
// change them.
func (f *fold) foldChanges(n int32, holders []store.HolderID) (more bool) {
	f.run++
	f.touched = f.touched[:0]
	same := alike(f.last, holders)
	f.compare(f.last[same:], holders[same:])
	f.last = append(f.last[:same], holders[same:]...)
	for _, slot := range f.touched {
		f.restretch(slot)
	}
	if f.holding == 0 {
		f.gap = true
	}
	if f.Extent == Prefix {
		switch {
		case f.holding == 0:
			return false
		case f.earlyExit && f.holding == 1:
			f.advance(1) // see countPrefix
			return false
		}
	}
	f.advance(n)
	return true
}

// compare finds which holders have come and gone since the run before.
func (f *fold) compare(was, now []store.HolderID) {
	for len(was) > 0 && len(now) > 0 {
		same := alike(was, now)
		was, now = was[same:], now[same:]
		switch {
		case len(was) == 0 || len(now) == 0:
		case was[0] < now[0]:
			f.change(was[0], -1)
			was = was[1:]
		default:
			f.change(now[0], 1)
			now = now[1:]
		}
	}
	for _, id := range was {
		f.change(id, -1)
	}
	for _, id := range now {
		f.change(id, 1)
	}
}

// alike returns how many of the first holders are the same.
func alike(a, b []store.HolderID) (n int) {
	const page, width = 64, 8
	for len(a) >= page && len(b) >= page && *(*[page]store.HolderID)(a) == *(*[page]store.HolderID)(b) {
		a, b = a[page:], b[page:]
		n += page
	}
	for len(a) >= width && len(b) >= width {
		x, y := (*[width]store.HolderID)(a), (*[width]store.HolderID)(b)
		if (x[0]^y[0])|(x[1]^y[1])|(x[2]^y[2])|(x[3]^y[3])|(x[4]^y[4])|(x[5]^y[5])|(x[6]^y[6])|(x[7]^y[7]) != 0 {
			break
		}
		a, b = a[width:], b[width:]
		n += width
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return n + i
		}
	}
	return n + min(len(a), len(b))
}

// change counts a holder that has come, by 1, or gone, by -1.
func (f *fold) change(id store.HolderID, by int) {
	slot, tier, ok := f.Registry.AnyHolder(id)
	switch {
	case !ok || tier.IsWindow() || !f.plain && (f.isWorkers(slot) || !f.wants(slot)):
		return
	case tier == store.Predicted && !f.predicted:
		return
	case tier == store.Predicted:
		tier = onlyPredicted
	}
	s := &f.stretches[slot]
	if f.Extent == Prefix && f.run > 1 && !s.holds {
		return // its prefix has ended
	}
	s.holders[tier] += uint16(by) // by -1, as it wraps, is one fewer
	if f.seen[slot] != f.run {
		if f.seen[slot] == 0 {
			f.found = append(f.found, int32(slot))
		}
		f.seen[slot] = f.run
		f.touched = append(f.touched, int32(slot))
	}
}

// restretch ends the stretch of a slot and begins another one, if the tier that counts
// is not the one before.
func (f *fold) restretch(slot int32) {
	s := &f.stretches[slot]
	best, holds := uint8(onlyPredicted), s.holders[onlyPredicted] > 0
	for _, t := range f.tierAt {
		if s.holders[t] > 0 {
			best, holds = uint8(t), true
			break
		}
	}
	if s.holds == holds && s.best == best {
		return
	}
	f.credit(slot)
	switch {
	case holds && !s.holds:
		f.holding++
	case s.holds && !holds:
		f.holding--
	}
	s.best, s.holds, s.since = best, holds, f.pos
}

// credit counts the blocks of a slot's stretch so far.
func (f *fold) credit(slot int32) {
	s := &f.stretches[slot]
	n := f.pos - s.since
	if !s.holds || n == 0 {
		return
	}
	tier, predicted := countedTier(s.best)
	f.Held[slot][tier] += n
	f.Highest[slot] = f.pos
	if predicted {
		f.Predicted[slot] += n
	}
	s.since = f.pos
}

// creditAll counts what slots still hold.
func (f *fold) creditAll() {
	for _, slot := range f.found {
		f.credit(slot)
	}
}
