package scorer

import (
	"github.com/kvatlas/kvatlas/store"
)

// fold turns the runs of one lookup into a Match. A fold is used again for the next
// request: reset keeps its arrays. Those by slot are zero but for the slots in found, so that a lookup costs
// by its holders, not by all registered pods.
type fold struct {
	Match
	earlyExit bool
	predicted bool // predictions count
	explain   bool
	explained share                      // how much may be, of explain
	place     [store.NumTiers]uint8      // tiers by falling weight
	tierAt    [store.NumTiers]store.Tier // the tier of each place
	only      []string                   // pods asked for; nil is all
	model     string

	limited bool      // engines of the registry may have limits, which count
	named   bool      // pods are asked for by name: those of wanted
	wanted  []bool    // by pod: asked for by name
	asked   []int     // the pods that wanted has
	guests  bool      // pods that are not registered count, too
	plain   bool      // all slots count: none is a worker's, and all are wanted
	found   []int32   // slots that have held a run, each once
	seen    []uint32  // by slot: number of the run that last touched it; 0 means none
	touched []int32   // slots that the present run touches
	run     uint32    // number of the present run, from 1
	pos     int32     // blocks read so far
	gap     bool      // a block that no candidate holds has been read
	done    bool      // the counts are final; only an explanation reads on
	trace   []heldRun // what was read, for an explanation

	// Of a fold by changes, for which touched are slots of which a holder has come or
	// gone; see changes.go.
	byChange  bool
	last      []store.HolderID // holders of the run before
	stretches []stretch        // by slot
	holding   int              // slots that hold the present run

	// Of a fold that looks at all holders, for which touched are slots that hold the run.
	best  []uint8 // by slot: best tier in the run that seen says; onlyPredicted for none
	alive []int32 // slots that have held every block so far

	told share // of the limits of explanations: what trace has taken
	full bool  // trace has no room for the next block

	// What is joined from other sources than the chain of blocks; see join.go.
	sources []*source
	begun   bool         // Begin has been called
	flushed bool         // sources get nothing more
	block   int          // blocks joined so far
	waiting []waitingRun // blocks that wait for their chunks
	all     []held       // what everyone is, once asked for
	units   units
}

// heldRun is a run of blocks and their holders, kept for an explanation.
type heldRun struct {
	n    int
	held []held
}

// reset forgets the lookup before, so that nothing of it counts if the next one does
// not begin.
func (f *fold) reset() {
	f.forget()
	f.Registry, f.Held, f.Predicted, f.Highest, f.Reach = nil, f.Held[:0], f.Predicted[:0], f.Highest[:0], 0
	f.trace = f.trace[:0]
	f.sources, f.begun, f.flushed = f.sources[:0], false, false
	f.waiting, f.all = nil, nil
}

// many reports whether so many slots have been found that going through all costs less than
// going from one to the other.
func (f *fold) many() bool {
	const few = 8
	return len(f.found) > len(f.Held)/few
}

// forget makes the arrays zero again.
func (f *fold) forget() {
	if f.many() {
		clear(f.Held)
		clear(f.Predicted)
		clear(f.Highest)
		clear(f.seen)
		clear(f.best)
		clear(f.stretches)
		f.found = f.found[:0]
	}
	for _, s := range f.found {
		f.Held[s], f.Highest[s], f.seen[s], f.best[s], f.stretches[s] = TierCounts{}, 0, 0, 0, stretch{}
		if len(f.Predicted) > 0 {
			f.Predicted[s] = 0
		}
	}
	for i := range f.limits {
		f.limitOf[f.limits[i].slot] = 0
	}
	for _, p := range f.asked {
		f.wanted[p] = false
	}
	f.found, f.limits, f.limitOf, f.asked = f.found[:0], f.limits[:0], f.limitOf[:0], f.asked[:0]
}

var _ store.Folder = (*fold)(nil)

