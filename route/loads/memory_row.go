package loads

import (
	"math"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// row is the load of a (pod, rank) with what its blocks are counted by. A row without
// requests keeps only its speed, and what its cache was filled with.
type row struct {
	Load
	// life tells the row from those that the rank had before: reservations of theirs have
	// no part in it.
	life  int64
	marks map[blockkey.Key]int
}

// row returns the row of a rank, which it makes or begins anew where there is none or it is
// void.
func (b *book) row(at store.RankRef, gen store.Generation, now int64) *row {
	r := b.rows[at]
	if r == nil || r.IsVoid(gen) || r.Requests == 0 {
		b.lives = max(b.lives+1, now)
		fresh := &row{life: b.lives, marks: map[blockkey.Key]int{}}
		if r != nil {
			fresh.Load = r.lasting()
		}
		r = fresh
		b.rows[at] = r
	}
	r.Generation = max(r.Generation, gen)
	return r
}

// missing returns how many blocks the marks that are not in held stand for.
func missing(held map[blockkey.Key]int, marks []blockkey.Key) int64 {
	n, before := int64(0), 0
	for _, k := range marks {
		at := nextMark(before)
		if held[k] == 0 {
			n += int64(at - before)
		}
		before = at
	}
	return n
}

// addMarks counts one more request for the marks and returns how many blocks are new.
func (r *row) addMarks(marks []blockkey.Key) int64 {
	n := missing(r.marks, marks)
	for _, k := range marks {
		r.marks[k]++
	}
	return n
}

// dropMarks counts one less, and returns how many blocks no request has any more.
func (r *row) dropMarks(marks []blockkey.Key) int64 {
	for _, k := range marks {
		if r.marks[k]--; r.marks[k] <= 0 {
			delete(r.marks, k)
		}
	}
	return missing(r.marks, marks)
}

// addRequest adds a request to the row of a candidate, and returns its part there with the work
// that it is.
func (b *book) addRequest(call *Call, c *Candidate, marks []blockkey.Key, tail, now int64) (part, int64) {
	l := b.row(c.RankRef, c.Generation, now)
	d, fills := *c, c.Uncached
	if c.Twin > 0 && c.Uncached >= minTwin && len(l.marks) > 0 {
		d, fills = call.beside(d, call.shared(c, l.marks, marks))
	}
	l.Add(&d, l.addMarks(marks)+tail, fills, now)
	return part{c.RankRef, l.life}, d.Work
}

// cost returns what a candidate costs now, NaN where it is busy, and its load.
func (b *book) cost(call *Call, c *Candidate, w Weights, marks []blockkey.Key, tail, now int64) (float64, Load) {
	var l Load
	var held map[blockkey.Key]int
	if r := b.rows[c.RankRef]; r != nil {
		if l = r.In(c.Generation); !r.IsVoid(c.Generation) {
			held = r.marks
		}
	}
	if c.Limits.Busy(&l) {
		return math.NaN(), l
	}
	added := int64(0)
	if w.CountsBlocks() {
		added = tail + missing(held, marks)
	}
	if c.Twin > 0 && c.Uncached >= minTwin && len(held) > 0 {
		d, _ := call.beside(*c, call.shared(c, held, marks))
		c = &d
	}
	cost := c.Cost(w, &l, added, now)
	return cost, l
}

// empty forgets a load without requests, but for what lasts of it.
func (b *book) empty(at store.RankRef, l *row) {
	l.Load = l.lasting()
	if l.Load == (Load{}) {
		delete(b.rows, at)
		return
	}
	l.marks, l.life = nil, 0
}
