package main

import (
	"context"
	"fmt"
	"strings"

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

// measured is what is compared, and the samples of it so far.
type measured struct {
	list   []work
	calls  map[int][][]samples // by the number of connections, of each work of list: the peer's, then ours
	heard  []*side             // that hear of events; nil for none
	events [][]samples         // of each of wireBlocks
}

// newMeasured is what options want of all works, and of events.
func newMeasured(o *options, s *sides, all []work) *measured {
	m := &measured{calls: map[int][][]samples{}}
	for i := range all {
		if strings.Contains(all[i].what, o.only) {
			m.list = append(m.list, all[i])
		}
	}
	for _, conns := range []int{1, connections} {
		for i := range m.list {
			m.calls[conns] = append(m.calls[conns], make([]samples, 1+len(m.list[i].ours)))
		}
	}
	if o.only == "" || o.only == events {
		m.heard = []*side{s.indexer, s.memory, s.small, s.redis}
		for range wireBlocks {
			m.events = append(m.events, make([]samples, len(m.heard)))
		}
	}
	return m
}

// take takes a sample of each side of all that is compared.
func (m *measured) take(ctx context.Context, round int) error {
	for _, conns := range []int{1, connections} {
		for i, w := range m.list {
			jobs := append([]job{w.peer}, w.ours...)
			err := takeTurns(m.calls[conns][i], round, func(k int) (cost, error) {
				if _, err := jobs[k].sample(ctx, conns, max(1, w.calls/warm)); err != nil {
					return cost{}, err
				}
				return jobs[k].sample(ctx, conns, w.calls)
			})
			if err != nil {
				return fmt.Errorf("%s, %d tokens: %w", w.what, w.tokens, err)
			}
		}
	}
	if m.heard == nil {
		return nil
	}
	return takeEvents(ctx, m.heard, m.events, round)
}

// warm is which part of a sample's calls a side gets before it is measured: its process is young.
const warm = 4

// takeTurns takes a sample of each side, the first of which is the peer. Rounds go forwards and
// backwards in turn, so that what disturbs the machine disturbs all.
func takeTurns(to []samples, round int, sample func(k int) (cost, error)) error {
	costs := make([]cost, len(to))
	for i := range to {
		if round%2 == 1 {
			i = len(to) - 1 - i
		}
		var err error
		if costs[i], err = sample(i); err != nil {
			return err
		}
	}
	for k, c := range costs {
		to[k].add(c, costs[0].all())
	}
	return nil
}

// write writes all tables. Of what a call costs there is a line for each of ours.
func (m *measured) write() {
	for _, conns := range []int{1, connections} {
		if len(m.list) == 0 {
			break
		}
		fmt.Printf("\n### On %d connections, us of CPU a call: medians (quartiles)\n\n", conns)
		fmt.Println("| work | tokens | Dynamo | kvatlas | form | us, of the server and of Redis | ratio |")
		fmt.Println("|---|---:|---:|---|---|---:|---:|")
		for i, w := range m.list {
			got := m.calls[conns][i]
			peer := bench.SpreadOf(got[0].all).String()
			for k, j := range w.ours {
				s := &got[k+1]
				fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", w.what, bench.Group(int64(w.tokens)), peer, j.side.name, j.form, both(j.side, s), ratio(bench.SpreadOf(s.ratio)))
			}
		}
	}
	if m.heard != nil {
		writeEvents(m.heard, m.events)
	}
}

// both is what a call costs the process, and where there is Redis, Redis.
func both(s *side, c *samples) string {
	own := bench.SpreadOf(c.own).String()
	if s.redis == nil {
		return own
	}
	return own + " + " + bench.SpreadOf(c.behind).String()
}

func ratio(s bench.Spread) string {
	return fmt.Sprintf("**%.2f** (%.2f-%.2f)", s.Median, s.Low, s.High)
}
