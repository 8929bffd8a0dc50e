package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// inProcess prints what a score and a query cost a program that embeds both.
func inProcess(ctx context.Context, tokens int) error {
	index, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = index.Close() }() // nothing of it is kept
	s, err := scorer.New(scorer.Config{Index: index, Budget: scorer.Unbounded})
	if err != nil {
		return err
	}
	r, err := route.New(route.Config{Scorer: s, Pods: index, Loads: loads.NewMemory(nil), Seed: 1})
	if err != nil {
		return err
	}
	if _, err := index.EnsureModel(ctx, store.ModelInfo{Name: "m", BlockSize: 64, Scheme: store.SchemeNative}); err != nil {
		return err
	}
	for i := range 8 {
		if _, err := index.Register(ctx, store.Pod{Name: fmt.Sprint("p", i), Model: "m"}); err != nil {
			return err
		}
	}
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i)
	}
	keys := blockkey.AppendNative(nil, ids[:tokens/2], 64, blockkey.NativeSeed("", ""))
	if err := index.Apply(ctx, store.Batch{Pod: "p3", Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys}}}); err != nil {
		return err
	}
	ask := scorer.Request{Model: "m", Input: scorer.Tokens(ids)}
	var scores, queries []time.Duration
	for range 50_000 {
		t0 := time.Now()
		_, err := s.Score(ctx, ask)
		t1 := time.Now()
		if err != nil {
			return err
		}
		_, err = r.Route(ctx, route.Request{Score: ask})
		t2 := time.Now()
		if err != nil {
			return err
		}
		scores, queries = append(scores, t1.Sub(t0)), append(queries, t2.Sub(t1))
	}
	score, query := traffic.Quantile(scores, 0.5), traffic.Quantile(queries, 0.5)
	fmt.Printf("\nin process, %d tokens, 8 pods, p50: score %.2f us, query %.2f us, %.2f of it\n", tokens, float64(score)/1e3, float64(query)/1e3, over(query, score))
	return nil
}
