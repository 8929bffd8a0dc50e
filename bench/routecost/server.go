package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
	ids   int
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

// measure asks all kinds of calls about a prompt, in turn.
func (s *server) measure(ctx context.Context, tokens, calls, rounds int) (*times, error) {
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(tokens + i)
	}
	err := s.post(ctx, "/v1/blocks", fmt.Appendf(nil, `{"op":"add","model":"m","pod":"10.0.0.3:8000","tokens_b64":%q}`, traffic.Packed(ids[:tokens/2])))
	if err != nil {
		return nil, err
	}
	plain := fmt.Appendf(nil, `{"model":"m","tokens_b64":%q}`, traffic.Packed(ids))
	booked := fmt.Appendf(nil, `{"model":"m","reserve":true,"request_id":"r0000000000","tokens_b64":%q}`, traffic.Packed(ids))
	id := booked[bytes.Index(booked, []byte("r0"))+1:][:10] // is written over: a long body is not built for each call
	names := make([]string, len(blockkey.AppendNative(nil, ids, 64, blockkey.NativeSeed("", ""))))
	for i := range names {
		names[i] = fmt.Sprintf("of the benchmark:%d:%d", tokens, i)
		if err := s.redis.Set(ctx, names[i], "17", 0).Err(); err != nil {
			return nil, err
		}
	}
	report := func(id int, kind string) error {
		return s.post(ctx, fmt.Sprintf("/v1/requests/r%010d/%s", id, kind), []byte(`{"model":"m"}`))
	}
	settle := func(id int) error {
		return s.post(ctx, fmt.Sprintf("/v1/requests/r%010d/end", id), []byte(`{"model":"m","cached_tokens":0}`))
	}
	book := func() error {
		s.ids++
		copy(id, fmt.Sprintf("%010d", s.ids))
		return s.post(ctx, "/v1/route", booked)
	}
	kinds := []struct {
		name  string
		call  func() error
		after func(calls int) error // of all calls of a round, not measured
	}{
		{"ping", func() error { return s.redis.Ping(ctx).Err() }, nil},
		{"mget", func() error { return s.redis.MGet(ctx, names...).Err() }, nil},
		{"score", func() error { return s.post(ctx, "/v1/score", plain) }, nil},
		{"query", func() error { return s.post(ctx, "/v1/route", plain) }, nil},
		{"reserve", book, func(calls int) (err error) {
			for id := s.ids; id > s.ids-calls; id-- {
				err = errors.Join(err, report(id, "end"))
			}
			return err
		}},
		{"whole", func() error { return errors.Join(book(), report(s.ids, "done"), report(s.ids, "end")) }, nil},
		{"settled", func() error { return errors.Join(book(), settle(s.ids)) }, nil},
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
			var took []time.Duration
			for range calls {
				began := time.Now()
				if err := k.call(); err != nil {
					return nil, err
				}
				took = append(took, time.Since(began))
			}
			after, err := s.spent(ctx)
			if err != nil {
				return nil, err
			}
			if k.after != nil {
				if err := k.after(calls); err != nil {
					return nil, err
				}
			}
			if round > 0 {
				wall[k.name] = append(wall[k.name], took...)
				each := time.Duration(calls * rounds)
				out.cpu[k.name] += (after.server - before.server) / each
				out.redis[k.name] += (after.redis - before.redis) / each
				out.script[k.name] += (after.script - before.script) / each
				out.commands[k.name] += float64(after.commands-before.commands) / float64(each)
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
