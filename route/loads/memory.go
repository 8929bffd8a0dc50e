package loads

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/invariants"
	"github.com/kvatlas/kvatlas/store"
)

// maxOverdue is how many reservations whose lease is over one call ends at most.
const maxOverdue = 8

// Memory keeps loads in one process.
type Memory struct {
	now func() time.Time

	mu     sync.Mutex // protects models
	models map[string]*book
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty Memory. now is its clock; nil is time.Now.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	return &Memory{now: now, models: map[string]*book{}}
}

// book is what there is of one model.
type book struct {
	mu       sync.Mutex // protects all below
	rows     map[store.RankRef]*row
	reserved map[string]*reservation
	leases   leases
	lives    int64 // the last number given to a row
	engines  map[store.RankRef]*Engine
	turns    map[string]turn
	truths   map[store.RankRef]*truthRow
	claims   map[string]int64 // until when
	settings []byte
	version  int64 // of settings
}

// row is the load of a (pod, rank) with what its blocks are counted by. A row without
// requests keeps only its speed, and what its cache was filled with.
type row struct {
	Load
	// life tells the row from those that the rank had before: reservations of theirs have
	// no part in it.
	life  int64
	marks map[blockkey.Key]int
}

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

// book returns the loads of a model, which it makes if want is set.
func (m *Memory) book(model string, want bool) *book {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.models[model]
	if b == nil && want {
		b = &book{rows: map[store.RankRef]*row{}, reserved: map[string]*reservation{}, engines: map[store.RankRef]*Engine{}, turns: map[string]turn{}, truths: map[store.RankRef]*truthRow{}, claims: map[string]int64{}}
		m.models[model] = b
	}
	return b
}

func (m *Memory) micros() int64 { return m.now().UnixMicro() }