// Begin implements store.Folder.
func (f *fold) Begin(reg *store.Registry) {
	f.forget()
	n := len(reg.Slots)
	f.Registry = reg
	f.Held = zeros(f.Held, n)
	if f.predicted {
		f.Predicted = zeros(f.Predicted, n)
	}
	f.Highest = zeros(f.Highest, n)
	f.seen = zeros(f.seen, n)
	f.best = zeros(f.best, n)
	f.stretches = zeros(f.stretches, n)
	f.touched, f.alive, f.last, f.holding = f.touched[:0], f.alive[:0], f.last[:0], 0
	f.run, f.pos, f.Reach, f.gap, f.done = 0, 0, 0, false, false
	f.trace, f.told, f.full = f.trace[:0], share{}, false
	f.begun, f.block, f.waiting, f.all = true, 0, nil, nil
	f.limited = f.Extent == Prefix && reg.HasLimited(f.BlockSize)
	f.guests = !reg.HasGuests() || reg.Models[f.model].Unregistered
	f.want(reg)
	f.plain = !f.named && f.guests && reg.Instances() == 0
	f.byChange = !f.limited && len(f.sources) == 0
}

// want finds the pods that the request names.
func (f *fold) want(reg *store.Registry) {
	if f.named = f.only != nil; !f.named {
		return
	}
	f.wanted = zeros(f.wanted, len(reg.Pods))
	for _, name := range f.only {
		if p, known := reg.PodIndex(name); known {
			f.ask(p)
		}
		if !reg.HasBeside() {
			continue
		}
		if p, known := reg.Serving(name, f.model); known {
			f.ask(p)
		}
	}
}

func (f *fold) ask(pod int) {
	if !f.wanted[pod] {
		f.wanted[pod] = true
		f.asked = append(f.asked, pod)
	}
}

// unregistered reports whether a pod is there only because a query, or a value, names it.
func unregistered(p *store.Pod) bool { return p.Model == "" }

// wants reports whether the pod of a slot is asked for. Those are the ones that the request
// names, or all that are registered and, where the model allows it, all others.
func (f *fold) wants(slot int) bool {
	if f.named {
		return f.wanted[f.Registry.Slots[slot].Pod]
	}
	return f.guests || !unregistered(&f.Registry.Pods[f.Registry.Slots[slot].Pod])
}

// Run implements store.Folder.
func (f *fold) Run(n int, holders []store.HolderID) (more bool) {
	if len(f.sources) > 0 {
		return f.runJoined(n, holders)
	}
	if f.explain {
		f.note(n, holders)
	}
	switch {
	case f.done:
	case f.byChange:
		f.done = !f.foldChanges(int32(n), holders)
	default:
		f.touch(holders)
		f.done = !f.count(int32(n))
	}
	return !f.over()
}

// share is a part of what may be explained of one call.
type share struct{ blocks, holders int }

// note keeps a run for an explanation, with what the sources have of it now, as far as
// there is room for it.
func (f *fold) note(n int, holders []store.HolderID) {
	if f.full {
		return
	}
	var run heldRun
	for _, id := range holders {
		if slot, tier, ok := f.holder(id); ok {
			run.held = append(run.held, held{slot: int32(slot), tier: tier})
		}
	}
	for _, s := range f.sources {
		run.held = append(run.held, s.now...)
	}
	run.n = min(n, f.explained.blocks-f.told.blocks)
	if len(run.held) > 0 {
		run.n = min(run.n, (f.explained.holders-f.told.holders)/len(run.held))
	}
	f.full = run.n < n
	f.told.blocks += run.n
	f.told.holders += run.n * len(run.held)
	if run.n > 0 {
		f.trace = append(f.trace, run)
	}
}

// onlyPredicted is the best tier in a run of a slot that has but a prediction of it.
const onlyPredicted = store.NumTiers

// bestOfRun returns the tier that the present run counts in for a slot that holds it, and
// whether that is only predicted.
func (f *fold) bestOfRun(slot int32) (tier uint8, predicted bool) {
	return countedTier(f.best[slot])
}

// countedTier returns the tier that a block counts in whose best is this one, and whether it
// is only predicted.
func countedTier(best uint8) (tier uint8, predicted bool) {
	if best == onlyPredicted {
		return uint8(store.GPU), true
	}
	return best, false
}

// holdAll counts n blocks of the present run for slots that hold it.
func (f *fold) holdAll(slots []int32, n int32) {
	to := f.pos + n
	for _, slot := range slots {
		tier, predicted := f.bestOfRun(slot)
		f.Held[slot][tier] += n
		f.Highest[slot] = to
		if predicted {
			f.Predicted[slot] += n
		}
	}
}

