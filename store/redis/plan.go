package redis

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// plan is what a call of Apply comes to: clears first, and then for each block
// its net change. It is a pure function of the batches.
//
// That the clears come first is right although they may have come last. What a
// holder did before its clear is left out, so nothing is lost but what the clear
// takes anyway.
type plan struct {
	pods    []*podPlan
	guards  []*guardPlan // all batches have guards, or none has
	byName  map[string]*podPlan
	refs    []*holderRef
	changes []change
	// predicted returns the ends of the holders in tier Predicted that a rank is known to
	// have, in milliseconds of the Unix epoch. One may come twice.
	predicted func(pod string, rank int) []int64
}

// podPlan is the part of a plan that is about one pod.
type podPlan struct {
	name   string
	model  string // of the pod's first batch; what it is registered for if need be
	clears []clearance
	refs   map[place]*holderRef
	order  []*holderRef
	guards []*guardPlan
	reuse  []rankReuse
	// enrols is true when the pod is registered if it is not: the batches add.
	enrols bool
	// resolved is true when the ids of the refs come from the server.
	resolved bool
}

// rankReuse is what batches say of a rank's engine, and under which guard.
type rankReuse struct {
	rank  int
	reuse store.Reuse
	guard *guardPlan
}

// say takes in what a batch says of its rank's engine; the last one counts.
func (pod *podPlan) say(b *store.Batch, guard *guardPlan) {
	told := b.Told()
	if told == (store.Reuse{}) {
		return
	}
	at := slices.IndexFunc(pod.reuse, func(r rankReuse) bool { return r.rank == b.Rank })
	if at < 0 {
		at = len(pod.reuse)
		pod.reuse = append(pod.reuse, rankReuse{})
	}
	pod.reuse[at] = rankReuse{b.Rank, told, guard}
}

// said is what is to be written of that.
func (pod *podPlan) said() []rankReuse {
	return slices.DeleteFunc(slices.Clone(pod.reuse), func(r rankReuse) bool { return r.guard != nil && r.guard.over() })
}

// place is a rank and a tier within a pod. Of a holder in tier Predicted until is when it
// ends, in ms of the server's TIME; it is 0 of all others.
type place struct {
	rank  int
	tier  store.Tier
	until int64
}

// tierText is the tier as it is written.
func (p place) tierText() string { return keyspace.TierText(p.tier, p.until) }

// appendHolderField appends the name of a holder's field in its pod's hash:
// rank/tier.
func appendHolderField(dst []byte, at place) []byte {
	dst = strconv.AppendInt(dst, int64(at.rank), 10)
	dst = append(dst, '/')
	return append(dst, at.tierText()...)
}

// placeOf is where an op is about.
func placeOf(rank int, op *store.Op) place {
	at := place{rank: rank, tier: op.Tier}
	if op.Tier == store.Predicted {
		at.until = op.Until.UnixMilli()
	}
	return at
}

// clearance names the places that a clear takes.
type clearance struct {
	rank, tier       string // * for all
	allRanks         bool
	place            place
	allTiersOfTheOne bool
	guard            *guardPlan
}

func (c *clearance) covers(p place) bool {
	return (c.allRanks || c.place.rank == p.rank) && (c.allTiersOfTheOne || c.place.tier == p.tier.Memory() || c.place == p)
}

// holderRef is a holder that a plan changes blocks of. Its id is found out when
// the plan is carried out.
type holderRef struct {
	place
	pod *podPlan
	id  store.HolderID // 0 means none
	// give is true when the holder must get an id if it has none.
	give bool
	// from is the first change that counts; a clear has taken those before.
	from int
	n    int // index in plan.refs
	// guard is that of the batches that the holder is in, nil for none.
	guard *guardPlan
}

// dropped reports whether the guard keeps the holder from being written.
func (r *holderRef) dropped() bool { return r.guard != nil && r.guard.over() }

// change adds a block to a holder or removes it.
type change struct {
	key blockkey.StoreKey
	ref int
	add bool
}

