package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/bench"
)

// samples of one side, round by round, in microseconds.
type samples struct{ own, behind, all, ratio []float64 }

func (s *samples) add(c cost, peer float64) {
	s.own = append(s.own, float64(c.own)/1e3)
	s.behind = append(s.behind, float64(c.behind)/1e3)
	s.all = append(s.all, c.all())
	s.ratio = append(s.ratio, c.all()/peer)
}

// compare lets the sides of each work take turns, and prints what a call costs them. It prints a
// line for each of ours when the work has been measured.
func compare(ctx context.Context, list []work, conns, rounds int) error {
	fmt.Printf("\n### On %d connections, us of CPU a call: medians (quartiles); load %s\n\n", conns, bench.LoadAverage())
	fmt.Println("| work | tokens | Dynamo | kvatlas | form | us, of the server and of Redis | ratio |")
	fmt.Println("|---|---:|---:|---|---|---:|---:|")
	for _, w := range list {
		jobs := append([]job{w.peer}, w.ours...)
		got, err := turns(rounds, len(jobs), func(k int) (cost, error) { return jobs[k].sample(ctx, conns, w.calls) })
		if err != nil {
			return fmt.Errorf("%s, %d tokens: %w", w.what, w.tokens, err)
		}
		peer := bench.SpreadOf(got[0].all)
		for k, s := range got[1:] {
			j := w.ours[k]
			fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", w.what, number(w.tokens), us(peer), j.side.name, j.form, both(j.side, &s), ratio(bench.SpreadOf(s.ratio)))
		}
	}
	return nil
}

// turns takes a sample of each of n sides, the first of which is the peer, in each of the rounds.
// It goes forwards and backwards, so that what disturbs the machine disturbs all.
func turns(rounds, n int, sample func(k int) (cost, error)) ([]samples, error) {
	got := make([]samples, n)
	order := make([]int, n)
	for k := range order {
		order[k] = k
	}
	for round := range rounds + 1 { // the first one warms up
		costs := make([]cost, n)
		for _, k := range order {
			var err error
			if costs[k], err = sample(k); err != nil {
				return nil, err
			}
		}
		slices.Reverse(order)
		for k, c := range costs {
			if round > 0 {
				got[k].add(c, costs[0].all())
			}
		}
	}
	return got, nil
}

// both is what a call costs the process, and where there is Redis, Redis.
func both(s *side, c *samples) string {
	own := us(bench.SpreadOf(c.own))
	if s.redis == nil {
		return own
	}
	return own + " + " + us(bench.SpreadOf(c.behind))
}

func us(s bench.Spread) string {
	return fmt.Sprintf("%s (%s-%s)", figure(s.Median), figure(s.Low), figure(s.High))
}

func ratio(s bench.Spread) string {
	return fmt.Sprintf("**%.2f** (%.2f-%.2f)", s.Median, s.Low, s.High)
}

// figure writes a number with three digits that count, or all before the point.
func figure(v float64) string {
	switch {
	case v >= 100:
		return number(int(v + 0.5))
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// number groups the digits of a number.
func number(n int) string {
	if n >= 1000 {
		return fmt.Sprintf("%s,%03d", number(n/1000), n%1000)
	}
	return fmt.Sprint(n)
}
