package scorer

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// finish writes the ranking of a job from its fold. err is the index's.
func (s *Scorer) finish(j *job, err error) {
	f, resp := &j.chain.fold, j.resp
	switch {
	case err == nil:
	case errors.Is(err, context.DeadlineExceeded):
		resp.Degraded = IndexTimeout
	default:
		resp.Degraded = IndexUnavailable
	}
	resp.Pods = f.rank(s.cfg.Weights, resp.BlockSize)
	resp.Pods = addMissing(resp.Pods, j.req.Pods)
	slices.SortFunc(resp.Pods, func(a, b PodScore) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Pod, b.Pod))
	})
	if len(resp.Pods) > 0 && resp.Pods[0].Score > 0 {
		resp.Best = resp.Pods[0].Pod
	}
	if u := s.cfg.Usage; u != nil {
		resp.Frequencies = u.Touch(s.cfg.Now(), j.req.Model, j.chain.keys[:f.reach])
	}
	if j.req.Explain {
		resp.Explanation = f.explanation(j.chain.keys)
	}
}

// rank gives a PodScore to each pod that holds a counted block, by name.
func (f *fold) rank(w *Weights, blockSize int) []PodScore {
	var out []PodScore
	if f.reg == nil {
		return nil
	}
	// Slots ascend by pod, so a pod's ranks are neighbours.
	for first := 0; first < len(f.reg.Slots); {
		pod := f.reg.Slots[first].Pod
		end := first + 1
		for end < len(f.reg.Slots) && f.reg.Slots[end].Pod == pod {
			end++
		}
		if p, held := f.rankPod(w, blockSize, first, end); held {
			p.Pod = f.reg.Pods[pod].Name
			out = append(out, p)
		}
		first = end
	}
	return out
}

// rankPod makes the PodScore of the pod whose ranks are the slots [first,end).
func (f *fold) rankPod(w *Weights, blockSize, first, end int) (p PodScore, held bool) {
	best := -1
	for s := first; s < end; s++ {
		n := total(f.counts[s])
		if n == 0 {
			continue
		}
		p.Ranks = append(p.Ranks, RankBlocks{Rank: f.reg.Slots[s].Rank, Blocks: n})
		score := w.score(f.counts[s])
		if f.strategy == HighestBlock {
			score = float64(f.last[s])
		}
		if best < 0 || score > p.Score || (score == p.Score && n > p.Blocks) {
			best, p.Score, p.Blocks = s, score, n
		}
	}
	if best < 0 {
		return p, false
	}
	p.Tokens = p.Blocks * blockSize
	for t, n := range f.counts[best] {
		if n > 0 {
			p.Tiers = append(p.Tiers, TierBlocks{Tier: store.Tier(t).String(), Blocks: int(n)})
		}
	}
	return p, true
}

func total(b blocks) (n int) {
	for _, c := range b {
		n += int(c)
	}
	return n
}

// addMissing adds the pods that were asked for and hold nothing.
func addMissing(have []PodScore, want []string) []PodScore {
	n := len(have)
	for _, name := range want {
		named := func(p PodScore) bool { return p.Pod == name }
		if _, found := slices.BinarySearchFunc(have[:n], name, func(p PodScore, t string) int { return cmp.Compare(p.Pod, t) }); found {
			continue
		}
		if !slices.ContainsFunc(have[n:], named) {
			have = append(have, PodScore{Pod: name})
		}
	}
	return have
}

// explanation names the holders of every block that was read.
func (f *fold) explanation(keys []blockkey.Key) *Explanation {
	ex := &Explanation{Blocks: make([]BlockHolders, 0, len(keys))}
	for _, run := range f.trace {
		var hs []BlockHolder
		for _, id := range run.holders {
			slot, tier, live := f.reg.Holder(id)
			if !live {
				continue
			}
			s := f.reg.Slots[slot]
			hs = append(hs, BlockHolder{Pod: f.reg.Pods[s.Pod].Name, Rank: s.Rank, Tier: tier.String()})
		}
		slices.SortFunc(hs, func(a, b BlockHolder) int {
			return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier))
		})
		for range run.n {
			ex.Blocks = append(ex.Blocks, BlockHolders{Key: keys[len(ex.Blocks)], Holders: hs})
		}
	}
	return ex
}
