package route

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// modelState is what is remembered of a model.
type modelState struct {
	mu       sync.Mutex // protects all below, and is held while a picture is read
	picture  loads.Picture
	read     time.Time // zero before the first
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
	p, s, version, err := r.readPicture(ctx, m, model, fresh)
	if err != nil {
		r.tellAway(model, err)
	}
	return p, s, version, err != nil
}

// tellAway tells that the loads of a model can not be read or changed.
func (r *Router) tellAway(model string, err error) {
	if r.c.Away != nil {
		r.c.Away(model, err)
	}
}

// readPicture is picture, with why the loads are away.
func (r *Router) readPicture(ctx context.Context, m *modelState, model string, fresh bool) (p loads.Picture, s *Settings, version int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := r.c.Now()
	if fresh || m.read.IsZero() || now.Sub(m.read) >= pictureAge {
		bound, cancel := context.WithTimeout(ctx, pictureWait)
		defer cancel()
		picture, err := r.c.Loads.Loads(bound, model)
		m.failed = err
		m.read = now
		switch {
		case err == nil:
			m.picture, m.seen = picture, now
			m.adopt(r.c.Settings)
		case m.picture.Loads == nil:
			m.picture = loads.Picture{Now: now.UnixMicro(), Loads: map[store.RankRef]loads.Load{}}
		case now.Sub(m.seen) > loads.EngineStale:
			m.picture.Engines = nil
		}
	}
	return m.picture, m.settings, m.picture.Version, m.failed
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
