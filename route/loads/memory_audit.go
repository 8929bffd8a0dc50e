package loads

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/invariants"
	"github.com/kvatlas/kvatlas/store"
)

// Audit implements Store.
func (m *Memory) Audit(_ context.Context, model string) ([]Difference, error) {
	b, now := m.book(model, false), m.micros()
	if b == nil {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endOverdue(now, math.MaxInt)
	out, sums := b.compare()
	for _, d := range out {
		b.rows[d.RankRef] = sums[d.RankRef]
	}
	return out, nil
}

// mustAgree panics where a load is not the sum of its reservations, in a build with
// invariants.
func (b *book) mustAgree() {
	if !invariants.Enabled {
		return
	}
	if out, _ := b.compare(); len(out) > 0 {
		panic(fmt.Sprintf("loads: loads that are not the sum of their reservations: %+v", out))
	}
}

// compare returns where loads differ from the sums of their reservations, and these sums.
func (b *book) compare() ([]Difference, map[store.RankRef]*row) {
	sums := map[store.RankRef]*row{}
	for at, l := range b.rows {
		sums[at] = &row{Load: l.lasting(), life: l.life, marks: map[blockkey.Key]int{}}
		sums[at].Generation, sums[at].Since = l.Generation, l.Since
	}
	live := func(at part) *row {
		if s := sums[at.RankRef]; s != nil && s.life == at.life {
			return s
		}
		return nil
	}
	for _, r := range b.reserved {
		if s := live(r.part); s != nil {
			s.Requests++
			s.Blocks += s.addMarks(r.marks) + r.tail + r.outBlocks
		}
		s := live(r.prefills())
		if r.prefilled || s == nil {
			continue
		}
		s.Work, s.Prefill = s.Work+r.work, s.Prefill+r.prefill
		if r.pair != nil {
			s.Requests++
			s.Blocks += s.addMarks(r.marks) + r.tail
		}
	}
	var out []Difference
	for at, l := range b.rows {
		if s := sums[at]; s.Load != l.Load {
			out = append(out, Difference{RankRef: at, Load: l.Load, Reserved: s.Load})
		}
	}
	slices.SortFunc(out, func(x, y Difference) int { return cmp.Or(cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Rank, y.Rank)) })
	return out, sums
}
