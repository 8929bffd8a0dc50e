package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/cputime"
)

// server is the program that is measured, and the Redis behind it.
type server struct {
	*proc.Process
	http  http.Client
	redis *redis.Client
	ids   atomic.Int64 // of the last request
}

// post sends a request and reads the answer to its end. An answer other than 2xx is an error.
func (s *server) post(ctx context.Context, path string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err == nil && resp.StatusCode/100 != 2 {
		return fmt.Errorf("POST %s: %d %.200s", path, resp.StatusCode, text)
	}
	return err
}

// register makes eight pods.
func (s *server) register(ctx context.Context) error {
	for i := range 8 {
		if err := s.post(ctx, "/v1/pods", fmt.Appendf(nil, `{"name":"10.0.0.%d:8000","model":"m"}`, i)); err != nil {
			return err
		}
	}
	return nil
}

// times are medians of calls, and what they took of two processors for each. The commands are those
// that Redis ran for each, those of scripts included, and script is the time in scripts.
type times struct {
	wall, cpu, redis, script map[string]time.Duration
	commands                 map[string]float64
}

// caller asks one call after the other. Its requests are its own, as is the body of its bookings: the id
// is written over, so that a long body is not built for each call.
type caller struct {
	*server
	body, id []byte
	open     []string // ids of requests that were booked, not yet ended
}

func (c *caller) book(ctx context.Context) error {
	copy(c.id, fmt.Sprintf("r%010d", c.ids.Add(1)))
	c.open = append(c.open, string(c.id))
	return c.post(ctx, "/v1/route", c.body)
}

// report reports on the request that was booked last.
func (c *caller) report(ctx context.Context, kind, body string) error {
	last := len(c.open) - 1
	id := c.open[last]
	if kind == "end" {
		c.open = c.open[:last]
	}
	return c.post(ctx, "/v1/requests/"+id+"/"+kind, []byte(body))
}

// prompt makes the prompt of so many tokens, of which one pod holds half. It returns its tokens as
// /v1/score takes them, and the names of as many values in Redis as it has blocks.
func (s *server) prompt(ctx context.Context, tokens int) (packed string, names []string, err error) {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(tokens + i)
	}
	err = s.post(ctx, "/v1/blocks", fmt.Appendf(nil, `{"op":"add","model":"m","pod":"10.0.0.3:8000","tokens_b64":%q}`, traffic.Packed(ids[:tokens/2])))
	if err != nil {
		return "", nil, err
	}
	names = make([]string, len(blockkey.AppendNative(nil, ids, 64, blockkey.NativeSeed("", ""))))
	for i := range names {
		names[i] = fmt.Sprintf("of the benchmark:%d:%d", tokens, i)
		if err := s.redis.Set(ctx, names[i], "17", 0).Err(); err != nil {
			return "", nil, err
		}
	}
	return traffic.Packed(ids), names, nil
}

// kinds are what is measured. first is what comes before each call, done after a round of them, in no
// call's time.
var kinds = []struct {
	name  string
	call  func(ctx context.Context, c *caller, plain []byte, names []string) error
	first func(ctx context.Context, c *caller, plain []byte) error
	done  func(ctx context.Context, c *caller) error
}{
	{name: "ping", call: ping},
	{name: "late ping", call: ping, first: func(ctx context.Context, c *caller, plain []byte) error { return c.post(ctx, "/v1/score", plain) }},
	{name: "mget", call: func(ctx context.Context, c *caller, _ []byte, names []string) error {
		return c.redis.MGet(ctx, names...).Err()
	}},
	{name: "score", call: func(ctx context.Context, c *caller, plain []byte, _ []string) error {
		return c.post(ctx, "/v1/score", plain)
	}},
	{name: "query", call: func(ctx context.Context, c *caller, plain []byte, _ []string) error {
		return c.post(ctx, "/v1/route", plain)
	}},
	{name: "reserve", call: func(ctx context.Context, c *caller, _ []byte, _ []string) error { return c.book(ctx) }, done: func(ctx context.Context, c *caller) (err error) {
		for err == nil && len(c.open) > 0 {
			err = c.report(ctx, "end", `{"model":"m"}`)
		}
		return err
	}},
	{name: "whole", call: func(ctx context.Context, c *caller, _ []byte, _ []string) error {
		return errors.Join(c.book(ctx), c.report(ctx, "done", `{"model":"m"}`), c.report(ctx, "end", `{"model":"m"}`))
	}},
	{name: "settled", call: func(ctx context.Context, c *caller, _ []byte, _ []string) error {
		return errors.Join(c.book(ctx), c.report(ctx, "end", `{"model":"m","cached_tokens":0}`))
	}},
}

