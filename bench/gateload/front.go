package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// engineFront is the name of the engine itself, whose figures are not those of a front.
const engineFront = "engine"

// front is what stands in front of the engine, or the engine itself, with what was measured.
type front struct {
	name, url string
	process   *proc.Process
	client    *http.Client
	sent      int

	alone, parts   []time.Duration
	cpu, streamCPU time.Duration
	peak           int64
}

// startFronts starts the engine and all that stand in front of it.
func startFronts(ctx context.Context, o *options) (all []*front, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	at := func(n int) string { return "127.0.0.1:" + strconv.Itoa(o.port+n) }
	start := func(name string, n int, program string, args ...string) error {
		f := &front{name: name, url: "http://" + at(n), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
		f.process, err = proc.Start(ctx, at(n), func(ctx context.Context) error { return f.ask(ctx, `{"model":"m","max_tokens":1,"prompt":[1]}`) }, program, args...)
		if err == nil {
			all = append(all, f)
		}
		return err
	}
	if err := errors.Join(start(engineFront, 0, self, "engine", at(0)), start("bare", 1, self, "bare", at(1), at(0))); err != nil {
		return all, err
	}
	if o.haproxy != "" {
		dir, err := os.MkdirTemp("", "gateload")
		if err != nil {
			return all, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		file := filepath.Join(dir, "haproxy.cfg")
		text := fmt.Sprintf("global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n  option forwardfor\n  option http-no-delay\nlisten all\n  bind %s\n  server e %s\n", at(2), at(0))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return all, err
		}
		if err := start("haproxy", 2, o.haproxy, "-db", "-q", "-f", file); err != nil {
			return all, err
		}
	}
	return all, start("kvatlas", 3, o.kvatlas, "gateway", "--pods", at(0), "--gateway-listen", at(3), "--listen", at(4), "--log-level", "error", "--hub-offline", "--drain-delay", "0s")
}

// measure is one turn.
func (f *front) measure(ctx context.Context, o *options) error {
	for range o.requests / 10 {
		f.sent++
		body := prompt(o, f.sent, false)
		start := time.Now()
		if err := f.ask(ctx, body); err != nil {
			return err
		}
		f.alone = append(f.alone, time.Since(start))
	}
	cpu, err := f.count(o, o.requests, func(n int) error { return f.ask(ctx, prompt(o, n, false)) })
	f.cpu += cpu
	if err != nil {
		return err
	}
	var mu sync.Mutex // protects parts
	cpu, err = f.count(o, o.streams, func(n int) error {
		late, err := f.stream(ctx, prompt(o, n, true), o)
		mu.Lock()
		defer mu.Unlock()
		f.parts = append(f.parts, late...)
		return err
	})
	f.streamCPU += cpu
	return err
}

// count does something n times, o.together at a time, and returns the CPU time of the front.
func (f *front) count(o *options, n int, do func(n int) error) (time.Duration, error) {
	before, err := f.process.Usage()
	if err != nil {
		return 0, err
	}
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, o.together)
	var all sync.WaitGroup
	first := f.sent
	for i := range o.together {
		all.Go(func() {
			for errs[i] == nil {
				k := left.Add(-1)
				if k < 0 {
					return
				}
				errs[i] = do(first + n - int(k))
			}
		})
	}
	all.Wait()
	f.sent += n
	after, err := f.process.Usage()
	f.peak = after.Peak
	return after.CPU - before.CPU, errors.Join(errors.Join(errs...), err)
}

func (f *front) post(ctx context.Context, body string, pause time.Duration) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Pause", pause.String())
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("status %d", resp.StatusCode), resp.Body.Close())
	}
	return resp, nil
}

// ask sends a request and reads its answer.
func (f *front) ask(ctx context.Context, body string) error {
	resp, err := f.post(ctx, body, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// stream reads a stream and returns how long after the engine had sent it each part came.
func (f *front) stream(ctx context.Context, body string, o *options) (late []time.Duration, err error) {
	resp, err := f.post(ctx, body, o.pause)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		now := time.Now().UnixNano()
		if _, sent, ok := bytes.Cut(s.Bytes(), []byte(`"sent":`)); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSuffix(sent, []byte("}"))), 10, 64)
			if err != nil {
				return nil, err
			}
			late = append(late, time.Duration(now-n))
		}
	}
	if len(late) != o.pieces {
		return nil, fmt.Errorf("%d parts of %d: %w", len(late), o.pieces, s.Err())
	}
	return late, nil
}
