package main

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/client"
)

// KVCacheScorer prefers endpoints that hold the beginning of the prompt. It asks kvatlas by
// POST /v1/score: this, and a weight, is all that a scheduler needs to be KV-cache aware.
type KVCacheScorer struct {
	Client *client.Client
	// Budget is how long it may take; then the scheduler goes on without it.
	Budget time.Duration
}

// Score implements Scorer. The score is the share of the prompt's blocks that an endpoint
// holds from the start, weighed by tier.
func (k *KVCacheScorer) Score(ctx context.Context, r *Request, candidates []Endpoint) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, k.Budget)
	defer cancel()
	pods := make([]string, len(candidates))
	for i, e := range candidates {
		pods[i] = e.Name
	}
	answer, err := k.Client.Score(ctx, client.ScoreRequest{Model: r.Model, Prompt: r.Prompt, Pods: pods})
	if err != nil {
		return nil, err
	}
	scores := map[string]float64{}
	for pod, score := range answer.Scores {
		if answer.Blocks.Total > 0 {
			scores[pod] = score / float64(answer.Blocks.Total)
		}
	}
	return scores, nil
}
