// Command routing compares routing policies on simulated engines, in virtual time, and prints
// a table. It has how much of the prompts was cached, the mean time to first token in
// milliseconds, and its 90th percentile.
//
//	go run ./bench/routing
//	go run ./bench/routing -policies eta,llm_d -only room -seeds 5
//	go run ./bench/routing -traces DIR
//
// Without traces the work is the recorded conversations of sim/talks. With them it is the
// files of a directory in Mooncake's form whose names end with the size of their blocks, as
// in conversation_b512.jsonl. The same call prints the same figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kvatlas/kvatlas/bench/internal/program"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/sim/trial"
)

func main() {
	program.Main("routing", run)
}

func run(ctx context.Context) error {
	policies := flag.String("policies", "eta,round_robin,least_requests,longest_prefix,dynamo,llm_d,cache_aware,no_hit_lru", "a `LIST` of policies with commas")
	only := flag.String("only", "", "the scenarios whose names contain this `WORD`")
	seeds := flag.Int("seeds", 3, "over how many orders of conversations the recorded ones are averaged")
	traces := flag.String("traces", "", "a `DIRECTORY` of traces, in place of the recorded conversations")
	settings := flag.String("settings", "{}", "what differs from the default settings, a JSON `OBJECT`")
	workers := flag.Int("workers", 2, "how many trials run at a time")
	flag.Parse()
	scenarios := recorded(*seeds)
	if *traces != "" {
		var err error
		if scenarios, err = fromTraces(*traces); err != nil {
			return err
		}
	}
	scenarios = slices.DeleteFunc(scenarios, func(s scenario) bool { return !strings.Contains(s.name, *only) })
	base := route.DefaultSettings()
	base, err := base.Merge([]byte(*settings))
	if err != nil {
		return err
	}
	return table(ctx, scenarios, strings.Split(*policies, ","), &base, *workers)
}

// cell is what a policy came to in a scenario: the sums over its trials.
type cell struct {
	cached, prompt int
	first, p90     []float64 // of each trial, in ms
}

// table runs all trials and prints what came of them.
func table(ctx context.Context, scenarios []scenario, policies []string, base *route.Settings, workers int) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	gate := make(chan struct{}, workers)
	fmt.Printf("| scenario | %s |\n|---|%s\n", strings.Join(policies, " | "), strings.Repeat("---|", len(policies)))
	for _, s := range scenarios {
		cells := make([]cell, len(policies))
		var (
			running sync.WaitGroup
			mu      sync.Mutex // protects cells
		)
		for i, policy := range policies {
			settings := *base
			settings.Policy = policy
			if _, err := route.ParsePolicy(policy); err != nil {
				return err
			}
			for n := range s.trials {
				running.Go(func() {
					gate <- struct{}{}
					defer func() { <-gate }()
					c := s.config(n)
					c.Settings = &settings
					r, err := trial.Run(ctx, c)
					if err != nil {
						fail(fmt.Errorf("%s, %s: %w", s.name, policy, err))
						return
					}
					mu.Lock()
					defer mu.Unlock()
					k := &cells[i]
					k.cached, k.prompt = k.cached+r.Cached, k.prompt+r.Prompt
					k.first = append(k.first, r.MeanFirst().Seconds()*1000)
					k.p90 = append(k.p90, r.FirstAt(0.9).Seconds()*1000)
				})
			}
		}
		running.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Printf("| %s |", s.name)
		for i := range cells {
			k := &cells[i]
			fmt.Printf(" %.1f %%, %.0f (%.0f) |", 100*float64(k.cached)/float64(max(1, k.prompt)), mean(k.first), mean(k.p90))
		}
		fmt.Println()
	}
	return nil
}

func mean(xs []float64) (sum float64) {
	for _, x := range xs {
		sum += x
	}
	return sum / float64(max(1, len(xs)))
}
