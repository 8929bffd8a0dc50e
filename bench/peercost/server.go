package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/bench"
	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/internal/cputime"
)

// side is a server that is asked: a process of each round and, of ours in Redis mode, the Redis
// behind it.
type side struct {
	*proc.Process
	name, program string
	path          string // of its probe
	probe         request
	// args are those of the program, which is to listen at an address. redisURL is of the round's Redis.
	args  func(host, port, redisURL string) []string
	redis *redis.Client // nil without Redis
}

// sides are all servers.
type sides struct{ indexer, selection, memory, small, redis *side }

func (s *sides) all() []*side {
	return []*side{s.indexer, s.selection, s.memory, s.small, s.redis}
}

func newSides(o *options) *sides {
	theirs := func(name, what string) *side {
		return &side{name: name, program: o.peer, path: "/health", args: func(_, port, _ string) []string { return []string{what, port} }}
	}
	ours := func(name string, more ...string) *side {
		return &side{name: name, program: o.kvatlas, path: "/healthz", args: func(host, port, _ string) []string {
			return append([]string{"serve", "--listen", host + ":" + port}, more...)
		}}
	}
	s := &sides{
		indexer: theirs(dynamoIndexer, "indexer"), selection: theirs(dynamoSelection, "selection"),
		memory: ours(oursMemory), small: ours(oursSmall, "--block-size", "16"), redis: ours(oursRedis),
	}
	s.redis.args = func(host, port, url string) []string {
		return []string{"serve", "--listen", host + ":" + port, "--redis", url}
	}
	for _, x := range s.all() {
		x.probe = newRequest(http.MethodGet, x.path, "", nil)
	}
	return s
}

// start starts all servers. stop, which is never nil, ends them.
func (s *sides) start(ctx context.Context, o *options) (stop func() error, err error) {
	var ends []func() error
	stop = func() (err error) {
		for _, end := range slices.Backward(ends) {
			err = errors.Join(err, end())
		}
		return err
	}
	started, err := bench.Start(ctx, o.redis, 1)
	if err != nil {
		return stop, err
	}
	ends = append(ends, started.Close)
	at, err := redis.ParseURL(started.URL)
	if err != nil {
		return stop, err
	}
	s.redis.redis = redis.NewClient(at)
	ends = append(ends, s.redis.redis.Close)
	for _, x := range s.all() {
		if err := x.start(ctx, started.URL); err != nil {
			return stop, err
		}
		ends = append(ends, func() error { x.Stop(); return nil })
	}
	return stop, nil
}

// start starts the side's program and waits until its probe answers.
func (s *side) start(ctx context.Context, redisURL string) error {
	address, err := proc.FreeAddress(ctx)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	s.Process, err = proc.Start(ctx, address, proc.Answers("http://"+address+s.path), s.program, s.args(host, port, redisURL)...)
	return err
}

// connect opens connections, on each of which the probe has been answered.
func (s *side) connect(ctx context.Context, n int) (out []*traffic.Conn, err error) {
	for range n {
		c, err := traffic.Dial(ctx, s.Address)
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, c)
		if _, err := c.Ask(s.probe.before); err != nil {
			closeAll(out)
			return nil, err
		}
	}
	return out, nil
}

// post posts JSON, in no measured call, and returns the answer.
func (s *side) post(ctx context.Context, path, body string) ([]byte, error) {
	r := newRequest(http.MethodPost, path, jsonKind, []byte(body))
	c, err := traffic.Dial(ctx, s.Address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	answer, err := c.Ask(r.before)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.name, path, err)
	}
	return answer, nil
}

// spent is what the process, and Redis behind it, have taken of a processor.
func (s *side) spent(ctx context.Context) (own, behind time.Duration, err error) {
	if s.redis != nil {
		info, err := s.redis.Info(ctx, "cpu").Result()
		if err != nil {
			return 0, 0, err
		}
		behind = cputime.Redis(info)
	}
	own, err = s.CPU()
	return own, behind, err
}

// register makes a pod of each of the publishers: an engine of 16-token blocks that serves a model.
func (s *side) register(ctx context.Context, model string, first int, endpoints []string) error {
	for i, at := range endpoints {
		id := strconv.Itoa(first + i)
		var err error
		switch s.name {
		case dynamoIndexer:
			_, err = s.post(ctx, "/register", `{"instance_id":`+id+`,"endpoint":"`+at+`","model_name":"`+model+`","block_size":16}`)
		case dynamoSelection:
			_, err = s.post(ctx, "/workers", `{"worker_id":`+id+`,"model_name":"`+model+`","endpoint":"http://10.0.0.1:80`+id+
				`","kv_events_endpoint":"`+at+`","block_size":16,"max_num_batched_tokens":8192,"total_kv_blocks":1000000}`)
		default:
			_, err = s.post(ctx, "/v1/pods", `{"name":"pod-`+id+`","model":"`+model+`","engine":"vllm","block_size":16,"events":"`+at+`"}`)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
