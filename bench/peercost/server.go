package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
	"github.com/kvatlas/kvatlas/bench/internal/traffic"
	"github.com/kvatlas/kvatlas/internal/cputime"
)

// side is a server that is asked: a process and, of ours in Redis mode, the Redis behind it.
type side struct {
	*proc.Process
	name  string
	probe request
	redis *redis.Client // nil without Redis
}

// startSide starts a program and waits until its probe answers. args gets the address that the
// program is to listen at.
func startSide(ctx context.Context, name, program, probe string, args func(host, port string) []string) (_ *side, err error) {
	address, err := proc.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	s := &side{name: name, probe: newRequest(http.MethodGet, probe, "", nil)}
	s.Process, err = proc.Start(ctx, address, proc.Answers("http://"+address+probe), program, args(host, port)...)
	return s, err
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
