package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvatlas/kvatlas/internal/cputime"
)

// minSample is how long a sample of operations should take at least. Shorter ones
// measure the clock, the scheduler, and caches that are full of what others have
// done.
const minSample = 50 * time.Millisecond

// maxBurst is the number of operations of a sample at most.
const maxBurst = 256

// Side is what one side of a comparison costs an operation.
type Side struct {
	// Name says what the side is.
	Name string `json:"name"`
	// Millis is the time of an operation by the clock.
	Millis Spread `json:"millis"`
	// Ratio is Millis as a multiple of the first side's, sample by sample.
	Ratio Spread `json:"ratio"`
	// RatioToSecond is the same of the second side's, where that is asked for.
	RatioToSecond *Spread `json:"ratio_to_second,omitempty"`
	// ServerMicros and ClientMicros are medians of CPU time in the servers' main
	// threads and in this process.
	ServerMicros float64 `json:"server_us"`
	ClientMicros float64 `json:"client_us"`
	// Sent and Received are bytes on the connection as the server counts them.
	Sent     float64 `json:"sent_bytes"`
	Received float64 `json:"received_bytes"`
	// RoundTrips is how often the client waited for the server.
	RoundTrips float64 `json:"round_trips"`
	// Samples is the number of samples, Burst that of the operations of each.
	Samples int `json:"samples"`
	Burst   int `json:"burst"`
}

// contender is what takes part in a comparison.
type contender struct {
	name string
	// run does the operation of a number, which counts from 0.
	run func(ctx context.Context, seq int) error
	// trips are the round trips since the beginning.
	trips func() uint64
	// ops is how many operations run does in one; 0 is one.
	ops int
}

// turns say how contenders take turns.
type turns struct {
	// rounds is the number of samples of each.
	rounds int
	// burst is the number of operations of a sample; with 0 as many as take
	// minSample.
	burst int
	// workers is how many operations run at the same time; 0 is one.
	workers int
	// second is a further side to which ratios are made, if not 0.
	second int
}

// compare lets the contenders take turns.
func compare(ctx context.Context, s *server, t turns, list []contender) ([]Side, error) {
	type state struct {
		seq, burst                       int
		millis, ratio, ratio2            []float64
		server, client                   []float64
		sent, received, trips, operation float64
	}
	states := make([]state, len(list))
	once := func(i int) error {
		st := &states[i]
		if err := list[i].run(ctx, st.seq); err != nil {
			return fmt.Errorf("%s: %w", list[i].name, err)
		}
		st.seq++
		return nil
	}
	for i := range list {
		// The first one loads scripts and the registry, and makes connections.
		if err := once(i); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := once(i); err != nil {
			return nil, err
		}
		if t.burst > 0 {
			states[i].burst = max(1, t.burst/max(1, list[i].ops))
		} else {
			states[i].burst = int(min(maxBurst, minSample/max(1, time.Since(begin))+1))
		}
	}
	own, err := s.ownTraffic(ctx)
	if err != nil {
		return nil, err
	}
	for round := range t.rounds {
		for j := range list {
			i := j
			if round%2 == 1 {
				i = len(list) - 1 - j
			}
			st := &states[i]
			// What the others have left behind is collected before the next is measured.
			runtime.GC()
			before, err := s.read(ctx)
			if err != nil {
				return nil, err
			}
			trips, cpu, begin := list[i].trips(), cputime.Process(), time.Now()
			if err := t.run(ctx, list[i], st.seq, st.burst); err != nil {
				return nil, err
			}
			st.seq += st.burst
			took, used := time.Since(begin), cputime.Process()-cpu
			st.trips += float64(list[i].trips() - trips)
			after, err := s.read(ctx)
			if err != nil {
				return nil, err
			}
			n := float64(st.burst * max(1, list[i].ops))
			st.operation += n
			st.millis = append(st.millis, took.Seconds()*1e3/n)
			st.client = append(st.client, used.Seconds()*1e6/n)
			st.server = append(st.server, (after.cpu-before.cpu).Seconds()*1e6/n)
			st.sent += max(0, after.in-before.in-own.in)
			st.received += max(0, after.out-before.out-own.out)
		}
		for i := range states {
			states[i].ratio = append(states[i].ratio, states[i].millis[round]/states[0].millis[round])
			states[i].ratio2 = append(states[i].ratio2, states[i].millis[round]/states[t.second].millis[round])
		}
	}
	sides := make([]Side, len(list))
	for i, st := range states {
		sides[i] = Side{
			Name: list[i].name, Millis: SpreadOf(st.millis), Ratio: SpreadOf(st.ratio),
			ServerMicros: SpreadOf(st.server).Median, ClientMicros: SpreadOf(st.client).Median,
			Sent: st.sent / st.operation, Received: st.received / st.operation, RoundTrips: st.trips / st.operation,
			Samples: t.rounds, Burst: st.burst * max(1, list[i].ops),
		}
	}
	for i := range sides {
		if t.second > 0 {
			r := SpreadOf(states[i].ratio2)
			sides[i].RatioToSecond = &r
		}
	}
	return sides, nil
}

// run does a sample's operations.
func (t turns) run(ctx context.Context, c contender, from, n int) error {
	var next atomic.Int64
	work := func() error {
		for {
			i := int(next.Add(1)) - 1
			if i >= n {
				return nil
			}
			if err := c.run(ctx, from+i); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	if t.workers <= 1 {
		return work()
	}
	var g errgroup.Group
	for range t.workers {
		g.Go(work)
	}
	return g.Wait()
}
