package steady_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/client/steady"
	"github.com/kvatlas/kvatlas/internal/must"
)

// server answers each call by the function, which gets its number from 1.
type server struct {
	*httptest.Server
	calls  atomic.Int64
	failed atomic.Int64
}

func newServer(t *testing.T, answer func(n int64, w http.ResponseWriter, r *http.Request)) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server notices that a caller has gone once it has read the body.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(s.calls.Add(1), w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) client(t *testing.T, cfg steady.Config) *steady.Client {
	t.Helper()
	plain := must.Get(client.New(client.Config{URL: s.URL}))(t)
	t.Cleanup(plain.Close)
	cfg.Client, cfg.Failed = plain, func(error) { s.failed.Add(1) }
	c := must.Get(steady.New(cfg))(t)
	return c
}

const (
	scored = `{"scores":{"a":1},"best":"a"}`
	routed = `{"pod":"a","rank":1}`
)

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

func TestRetries(t *testing.T) {
	s := newServer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n%3 != 0 {
			reply(w, http.StatusServiceUnavailable, `{"error":{"code":"overloaded","message":"later"}}`)
			return
		}
		reply(w, http.StatusOK, scored)
	})
	c := s.client(t, steady.Config{Timeout: time.Minute})
	if got := c.Score(t.Context(), client.ScoreRequest{Model: "m"}); got.Best != "a" || got.Degraded != nil || s.calls.Load() != 3 || s.failed.Load() != 0 {
		t.Errorf("got %+v after %d calls", got, s.calls.Load())
	}
	none := s.client(t, steady.Config{Timeout: time.Minute, Retries: -1})
	if got := none.Score(t.Context(), client.ScoreRequest{Model: "m"}); got.Degraded == nil || got.Degraded.Reason != steady.Unreachable || got.Scores == nil || s.calls.Load() != 4 || s.failed.Load() != 1 {
		t.Errorf("got %+v after %d calls", got, s.calls.Load())
	}
}