// holder returns the slot and the tier, perhaps a window tier, of a holder that can be scored. Such a holder
// lives and is no cache worker, nor a prediction that the request does not ask for.
func (f *fold) holder(id store.HolderID) (slot int, tier store.Tier, ok bool) {
	slot, tier, ok = f.Registry.AnyHolder(id)
	return slot, tier, ok && !f.isWorkers(slot) && (f.predicted || tier != store.Predicted)
}

// isWorkers reports whether a slot is a cache worker's.
func (f *fold) isWorkers(slot int) bool {
	if f.Registry.Instances() == 0 {
		return false
	}
	_, worker := f.Registry.Worker(slot)
	return worker
}

// count takes one run, whose holders have been touched, into the counts and says
// whether a later block can change them.
func (f *fold) count(n int32) (more bool) {
	if len(f.touched) == 0 {
		f.gap = true
	}
	if f.Extent == Prefix {
		return f.countPrefix(n)
	}
	f.holdAll(f.touched, n)
	f.advance(n)
	return true
}

// countPrefix keeps the slots whose chain goes on through the present run.
func (f *fold) countPrefix(n int32) (more bool) {
	if f.run == 1 {
		f.alive = append(f.alive, f.touched...)
	} else {
		f.keepAlive()
	}
	switch {
	case len(f.alive) == 0:
		return false
	case f.earlyExit && len(f.alive) == 1 && f.limitFor(f.alive[0]) == nil:
		// The ranking is decided by the first block at which one candidate is
		// left. Counting just that one makes the answer independent of where
		// the index cuts its runs. One that has a limit may have reached a lower
		// one than those before: it is read to its end.
		n = 1
		more = false
	default:
		more = true
	}
	if len(f.limits) > 0 {
		f.extendLimits(n)
	}
	f.holdAll(f.alive, n)
	f.advance(n)
	return more
}

// keepAlive drops those of alive that do not hold the present run.
func (f *fold) keepAlive() {
	kept := f.alive[:0]
	for _, s := range f.alive {
		if f.seen[s] == f.run {
			kept = append(kept, s)
		}
	}
	f.alive = kept
}

func (f *fold) advance(n int32) {
	f.pos += n
	if !f.gap {
		f.Reach = f.pos
	}
}

// touch notes which wanted slots hold the run, and in which best tier.
func (f *fold) touch(holders []store.HolderID) {
	f.run++
	f.touched = f.touched[:0]
	for _, id := range holders {
		switch slot, tier, ok := f.holder(id); {
		case !ok:
		case tier.IsWindow():
			f.touchWindow(slot, tier.Memory())
		case tier == store.Predicted:
			f.touchPredicted(slot)
		case f.wants(slot):
			f.touchSlot(slot, tier)
		}
	}
}

func (f *fold) touchSlot(slot int, tier store.Tier) {
	switch {
	case f.seen[slot] != f.run:
		f.see(slot)
		f.best[slot] = uint8(tier)
		f.touched = append(f.touched, int32(slot))
	case f.best[slot] == onlyPredicted || f.place[tier] < f.place[f.best[slot]]:
		f.best[slot] = uint8(tier)
	}
}

// see notes that a slot holds the present run.
func (f *fold) see(slot int) {
	if f.seen[slot] == 0 {
		f.found = append(f.found, int32(slot))
		if f.limited {
			f.beginLimit(slot)
		}
	}
	f.seen[slot] = f.run
}

// touchPredicted notes that a slot is predicted to hold the present run, its windows too.
func (f *fold) touchPredicted(slot int) {
	if !f.wants(slot) {
		return
	}
	f.touchWindow(slot, store.GPU)
	if f.seen[slot] != f.run {
		f.see(slot)
		f.best[slot] = onlyPredicted
		f.touched = append(f.touched, int32(slot))
	}
}

// zeros returns a slice of n zero values. All within the capacity of s are zero, and it
// is used again where it is long enough.
func zeros[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// cleared returns a slice of n zero values that reuses s where it can.
func cleared[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// chain is the fold over the block keys of one request, and what is beside them.
type chain struct {
	fold    fold
	ranking ranking
	chunks  []store.Query // of the sources of the fold
	spare   []*source     // those of the fold, and others to use again
}
