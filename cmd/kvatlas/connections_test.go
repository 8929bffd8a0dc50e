package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestConnectionsAreTold goes through the life of a connection by a clock of its own.
func TestConnectionsAreTold(t *testing.T) {
	var out bytes.Buffer
	c := newConnections(zerolog.New(&out))
	now := time.Unix(1_800_000_000, 0)
	pass := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(time.Second) {
			c.look(now)
		}
	}
	lines := func(what string, n int, words ...string) {
		t.Helper()
		got := strings.Count(out.String(), "\n")
		if got != n {
			t.Errorf("%s: %d lines, want %d:\n%s", what, got, n, &out)
		}
		for _, w := range words {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: no %q in\n%s", what, w, &out)
			}
		}
		out.Reset()
	}
	s := ingest.Source{Pod: "p", Rank: 1, Events: "tcp://h:5557"}
	refused := errors.New("zmq: dial tcp h:5557: connect: connection refused")

	c.begun(s, now)
	c.disconnected("p", 1, refused, now)
	pass(4 * time.Second)
	lines("at first", 0)
	pass(2 * time.Second)
	lines("after the grace", 1, `"level":"warn"`, "cannot connect", "h:5557", `"error":"dial tcp h:5557: connect: connection refused"`, "--kv-events-config")
	pass(24 * time.Hour)
	// After 1, 2, 4, ... 32 minutes, then each hour.
	lines("in a day", 6+22)

	c.connected("p", 1, "10.0.0.1:5557", now)
	lines("back", 1, `"level":"info"`, "10.0.0.1:5557")
	pass(time.Hour)
	c.disconnected("p", 1, errors.New("EOF"), now)
	pass(2 * time.Second)
	c.connected("p", 1, "10.0.0.1:5557", now)
	pass(time.Hour)
	lines("a short interruption", 0)

	// One that ends each connection at once is as good as away, and costs no more lines.
	c.disconnected("p", 1, errors.New("EOF"), now)
	for range 3600 {
		pass(time.Second)
		c.connected("p", 1, "10.0.0.1:5557", now)
		c.disconnected("p", 1, errors.New("EOF"), now)
	}
	if n := strings.Count(out.String(), "\n"); n < 2 || n > 14 {
		t.Errorf("an hour of flapping: %d lines:\n%s", n, &out)
	}
	out.Reset()

	c.ended(s)
	c.disconnected("p", 1, refused, now)
	c.connected("p", 1, "x", now)
	pass(time.Hour)
	lines("of a rank that is not read", 0)

	s.Bind = true
	c.begun(s, now)
	pass(time.Minute)
	lines("where the engine connects", 1, "no engine has connected")
}

// TestUnreachableEngineIsTold has no engine at first.
func TestUnreachableEngineIsTold(t *testing.T) {
	t.Parallel() // it waits for seconds that no setting shortens
	endpoint := redistest.FreeEndpoint(t, 1)
	r := start(t, "--pods", "127.0.0.1:1?model=m&events="+endpoint)
	await := func(message string) map[string]any {
		t.Helper()
		return r.await(func() map[string]any { return r.logged(message) })
	}
	away := await(awayMessage(&ingest.Source{}))
	if text := fmt.Sprint(away["error"]); away["level"] != "warn" || away["events"] != endpoint || !strings.Contains(text, "connection refused") {
		t.Errorf("it says %v", away)
	}
	p := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: endpoint}))(t)
	t.Cleanup(func() { _ = p.Close() })
	if here := await("connected to the engine's events"); here["level"] != "info" || "tcp://"+fmt.Sprint(here["peer"]) != endpoint {
		t.Errorf("it says %v", here)
	}
}
