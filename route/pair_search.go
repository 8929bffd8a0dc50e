package route

import (
	"maps"
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/route/loads"
)

// option returns what candidates i of prefill and k of decode cost together besides their own
// costs, and whether they may. A pod that decodes alone prefills only by rule, or as a resort.
func (p *pairing) option(i, k int) (extra, factor float64, ok bool) {
	if p.own[k] == i {
		return 0, 1, p.forced[k] != "" || p.whole[k]
	}
	if p.forced[k] != "" || !p.helps[i] {
		return 0, 0, false
	}
	if factor, ok = p.topo.factor(i, k); !ok {
		return 0, 0, false
	}
	return p.transfer(k), factor, true
}

// transfer returns how many milliseconds it takes to send candidate k of decode what it does
// not hold, 0 where costs are no times.
func (p *pairing) transfer(k int) float64 {
	if !p.ms {
		return 0
	}
	return p.decode.Settings.Pull.ms(p.decode.Tokens-p.decode.Candidates[k].Cached(), p.decode.BlockSize)
}

// pairOf is an option with its cost by the picture.
type pairOf struct {
	loads.Option
	total float64
}

// search returns the cheapest options by the picture, and whether any pair may work together. Of places with
// the same labels the cheapest do, since what labels add is the same for all of them.
func (p *pairing) search() (best []pairOf, found bool) {
	add := func(i, k int) {
		extra, factor, ok := p.option(i, k)
		if !ok {
			return
		}
		found = true
		total := factor * (p.tp[i] + p.td[k] + extra)
		if math.IsNaN(total) || len(best) == keptPairs && total >= best[len(best)-1].total {
			return
		}
		if len(best) == keptPairs {
			best = best[:keptPairs-1]
		}
		at, _ := slices.BinarySearchFunc(best, total, func(o pairOf, t float64) int {
			if o.total <= t {
				return -1
			}
			return 1
		})
		best = slices.Insert(best, at, pairOf{loads.Option{Prefill: i, Decode: k, Extra: extra, Factor: factor}, total})
	}
	decodes := p.shortlists(p.decode, p.topo.decode, func(k int) float64 {
		return p.td[k] + p.transfer(k)
	}, func(k int) bool { return p.forced[k] == "" })
	prefills := p.shortlists(p.prefill, p.topo.prefill, func(i int) float64 { return p.tp[i] }, func(i int) bool { return p.helps[i] })
	for _, k := range p.decode.Rand.Perm(len(p.td)) {
		if p.own[k] >= 0 {
			add(p.own[k], k)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(decodes)) {
		for _, k := range decodes[domain] {
			for _, i := range prefills[domain] {
				if i != p.own[k] {
					add(i, k)
				}
			}
		}
	}
	return best, found
}

// shortlists returns the candidates to look at by the domain that they are in, the cheapest
// first, in a drawn order where costs are equal.
func (p *pairing) shortlists(v *View, labels []domain, cost func(int) float64, wanted func(int) bool) map[int][]int {
	order := v.Rand.Perm(len(labels))
	costs := make([]float64, len(labels))
	for i := range costs {
		costs[i] = cost(i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareCosts(costs[a], costs[b]) })
	out, alike := map[int][]int{}, map[int]int{}
	for _, i := range order {
		l := &labels[i]
		if l.number == 0 || !wanted(i) || alike[l.class] == nominated || len(out[l.number]) == maxListed {
			continue
		}
		alike[l.class]++
		out[l.number] = append(out[l.number], i)
	}
	return out
}
