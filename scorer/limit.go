package scorer

import (
	"math"

	"github.com/kvatlas/kvatlas/store"
)

// limit is how far the engine of a slot can reuse what the slot holds.
//
// The engine resumes at a multiple of its block size, below the prompt's last token. With
// windows it resumes there only if its window groups hold the window before that place:
//
//	tokens   0     64    128   192   256   320      engine blocks of 32, a window of 64
//	prefix   |  x  |  x  |  x  |  x  |     |        held up to 256
//	windows  |     |     |  x  |     |     |        resumes at 192
type limit struct {
	slot  int32
	reuse store.Reuse
	end   int        // the last place in tokens where the engine can resume
	sure  TierCounts // whole blocks before that, by their best tier
	// predicted is how many of those are only predicted.
	predicted int32
	// tails are the latest runs that the window groups hold in a row, by tier.
	tails [store.NumTiers]tail
}

// tail is a row of runs, from the block from on to the end of a run.
type tail struct {
	from int32
	run  uint32
}

// anyTokens is the room of a prompt that may have more tokens than are known.
const anyTokens = math.MaxInt32

// beginLimit gives a slot a limit if its engine has one and it has none yet. Blocks that
// count anywhere have no limits.
func (f *fold) beginLimit(slot int) {
	if len(f.limits) == 0 {
		f.limitOf = zeros(f.limitOf, len(f.Registry.Slots))
	}
	if f.limitOf[slot] != 0 || !f.Registry.IsLimited(slot, f.BlockSize) {
		return
	}
	f.limits = append(f.limits, limit{slot: int32(slot), reuse: f.Registry.Reuse(slot)})
	f.limitOf[slot] = int32(len(f.limits))
}

// limitFor returns the limit of a slot; nil where all that it holds can be reused.
func (m *Match) limitFor(slot int32) *limit {
	if len(m.limits) == 0 || m.limitOf[slot] == 0 {
		return nil
	}
	return &m.limits[m.limitOf[slot]-1]
}

// touchWindow notes that the window groups of a slot hold the present run.
func (f *fold) touchWindow(slot int, memory store.Tier) {
	if !f.limited {
		return
	}
	f.beginLimit(slot)
	l := f.limitFor(int32(slot))
	if l == nil {
		return
	}
	t := &l.tails[memory]
	if t.run+1 < f.run {
		t.from = f.pos
	}
	t.run = f.run
}

// extendLimits takes a run of n blocks into the limits of the slots that hold it. It
// comes before the run is counted.
func (f *fold) extendLimits(n int32) {
	for _, s := range f.alive {
		l := f.limitFor(s)
		if l == nil {
			continue
		}
		tier, predicted := f.bestOfRun(s)
		if end := f.resume(l, n, tier); end > l.end {
			l.end, l.sure = end, f.Held[s]
			within := int32(end/f.BlockSize) - f.pos
			l.sure[tier] += within
			if f.predicted {
				l.predicted = f.Predicted[s]
			}
			if predicted {
				l.predicted += within
			}
		}
	}
}

// resume returns the last place within a run of n blocks where the engine can resume,
// which is in this tier; 0 means none.
func (f *fold) resume(l *limit, n int32, tier uint8) int {
	size, block := f.BlockSize, l.reuse.Block
	end := min(int(f.pos+n)*size, f.room)
	if l.reuse.Window > 0 {
		to := f.pos // a row that has ended earlier does not reach into this run
		if l.tails[tier].run == f.run {
			to += n
		}
		end = min(end, f.windowEnd(to, block))
	}
	end -= end % block
	if end <= int(f.pos)*size {
		return 0
	}
	if l.reuse.Window > 0 && !f.windowHeld(&l.tails[tier], end-l.reuse.Window, block) {
		return 0
	}
	return end
}

// Which index blocks show that the window groups hold the engine blocks of a stretch of
// tokens? All that have a token of it. But where engine blocks are larger, those that lie
// wholly in the stretch do. What reaches out of it need not be held there, as engines keep
// the states of few places only.

// inward reports whether whole index blocks are enough.
func (f *fold) inward(block int) bool { return block > f.BlockSize }

// windowEnd returns up to which token a stretch may end if index blocks before to are held.
func (f *fold) windowEnd(to int32, block int) int {
	if f.inward(block) {
		return (int(to)+1)*f.BlockSize - 1
	}
	return int(to) * f.BlockSize
}

// windowHeld reports whether a row that comes up to the present run, or goes through it,
// has begun by a token. A token of 0 and below is the root.
func (f *fold) windowHeld(t *tail, token, block int) bool {
	token = max(token, 0)
	if f.inward(block) {
		token += f.BlockSize - 1
	}
	return t.run+1 >= f.run && token/f.BlockSize >= int(t.from)
}
