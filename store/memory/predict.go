package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// sinceBegan turns ms of the Unix epoch into ns since the registry began.
func (g *registry) sinceBegan(ms int64) int64 { return int64(time.UnixMilli(ms).Sub(g.began)) }

// prediction returns the rank's holder in tier Predicted that ends then, which it begins if
// there is none. It returns the zero holder if that time is over. The caller holds mu.
func (g *registry) prediction(r *rank, b *store.Batch, until int64) (holder, error) {
	end := g.sinceBegan(until)
	if end <= g.now() {
		return holder{}, nil
	}
	at, found := slices.BinarySearchFunc(r.predicted, until, func(p prediction, until int64) int { return cmp.Compare(p.until, until) })
	if found {
		return r.predicted[at].holder, nil
	}
	if len(r.predicted) >= store.MaxPredicted {
		first := r.predicted[0].until
		g.endPredictions(r, func(p prediction) bool { return p.until == first })
		at = max(0, at-1)
	}
	p := prediction{until: until}
	if err := g.begin(&p.holder, b.Pod, b.Rank, store.Predicted); err != nil {
		return holder{}, err
	}
	r.predicted = slices.Insert(r.predicted, at, p)
	g.predictions++
	g.lease(end)
	return p.holder, nil
}

// endPredictions ends those of a rank's predictions that match. The caller holds mu.
func (g *registry) endPredictions(r *rank, matches func(prediction) bool) {
	r.predicted = slices.DeleteFunc(r.predicted, func(p prediction) bool {
		if !matches(p) {
			return false
		}
		g.end(&p.holder)
		g.predictions--
		return true
	})
}

// expirePredictions ends the predictions that are over, and returns when the next one
// ends, 0 if there is none. The caller holds mu.
func (g *registry) expirePredictions(now int64) (next int64) {
	if g.predictions == 0 {
		return 0
	}
	for _, p := range g.sorted {
		for i := range p.ranks {
			r := &p.ranks[i]
			g.endPredictions(r, func(p prediction) bool { return g.sinceBegan(p.until) <= now })
			if len(r.predicted) == 0 {
				continue
			}
			if until := g.sinceBegan(r.predicted[0].until); next == 0 || until < next {
				next = until
			}
		}
	}
	return next
}
