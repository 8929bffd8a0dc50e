package changelog

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// Registry returns the registry as the feed knows it, which is a moment old at
// most. It is read anew when a lease has run out since.
func (f *Feed) Registry(ctx context.Context) (*store.Registry, error) {
	s := f.roster.Current()
	if s.Usable() {
		return s.Registry, nil
	}
	return f.roster.RegistryAt(ctx, s.Registry.Epoch, s.Registry)
}

// noteEpoch takes note of an epoch; 0 is one that is not known.
func (f *Feed) noteEpoch(epoch uint64) {
	if epoch != 0 && f.epoch.Swap(epoch) == epoch {
		return
	}
	select {
	case f.moved <- struct{}{}:
	default:
	}
}

// keepRegistry loads the registry when its epoch has moved, and before a lease in
// it runs out, so that no lookup has to.
func (f *Feed) keepRegistry() {
	ctx := f.space.Life
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-f.moved:
		}
		reg, err := f.roster.RegistryAt(ctx, f.epoch.Load(), nil)
		if err == nil && leaseEndsSoon(reg.ValidUntil) {
			reg, err = f.roster.Load(ctx)
		}
		if err != nil {
			timer.Reset(100 * time.Millisecond)
			continue
		}
		timer.Reset(nextLoad(reg.ValidUntil))
	}
}

// leaseMargin is how long before a lease seems to run out the registry is looked
// at again: leases are renewed without a word.
const leaseMargin = time.Second

func leaseEndsSoon(until time.Time) bool {
	return !until.IsZero() && time.Until(until) <= leaseMargin
}

// nextLoad is how long to wait before the registry is loaded for its leases.
func nextLoad(until time.Time) time.Duration {
	switch left := time.Until(until); {
	case until.IsZero():
		return time.Hour
	case left > leaseMargin:
		return left - leaseMargin
	default:
		return max(left, time.Millisecond)
	}
}
