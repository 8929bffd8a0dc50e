package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// Endpoint is an engine that requests can go to.
type Endpoint struct {
	// Name is the name that it is registered by.
	Name string
	// Model is what it serves.
	Model string
	// Waiting is how many requests wait there.
	Waiting int
}

// Request is what is to be scheduled.
type Request struct {
	Model, Prompt string
}

// Filter reports whether a request may go to an endpoint.
type Filter func(*Request, *Endpoint) bool

// Scorer says how well each endpoint suits a request, from 0 to 1. An endpoint that it does
// not name has 0.
type Scorer interface {
	Score(ctx context.Context, r *Request, candidates []Endpoint) (map[string]float64, error)
}

// Weighted is a Scorer and what it counts.
type Weighted struct {
	Scorer
	Weight float64
}

// Scheduler filters, scores and picks, as the scheduler of an inference gateway does.
type Scheduler struct {
	Filters []Filter
	Scorers []Weighted
	// Failed receives the error of a scorer that failed. Scheduling goes on without it: a request must
	// not wait for what only makes it faster.
	Failed func(error)
}

// ErrNoEndpoint says that no endpoint may take a request.
var ErrNoEndpoint = errors.New("no endpoint may take the request")

// Schedule returns the endpoint with the highest sum of weighted scores, of equal ones the
// first by name.
func (s *Scheduler) Schedule(ctx context.Context, r *Request, endpoints []Endpoint) (Endpoint, error) {
	candidates := slices.DeleteFunc(slices.Clone(endpoints), func(e Endpoint) bool {
		return slices.ContainsFunc(s.Filters, func(f Filter) bool { return !f(r, &e) })
	})
	if len(candidates) == 0 {
		return Endpoint{}, ErrNoEndpoint
	}
	total := map[string]float64{}
	for _, w := range s.Scorers {
		scores, err := w.Score(ctx, r, candidates)
		if err != nil {
			s.Failed(err)
			continue
		}
		for name, score := range scores {
			total[name] += w.Weight * score
		}
	}
	return slices.MinFunc(candidates, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(total[b.Name], total[a.Name]), cmp.Compare(a.Name, b.Name))
	}), nil
}

// ServesModel is a Filter.
func ServesModel(r *Request, e *Endpoint) bool { return r.Model == e.Model }

// QueueScorer prefers short queues: 1 for the shortest, 0 for the longest.
type QueueScorer struct{}

// Score implements Scorer.
func (QueueScorer) Score(_ context.Context, _ *Request, candidates []Endpoint) (map[string]float64, error) {
	byWaiting := func(a, b Endpoint) int { return cmp.Compare(a.Waiting, b.Waiting) }
	low, high := slices.MinFunc(candidates, byWaiting).Waiting, slices.MaxFunc(candidates, byWaiting).Waiting
	scores := map[string]float64{}
	for _, e := range candidates {
		scores[e.Name] = 1
		if high > low {
			scores[e.Name] = float64(high-e.Waiting) / float64(high-low)
		}
	}
	return scores, nil
}