// Book implements Store.
func (m *Memory) Book(_ context.Context, c *Call) (Booked, error) {
	if err := c.Validate(); err != nil {
		return Booked{}, err
	}
	b, now := m.book(c.Model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.mustAgree()
	old, err := b.open(c, now)
	if err != nil {
		return Booked{}, err
	}
	if old != nil {
		return Booked{RankRef: old.RankRef, Again: true, Now: now}, nil
	}
	marks, tail := c.Marked()
	out := Booked{Now: now}
	out.Costs, out.Loads = b.costs(c, c.Candidates, c.Weights, marks, tail, now)
	i := Pick(out.Costs, c.Temperature, c.Draw)
	if i < 0 {
		return out, ErrBusy
	}
	out.RankRef = c.Candidates[i].RankRef
	b.reserve(c, &c.Candidates[i], marks, tail, now)
	return out, nil
}

// open ends reservations that are overdue, and returns the one of a call that is repeated. The
// error is ErrSettings or ErrFull.
func (b *book) open(c *Call, now int64) (*reservation, error) {
	b.endOverdue(now, maxOverdue)
	if r := b.reserved[c.ID]; r != nil {
		return r, nil
	}
	if c.Settings != b.version {
		return nil, ErrSettings
	}
	if len(b.reserved) >= MaxReservations {
		return nil, ErrFull
	}
	return nil, nil //nolint:nilnil // there is none, and that is no error
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

// dropMarks counts one less, and returns how many blocks nobody has any more.
func (r *row) dropMarks(marks []blockkey.Key) int64 {
	for _, k := range marks {
		if r.marks[k]--; r.marks[k] <= 0 {
			delete(r.marks, k)
		}
	}
	return missing(r.marks, marks)
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

// prefills returns where the request is prefilled.
func (r *reservation) prefills() part {
	if r.pair != nil {
		return *r.pair
	}
	return r.part
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

func (b *book) endOverdue(now int64, most int) {
	for ; most > 0 && len(b.leases) > 0 && b.leases[0].until <= now; most-- {
		b.end(b.leases[0])
	}
}

// report finds a reservation, ends the overdue ones and renews it.
func (m *Memory) report(model, id string, change func(b *book, r *reservation, now int64) (first bool)) (Report, error) {
	if err := CheckID(id); err != nil {
		return Report{}, err
	}
	b, now := m.book(model, false), m.micros()
	if b == nil {
		return Report{}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.mustAgree()
	b.endOverdue(now, maxOverdue)
	r := b.reserved[id]
	if r == nil || r.until <= now {
		return Report{}, nil
	}
	out := Report{Known: true, RankRef: r.RankRef, Predicted: r.tokens - int(r.prefill), Tokens: r.tokens}
	out.First = change(b, r, now)
	if b.reserved[id] == r {
		r.until = now + r.lease.Microseconds()
		heap.Fix(&b.leases, r.at)
	}
	return out, nil
}

// Done implements Store.
func (m *Memory) Done(_ context.Context, model, id string, d Done) (Report, error) {
	var at part
	out, err := m.report(model, id, func(b *book, r *reservation, now int64) bool {
		at = r.prefills()
		if r.prefilled {
			return false
		}
		r.prefilled = true
		l := b.live(at)
		if l == nil {
			return true
		}
		l.Work, l.Prefill = max(0, l.Work-r.work), max(0, l.Prefill-r.prefill)
		began := max(r.booked, l.Since)
		l.Since = now
		if n, c := computed(r.tokens, int(r.prefill), d.Cached); n >= minSample && d.Shape != (Shape{}) {
			units := d.Shape.Units(n, c)
			if d.Cached < 0 { // as was predicted, which may be less than that
				units = r.work
			}
			l.learn(float64(units), float64(now-began)/1000, d.Shape.Overhead, now)
		}
		if r.pair != nil {
			b.leave(at, r.marks, 0, 0, r.tail)
		}
		return true
	})
	if out.Known {
		out.RankRef = at.RankRef
	}
	return out, err
}

// computed returns how many tokens of a prompt the engine computed and had cached: as it
// says or, where it does not, as was predicted.
func computed(tokens, uncached, cached int) (n, c int) {
	if cached >= 0 {
		c = min(cached, tokens)
		return tokens - c, c
	}
	return uncached, tokens - uncached
}

// Output implements Store.
func (m *Memory) Output(_ context.Context, model, id string, tokens int) (Report, error) {
	if err := CheckOutput(tokens); err != nil {
		return Report{}, err
	}
	return m.report(model, id, func(b *book, r *reservation, _ int64) bool {
		if tokens <= r.output {
			return false
		}
		r.output = tokens
		blocks := OutputBlocks(tokens, r.expected, r.blockSize)
		if l := b.live(r.part); l != nil {
			l.Blocks = max(0, l.Blocks+blocks-r.outBlocks)
		}
		r.outBlocks = blocks
		return true
	})
}

// End implements Store.
func (m *Memory) End(_ context.Context, model, id string) (Report, error) {
	return m.report(model, id, func(b *book, r *reservation, _ int64) bool {
		b.end(r)
		return true
	})
}

// Loads implements Store.
func (m *Memory) Loads(_ context.Context, model string) (Picture, error) {
	b, now := m.book(model, false), m.micros()
	p := Picture{Now: now, Loads: map[store.RankRef]Load{}, Engines: map[store.RankRef]Engine{}}
	if b == nil {
		return p, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endOverdue(now, math.MaxInt)
	p.Settings, p.Version = b.settings, b.version
	for at, r := range b.rows {
		if r.IsForgotten(now) {
			delete(b.rows, at)
			continue
		}
		p.Loads[at] = r.Load
	}
	b.readEngines(p.Engines, now)
	return p, nil
}

// PutSettings implements Store.
func (m *Memory) PutSettings(_ context.Context, model string, settings []byte) error {
	if err := CheckSettings(settings); err != nil {
		return err
	}
	b := m.book(model, true)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settings, b.version = slices.Clone(settings), b.version+1
	return nil
}

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
