package loads

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// maxOverdue is how many reservations with an expired lease one call ends at most.
const maxOverdue = 8

// part is a request's part in a row, which is over when the row has another life.
type part struct {
	store.RankRef
	life int64
}

// reservation is a request that runs.
type reservation struct {
	part
	// pair is where another place prefills, nil without one. prefill and work are there.
	pair      *part
	id        string
	prefilled bool
	prefill   int64
	work      int64
	booked    int64
	tokens    int
	tail      int64 // prompt blocks that no mark stands for
	output    int   // tokens put out
	outBlocks int64
	expected  int
	blockSize int
	marks     []blockkey.Key
	lease     time.Duration
	until     int64
	at        int // its place in leases
}

// prefills returns where the request is prefilled.
func (r *reservation) prefills() part {
	if r.pair != nil {
		return *r.pair
	}
	return r.part
}

// reserve books a call at a candidate.
func (b *book) reserve(c *Call, chosen *Candidate, marks []blockkey.Key, tail, now int64) *reservation {
	at, work := b.addRequest(c, chosen, marks, tail, now)
	r := &reservation{
		part: at, id: c.ID, prefill: int64(chosen.Uncached), work: work, booked: now,
		tokens: c.Tokens, tail: tail, expected: c.Expected, blockSize: c.BlockSize, marks: marks, lease: c.Lease,
		until: now + c.Lease.Microseconds(),
	}
	b.reserved[c.ID] = r
	heap.Push(&b.leases, r)
	return r
}

// live returns the row that a request has a part in, nil when that is over.
func (b *book) live(at part) *row {
	if l := b.rows[at.RankRef]; l != nil && l.life == at.life {
		return l
	}
	return nil
}

// end takes a reservation off its loads and forgets it.
func (b *book) end(r *reservation) {
	heap.Remove(&b.leases, r.at)
	delete(b.reserved, r.id)
	work, prefill := r.work, r.prefill
	if r.prefilled {
		work, prefill = 0, 0
	}
	if r.pair == nil {
		b.leave(r.part, r.marks, work, prefill, r.tail+r.outBlocks)
		return
	}
	b.leave(r.part, r.marks, 0, 0, r.tail+r.outBlocks)
	if !r.prefilled {
		b.leave(*r.pair, r.marks, work, prefill, r.tail)
	}
}

// leave takes one request off the row that it has a part in.
func (b *book) leave(at part, marks []blockkey.Key, work, prefill, blocks int64) {
	l := b.live(at)
	if l == nil {
		return
	}
	l.Work, l.Prefill = max(0, l.Work-work), max(0, l.Prefill-prefill)
	l.Blocks = max(0, l.Blocks-l.dropMarks(marks)-blocks)
	if l.Requests--; l.Requests <= 0 {
		b.empty(at.RankRef, l)
	}
}

func (b *book) endOverdue(now int64, most int) {
	for ; most > 0 && len(b.leases) > 0 && b.leases[0].until <= now; most-- {
		b.end(b.leases[0])
	}
}

// leases is a heap of reservations by the end of their leases.
type leases []*reservation

func (h *leases) Len() int { return len(*h) }

func (h *leases) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.id, b.id)) < 0
}

func (h *leases) Swap(i, j int) {
	(*h)[i], (*h)[j] = (*h)[j], (*h)[i]
	(*h)[i].at, (*h)[j].at = i, j
}

// Push implements heap.Interface.
func (h *leases) Push(x any) {
	if r, ok := x.(*reservation); ok {
		r.at = len(*h)
		*h = append(*h, r)
	}
}

// Pop implements heap.Interface.
func (h *leases) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}
