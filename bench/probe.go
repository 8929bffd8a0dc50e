package bench

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Stalls are what others would have felt: the answers to PINGs, one a
// millisecond, on connections of their own, to each server.
type Stalls struct {
	// Pings is how many there were.
	Pings int `json:"pings"`
	// Over is how many took longer than 2 ms.
	Over int `json:"over_2ms"`
	// Median, P999 and Longest are times of an answer in milliseconds.
	Median  float64 `json:"median_ms"`
	P999    float64 `json:"p999_ms"`
	Longest float64 `json:"longest_ms"`
}

const (
	probeEvery = time.Millisecond
	stall      = 2 * time.Millisecond
)

// probe sends PINGs until ctx ends or done is closed.
func (s *server) probe(ctx context.Context, done <-chan struct{}) (Stalls, error) {
	type result struct {
		took []time.Duration
		err  error
	}
	results := make(chan result, len(s.nodes))
	for _, n := range s.nodes {
		o := *n.Options()
		o.PoolSize, o.MaxRetries = 1, -1
		go func() {
			c := redis.NewClient(&o)
			took, err := pings(ctx, c, done)
			results <- result{took, errors.Join(err, c.Close())}
		}()
	}
	var all []time.Duration
	var errs []error
	for range s.nodes {
		r := <-results
		all, errs = append(all, r.took...), append(errs, r.err)
	}
	return stallsOf(all), errors.Join(errs...)
}

func pings(ctx context.Context, c *redis.Client, done <-chan struct{}) (took []time.Duration, err error) {
	if err := c.Ping(ctx).Err(); err != nil { // makes the connection
		return nil, err
	}
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return took, nil
		case <-ctx.Done():
			return took, ctx.Err()
		case <-tick.C:
		}
		begin := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			return took, err
		}
		took = append(took, time.Since(begin))
	}
}

func stallsOf(took []time.Duration) Stalls {
	if len(took) == 0 {
		return Stalls{}
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	s := Stalls{Pings: len(took), Median: ms(took[len(took)/2]), P999: ms(took[len(took)*999/1000]), Longest: ms(took[len(took)-1])}
	for _, d := range took {
		if d > stall {
			s.Over++
		}
	}
	return s
}

// during probes while f runs.
func (s *server) during(ctx context.Context, f func() error) (Stalls, error) {
	done := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		defer close(done)
		failed <- f()
	}()
	st, err := s.probe(ctx, done)
	return st, errors.Join(err, <-failed)
}

// Command is how long a kind of command kept a server, by the server's own clock
// and in milliseconds. Half of the calls took at most Median, and so on.
type Command struct {
	Name   string  `json:"name"`
	Median float64 `json:"median_ms"`
	P99    float64 `json:"p99_ms"`
	P999   float64 `json:"p999_ms"`
	Max    float64 `json:"max_ms"`
}

// commandTimes resets the servers' statistics of commands, and has them keep
// times. The configuration before is for undo.
type commandTimes struct {
	s   *server
	old []map[string]string // of each node
}

// trackCommands fails on servers before version 7, which keep no such
// statistics.
func (s *server) trackCommands(ctx context.Context) (*commandTimes, error) {
	t := &commandTimes{s: s}
	for _, n := range s.nodes {
		old, err := n.ConfigGet(ctx, "latency-tracking*").Result()
		if err != nil {
			return nil, err
		}
		t.old = append(t.old, old)
		pipe := n.Pipeline()
		pipe.ConfigSet(ctx, "latency-tracking", "yes")
		pipe.ConfigSet(ctx, "latency-tracking-info-percentiles", "50 99 99.9 100")
		pipe.ConfigResetStat(ctx)
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// stop returns the times of the commands, of several servers the longest, and
// gives the servers their configuration back.
func (t *commandTimes) stop(ctx context.Context) ([]Command, error) {
	all := map[string]Command{}
	var errs []error
	for i, n := range t.s.nodes {
		text, err := n.Info(ctx, "latencystats").Result()
		errs = append(errs, err)
		for name, v := range parseInfo(text) {
			name, ok := strings.CutPrefix(name, "latency_percentiles_usec_")
			if !ok {
				continue
			}
			p := map[string]float64{}
			for f := range strings.SplitSeq(v, ",") {
				q, us, _ := strings.Cut(f, "=")
				p[q] = number(us) / 1e3
			}
			c := all[name]
			all[name] = Command{
				Name: name, Median: max(c.Median, p["p50"]), P99: max(c.P99, p["p99"]), P999: max(c.P999, p["p99.9"]), Max: max(c.Max, p["p100"]),
			}
		}
		for name, v := range t.old[i] {
			errs = append(errs, n.ConfigSet(ctx, name, v).Err())
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Command) int { return strings.Compare(a.Name, b.Name) }), errors.Join(errs...)
}
