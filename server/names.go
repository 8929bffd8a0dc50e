package server

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/store"
)

// nameBudget is how long the index may take to say what a name means that this process
// has not heard of. Without an answer the name is taken for a model's own.
const nameBudget = 50 * time.Millisecond

// meaning is what the name of a model in a request means: a model itself, another name of
// one, or an adapter of one.
func (s *Server) meaning(ctx context.Context, name string) store.Reading {
	reg := s.cfg.Index.Cached()
	if _, known := reg.Read(name); !known {
		// A pod may have registered with it since this process last looked something up.
		ctx, cancel := context.WithTimeout(ctx, nameBudget)
		defer cancel()
		latest := store.OnlyRegistry{Registry: reg}
		_ = s.cfg.Index.Lookup(ctx, &store.Query{Fold: &latest}) // with an error it is the last one known
		reg = latest.Registry
	}
	return meaningIn(reg, name)
}

// meaningIn is what a name means by a registry. One that no pod has is a model's own.
func meaningIn(reg *store.Registry, name string) store.Reading {
	if r, known := reg.Read(name); known {
		return r
	}
	return store.Reading{Model: name}
}

// resolve puts what the name in model means into model and lora, and returns it.
func (c *call) resolve(in *request.Input, kind string) (store.Reading, error) {
	r := c.s.meaning(c.ctx, in.Model)
	err := in.Resolve(r, kind)
	c.model = in.Model
	return r, err
}
