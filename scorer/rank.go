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
	r := &j.chain.ranking
	r.collect(f, j.rule, s.cfg.Weights)
	r.addMissing(f, j.req.Pods)
	best := r.best(f, lot(f.Keys, j.rest()))
	if best >= 0 {
		resp.Best = r.name(&f.Match, &r.all[best])
	}
	r.order(j.req.Top, best)
	resp.Pods, resp.LeftOut = r.podScores(f), len(r.all)-len(r.places)
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
