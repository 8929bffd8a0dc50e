package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// heldEngine is an engine whose streams have a part for each send on next, and end when it is
// closed. Channel begun gets one for each stream that has begun.
type heldEngine struct {
	*httptest.Server
	next  chan struct{}
	begun chan struct{}
}

func holdStreams(t *testing.T) *heldEngine {
	t.Helper()
	e := &heldEngine{next: make(chan struct{}), begun: make(chan struct{}, 100)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
			return
		case "/v1/completions":
		default:
			http.NotFound(w, r)
			return
		}
		b, _ := io.ReadAll(r.Body)
		if !bytes.Contains(b, []byte(`"stream":true`)) {
			_, _ = io.WriteString(w, `{"choices":[{"text":"done"}]}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		part := func() error {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"word\"}]}\n\n")
			return http.NewResponseController(w).Flush()
		}
		if part() != nil {
			return
		}
		e.begun <- struct{}{}
		for {
			select {
			case _, more := <-e.next:
				if !more {
					_, _ = io.WriteString(w, "data: [DONE]\n\n")
					return
				}
				_ = part()
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// startStreams has so many streams begin at a gateway, and sends what each of them was in the
// end, or what it was cut with.
func startStreams(t *testing.T, g *gatewayProcess, e *heldEngine, n int) <-chan string {
	t.Helper()
	ended := make(chan string, n)
	for i := range n {
		go func() {
			resp, err := http.Post(g.gateway+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","stream":true,"prompt":[%d,1,2,3]}`, i)))
			if err != nil {
				ended <- err.Error()
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				ended <- err.Error()
				return
			}
			ended <- string(b)
		}()
	}
	for range n {
		select {
		case <-e.begun:
		case <-time.After(patience):
			t.Fatalf("streams have not begun\n%s", g.log)
		}
	}
	return ended
}

// A gateway that gets a signal to end breaks no stream. At once its /health says that it is draining. It accepts
// requests until its drain delay is over, then none, and exits with the last answer.
func TestGatewayDrains(t *testing.T) {
	e := holdStreams(t)
	g := startGateway(t, 1, "--pods="+strings.TrimPrefix(e.URL, "http://"), "--pods-metrics=false", "--drain-delay=5s", "--log-level=info")
	const streams, parts = 8, 5
	ended := startStreams(t, g, e, streams)
	// Connections that are kept for the next request, as load balancers have them.
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	t.Cleanup(kept.CloseIdleConnections)
	ask := func(c *http.Client) (int, error) {
		resp, err := c.Post(g.gateway+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":[1,2,3]}`))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	if status, err := ask(kept); status != http.StatusOK || err != nil {
		t.Fatal(status, err)
	}
	must.OK(t, g.cmd.Process.Signal(syscall.SIGTERM))
	awaitThat(t, "it says that it drains", g.log, func() bool { return strings.Contains(g.log.String(), `"draining"`) })
	if status, _ := get(t, g.gateway+"/health"); status != http.StatusServiceUnavailable {
		t.Errorf("/health of a gateway that drains: %d", status)
	}
	if status, err := ask(kept); status != http.StatusOK || err != nil {
		t.Errorf("a request before load balancers have looked elsewhere: %d %v", status, err)
	}
	awaitThat(t, "new requests are refused", g.log, func() bool {
		_, err := ask(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}})
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if status, err := ask(kept); err == nil {
		t.Errorf("a request on a connection that was kept: %d", status)
	}
	for range parts * streams {
		select {
		case e.next <- struct{}{}:
		case <-time.After(patience):
			t.Fatalf("no stream takes a part\n%s", g.log)
		}
	}
	exited := make(chan error, 1)
	go func() { exited <- g.cmd.Wait() }()
	select {
	case err := <-exited:
		t.Fatalf("it ends while streams run: %v\n%s", err, g.log)
	default:
	}
	close(e.next)
	got := 0
	for range streams {
		b := <-ended
		if got += strings.Count(b, "word"); !strings.HasSuffix(b, "data: [DONE]\n\n") {
			t.Errorf("a stream is %q", b)
		}
	}
	if got != streams*(parts+1) {
		t.Errorf("%d parts have come, %d were sent", got, streams*(parts+1))
	}
	if err := <-exited; err != nil {
		t.Errorf("after the last answer: %v\n%s", err, g.log)
	}
}

// Streams that outlast the drain timeout are cut, and the exit status says so.
func TestGatewayDrainTimeout(t *testing.T) {
	e := holdStreams(t)
	g := startGateway(t, 1, "--pods="+strings.TrimPrefix(e.URL, "http://"), "--pods-metrics=false", "--drain-timeout=1s", "--log-level=info")
	ended := startStreams(t, g, e, 3)
	must.OK(t, g.cmd.Process.Signal(syscall.SIGTERM))
	var exit *exec.ExitError
	if err := g.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v\n%s", err, g.log)
	}
	for range 3 {
		if b := <-ended; strings.Contains(b, "word") {
			t.Errorf("a stream that was cut looks whole: %q", b)
		}
	}
}

// An engine that is slow, and not ill, keeps what it works on. The answers come late, it is not ejected, and
// other engines get what comes next.
func TestGatewaySlowEngine(t *testing.T) {
	f := startEngines(t, 3, func(c *wire.Config) { c.Speed = 5 })
	g := startGateway(t, 3, f.setting(), "--log-level=info")
	const slow, together, requests = 0, 6, 120
	must.OK(t, f.pods[slow].Apply(wire.Fault{Kind: wire.Throttle, Factor: 100}))
	type answer struct {
		pod, body string
		err       error
	}
	turns, answers := make(chan int), make(chan answer, requests)
	for range together {
		go func() {
			for i := range turns {
				var a answer
				resp, err := http.Post(g.gateway+"/v1/completions", "application/json", strings.NewReader(ids(1000*i, 300, `,"stream":true`)))
				if a.err = err; err == nil {
					var b []byte
					b, a.err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					a.pod, a.body = resp.Header.Get("X-Kvatlas-Pod"), string(b)
				}
				answers <- a
			}
		}()
	}
	go func() {
		defer close(turns)
		for i := range requests {
			turns <- i
		}
	}()
	n := map[string]int{}
	for range requests {
		a := <-answers
		if a.err != nil || strings.Count(a.body, "data: {") < 3 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
			t.Errorf("from %s: %q, %v", a.pod, a.body, a.err)
		}
		n[a.pod]++
	}
	own := n[f.pods[slow].Address()]
	t.Logf("%d of %d requests were at the slow engine", own, requests)
	if own == 0 || own > requests/6 {
		t.Errorf("%d of %d requests were at the slow engine, of three: %v", own, requests, n)
	}
	if log := g.log.String(); strings.Contains(log, "gets no requests until") || g.figure(t, "kvatlas_gateway_retries_total") != "0" {
		t.Errorf("the slow engine is taken for dead:\n%s", log)
	}
	awaitThat(t, "all reservations end", g.log, func() bool { return g.booked(t) == 0 })
}
