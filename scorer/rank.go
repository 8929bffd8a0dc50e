package scorer

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kvatlas/kvatlas/store"
)

// finish writes the ranking of a job from its fold. err is the index's.
func (s *Scorer) finish(j *job, err error) {
	f, resp := &j.chain.fold, j.resp
	f.flush()
	stale, isStale := errors.AsType[*store.StaleError](err)
	switch {
	case err == nil:
	case isStale:
		resp.Degraded, resp.Stale = IndexStale, stale.Age
	case errors.Is(err, context.DeadlineExceeded):
		resp.Degraded = IndexTimeout
	default:
		resp.Degraded = IndexUnavailable
	}
	resp.Pods = f.rank(j.rule, s.cfg.Weights)
	resp.Pods = f.joinBeside(resp.Pods)
	resp.Pods = f.addMissing(resp.Pods, j.req.Pods)
	slices.SortFunc(resp.Pods, func(a, b PodScore) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Pod, b.Pod))
	})
	if len(resp.Pods) > 0 && resp.Pods[0].Score > 0 {
		resp.Best = resp.Pods[winner(resp.Pods, lot(f.Keys, j.rest()))].Pod
	}
	if u := s.cfg.Usage; u != nil {
		resp.Frequencies = u.Touch(s.cfg.Now(), j.req.Model, f.Keys[:f.Reach])
	}
	if j.req.ReturnTokens && j.resp.Exact && j.req.Input.kind != inputKeys {
		resp.TokenIDs = slices.Clone(j.tokens)
	}
	if j.req.Match {
		resp.Match = f.clone()
	}
	if j.req.Explain {
		resp.Explanation = f.explanation()
	}
}

// rank gives a PodScore to each pod that holds a counted block, by name. All
// their lists share two arrays, made once.
func (m *Match) rank(r *rule, w *Weights) []PodScore {
	if m.Registry == nil {
		return nil
	}
	slots := m.Registry.Slots
	pods, held := 0, 0
	for s, before := 0, -1; s < len(slots); s++ {
		if m.Held[s].Total() == 0 {
			continue
		}
		held++
		if slots[s].Pod != before {
			pods++
			before = slots[s].Pod
		}
	}
	if held == 0 {
		return nil
	}
	out := make([]PodScore, 0, pods)
	ranks := make([]RankBlocks, 0, held)
	tiers := make([]TierBlocks, 0, pods*store.NumTiers)
	// Slots ascend by pod, so a pod's ranks are neighbours.
	for first := 0; first < len(slots); {
		pod, end := slots[first].Pod, first+1
		for end < len(slots) && slots[end].Pod == pod {
			end++
		}
		best, score := m.bestOf(r, w, first, end)
		if best >= 0 {
			p := PodScore{Pod: m.Registry.PodName(pod), Score: score, Blocks: m.Held[best].Total(), Reusable: m.Reusable(best)}
			if len(m.Predicted) > 0 {
				p.Predicted = int(m.Predicted[best])
			}
			p.Tokens = p.Blocks * m.BlockSize
			p.Ranks, ranks = part(ranks, m.appendRanks(ranks, first, end))
			p.Tiers, tiers = part(tiers, appendTiers(tiers, m.Held[best]))
			out = append(out, p)
		}
		first = end
	}
	return out
}

// joinBeside sorts pods by their plain names, and keeps of two registrations of one pod the
// one with the higher score: it is the same engine.
func (m *Match) joinBeside(pods []PodScore) []PodScore {
	if m.Registry == nil || !m.Registry.HasBeside() {
		return pods // sorted, and each has its own
	}
	slices.SortFunc(pods, func(a, b PodScore) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(b.Score, a.Score), cmp.Compare(b.Blocks, a.Blocks))
	})
	return slices.CompactFunc(pods, func(a, b PodScore) bool { return a.Pod == b.Pod })
}

// part returns what was appended to list, in a slice that cannot grow into
// what comes after, and the longer list.
func part[T any](list, longer []T) (added, all []T) {
	return longer[len(list):len(longer):len(longer)], longer
}

// bestOf returns the best of the slots [first,end) of one pod and its score: the highest
// score, of equal ones the most blocks, then the lowest rank. -1 is none.
func (m *Match) bestOf(r *rule, w *Weights, first, end int) (best int, score float64) {
	best, blocks := -1, 0
	for s := first; s < end; s++ {
		n := m.Held[s].Total()
		if n == 0 {
			continue
		}
		if sc := r.score(m, s, w); best < 0 || sc > score || (sc == score && n > blocks) {
			best, score, blocks = s, sc, n
		}
	}
	return best, score
}

// appendRanks appends the blocks of each rank that holds any.
func (m *Match) appendRanks(dst []RankBlocks, first, end int) []RankBlocks {
	for s := first; s < end; s++ {
		if n := m.Held[s].Total(); n > 0 {
			dst = append(dst, RankBlocks{Rank: m.Registry.Slots[s].Rank, Blocks: n})
		}
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

// addMissing adds the pods that were asked for and hold nothing. Cache workers are no
// pods to choose from.
func (m *Match) addMissing(have []PodScore, want []string) []PodScore {
	if len(want) == 0 {
		return have
	}
	listed := make(map[string]bool, len(have)+len(want)) // a request may name thousands
	for i := range have {
		listed[have[i].Pod] = true
	}
	for _, name := range want {
		if name = store.PlainName(name); m.isWorker(name) || listed[name] {
			continue
		}
		listed[name] = true
		have = append(have, PodScore{Pod: name})
	}
	return have
}

func (m *Match) isWorker(name string) bool {
	if m.Registry == nil {
		return false
	}
	p, known := m.Registry.PodIndex(name)
	return known && m.Registry.Pods[p].PartOf != nil
}

// explanation names the holders of every block that was read, as far as there was room.
func (f *fold) explanation() *Explanation {
	ex := &Explanation{Blocks: make([]BlockHolders, 0, f.told.blocks), Keys: slices.Clone(f.Keys)}
	if f.full {
		ex.LeftOut = len(f.Keys) - f.told.blocks
	}
	for _, run := range f.trace {
		var hs []BlockHolder
		for _, h := range run.held {
			s := f.Registry.Slots[h.slot]
			bh := BlockHolder{Pod: f.Registry.PodName(s.Pod), Rank: s.Rank, Tier: h.tier.Memory().String()}
			switch {
			case h.tier.IsWindow():
				bh.Kind = KindWindow
			case h.tier == store.Predicted:
				bh.Kind = KindPredicted
			}
			hs = append(hs, bh)
		}
		slices.SortFunc(hs, func(a, b BlockHolder) int {
			return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Kind, b.Kind))
		})
		hs = slices.Compact(hs) // the same may be known in two ways
		for range run.n {
			ex.Blocks = append(ex.Blocks, BlockHolders{Key: f.Keys[len(ex.Blocks)], Holders: hs})
		}
	}
	return ex
}
