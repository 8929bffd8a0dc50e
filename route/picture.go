package route

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// modelState is what is remembered of a model.
type modelState struct {
	mu       sync.Mutex // protects all below
	picture  loads.Picture
	reading  *reading  // the try that is under way, nil for none
	read     time.Time // when the last try began; zero before the first
	seen     time.Time // when picture was read
	failed   error     // of the last try; nil if it succeeded
	settings *Settings // never changed, but replaced
	version  int64     // of settings; -1 before the first

	used time.Time // when it was last asked for; protected by Router.mu
}

// state returns what is remembered of a model.
func (r *Router) state(model string) *modelState {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		if len(r.models) >= maxModels {
			clear(r.models)
		}
		m = &modelState{settings: r.c.Settings, version: -1}
		r.models[model] = m
	}
	m.used = r.c.Now()
	return m
}

// Models returns the models that something was asked of within a time: a choice, the loads
// or a report.
func (r *Router) Models(within time.Duration) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.c.Now()
	for name, m := range r.models {
		if now.Sub(m.used) <= within {
			out = append(out, name)
		}
	}
	return out
}

// picture returns the loads of a model, at most pictureAge old unless they are away, and
// the settings that go with them.
func (r *Router) picture(ctx context.Context, model string, fresh bool) (p loads.Picture, s *Settings, version int64, away bool) {
	m := r.state(model)
	m.mu.Lock()
	err := m.failed
	if fresh || m.reading != nil || m.read.IsZero() || r.c.Now().Sub(m.read) >= pictureAge {
		older := m.reading != nil
		err = r.awaitPicture(ctx, m, model)
		if fresh && older && err == nil { // that one began before this call
			err = r.awaitPicture(ctx, m, model)
		}
		if err != nil && m.picture.Loads == nil {
			m.picture = loads.Picture{Now: r.c.Now().UnixMicro(), Loads: map[store.RankRef]loads.Load{}}
		}
	}
	p, s = m.picture, m.settings
	m.mu.Unlock()
	if err != nil {
		r.tellAway(model, err)
	}
	return p, s, p.Version, err != nil
}

// tellAway tells that the loads of a model can not be read or changed. That a caller has left
// says nothing of them.
func (r *Router) tellAway(model string, err error) {
	if r.c.Away != nil && !errors.Is(err, context.Canceled) {
		r.c.Away(model, err)
	}
}

// reading is a try to read a picture. Requests that want one meanwhile wait for it. With loads that
// do not answer, a try of each after the other would make them wait for all before them.
type reading struct {
	done chan struct{} // closed when it is over
	// err is why it failed, gone that its caller left before it ended. Both are written before
	// done is closed.
	err  error
	gone bool
}

// awaitPicture waits for the try that is under way, or makes one. It is called with m.mu held,
// and lets go of it while it waits.
func (r *Router) awaitPicture(ctx context.Context, m *modelState, model string) error {
	wait, cancel := context.WithTimeout(ctx, pictureWait)
	defer cancel()
	for m.reading != nil {
		t := m.reading
		m.mu.Unlock()
		select {
		case <-t.done:
		case <-wait.Done():
			m.mu.Lock()
			return wait.Err()
		}
		m.mu.Lock()
		if !t.gone {
			return t.err
		}
	}
	return r.tryPicture(ctx, m, model)
}

// tryPicture reads a picture. It is called with m.mu held, and lets go of it meanwhile. That a
// caller has left says nothing of the loads: what was known of them stands.
func (r *Router) tryPicture(ctx context.Context, m *modelState, model string) error {
	t := &reading{done: make(chan struct{})}
	before, now := m.read, r.c.Now()
	m.reading, m.read = t, now
	defer func() { m.reading = nil; close(t.done) }()
	picture, err := r.loadPicture(ctx, m, model)
	t.err, t.gone = err, err != nil && ctx.Err() != nil
	if t.gone {
		m.read = before
	} else {
		m.failed = err
	}
	switch {
	case err == nil:
		m.picture, m.seen = picture, now
		m.adopt(r.c.Settings)
	case now.Sub(m.seen) > loads.EngineStale:
		m.picture.Engines = nil
	}
	return err
}

// loadPicture reads a picture without m.mu, which its caller holds.
func (r *Router) loadPicture(ctx context.Context, m *modelState, model string) (loads.Picture, error) {
	m.mu.Unlock()
	defer m.mu.Lock()
	wait, cancel := context.WithTimeout(ctx, pictureWait)
	defer cancel()
	return r.c.Loads.Loads(wait, model)
}

// adopt takes over the settings that a picture has. Those that cannot be read, as a later
// version may have written them, are not taken: what was in force goes on.
func (m *modelState) adopt(base *Settings) {
	if m.version == m.picture.Version {
		return
	}
	m.version = m.picture.Version
	if m.picture.Settings == nil {
		m.settings = base
		return
	}
	if s, err := base.Merge(m.picture.Settings); err == nil {
		m.settings = &s
	}
}

// bookLocally adds a request that could not be booked to the picture that further requests
// are routed by.
func (r *Router) bookLocally(model string, v *View, chosen int) {
	m := r.state(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	c := v.candidate(chosen)
	all := maps.Clone(m.picture.Loads) // earlier callers still read the old map
	l := all[c.RankRef]
	l.Add(&c, int64(v.Blocks()), c.Uncached, m.picture.Now)
	all[c.RankRef] = l
	m.picture.Loads = all
}
