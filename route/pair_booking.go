package route

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// call returns the booking of the pair, with the indexes of its candidates. It chooses among
// at most nominated places of either part and the same again of those that prefill for
// themselves.
func (p *pairing) call(version int64) (c *loads.PairCall, is, ks []int, err error) {
	best, found := p.search()
	inI, inK := map[int]int{}, map[int]int{}
	useK := func(k int) {
		if _, ok := inK[k]; !ok {
			inK[k], ks = len(ks), append(ks, k)
		}
	}
	useI := func(i int) {
		if _, ok := inI[i]; !ok {
			inI[i], is = len(is), append(is, i)
		}
	}
	for _, o := range best {
		_, hasI := inI[o.Prefill]
		_, hasK := inK[o.Decode]
		if (hasI || len(is) < nominated) && (hasK || len(ks) < nominated) {
			useI(o.Prefill)
			useK(o.Decode)
		}
	}
	for _, k := range p.leastBusy() { // which the picture may know too late
		if len(ks) < nominated && p.own[k] >= 0 {
			useK(k)
		}
	}
	if len(ks) == 0 {
		if found {
			return nil, nil, nil, ErrBusy
		}
		return nil, nil, nil, fmt.Errorf("%w: none of %d ranks that prefill has the labels in common with one of %d that decode", ErrNobody, len(p.tp), len(p.td))
	}
	for _, k := range ks {
		if p.own[k] >= 0 {
			useI(p.own[k])
		}
	}
	v := p.decode
	c = &loads.PairCall{Call: p.q.call(v, p.match, p.wd, version), PrefillWeights: p.wp}
	for _, i := range is {
		c.Prefill = append(c.Prefill, p.prefill.bookable(i, p.wp))
	}
	for _, k := range ks {
		c.Candidates = append(c.Candidates, v.bookable(k, p.wd))
		for _, i := range is {
			extra, factor, ok := p.option(i, k)
			o := loads.Option{Prefill: inI[i], Decode: inK[k], Extra: extra, Factor: factor}
			switch {
			case ok:
				c.Options = append(c.Options, o)
			case p.own[k] == i && v.Settings.Pair.LocalFallback:
				o.Factor = 1
				c.Resorts = append(c.Resorts, o)
			}
		}
	}
	// Of equal costs the first is taken: the pair that is preferred more.
	slices.SortStableFunc(c.Options, func(a, b loads.Option) int { return cmp.Compare(a.Factor, b.Factor) })
	return c, is, ks, nil
}

// leastBusy returns the candidates of decode with the fewest requests first.
func (p *pairing) leastBusy() []int {
	order := p.decode.Rand.Perm(len(p.td))
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(p.decode.Candidates[a].Load.Requests, p.decode.Candidates[b].Load.Requests)
	})
	return order[:min(2, len(order))]
}

// take chooses the pair, books it if that is asked and can be, and writes the decision.
func (p *pairing) take(ctx context.Context, version int64, away bool, d *Decision) error {
	c, is, ks, err := p.call(version)
	if err != nil {
		return err
	}
	var b loads.BookedPair
	if p.q.Reserve && !away {
		b, err = p.r.c.Loads.BookPair(ctx, c)
		if err == nil {
			d.Reservation, d.Again = c.ID, b.Again
			p.booked(&b, is, ks)
			p.conclude(c, &b, is, ks, d)
			p.predict(ctx, d)
			return nil
		}
		if why := unbooked(err); why != nil {
			return why
		}
		p.r.tellAway(p.q.Score.Model, err)
		away = true
	}
	d.Local = away
	prefill, decode := pickOf(p.tp, is), pickOf(p.td, ks)
	totals, resorted, chosen := c.Choose(prefill, decode)
	if chosen < 0 {
		return ErrBusy
	}
	b = loads.BookedPair{Totals: totals, Resorted: resorted}
	o := c.Option(resorted, chosen)
	i, k := is[o.Prefill], ks[o.Decode]
	b.Prefill, b.RankRef = p.prefill.Candidates[i].RankRef, p.decode.Candidates[k].RankRef
	if p.q.Reserve {
		p.r.bookLocally(p.q.Score.Model, p.prefill, i)
		if b.Prefill != b.RankRef {
			p.r.bookLocally(p.q.Score.Model, p.decode, k)
		}
	}
	p.conclude(c, &b, is, ks, d)
	return nil
}

