package route

import (
	"context"

	"github.com/kvatlas/kvatlas/route/loads"
)

// Done reports that a request's prefill has ended, or its first token has come. Argument cached
// is how many of its tokens the engine had cached, negative if that is not known.
func (r *Router) Done(ctx context.Context, model, id string, cached int) (loads.Report, error) {
	m := r.state(model)
	m.mu.Lock()
	settings := m.settings
	m.mu.Unlock()
	shape := settings.shape()
	rep, err := r.c.Loads.Done(ctx, model, id, loads.Done{Cached: cached, Shape: shape})
	if err == nil {
		r.noteDone(model, &rep, cached, r.predictOf(model))
	}
	return rep, err
}

// Output reports how many tokens a request has put out so far.
func (r *Router) Output(ctx context.Context, model, id string, tokens int) (loads.Report, error) {
	return r.c.Loads.Output(ctx, model, id, tokens)
}

// End reports that a request is over.
func (r *Router) End(ctx context.Context, model, id string) (loads.Report, error) {
	return r.c.Loads.End(ctx, model, id)
}

// Settle reports that a request is over, and how many tokens of its prompt the engine had
// cached, negative if that is not known. It is for proxies, which see an engine's usage with
// the end of an answer.
//
// done is what Done has returned at the first token, where cached was not known yet. It is
// nil for an answer that came in one piece. When its prefill ended is not known then, so
// nothing is learnt of the rank's speed. Count cached is taken unless a Done has come all
// the same.
func (r *Router) Settle(ctx context.Context, model, id string, done *loads.Report, cached int) (loads.Report, error) {
	if done != nil {
		r.noteDone(model, done, cached, r.predictOf(model))
		return r.End(ctx, model, id)
	}
	rep, err := r.End(ctx, model, id)
	if err == nil && cached >= 0 {
		whole := rep
		whole.RankRef, whole.First = rep.Prefill, rep.WithoutDone
		r.noteDone(model, &whole, cached, r.predictOf(model))
	}
	return rep, err
}

// predictOf is what the settings of a model say of predictions, nil while they are not known.
func (r *Router) predictOf(model string) *Predict {
	m := r.state(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version < 0 {
		return nil
	}
	return &m.settings.Predict
}
