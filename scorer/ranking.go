package scorer

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

// candidate is a pod of a ranking: one that holds a counted block, or that was asked for. It
// has no pointer, since a thousand are made for a request.
type candidate struct {
	score       float64
	best        int32 // the slot of its best rank; -1 where the pod holds nothing
	blocks      int32 // what that holds
	first, last int32 // its ranks: ranking.slots[first:last]; of one that holds nothing, the name is ranking.missing[first]
}

// place is where a candidate stands. It is small, as it is what is sorted.
type place struct {
	score uint64 // the bits of the candidate's score, which order as scores do: none is below 0
	at    int32  // which of ranking.all it is
}

// compare orders places by falling score, and by name.
func (p place) compare(q place) int {
	if p.score != q.score {
		return cmp.Compare(q.score, p.score)
	}
	return cmp.Compare(p.at, q.at)
}

// ranking orders the pods of one fold. It is used again for the next request. The work is by
// pods that hold something, and of those that are not in the answer only their scores are made.
type ranking struct {
	all     []candidate // by name
	slots   []int32     // the slots that hold a counted block, ascending
	missing []string    // the pods that were asked for and hold nothing
	places  []place
}

// collect finds what each pod holds.
func (r *ranking) collect(f *fold, how *rule, w *Weights) {
	r.all, r.slots, r.missing = r.all[:0], r.slots[:0], nil
	if f.Registry == nil {
		return
	}
	r.slots = f.appendHolders(r.slots)
	slots := f.Registry.Slots
	// Slots ascend by pod, so a pod's ranks are neighbours.
	for first := 0; first < len(r.slots); {
		pod, end := slots[r.slots[first]].Pod, first+1
		for end < len(r.slots) && slots[r.slots[end]].Pod == pod {
			end++
		}
		c := candidate{first: int32(first), last: int32(end)}
		c.best, c.score, c.blocks = f.bestOf(how, w, r.slots[first:end])
		r.all = append(r.all, c)
		first = end
	}
	if f.Registry.HasBeside() {
		r.joinBeside(&f.Match)
	}
}

// name returns the plain name of a candidate's pod. Names are far from what is held in memory,
// so that they are not read where scores decide.
func (r *ranking) name(m *Match, c *candidate) string {
	if c.best < 0 {
		return r.missing[c.first]
	}
	return m.Registry.PodName(m.Registry.Slots[c.best].Pod)
}

// named is a candidate and its name.
type named struct {
	name string
	candidate
}

// byName returns all candidates with their names.
func (r *ranking) byName(m *Match) []named {
	out := make([]named, len(r.all))
	for i := range r.all {
		out[i] = named{r.name(m, &r.all[i]), r.all[i]}
	}
	return out
}

// setAll makes all of candidates in order.
func (r *ranking) setAll(list []named) {
	r.all = r.all[:0]
	for i := range list {
		r.all = append(r.all, list[i].candidate)
	}
}

// appendHolders appends the slots that hold a counted block, in ascending order.
func (f *fold) appendHolders(dst []int32) []int32 {
	if f.many() {
		for s := range f.Held {
			if f.Held[s] != (TierCounts{}) {
				dst = append(dst, int32(s))
			}
		}
		return dst
	}
	for _, s := range f.found {
		if f.Held[s] != (TierCounts{}) {
			dst = append(dst, s)
		}
	}
	slices.Sort(dst)
	return dst
}

// bestOf returns the best of the slots of one pod, its score and its blocks. The best has the
// highest score, of equal ones the most blocks, then the lowest rank.
func (m *Match) bestOf(r *rule, w *Weights, slots []int32) (best int32, score float64, blocks int32) {
	best = -1
	for _, s := range slots {
		n := int32(m.Held[s].Total())
		if sc := r.score(m, int(s), w); best < 0 || sc > score || (sc == score && n > blocks) {
			best, score, blocks = s, sc, n
		}
	}
	return best, score, blocks
}

// joinBeside sorts pods by their plain names. Of two registrations of one pod, which are the same
// engine, it keeps the one with the higher score.
func (r *ranking) joinBeside(m *Match) {
	all := r.byName(m)
	slices.SortFunc(all, func(a, b named) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(b.score, a.score), cmp.Compare(b.blocks, a.blocks))
	})
	r.setAll(slices.CompactFunc(all, func(a, b named) bool { return a.name == b.name }))
}

