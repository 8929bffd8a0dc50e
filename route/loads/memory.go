package loads

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

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
	var at store.RankRef
	without := false
	out, err := m.report(model, id, func(b *book, r *reservation, _ int64) bool {
		at, without = r.prefills().RankRef, !r.prefilled
		b.end(r)
		return true
	})
	out.Prefill, out.WithoutDone = at, without
	return out, err
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