// newPlan folds batches, which are valid. predicted is that of the plan.
func newPlan(batches []store.Batch, predicted func(pod string, rank int) []int64) *plan {
	p := &plan{byName: make(map[string]*podPlan, len(batches)), predicted: predicted}
	keys := 0
	for i := range batches {
		for j := range batches[i].Ops {
			keys += len(batches[i].Ops[j].Keys)
		}
	}
	p.changes = make([]change, 0, keys)
	for i := range batches {
		p.addBatch(&batches[i])
	}
	return p
}

func (p *plan) addBatch(b *store.Batch) {
	pod := p.byName[b.Pod]
	if pod == nil {
		pod = &podPlan{name: b.Pod, model: b.Model, refs: map[place]*holderRef{}}
		p.byName[b.Pod] = pod
		p.pods = append(p.pods, pod)
	}
	if !pod.enrols && b.Enrols() {
		pod.enrols, pod.model = true, b.Model
	}
	guard := p.guard(pod, b)
	pod.say(b, guard)
	mask := blockkey.ModelOf(b.Model)
	for i := range b.Ops {
		op := &b.Ops[i]
		switch {
		case op.Kind == store.Clear:
			p.clear(pod, b.Rank, op, guard)
		case op.Kind == store.Add:
			ref := p.ref(pod, placeOf(b.Rank, op), guard)
			ref.give = ref.give || len(op.Keys) > 0
			p.change(ref, op, mask)
		case op.Tier == store.AllTiers:
			for tier := range store.Tier(store.NumHolderTiers) {
				p.change(p.ref(pod, place{rank: b.Rank, tier: tier}, guard), op, mask)
			}
			p.changePredicted(pod, b.Rank, guard, op, mask)
		default:
			p.change(p.ref(pod, place{rank: b.Rank, tier: op.Tier}, guard), op, mask)
			if op.Tier == store.GPU {
				p.changePredicted(pod, b.Rank, guard, op, mask)
			}
		}
	}
}

// changePredicted is change for the predictions of a rank.
func (p *plan) changePredicted(pod *podPlan, rank int, guard *guardPlan, op *store.Op, mask blockkey.Model) {
	for _, until := range p.predicted(pod.name, rank) {
		p.ref(pod, place{rank, store.Predicted, until}, guard)
	}
	for _, r := range pod.order { // and those that this call has made
		if r.rank == rank && r.tier == store.Predicted {
			p.change(r, op, mask)
		}
	}
}

func (p *plan) ref(pod *podPlan, at place, guard *guardPlan) *holderRef {
	r := pod.refs[at]
	if r == nil {
		r = &holderRef{place: at, pod: pod, n: len(p.refs), guard: guard}
		pod.refs[at] = r
		pod.order = append(pod.order, r)
		p.refs = append(p.refs, r)
	}
	return r
}

func (p *plan) change(ref *holderRef, op *store.Op, mask blockkey.Model) {
	for _, k := range op.Keys {
		p.changes = append(p.changes, change{key: k.In(mask), ref: ref.n, add: op.Kind == store.Add})
	}
}

func (p *plan) clear(pod *podPlan, rank int, op *store.Op, guard *guardPlan) {
	at := placeOf(rank, op)
	c := clearance{
		rank: strconv.Itoa(rank), tier: at.tierText(),
		allRanks: op.AllRanks, allTiersOfTheOne: op.Tier == store.AllTiers, place: at, guard: guard,
	}
	if c.allRanks {
		c.rank = "*"
	}
	if c.allTiersOfTheOne {
		c.tier = "*"
	}
	pod.clears = append(pod.clears, c)
	for _, r := range pod.order {
		if c.covers(r.place) {
			r.from, r.give = len(p.changes), false
		}
	}
}

// step is the net change of one holder to one block.
type step struct {
	key blockkey.StoreKey
	id  store.HolderID
	add bool
	// guard is what it is written under, nil for none.
	guard *guardPlan
	// block is which block it is, in the order of their first steps, and at which of the
	// changes.
	block, at int
}

