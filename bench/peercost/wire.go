package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvatlas/kvatlas/bench"
)

// wireChain is the length of the prompts that are new to a side, in blocks of the engine.
const wireChain = 128

// wireBlocks are how many blocks an engine stores in a sample, by how many an event has: enough
// for some hundredths of a second.
var wireBlocks = []struct{ event, all int }{{1, 1024}, {16, 4096}, {128, 8192}}

// stream are the engines that a side hears alone.
type stream struct {
	side    *side
	engines []*engine
	model   string
}

// takeEvents takes a sample of what it costs each side to hear of a block, from the wire to its index. A
// side gets blocks that it does not know, by engines of its own, until it answers that it has the last.
func takeEvents(ctx context.Context, list []*side, to [][]samples, round int) (err error) {
	var streams []*stream
	defer func() {
		for _, t := range streams {
			err = errors.Join(err, closeEngines(t.engines))
		}
	}()
	for i, s := range list {
		t := &stream{side: s, model: fmt.Sprintf("events-%d", i)}
		streams = append(streams, t)
		if t.engines, err = newEngines(ctx, pods); err != nil {
			return err
		}
		if err := errors.Join(s.register(ctx, t.model, 100, endpoints(t.engines)), heard(t.engines, 1)); err != nil {
			return err
		}
	}
	random := rand.New(rand.NewPCG(16, uint64(round))) //nolint:gosec // tokens of a benchmark
	for i, n := range wireBlocks {
		err := takeTurns(to[i], round, func(k int) (cost, error) {
			if _, err := streams[k].sample(ctx, random, n.event, n.all/warm); err != nil {
				return cost{}, err
			}
			return streams[k].sample(ctx, random, n.event, n.all)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeEvents writes the table of what events cost.
func writeEvents(list []*side, all [][]samples) {
	fmt.Printf("\n### Events of %d engines, us of CPU a block: medians (quartiles)\n\n", pods)
	head, line := "| blocks an event |", "|---:|"
	for i, s := range list {
		head, line = head+" "+s.name+" |", line+"---:|"
		if i > 0 {
			head, line = head+" ratio |", line+"---:|"
		}
	}
	fmt.Println(head + "\n" + line)
	for i, got := range all {
		fmt.Printf("| %d |", wireBlocks[i].event)
		for k := range got {
			fmt.Printf(" %s |", both(list[k], &got[k]))
			if k > 0 {
				fmt.Printf(" %s |", ratio(bench.SpreadOf(got[k].ratio)))
			}
		}
		fmt.Println()
	}
}

// sample lets each engine publish so many new blocks, and returns what one cost.
func (t *stream) sample(ctx context.Context, random *rand.Rand, event, blocks int) (c cost, err error) {
	payloads := make([][][]byte, len(t.engines))
	last := make([][]uint32, len(t.engines))
	for i := range t.engines {
		for range blocks / wireChain {
			last[i] = newPrompt(random, wireChain*engineBlock)
			payloads[i] = stored(payloads[i], last[i], event)
		}
	}
	own, behind, err := t.side.spent(ctx)
	if err != nil {
		return c, err
	}
	for i, e := range t.engines {
		e.publish(payloads[i])
	}
	for i := range t.engines {
		if err := t.side.settled(ctx, t.model, last[i], 1); err != nil {
			return c, err
		}
	}
	ownAfter, behindAfter, err := t.side.spent(ctx)
	for _, e := range t.engines {
		if n := e.pub.Lost(); n > 0 {
			return c, fmt.Errorf("%s: %d messages were lost", t.side.name, n)
		}
	}
	all := time.Duration(blocks * len(t.engines))
	return cost{(ownAfter - own) / all, (behindAfter - behind) / all}, err
}