func pickOf(all []float64, at []int) []float64 {
	out := make([]float64, len(at))
	for n, i := range at {
		out[n] = all[i]
	}
	return out
}

// booked reads what a booking says into the views.
func (p *pairing) booked(b *loads.BookedPair, is, ks []int) {
	p.prefill.Now, p.decode.Now = b.Now, b.Now
	for n := range b.PrefillCosts {
		p.tp[is[n]] = b.PrefillCosts[n]
		if p.q.Explain {
			p.prefill.seeBooked(&p.prefill.Candidates[is[n]], b.PrefillLoads[n])
		}
	}
	for n := range b.Costs {
		p.td[ks[n]] = b.Costs[n]
		if p.q.Explain {
			p.decode.seeBooked(&p.decode.Candidates[ks[n]], b.Loads[n])
		}
	}
}

// conclude writes the decision.
func (p *pairing) conclude(c *loads.PairCall, b *loads.BookedPair, is, ks []int, d *Decision) {
	k, i := p.decode.find(b.RankRef), p.prefill.find(b.Prefill)
	p.r.conclude(p.q, p.decode, p.wd, p.match, p.td, k, d)
	if b.Prefill == b.RankRef {
		d.Pull = p.prefill.Candidates[i].Pull
		switch {
		case k < len(p.forced) && p.forced[k] != "":
			d.Prefills = p.forced[k]
		case k < len(p.whole) && p.whole[k] && !b.Resorted:
			d.Prefills = LocalWhole
		default:
			d.Prefills = LocalNobody
		}
	} else {
		var half Decision
		p.r.conclude(p.q, p.prefill, p.wp, p.match, p.tp, i, &half)
		d.Prefill = &Half{RankRef: b.Prefill, Address: half.Address, Held: half.Held, Predicted: half.Predicted, Costs: half.Costs}
		d.Best = max(d.Best, half.Best)
		d.Pull = half.Pull
		for _, at := range half.Fallbacks {
			if n := p.prefill.find(at); n < len(p.helps) && p.helps[n] && p.topo.near(n, k) {
				d.Prefill.Fallbacks = append(d.Prefill.Fallbacks, at)
			}
		}
	}
	if p.q.Explain {
		d.Pairs = p.explain(c, b, is, ks)
	}
}

// predict writes that both places will hold the prompt: what one has prefilled goes to the
// other.
func (p *pairing) predict(ctx context.Context, d *Decision) {
	p.r.predict(ctx, p.decode, p.match, p.q.Score.Model, &p.decode.Candidates[p.decode.find(d.RankRef)], d)
	if d.Prefill != nil {
		p.r.predict(ctx, p.prefill, p.match, p.q.Score.Model, &p.prefill.Candidates[p.prefill.find(d.Prefill.RankRef)], d)
	}
}

// find returns the index of a place. One that a repeated call has found, and that may take no
// more by now, is added.
func (v *View) find(at store.RankRef) int {
	i := slices.IndexFunc(v.Candidates, func(c Candidate) bool { return c.RankRef == at })
	if i < 0 {
		v.Candidates = append(v.Candidates, Candidate{RankRef: at, Cost: Cost{Factor: 1}})
		i = len(v.Candidates) - 1
	}
	return i
}

// explain returns the cheapest of the pairs that were chosen among.
func (p *pairing) explain(c *loads.PairCall, b *loads.BookedPair, is, ks []int) []PairCost {
	options := c.Options
	if b.Resorted {
		options = c.Resorts
	}
	out := make([]PairCost, 0, len(options))
	for n, o := range options[:min(len(options), len(b.Totals))] {
		i, k := is[o.Prefill], ks[o.Decode]
		cost := PairCost{Prefill: p.prefill.Candidates[i].RankRef, Decode: p.decode.Candidates[k].RankRef, Total: b.Totals[n]}
		if !math.IsNaN(cost.Total) {
			cost.Terms = []Term{{"prefill", p.tp[i]}, {"decode", p.td[k]}}
			if o.Extra != 0 {
				cost.Terms = append(cost.Terms, Term{"transfer_ms", o.Extra})
			}
			if o.Factor != 1 {
				cost.Terms = append(cost.Terms, Term{"same_labels_factor", o.Factor})
			}
		}
		out = append(out, cost)
	}
	slices.SortStableFunc(out, func(a, b PairCost) int { return compareCosts(a.Total, b.Total) })
	return out[:min(len(out), explainedPairs)]
}
