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
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/bench/internal/proc"
)

// front is what stands in front of the engine, or the engine itself, with what was measured.
type front struct {
	name, url string
	cmd       *exec.Cmd // nil of the engine
	engine    *exec.Cmd
	client    *http.Client
	sent      int

	alone, parts   times
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
	newFront := func(name string, n int) *front {
		f := &front{name: name, url: "http://" + at(n), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
		all = append(all, f)
		return f
	}
	start := func(program string, args ...string) (*exec.Cmd, error) {
		cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) //nolint:gosec // the programs are the user's to choose
		cmd.Stderr = os.Stderr
		err := cmd.Start()
		return cmd, err
	}
	engine := newFront("engine", 0)
	if engine.engine, err = start(self, "engine", at(0)); err != nil {
		return all, err
	}
	if err := engine.await(ctx); err != nil {
		return all, err
	}
	bare := newFront("bare", 1)
	if bare.cmd, err = start(self, "bare", at(1), at(0)); err != nil {
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
		f := newFront("haproxy", 2)
		if f.cmd, err = start(o.haproxy, "-db", "-q", "-f", file); err != nil {
			return all, err
		}
		if err := f.await(ctx); err != nil {
			return all, err
		}
	}
	kv := newFront("kvatlas", 3)
	kv.cmd, err = start(o.kvatlas, "gateway", "--pods", at(0), "--gateway-listen", at(3), "--listen", at(4), "--log-level", "error", "--hub-offline", "--drain-delay", "0s")
	if err != nil {
		return all, err
	}
	return all, errors.Join(bare.await(ctx), kv.await(ctx))
}

// await waits until requests are answered.
func (f *front) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := f.ask(ctx, `{"model":"m","max_tokens":1,"prompt":[1]}`); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("no request is answered within 30 s")
		case <-tick.C:
		}
	}
}

func (f *front) stop() {
	for _, cmd := range []*exec.Cmd{f.cmd, f.engine} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it says that it was killed
		}
	}
}

// usage is what the front has taken so far.
func (f *front) usage() (u proc.Usage, err error) {
	if f.cmd != nil {
		u, err = proc.Read(f.cmd.Process.Pid)
	}
	return u, err
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
	before, err := f.usage()
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
	after, err := f.usage()
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
func (f *front) stream(ctx context.Context, body string, o *options) (late times, err error) {
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