// TestBookingsHaveAName: a booking that is tried again finds what the first try has booked.
func TestBookingsHaveAName(t *testing.T) {
	var names []string
	s := newServer(t, func(n int64, w http.ResponseWriter, r *http.Request) {
		var body struct {
			ID string `json:"request_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		names = append(names, body.ID)
		if n == 1 {
			panic(http.ErrAbortHandler) // booked, and the answer is lost
		}
		reply(w, http.StatusOK, routed)
	})
	c := s.client(t, steady.Config{Timeout: time.Minute})
	got, err := c.Route(t.Context(), client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "m"}, Reserve: true})
	if err != nil || got.Place != (client.Place{Pod: "a", Rank: 1}) || len(names) != 2 || names[0] == "" || names[0] != names[1] {
		t.Errorf("got %+v, %v, names %q", got, err, names)
	}
}

// TestHedge: the second call answers while the first hangs, and the first is given up.
func TestHedge(t *testing.T) {
	gaveUp := make(chan struct{})
	s := newServer(t, func(n int64, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			<-r.Context().Done()
			close(gaveUp)
			return
		}
		reply(w, http.StatusOK, scored)
	})
	c := s.client(t, steady.Config{Timeout: time.Minute, HedgeAfter: time.Millisecond})
	if got := c.Score(t.Context(), client.ScoreRequest{Model: "m"}); got.Best != "a" || s.calls.Load() != 2 {
		t.Errorf("got %+v after %d calls", got, s.calls.Load())
	}
	<-gaveUp
}

// TestFallsOpen: whatever fails, a request gets one of the places that are given, in turn.
func TestFallsOpen(t *testing.T) {
	places := []client.Place{{Pod: "a"}, {Pod: "b"}, {Pod: "c", Rank: 1}}
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"an error":       func(w http.ResponseWriter, _ *http.Request) { reply(w, 500, `{}`) },
		"a wrong field":  func(w http.ResponseWriter, _ *http.Request) { reply(w, 400, `{"error":{"code":"unknown_field"}}`) },
		"no JSON":        func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, `<html>`) },
		"a hanging call": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		s := newServer(t, func(_ int64, w http.ResponseWriter, r *http.Request) { answer(w, r) })
		c := s.client(t, steady.Config{Timeout: 20 * time.Millisecond})
		for i := range 4 {
			got, err := c.Route(t.Context(), client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "m"}, Reserve: true}, places...)
			if err != nil || got.Place != places[i%3] || len(got.Fallbacks) != 2 || got.Fallbacks[0] != places[(i+1)%3] || got.Reservation != "" || got.Degraded.Reason != steady.Unreachable {
				t.Errorf("%s: got %+v, %v", name, got, err)
			}
		}
		if s.failed.Load() != 4 {
			t.Errorf("%s: %d failures were told", name, s.failed.Load())
		}
		if _, err := c.Route(t.Context(), client.RouteRequest{}); err == nil {
			t.Errorf("%s: no place is given, and no error", name)
		}
	}
}

// TestDecisions: that no pod may take a request, or none has room, is an answer.
func TestDecisions(t *testing.T) {
	for code, status := range map[string]int{"no_pod": 404, "pods_busy": 503} {
		s := newServer(t, func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			reply(w, status, `{"error":{"code":"`+code+`","message":"no"}}`)
		})
		_, err := s.client(t, steady.Config{}).Route(t.Context(), client.RouteRequest{}, client.Place{Pod: "a"})
		if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Code != code || s.calls.Load() != 1 || s.failed.Load() != 0 {
			t.Errorf("%s: got %v after %d calls", code, err, s.calls.Load())
		}
	}
}

// TestBudget: of the calls under way to a server that refuses all, a tenth, and 3, are retries at most. The other
// callers get the error at once.
func TestBudget(t *testing.T) {
	const callers, most = 200, 200/10 + 3
	var all sync.WaitGroup
	all.Add(callers)
	var retries, ended, held atomic.Int64
	settled := make(chan struct{})
	settle := sync.OnceFunc(func() {
		held.Store(retries.Load())
		close(settled)
	})
	step := func(n *atomic.Int64) {
		if n.Add(1); retries.Load()+ended.Load() >= callers {
			settle()
		}
	}
	s := newServer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n <= callers { // all are under way before the first one is refused
			all.Done()
			all.Wait()
		} else {
			step(&retries)
			<-settled // each caller has ended, or is here with a retry
		}
		reply(w, http.StatusServiceUnavailable, `{"error":{"code":"overloaded"}}`)
	})
	c := s.client(t, steady.Config{Timeout: time.Minute, Retries: 5, Budget: 0.1})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			c.Score(context.Background(), client.ScoreRequest{Model: "m"})
			step(&ended)
		})
	}
	<-settled
	if n := held.Load(); n > most || n == 0 {
		t.Errorf("%d of %d calls are retries, at most %d", n, callers, most)
	}
	wg.Wait()
	if s.failed.Load() != callers {
		t.Errorf("%d failures for %d callers", s.failed.Load(), callers)
	}
}

func TestReports(t *testing.T) {
	s := newServer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n%2 == 1 {
			reply(w, http.StatusBadGateway, "")
			return
		}
		reply(w, http.StatusOK, `{"known":true,"pod":"a"}`)
	})
	c := s.client(t, steady.Config{})
	cached := 1
	for name, report := range map[string]func() (*client.Report, error){
		"done":   func() (*client.Report, error) { return c.Done(t.Context(), "m", "r", &cached) },
		"output": func() (*client.Report, error) { return c.Output(t.Context(), "m", "r", 1) },
		"end":    func() (*client.Report, error) { return c.End(t.Context(), "m", "r") },
		"settle": func() (*client.Report, error) { return c.Settle(t.Context(), "m", "r", 1) },
	} {
		if got, err := report(); err != nil || !got.Known {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if s.calls.Load() != 8 {
		t.Errorf("%d calls", s.calls.Load())
	}
}

func TestConfig(t *testing.T) {
	plain := must.Get(client.New(client.Config{URL: "http://127.0.0.1:1"}))(t)
	for name, cfg := range map[string]steady.Config{"no client": {}, "budget": {Client: plain, Budget: 2}, "timeout": {Client: plain, Timeout: -1}} {
		if _, err := steady.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
