package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// leases are the readers of ranks. Within one process there is one reader, most
// often; more of them are for tests.
type leases struct {
	mu      sync.Mutex // protects all below
	readers map[string]reader
	ranks   map[store.RankRef]store.Lease
	last    uint64 // the last number given, fence or version
}

// reader is one that has called.
type reader struct {
	ranks int
	until time.Time
}

var _ store.Leases = (*Index)(nil)

// Lease implements [store.Leases].
func (x *Index) Lease(ctx context.Context, c store.LeaseCall) (store.LeaseView, error) {
	if err := x.enter(ctx); err != nil {
		return store.LeaseView{}, err
	}
	if err := c.Validate(); err != nil {
		return store.LeaseView{}, err
	}
	return x.leases.call(&c, x.registry.cfg.Clock(), x.registry.cfg.MaxHolders)
}

func (l *leases) call(c *store.LeaseCall, now time.Time, limit int) (store.LeaseView, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readers == nil {
		l.readers, l.ranks, l.last = map[string]reader{}, map[store.RankRef]store.Lease{}, 1
	}
	maps.DeleteFunc(l.readers, func(_ string, r reader) bool { return !r.until.After(now) })
	_, alive := l.readers[c.Reader.Name]

	if c.TTL == 0 {
		delete(l.readers, c.Reader.Name)
	} else {
		fresh := 0
		for _, r := range c.Acquire {
			if _, ok := l.ranks[r]; !ok {
				fresh++
			}
		}
		switch {
		case !alive && len(l.readers) >= store.MaxReaders:
			return store.LeaseView{}, fmt.Errorf("%w: there are %d readers", store.ErrFull, len(l.readers))
		case fresh > 0 && len(l.ranks)+fresh > limit:
			return store.LeaseView{}, fmt.Errorf("%w: %d ranks have readers, the limit is %d", store.ErrFull, len(l.ranks), limit)
		}
		l.readers[c.Reader.Name] = reader{ranks: c.Reader.Ranks, until: now.Add(c.TTL)}
	}

	// takes reports whether what is about a lease may be done by the caller.
	takes := func(was store.Lease) bool {
		_, living := l.readers[was.Reader]
		return was.Reader == c.Reader.Name || !living
	}
	for _, r := range c.Release {
		if was, ok := l.ranks[r]; ok && takes(was) {
			delete(l.ranks, r)
			l.last++
		}
	}
	for _, r := range c.Acquire {
		if was, ok := l.ranks[r]; !ok || takes(was) {
			l.last = max(l.last, c.After) + 1
			l.ranks[r] = store.Lease{Reader: c.Reader.Name, Fence: l.last}
		}
	}

	v := store.LeaseView{Version: l.last, Lapsed: !alive}
	for name, r := range l.readers {
		v.Readers = append(v.Readers, store.Reader{Name: name, Ranks: r.ranks})
	}
	slices.SortFunc(v.Readers, func(a, b store.Reader) int { return cmp.Compare(a.Name, b.Name) })
	if c.Version != v.Version {
		v.Leases = maps.Clone(l.ranks)
	}
	return v, nil
}