// steps returns the net changes under the ids that the refs have by now, ascending by
// block and id.
//
// The blocks stay in the order in which the batches name them, which is that of their
// chains. A server puts keys that it gets one behind the other next to each other in its memory. A lookup,
// which reads them in that order again, takes two thirds of the time that it takes where they are scattered.
func (p *plan) steps() []step {
	out := make([]step, 0, len(p.changes))
	blocks := newBlockTable(len(p.changes))
	for i, c := range p.changes {
		// A rank without an id holds nothing that could be removed.
		if r := p.refs[c.ref]; i >= r.from && r.id != 0 && !r.dropped() {
			out = append(out, step{c.key, r.id, c.add, r.guard, blocks.number(c.key), i})
		}
	}
	// Steps of an event are in order already, which the sort notices.
	slices.SortFunc(out, func(a, b step) int {
		return cmp.Or(a.block-b.block, cmp.Compare(a.id, b.id), a.at-b.at)
	})
	// Of several changes of one holder to one block the last counts.
	n := 0
	for i, s := range out {
		if i+1 < len(out) && out[i+1].block == s.block && out[i+1].id == s.id {
			continue
		}
		out[n] = s
		n++
	}
	return out[:n]
}

// blockTable numbers blocks in the order in which they are first asked for. A product is
// enough of a hash, since the keys are hashes already.
type blockTable struct {
	slots []int32 // 1 + an index in keys, 0 for none; their number is a power of 2
	keys  []blockkey.StoreKey
}

// newBlockTable makes one for at most so many blocks.
func newBlockTable(most int) *blockTable {
	return &blockTable{slots: make([]int32, 2<<bits.Len(uint(most))), keys: make([]blockkey.StoreKey, 0, most)}
}

// number returns the block's.
func (t *blockTable) number(k blockkey.StoreKey) int {
	mask := len(t.slots) - 1
	for i := int(uint64(k)*0x9e3779b97f4a7c15>>32) & mask; ; i = (i + 1) & mask {
		switch n := t.slots[i]; {
		case n == 0:
			t.keys = append(t.keys, k)
			t.slots[i] = int32(len(t.keys)) //nolint:gosec // a call has far fewer
			return len(t.keys) - 1
		case t.keys[n-1] == k:
			return int(n) - 1
		}
	}
}

// edit is a block and its ops.
type edit struct {
	key blockkey.StoreKey
	ops int // index in a list of ops
}

// ops is what is to be done to a block, in the language of apply.lua, and the
// guards that it is under.
type ops struct {
	text   string
	guards []*guardPlan
}

// edits joins the steps of each block, and returns with them the list of all
// the ops there are. They are usually few: all blocks of an event change alike.
// tagged is for steps of more than one guard.
func edits(steps []step, tagged bool) (list []edit, all []ops) {
	list = make([]edit, 0, len(steps))
	known := map[string]int{}
	var buf []byte
	for i := 0; i < len(steps); {
		buf = buf[:0]
		j := i
		for ; j < len(steps) && steps[j].key == steps[i].key; j++ {
			if g := steps[j].guard; tagged && (j == i || g != steps[j-1].guard) {
				buf = append(buf, '@')
				buf = strconv.AppendUint(buf, uint64(g.Generation), 10)
			}
			sign := byte('-')
			if steps[j].add {
				sign = '+'
			}
			buf = append(buf, sign)
			buf = strconv.AppendUint(buf, uint64(steps[j].id), 10)
		}
		n, ok := known[string(buf)]
		if !ok {
			n = len(all)
			o := ops{text: string(buf)}
			for _, s := range steps[i:j] {
				if s.guard != nil && !slices.Contains(o.guards, s.guard) {
					o.guards = append(o.guards, s.guard)
				}
			}
			all = append(all, o)
			known[o.text] = n
		}
		list = append(list, edit{steps[i].key, n})
		i = j
	}
	return list, all
}
