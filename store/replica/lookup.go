package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/store"
)

// Lookup implements store.Index. From memory it makes no round trip, takes no lock
// and allocates nothing, and a deadline that has passed does not end it. Entries that others have written to Redis are not in the copy.
// Redis is asked for queries about them, and for all queries that come with those.
func (r *Replica) Lookup(ctx context.Context, queries ...*store.Query) error {
	for i, q := range queries {
		if q == nil || q.Fold == nil {
			return fmt.Errorf("%w: query %d has no folder", store.ErrInvalid, i)
		}
	}
	lag := r.feed.Current()
	mode := r.mode(lag)
	if mode == Redis || foreign(queries) {
		return r.ask(ctx, queries)
	}
	if err := r.life.Err(); err != nil {
		return r.Index.Lookup(ctx, queries...) // says that it is closed
	}
	reg, err := r.feed.Registry(ctx)
	canceled := errors.Is(ctx.Err(), context.Canceled)
	if err != nil && !errors.Is(err, store.ErrUnavailable) || canceled {
		if err == nil {
			err = ctx.Err()
		}
		for _, q := range queries {
			q.Fold.Begin(reg)
		}
		return err
	}
	if err != nil {
		mode = Stale // a lease has run out, and whether it was renewed is not known
	}
	r.fold(reg, queries)
	r.lookups[mode].Add(1)
	if mode == Stale {
		if err == nil {
			err = r.feed.State().Down
		}
		return &store.StaleError{Age: lag, Cause: err}
	}
	return nil
}

// fold answers from memory.
func (r *Replica) fold(reg *store.Registry, queries []*store.Query) {
	read := 0
	for _, q := range queries {
		q.Fold.Begin(reg)
	}
	for _, q := range queries {
		if q.Beside == nil { // else Redis is away, and nothing is known
			read += r.table.lookup(q)
		}
	}
	r.keysRead.Add(uint64(read))
}

// foreign reports whether a query is about what the copy does not have.
func foreign(queries []*store.Query) bool {
	return slices.ContainsFunc(queries, func(q *store.Query) bool { return q.Beside != nil })
}

// ask answers from Redis or, when that turns out to be away before it has told
// anything, from memory, if that is not too old.
func (r *Replica) ask(ctx context.Context, queries []*store.Query) error {
	r.lookups[Redis].Add(1)
	begun := false
	later := make([]*store.Query, len(queries))
	folds := make([]deferred, len(queries))
	for i, q := range queries {
		folds[i] = deferred{to: q.Fold, begun: &begun}
		later[i] = &store.Query{Model: q.Model, Keys: q.Keys, Fold: &folds[i], Span: q.Span, Named: q.Named, Beside: q.Beside}
	}
	for i, q := range queries {
		if q.Lead != nil {
			if lead := slices.Index(queries, q.Lead); lead >= 0 {
				later[i].Lead = later[lead]
			}
		}
	}
	err := r.Index.Lookup(ctx, later...)
	if err != nil && !begun && errors.Is(err, store.ErrUnavailable) {
		if lag := r.feed.Current(); lag >= 0 && lag <= r.c.MaxStale {
			r.fold(r.Cached(), queries)
			r.lookups[Stale].Add(1)
			return &store.StaleError{Age: lag, Cause: err}
		}
	}
	for i := range folds {
		folds[i].begin()
	}
	return err
}

// deferred is a folder that begins with its first run, so that it can begin
// otherwise until then.
type deferred struct {
	to    store.Folder
	reg   *store.Registry
	begun *bool // some folder of the lookup has
	done  bool
}

// Begin implements store.Folder.
func (d *deferred) Begin(r *store.Registry) { d.reg = r }

// Run implements store.Folder.
func (d *deferred) Run(n int, holders []store.HolderID) (more bool) {
	d.begin()
	return d.to.Run(n, holders)
}

func (d *deferred) begin() {
	if d.done || d.reg == nil {
		return
	}
	d.done, *d.begun = true, true
	d.to.Begin(d.reg)
}
