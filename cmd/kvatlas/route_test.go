package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// tell sends a body and reads the answer into dst.
func (s *served) tell(t *testing.T, method, path string, body, dst any) error {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(dst)
}

// requests returns how many requests run on each pod, as a server sees it.
func (s *served) requests(t *testing.T) map[string]int {
	t.Helper()
	var answer struct {
		Models map[string][]struct {
			Pod      string
			Requests int
		}
	}
	must.OK(t, s.tell(t, http.MethodGet, "/v1/loads", nil, &answer))
	n := map[string]int{}
	for _, l := range answer.Models["m"] {
		n[l.Pod] += l.Requests
	}
	return n
}

// TestRouteOfManyProcesses lets servers that share nothing but a Redis route a burst at
// once: no pod gets more than its share and a tenth. Then some of them are killed, others
// take the reports of what they had booked, and one lease later all loads are zero.
// KVATLAS_BURST=8x2000 makes it 8 processes and 2,000 requests.
func TestRouteOfManyProcesses(t *testing.T) {
	processes, requests := 4, 400
	if burst := os.Getenv("KVATLAS_BURST"); burst != "" {
		if _, err := fmt.Sscanf(burst, "%dx%d", &processes, &requests); err != nil || processes < 2 {
			t.Fatalf("KVATLAS_BURST is %q, expected processes x requests: %v", burst, err)
		}
	}
	const pods = 16
	each := requests / processes
	redis := redistest.Start(t)
	var servers []*served
	for range processes {
		servers = append(servers, serveProcess(t, "--redis="+redis.URL(), "--block-size=16"))
	}
	for i := range pods {
		must.OK(t, servers[0].c.RegisterPod(t.Context(), client.Pod{Name: fmt.Sprintf("10.0.0.%d:8000", i), Model: "m"}))
	}
	must.OK(t, servers[0].tell(t, http.MethodPut, "/v1/models/m/routing", map[string]any{"policy": "eta", "lease_s": 20}, &struct{}{}))
	type routed struct{ Pod, Reservation string }
	booked := make([][]routed, processes)
	var wg sync.WaitGroup
	errs := make(chan error, processes)
	for p, s := range servers {
		wg.Go(func() {
			for i := range each {
				tokens := make([]uint32, 512)
				for k := range tokens {
					tokens[k] = uint32((p*each+i)*1000 + k)
				}
				var r routed
				if err := s.tell(t, http.MethodPost, "/v1/route", map[string]any{"model": "m", "tokens": tokens, "reserve": true}, &r); err != nil {
					errs <- err
					return
				}
				booked[p] = append(booked[p], r)
			}
		})
	}
	wg.Wait()
	close(errs)
	must.OK(t, <-errs)
	share := processes * each / pods
	most := 0
	for _, n := range servers[0].requests(t) {
		most = max(most, n)
	}
	if most > share+share/10 {
		t.Errorf("a pod has %d of %d requests, an even share is %d", most, processes*each, share)
	}
	t.Logf("the most requests of a pod are %d, an even share is %d", most, share)

	for _, s := range servers[1:min(processes, 4)] { // three of them
		must.OK(t, s.cmd.Process.Kill())
	}
	// What the dead ones had booked, the last one ends.
	for _, r := range booked[1][:10] {
		var report struct {
			Known bool
			Pod   string
		}
		if err := servers[0].tell(t, http.MethodPost, "/v1/requests/"+r.Reservation+"/end", map[string]any{"model": "m"}, &report); err != nil || !report.Known || report.Pod != r.Pod {
			t.Errorf("%+v, %v", report, err)
		}
	}
	awaitThat(t, "all loads are zero one lease later", servers[0].log, func() bool {
		for _, n := range servers[0].requests(t) {
			if n != 0 {
				return false
			}
		}
		return true
	})
}

// TestEnginesAreAsked lets two servers on one Redis route to an engine that has requests of
// others. One of them reads its metrics, and both see it.
func TestEnginesAreAsked(t *testing.T) {
	redis := redistest.Start(t)
	var asked atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			asked.Add(1)
			_, _ = w.Write([]byte("vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"0\"} 4\n"))
		}
	}))
	t.Cleanup(engine.Close)
	one := serveProcess(t, "--redis="+redis.URL(), "--block-size=16")
	two := serveProcess(t, "--redis="+redis.URL(), "--block-size=16")
	blind := serveProcess(t, "--redis="+redis.URL(), "--block-size=16", "--pods-metrics=false")
	for name, address := range map[string]string{"busy": engine.URL, "idle": "127.0.0.1:1"} {
		must.OK(t, one.c.RegisterPod(t.Context(), client.Pod{Name: name, Model: "m", Engine: "vllm", Address: address}))
	}
	for _, s := range []*served{one, two, blind} {
		awaitThat(t, "the engine's load is seen", s.log, func() bool {
			var answer struct {
				Models map[string][]struct {
					Pod    string
					Engine *struct{ Running, Waiting int }
				}
			}
			must.OK(t, s.tell(t, http.MethodPost, "/v1/route", map[string]any{"model": "m", "tokens": []int{1}}, &struct{}{}))
			must.OK(t, s.tell(t, http.MethodGet, "/v1/loads", nil, &answer))
			l := answer.Models["m"]
			return len(l) == 2 && l[0].Pod == "busy" && l[0].Engine != nil && l[0].Engine.Running == 3 && l[0].Engine.Waiting == 4 && l[1].Engine == nil
		})
		awaitThat(t, "five requests in a row avoid it", s.log, func() bool {
			for range 5 {
				var r struct{ Pod string }
				if err := s.tell(t, http.MethodPost, "/v1/route", map[string]any{"model": "m", "tokens": []int{1}}, &r); err != nil || r.Pod != "idle" {
					return false
				}
			}
			return true
		})
	}
	t.Logf("the engine was asked %d times", asked.Load())
}