func ping(ctx context.Context, c *caller, _ []byte, _ []string) error { return c.redis.Ping(ctx).Err() }

// measure asks all kinds of calls about a prompt, in turn, by so many callers at a time.
func (s *server) measure(ctx context.Context, tokens, callers, calls, rounds int) (*times, error) {
	packed, names, err := s.prompt(ctx, tokens)
	if err != nil {
		return nil, err
	}
	plain := fmt.Appendf(nil, `{"model":"m","tokens_b64":%q}`, packed)
	const booking = `{"model":"m","reserve":true,"request_id":"`
	all := make([]*caller, callers)
	for i := range all {
		body := fmt.Appendf([]byte(booking), `r0000000000","tokens_b64":%q}`, packed)
		all[i] = &caller{server: s, body: body, id: body[len(booking):][:11]}
	}
	zero := func() map[string]time.Duration { return map[string]time.Duration{} }
	out := &times{zero(), zero(), zero(), zero(), map[string]float64{}}
	wall := map[string][]time.Duration{}
	for round := range rounds + 1 { // the first one warms up
		for _, k := range kinds {
			before, err := s.spent(ctx)
			if err != nil {
				return nil, err
			}
			took := make([]time.Duration, callers*(calls/callers))
			g, each := errgroup.Group{}, calls/callers
			for i, c := range all {
				g.Go(func() error {
					for j := range each {
						if k.first != nil {
							if err := k.first(ctx, c, plain); err != nil {
								return err
							}
						}
						began := time.Now()
						if err := k.call(ctx, c, plain, names); err != nil {
							return err
						}
						took[i*each+j] = time.Since(began)
					}
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				return nil, err
			}
			after, err := s.spent(ctx)
			if err != nil {
				return nil, err
			}
			for _, c := range all {
				if k.done != nil {
					if err := k.done(ctx, c); err != nil {
						return nil, err
					}
				}
			}
			if round > 0 {
				wall[k.name] = append(wall[k.name], took...)
				all := time.Duration(len(took) * rounds)
				out.cpu[k.name] += (after.server - before.server) / all
				out.redis[k.name] += (after.redis - before.redis) / all
				out.script[k.name] += (after.script - before.script) / all
				out.commands[k.name] += float64(after.commands-before.commands) / float64(all)
			}
		}
	}
	for name, all := range wall {
		out.wall[name] = traffic.Quantile(all, 0.5)
	}
	return out, nil
}

// spent is what the server and Redis have taken of a processor until now, and what Redis has done.
type spent struct {
	server, redis, script time.Duration
	commands              int
}

// spent reads what was spent until now. A script is a command, and so is each call in it.
func (s *server) spent(ctx context.Context) (out spent, err error) {
	if out.server, err = s.CPU(); err != nil {
		return out, err
	}
	info, err := s.redis.Info(ctx, "cpu", "commandstats").Result()
	out.redis = cputime.Redis(info)
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(line, ":")
		name, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok || name == "info" {
			continue
		}
		var calls, us int
		if _, err := fmt.Sscanf(rest, "calls=%d,usec=%d", &calls, &us); err != nil {
			return out, fmt.Errorf("INFO commandstats has %q: %w", line, err)
		}
		out.commands += calls
		if name == "evalsha" {
			out.script = time.Duration(us) * time.Microsecond
		}
	}
	return out, err
}
