package enginetest

import (
	"cmp"
	_ "embed"
	"strconv"
	"testing"
	"time"
)

//go:embed publisher.py
var publisherScript string

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
	// OldReplay leaves the topic out of replies (plain libzmq only; releases are as
	// they are).
	OldReplay bool
	// CurveSecret is the secret key of a server behind CURVE in Z85 (plain only).
	CurveSecret string
}

// Publisher is a running publisher. Its methods are for one goroutine.
type Publisher struct{ *process }

// Event is an event in the names that engines use.
type Event map[string]any

// Start runs a publisher until the test ends or Kill is called.
func Start(tb testing.TB, o Options) *Publisher {
	tb.Helper()
	engine := o.Release.Engine
	engine = cmp.Or(engine, "plain")
	args := []string{"--engine", engine, "--endpoint", o.Endpoint, "--rank", strconv.Itoa(o.Rank)}
	if o.Release.Engine != "" {
		args = append(args, "--module", module(tb, o.Release))
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
	if o.OldReplay {
		args = append(args, "--old-replay")
	}
	return &Publisher{startProcess(tb, o.Release.String(), loadScript+publisherScript, args)}
}

// Publish publishes a batch. Flush says when it is on the wire.
func (p *Publisher) Publish(ts float64, events ...Event) {
	p.tb.Helper()
	p.tell(map[string]any{"op": "publish", "ts": ts, "events": append([]Event{}, events...)})
}

// Generate publishes a load of stored blocks and returns when it is on the wire. The
// rate is in messages a second, 0 as fast as it goes.
func (p *Publisher) Generate(messages, blocks, blockSize, rate int) {
	p.tb.Helper()
	p.ask(map[string]any{"op": "generate", "messages": messages, "blocks": blocks, "block_size": blockSize, "rate": rate}, 5*time.Minute, nil)
}

// Flush waits until all is on the wire and returns the sequence that comes next.
func (p *Publisher) Flush() uint64 {
	p.tb.Helper()
	var r struct{ Next uint64 }
	p.ask(map[string]any{"op": "flush"}, time.Minute, &r)
	return r.Next
}

// Burn makes the publisher lose a batch together with its number.
func (p *Publisher) Burn() {
	p.tb.Helper()
	p.ask(map[string]any{"op": "burn"}, time.Minute, nil)
}

// Cut makes each replay lose what comes after some messages, and its end if so; below
// 0 they are whole again.
func (p *Publisher) Cut(after int, end bool) {
	p.tb.Helper()
	p.ask(map[string]any{"op": "cut", "after": after, "end": end}, time.Minute, nil)
}
