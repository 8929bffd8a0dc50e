package bench

import (
	"context"
	"errors"
	"slices"
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

// slowLog watches which commands keep a server for longer than a millisecond.
type slowLog struct {
	s   *server
	old []map[string]string // of each node
}

// slowLogAbove is the limit in microseconds.
const slowLogAbove = "1000"

func (s *server) watchSlow(ctx context.Context) (*slowLog, error) {
	l := &slowLog{s: s}
	for _, n := range s.nodes {
		old, err := n.ConfigGet(ctx, "slowlog-*").Result()
		if err != nil {
			return nil, err
		}
		l.old = append(l.old, old)
		pipe := n.Pipeline()
		pipe.ConfigSet(ctx, "slowlog-log-slower-than", slowLogAbove)
		pipe.ConfigSet(ctx, "slowlog-max-len", "4096")
		pipe.Do(ctx, "SLOWLOG", "RESET")
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Slow is what a server's slow log has of commands over a millisecond, by the
// server's own clock.
type Slow struct {
	Commands int     `json:"commands"`
	Over     int     `json:"over_2ms"`
	Longest  float64 `json:"longest_ms"`
	// Which is the longest one's name.
	Which string `json:"which"`
}

// stop reads the log and gives the servers their configuration back.
func (l *slowLog) stop(ctx context.Context) (Slow, error) {
	var out Slow
	var errs []error
	for i, n := range l.s.nodes {
		log, err := n.SlowLogGet(ctx, -1).Result()
		errs = append(errs, err)
		for _, e := range log {
			out.Commands++
			if e.Duration > stall {
				out.Over++
			}
			if ms := e.Duration.Seconds() * 1e3; ms > out.Longest && len(e.Args) > 0 {
				out.Longest, out.Which = ms, e.Args[0]
			}
		}
		for name, v := range l.old[i] {
			errs = append(errs, n.ConfigSet(ctx, name, v).Err())
		}
	}
	return out, errors.Join(errs...)
}