// addMissing adds the pods that were asked for and hold nothing. Cache workers are no
// pods to choose from.
func (r *ranking) addMissing(m *fold, want []string) {
	if len(want) == 0 {
		return
	}
	all := r.byName(&m.Match)
	listed := make(map[string]bool, len(all)+len(want)) // a request may name thousands
	for i := range all {
		listed[all[i].name] = true
	}
	for _, name := range want {
		if name = store.PlainName(name); listed[name] || m.isWorker(name) {
			continue
		}
		listed[name] = true
		at := int32(len(r.missing))
		all = append(all, named{name, candidate{best: -1, first: at, last: at}})
		r.missing = append(r.missing, name)
	}
	if len(r.missing) > 0 {
		slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
		r.setAll(all)
	}
}

func (m *Match) isWorker(name string) bool {
	if m.Registry == nil {
		return false
	}
	p, known := m.Registry.PodIndex(name)
	return known && m.Registry.Pods[p].PartOf != nil
}

// order makes the places of the top candidates; 0 is all of them. If best is not -1, it has one of
// the places, since it has the highest score. It may not be among them by its name; then all of
// them have that score, and it takes the last one.
func (r *ranking) order(top, best int) {
	r.places = r.places[:0]
	for i := range r.all {
		p := place{math.Float64bits(r.all[i].score), int32(i)}
		switch {
		case top == 0 || len(r.places) < top:
			r.places = append(r.places, p)
			if len(r.places) == top {
				heapify(r.places)
			}
		case p.score > r.places[0].score: // of equal scores those before by name have places
			r.places[0] = p
			siftDown(r.places, 0)
		}
	}
	slices.SortFunc(r.places, place.compare)
	if n := len(r.places); best >= 0 && n < len(r.all) && !slices.ContainsFunc(r.places, func(p place) bool { return int(p.at) == best }) {
		r.places[n-1] = place{math.Float64bits(r.all[best].score), int32(best)}
	}
}

// heapify makes a heap of places, the last in order at its top.
func heapify(h []place) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		siftDown(h, i)
	}
}

func siftDown(h []place, i int) {
	for {
		last := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].compare(h[last]) > 0 {
				last = child
			}
		}
		if last == i {
			return
		}
		h[i], h[last] = h[last], h[i]
		i = last
	}
}

// podScores makes the answer of the places. The lists in it share a few arrays, and pods that
// hold as much as the one before them have its lists.
func (r *ranking) podScores(f *fold) []PodScore {
	if len(r.places) == 0 {
		return nil
	}
	out := make([]PodScore, len(r.places))
	var ranks []RankBlocks
	var tiers []TierBlocks
	for i, at := range r.places {
		c, p := &r.all[at.at], &out[i]
		p.Pod = r.name(&f.Match, c)
		if c.best < 0 {
			continue
		}
		p.Score, p.Blocks, p.Reusable = c.score, int(c.blocks), f.Reusable(int(c.best))
		if len(f.Predicted) > 0 {
			p.Predicted = int(f.Predicted[c.best])
		}
		p.Tokens = p.Blocks * f.BlockSize
		if i > 0 && r.holdsAsMuch(&f.Match, c, &r.all[r.places[i-1].at]) {
			p.Ranks, p.Tiers = out[i-1].Ranks, out[i-1].Tiers
			continue
		}
		p.Ranks, ranks = part(ranks, f.appendRanks(ranks, r.slots[c.first:c.last]))
		p.Tiers, tiers = part(tiers, appendTiers(tiers, f.Held[c.best]))
	}
	return out
}

// holdsAsMuch reports whether two pods hold the same, both in one rank of the same number.
func (r *ranking) holdsAsMuch(m *Match, a, b *candidate) bool {
	return a.last == a.first+1 && b.last == b.first+1 && m.Held[a.best] == m.Held[b.best] &&
		m.Registry.Slots[a.best].Rank == m.Registry.Slots[b.best].Rank
}

// part returns what was appended to list, in a slice that cannot grow into
// what comes after, and the longer list.
func part[T any](list, longer []T) (added, all []T) {
	return longer[len(list):len(longer):len(longer)], longer
}

// appendRanks appends the blocks of each rank.
func (m *Match) appendRanks(dst []RankBlocks, slots []int32) []RankBlocks {
	for _, s := range slots {
		dst = append(dst, RankBlocks{Rank: m.Registry.Slots[s].Rank, Blocks: m.Held[s].Total()})
	}
	return dst
}

// appendTiers appends the tiers that have blocks.
func appendTiers(dst []TierBlocks, b TierCounts) []TierBlocks {
	for t, n := range b {
		if n > 0 {
			dst = append(dst, TierBlocks{Tier: store.Tier(t).String(), Blocks: int(n)})
		}
	}
	return dst
}
