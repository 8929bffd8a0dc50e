package route

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// maxOutcomes is of how many ranks outcomes are kept.
const maxOutcomes = 1 << 14

// Outcome is what requests came to on a rank, in tokens since this process began. What of
// their prompts was not reused has three causes. No pod held it, another held more, or the
// engine did not have what the index said.
type Outcome struct {
	store.RankRef
	Model string
	// Prompt are the tokens of all requests that were booked there, Anybody those of them that any candidate
	// held, Chosen those that the rank held.
	Prompt, Anybody, Chosen uint64
	// Predicted are the tokens that the index said, of requests of which the engine has told
	// what it had cached. Delivered is what that was, and Missing what was less than
	// predicted.
	Predicted, Delivered, Missing uint64
}

// outcomes keeps the outcomes of all ranks, and what is not yet shared of them.
type outcomes struct {
	mu   sync.Mutex // protects all below
	all  map[modelRank]*Outcome
	news map[string]map[store.RankRef]*loads.Truth
}

type modelRank struct {
	model string
	store.RankRef
}

// of returns the outcome of a rank, nil where there is no room for another.
func (o *outcomes) of(model string, at store.RankRef) *Outcome {
	k := modelRank{model, at}
	out := o.all[k]
	if out == nil && len(o.all) < maxOutcomes {
		out = &Outcome{RankRef: at, Model: model}
		if o.all == nil {
			o.all = map[modelRank]*Outcome{}
		}
		o.all[k] = out
	}
	return out
}

// noteChoice counts a request that was booked.
func (r *Router) noteChoice(model string, d *Decision) {
	if d.Reservation == "" || d.Again || d.Score == nil {
		return // a query, a repetition, or a policy that looked nothing up
	}
	at, held := d.RankRef, d.Held
	if d.Prefill != nil {
		at, held = d.Prefill.RankRef, d.Prefill.Held
	}
	chosen := min(total(held), d.Tokens)
	r.outcomes.mu.Lock()
	defer r.outcomes.mu.Unlock()
	if o := r.outcomes.of(model, at); o != nil {
		o.Prompt += uint64(d.Tokens)
		o.Anybody += uint64(min(max(d.Best, chosen), d.Tokens))
		o.Chosen += uint64(chosen)
	}
}

// noteDone counts what an engine has reported about a request's prompt. predict is what the model's
// settings say, nil while they are not known.
func (r *Router) noteDone(model string, rep *loads.Report, cached int, predict *Predict) {
	if !rep.Known || !rep.First || cached < 0 {
		return
	}
	reg := r.c.Pods.Cached()
	cached = min(cached, rep.Tokens)
	r.outcomes.mu.Lock()
	defer r.outcomes.mu.Unlock()
	if o := r.outcomes.of(model, rep.RankRef); o != nil {
		o.Predicted += uint64(rep.Predicted)
		o.Delivered += uint64(cached)
		o.Missing += uint64(max(0, rep.Predicted-cached))
	}
	size := reg.Models[model].BlockSize
	p, known := reg.PodIndex(rep.Pod)
	if !known || size <= 0 || predict == nil || predict.ttl(&reg.Pods[p]) > 0 {
		return // what was predicted is no fault of the index
	}
	t := loads.Truth{RankRef: rep.RankRef, Requests: 1, Predicted: int64(owed(rep.Predicted, rep.Tokens, size))}
	if t.Predicted == 0 {
		return
	}
	t.Delivered = min(int64(cached), t.Predicted)
	if slot, ok := reg.Slot(p, rep.Rank); ok {
		t.Generation = reg.Generation(slot)
	}
	r.outcomes.add(model, &t)
}

// owed is how many of the predicted tokens an engine must have, that is not to be blamed. It
// computes at least the last token of a prompt, and with it all of its last block. One block
// more or less is the rounding of block sizes.
func owed(predicted, tokens, size int) int {
	if predicted+size > tokens {
		predicted = tokens - size
	}
	if predicted < 2*size {
		return 0
	}
	return predicted
}

// add adds to what is to be shared.
func (o *outcomes) add(model string, t *loads.Truth) {
	if o.news == nil {
		o.news = map[string]map[store.RankRef]*loads.Truth{}
	}
	of := o.news[model]
	if of == nil {
		of = map[store.RankRef]*loads.Truth{}
		o.news[model] = of
	}
	switch old := of[t.RankRef]; {
	case old == nil && len(of) < loads.MaxTurns, old != nil && old.Generation < t.Generation:
		of[t.RankRef] = t
	case old != nil && old.Generation == t.Generation:
		old.Requests, old.Predicted, old.Delivered = old.Requests+t.Requests, old.Predicted+t.Predicted, old.Delivered+t.Delivered
	}
}

// shareTruths tells the other routers what was told here since the last time.
func (r *Router) shareTruths(ctx context.Context, model string) error {
	r.outcomes.mu.Lock()
	var list []loads.Truth
	for _, t := range r.outcomes.news[model] {
		list = append(list, *t)
	}
	delete(r.outcomes.news, model)
	r.outcomes.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	err := r.c.Loads.AddTruth(ctx, model, list)
	if err != nil { // for the next time
		r.outcomes.mu.Lock()
		defer r.outcomes.mu.Unlock()
		for i := range list {
			r.outcomes.add(model, &list[i])
		}
	}
	return err
}

// Truths returns what requests on each rank of a model were promised and given, by all
// routers and in the rank's present generation.
func (r *Router) Truths(ctx context.Context, model string) (map[store.RankRef]loads.Truth, error) {
	return r.c.Loads.Truths(ctx, model)
}

// Outcomes returns what requests came to, by model, pod and rank. Those of pods that are not
// registered any more are forgotten.
func (r *Router) Outcomes() []Outcome {
	reg := r.c.Pods.Cached()
	r.outcomes.mu.Lock()
	defer r.outcomes.mu.Unlock()
	out := make([]Outcome, 0, len(r.outcomes.all))
	for k, o := range r.outcomes.all {
		if _, known := reg.PodIndex(k.Pod); !known {
			delete(r.outcomes.all, k)
			continue
		}
		out = append(out, *o)
	}
	slices.SortFunc(out, func(a, b Outcome) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank))
	})
	return out
}
