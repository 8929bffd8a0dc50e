package loads

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// turn is when an engine is to be asked next, and how often in a row it did not answer.
type turn struct {
	due    int64
	missed int
}

// PutEngine implements Store.
func (m *Memory) PutEngine(_ context.Context, model, pod string, ranks []Engine) error {
	if err := CheckEngines(pod, ranks); err != nil {
		return err
	}
	b, now := m.book(model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns[pod] = turn{due: now + EngineEvery.Microseconds()}
	for i := range ranks {
		e := ranks[i]
		at := store.RankRef{Pod: pod, Rank: e.Rank}
		var booked Load
		if r := b.rows[at]; r != nil {
			booked = r.In(e.Generation)
		}
		old := b.engines[at]
		if old == nil && len(b.engines) >= MaxEngines {
			continue
		}
		e.follow(old, Load{Work: booked.Work, Prefill: booked.Prefill, Blocks: booked.Blocks, Requests: booked.Requests}, now)
		b.engines[at] = &e
	}
	return nil
}

// readEngines fills in what engines have told lately, and forgets what is long over.
func (b *book) readEngines(out map[store.RankRef]Engine, now int64) {
	for at, e := range b.engines {
		if now-e.put > EngineForget.Microseconds() {
			delete(b.engines, at)
		} else if e.IsFresh(now) {
			out[at] = *e
		}
	}
}

// Turns implements Store.
func (m *Memory) Turns(_ context.Context, model string, pods []string, most int) (out []string, err error) {
	if err := CheckTurns(pods); err != nil {
		return nil, err
	}
	b, now := m.book(model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	for pod, t := range b.turns {
		if t.due < now-EngineForget.Microseconds() {
			delete(b.turns, pod)
		}
	}
	for _, pod := range pods {
		if t := b.turns[pod]; t.due <= now && len(out) < most {
			b.turns[pod] = turn{due: now + EngineEvery.Microseconds(), missed: t.missed}
			out = append(out, pod)
		}
	}
	return out, nil
}

// Missed implements Store.
func (m *Memory) Missed(_ context.Context, model, pod string) error {
	if err := CheckTurns([]string{pod}); err != nil {
		return err
	}
	b, now := m.book(model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.turns[pod]
	t.missed++
	t.due = now + missedPause(t.missed).Microseconds()
	b.turns[pod] = t
	return nil
}

// missedPause is how long an engine is left alone that did not answer so often in a row.
func missedPause(n int) time.Duration { return min(MaxMissed, EngineEvery<<min(n, 16)) }
