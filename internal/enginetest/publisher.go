package enginetest

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

// DirVariable is the environment variable that names another folder than
// .cache/engines of the checkout.
const DirVariable = "KVATLAS_TEST_ENGINES"

//go:embed publisher.py
var script string

// Release is a release of an engine. The zero Release is plain libzmq.
type Release struct{ Engine, Version string }

// String is the engine and its version.
func (r Release) String() string {
	if r.Engine == "" {
		return "libzmq"
	}
	return r.Engine + "-" + r.Version
}

// Releases are those that fetch-engines.sh prepares. Each has another form of events
// or of replay than the one before.
var Releases = []Release{
	{"vllm", "0.9.0"}, {"vllm", "0.11.0"}, {"vllm", "0.22.0"}, {"vllm", "0.24.0"}, {"vllm", "0.33.0"},
	{"sglang", "0.5.16"}, {"sglang", "0.5.23"},
}

// Options are those of a publisher. Zero values are the engines' defaults.
type Options struct {
	// Release is whose code publishes.
	Release Release
	// Endpoint and Replay are where; * as the host binds.
	Endpoint, Replay string
	Topic            string
	Rank             int
	// BufferSteps is how many messages can be replayed; 0 is 10,000.
	BufferSteps int
	// HWM is how many messages wait for a slow reader; 0 is 100,000.
	HWM int
	// OldReplay leaves the topic out of replies (plain libzmq only; releases are as
	// they are).
	OldReplay bool
	// CurveSecret is the secret key of a server behind CURVE in Z85 (plain only).
	CurveSecret string
}

// Publisher is a running publisher. Its methods are for one goroutine.
type Publisher struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  *bufio.Writer
	inC io.Closer
	out *bufio.Reader
	end sync.Once
}

// Event is an event in the names that engines use.
type Event map[string]any

// dir is where fetch-engines.sh has put things.
func dir() string {
	if d := os.Getenv(DirVariable); d != "" {
		return d
	}
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", ".cache", "engines")
}

// Python returns the interpreter that has pyzmq.
func Python(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("real publishers are left out of -short runs")
	}
	python := filepath.Join(dir(), "venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		tb.Fatalf("%v\nThese tests need the publishers of real engines: `make test` prepares them (scripts/fetch-engines.sh does only that); -short leaves these tests out.", err)
	}
	return python
}

// Start runs a publisher until the test ends or Kill is called.
func Start(tb testing.TB, o Options) *Publisher {
	tb.Helper()
	python := Python(tb)
	engine := o.Release.Engine
	if engine == "" {
		engine = "plain"
	}
	args := []string{"-c", script, "--engine", engine, "--endpoint", o.Endpoint, "--rank", strconv.Itoa(o.Rank)}
	if o.Release.Engine != "" {
		module := filepath.Join(dir(), o.Release.String())
		if _, err := os.Stat(module); err != nil {
			tb.Fatalf("%v\nscripts/fetch-engines.sh prepares it", err)
		}
		args = append(args, "--module", module)
	}
	for _, a := range [][2]string{{"--replay", o.Replay}, {"--topic", o.Topic}, {"--curve-secret", o.CurveSecret}} {
		if a[1] != "" {
			// In one word: keys may begin with a dash.
			args = append(args, a[0]+"="+a[1])
		}
	}
	if o.BufferSteps > 0 {
		args = append(args, "--buffer-steps", strconv.Itoa(o.BufferSteps))
	}
	if o.HWM > 0 {
		args = append(args, "--hwm", strconv.Itoa(o.HWM))
	}
	if o.OldReplay {
		args = append(args, "--old-replay")
	}
	p := &Publisher{tb: tb, cmd: exec.CommandContext(context.Background(), python, args...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p.inC, p.in, p.out = in, bufio.NewWriterSize(in, 1<<20), bufio.NewReader(out)
	tb.Cleanup(p.Kill)
	if r := p.answer(60 * time.Second); r["ready"] != true {
		tb.Fatalf("the publisher of %s says %v", o.Release, r)
	}
	return p
}

// Kill ends the process at once, as a crash does.
func (p *Publisher) Kill() {
	p.end.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.inC.Close()
		_ = p.cmd.Wait()
	})
}

// Pid is the process, for signals.
func (p *Publisher) Pid() int { return p.cmd.Process.Pid }

// Publish publishes a batch. Flush says when it is on the wire.
func (p *Publisher) Publish(ts float64, events ...Event) {
	p.tb.Helper()
	p.tell(map[string]any{"op": "publish", "ts": ts, "events": append([]Event{}, events...)})
}

// PublishAs is Publish of a batch that names another rank (plain only).
func (p *Publisher) PublishAs(rank int, ts float64, events ...Event) {
	p.tb.Helper()
	p.tell(map[string]any{"op": "publish", "ts": ts, "events": append([]Event{}, events...), "rank": rank})
}

// Generate publishes a load of stored blocks and returns when it is on the wire.
// rate is in messages a second, 0 as fast as it goes.
func (p *Publisher) Generate(messages, blocks, blockSize, rate int) {
	p.tb.Helper()
	p.ask(map[string]any{"op": "generate", "messages": messages, "blocks": blocks, "block_size": blockSize, "rate": rate}, 5*time.Minute)
}

// Flush waits until all is on the wire and returns the sequence that comes next.
func (p *Publisher) Flush() uint64 {
	p.tb.Helper()
	n, _ := p.ask(map[string]any{"op": "flush"}, time.Minute)["next"].(float64)
	return uint64(n)
}

// Burn makes the publisher lose a batch together with its number.
func (p *Publisher) Burn() {
	p.tb.Helper()
	p.ask(map[string]any{"op": "burn"}, time.Minute)
}

// Cut makes each replay lose what comes after some messages, and its end if so; below
// 0 they are whole again.
func (p *Publisher) Cut(after int, end bool) {
	p.tb.Helper()
	p.ask(map[string]any{"op": "cut", "after": after, "end": end}, time.Minute)
}

func (p *Publisher) tell(command any) {
	p.tb.Helper()
	line, err := json.Marshal(command)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.tb.Fatalf("publisher: %v", err)
	}
}

func (p *Publisher) ask(command any, within time.Duration) map[string]any {
	p.tb.Helper()
	p.tell(command)
	if err := p.in.Flush(); err != nil {
		p.tb.Fatalf("publisher: %v", err)
	}
	return p.answer(within)
}

func (p *Publisher) answer(within time.Duration) map[string]any {
	p.tb.Helper()
	type read struct {
		line []byte
		err  error
	}
	ch := make(chan read, 1)
	go func() {
		line, err := p.out.ReadBytes('\n')
		ch <- read{line, err}
	}()
	var r read
	select {
	case r = <-ch:
	case <-time.After(within):
		_ = p.cmd.Process.Kill()
		<-ch
		r.err = fmt.Errorf("no answer within %v", within)
	}
	var m map[string]any
	if r.err == nil {
		r.err = json.Unmarshal(r.line, &m)
	}
	if r.err == nil && m["error"] != nil {
		r.err = errors.New(fmt.Sprint(m["error"]))
	}
	if r.err != nil {
		p.tb.Fatalf("publisher: %v", r.err)
	}
	return m
}
