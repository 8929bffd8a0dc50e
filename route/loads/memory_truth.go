package loads

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// truthRow is a rank's truth and when it was added to last.
type truthRow struct {
	Truth
	at int64
}

// AddTruth implements Store.
func (m *Memory) AddTruth(_ context.Context, model string, list []Truth) error {
	if err := CheckTruths(list); err != nil {
		return err
	}
	b, now := m.book(model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		at := list[i].RankRef
		r := b.truths[at]
		if r == nil {
			if len(b.truths) >= MaxEngines {
				continue
			}
			r = &truthRow{Truth: Truth{RankRef: at}}
			b.truths[at] = r
		}
		r.add(&list[i])
		r.at = now
	}
	return nil
}

// Truths implements Store.
func (m *Memory) Truths(_ context.Context, model string) (map[store.RankRef]Truth, error) {
	b, now := m.book(model, false), m.micros()
	out := map[store.RankRef]Truth{}
	if b == nil {
		return out, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, r := range b.truths {
		if now-r.at > TruthForget.Microseconds() {
			delete(b.truths, at)
			continue
		}
		out[at] = r.Truth
	}
	return out, nil
}

// Claim implements Store.
func (m *Memory) Claim(_ context.Context, model, what string, until time.Duration) (bool, error) {
	if err := CheckClaim(what, until); err != nil {
		return false, err
	}
	b, now := m.book(model, true), m.micros()
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, end := range b.claims {
		if end <= now {
			delete(b.claims, name)
		}
	}
	if _, taken := b.claims[what]; taken {
		return false, nil
	}
	b.claims[what] = now + until.Microseconds()
	return true, nil
}
