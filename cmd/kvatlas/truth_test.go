package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// simulated starts an engine that registers with a server, and returns its pod's name.
func simulated(t *testing.T, s *served, events bool) string {
	t.Helper()
	pod := must.Get(wire.NewPod(wire.Config{
		Name: "sim", Model: "m", Listen: "127.0.0.1:0", Events: redistest.FreeEndpoint(t, 1),
		Replay: redistest.FreeEndpoint(t, 1), Engine: simengine.Config{Kind: simengine.VLLM, BlockSize: 16, Blocks: 1000},
	}))(t)
	must.OK(t, pod.Start())
	t.Cleanup(func() { _ = pod.Kill() })
	c := pod.Config()
	registration := client.Pod{Name: pod.Address(), Model: "m", Engine: "vllm"}
	if events {
		registration.Events, registration.Replay = c.Events, c.Replay
	}
	must.OK(t, s.c.RegisterPod(t.Context(), registration))
	return pod.Address()
}

// routed is of an answer of /v1/route what the tests look at.
type routed struct {
	Pod, Reservation string
	Overlap          struct {
		Best int `json:"best_tokens"`
	}
}

// book books a request: again, where a machine was too busy to read the loads in time.
func (s *served) book(t *testing.T, ask map[string]any) (r routed) {
	t.Helper()
	ask["model"], ask["reserve"] = "m", true
	awaitThat(t, "the request is booked", s.log, func() bool {
		r = routed{}
		must.OK(t, s.tell(t, http.MethodPost, "/v1/route", ask, &r))
		return r.Reservation != ""
	})
	return r
}

// cachedOf has an engine answer a prompt, and returns how many of its tokens it had cached.
func cachedOf(t *testing.T, engine string, tokens []int) int {
	t.Helper()
	body := fmt.Sprintf(`{"model":"m","max_tokens":1,"prompt":%s}`, strings.ReplaceAll(fmt.Sprint(tokens), " ", ","))
	resp, err := http.Post("http://"+engine+"/v1/completions", "application/json", strings.NewReader(body))
	must.OK(t, err)
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return answer.Usage.Details.Cached
}

// TestThreeNumbers routes prompts to simulated engines, and reports what each had cached. The metrics count
// by pod what any pod held, what the chosen pod held and what its engine had. They count for which of three
// causes the rest was computed anew. A rank whose engine has less than half of what was promised is named by
// doctor.
func TestThreeNumbers(t *testing.T) {
	s := serveProcess(t, "--redis="+redistest.Start(t).URL(), "--block-size=16", "--roles=score,ingest")
	one, two := simulated(t, s, true), simulated(t, s, true)
	silent := simulated(t, s, false)
	prompt := func(seed int) []int {
		p := make([]int, 320)
		for i := range p {
			p[i] = 65 + (seed*i+i/26)%52
		}
		return p
	}
	// serve books a prompt, has the engine answer it, and reports what that had cached.
	serve := func(tokens []int, more map[string]any) (pod string) {
		t.Helper()
		ask := map[string]any{"tokens": tokens}
		maps.Copy(ask, more)
		r := s.book(t, ask)
		for _, report := range []map[string]any{{"kind": "done", "model": "m", "cached_tokens": cachedOf(t, r.Pod, tokens)}, {"kind": "end", "model": "m"}} {
			kind := report["kind"].(string)
			delete(report, "kind")
			must.OK(t, s.tell(t, http.MethodPost, "/v1/requests/"+r.Reservation+"/"+kind, report, &struct{}{}))
		}
		return r.Pod
	}
	at := func(pod string) map[string]any { return map[string]any{"pinned": map[string]any{"pod": pod}} }
	query := func(tokens []int, more map[string]any) (r routed) {
		ask := map[string]any{"model": "m", "tokens": tokens}
		maps.Copy(ask, more)
		must.OK(t, s.tell(t, http.MethodPost, "/v1/route", ask, &r))
		return r
	}

	cold := prompt(1)
	serve(cold, at(one)) // no pod holds it: the workload
	awaitThat(t, "the engine's blocks are read", s.log, func() bool { return query(cold, nil).Overlap.Best == 320 })
	serve(cold, at(one)) // it is there, but for the last block, which the engine computes anyway

	// The holder has a request that runs, so the queue alone sends the next one elsewhere: routing.
	s.book(t, map[string]any{"tokens": prompt(2), "pinned": map[string]any{"pod": one}})
	queue := map[string]any{"policy": "llm_d", "overrides": map[string]any{"llm_d": map[string]any{"prefix_cache": 0, "kv_cache_utilization": 0, "queue": 1}}, "pods": []string{one, two}}
	awaitThat(t, "the picture of the loads shows it", s.log, func() bool {
		for range 20 { // of equal pods any is taken
			if query(cold, queue).Pod != two {
				return false
			}
		}
		return true
	})
	if pod := serve(cold, queue); pod != two {
		t.Fatalf("%s was chosen, which has a request that runs", pod)
	}

	// The index holds of a pod without events what its engine does not have: the index.
	wrong := prompt(3)
	for i := range 40 {
		tokens := append(slices.Clone(wrong[:304]), prompt(4 + i)[:16]...)
		must.OK(t, s.tell(t, http.MethodPost, "/v1/blocks", map[string]any{"op": "add", "model": "m", "pod": silent, "tokens": tokens}, &struct{}{}))
		r := s.book(t, map[string]any{"tokens": tokens, "pinned": map[string]any{"pod": silent}})
		must.OK(t, s.tell(t, http.MethodPost, "/v1/requests/"+r.Reservation+"/done", map[string]any{"model": "m", "cached_tokens": 0}, &struct{}{}))
	}

	_, page := get(t, s.url+"/metrics")
	for _, line := range []string{
		fmt.Sprintf("kvatlas_route_prompt_tokens_total{pod=%q} %d", one, 3*320),
		fmt.Sprintf("kvatlas_route_held_tokens_total{by=\"anybody\",pod=%q} %d", one, 320),
		fmt.Sprintf("kvatlas_route_held_tokens_total{by=\"chosen\",pod=%q} %d", one, 320),
		fmt.Sprintf("kvatlas_route_predicted_tokens_total{pod=%q} %d", one, 320),
		fmt.Sprintf("kvatlas_route_delivered_tokens_total{pod=%q} %d", one, 304),
		fmt.Sprintf("kvatlas_route_lost_tokens_total{cause=\"workload\",pod=%q} %d", one, 2*320),
		fmt.Sprintf("kvatlas_route_lost_tokens_total{cause=\"routing\",pod=%q} 0", one),
		fmt.Sprintf("kvatlas_route_lost_tokens_total{cause=\"index\",pod=%q} %d", one, 16),
		fmt.Sprintf("kvatlas_route_lost_tokens_total{cause=\"routing\",pod=%q} %d", two, 320),
		fmt.Sprintf("kvatlas_route_lost_tokens_total{cause=\"workload\",pod=%q} 0", two),
		fmt.Sprintf("kvatlas_route_lost_tokens_total{cause=\"index\",pod=%q} %d", silent, 40*320),
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("the metrics have no %s", line)
		}
	}
	awaitThat(t, "doctor names the rank that lies", s.log, func() bool {
		_, _, sections := doctorReport(t, "--server="+s.url)
		return slices.ContainsFunc(sections["server"], func(f check.Finding) bool {
			return f.What == "truth of the index" && f.Level == check.Warn && strings.Contains(f.Found, silent) && !strings.Contains(f.Found, one)
		})
	})
	if t.Failed() {
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "kvatlas_route_") {
				t.Log(line)
			}
		}
	}
}

// TestLyingIndexIsReadAnew has an engine whose index holds what it has, and blocks that were written by hand
// besides. Requests show that those are not there; then the rank is read anew, and holds what the engine
// replays.
func TestLyingIndexIsReadAnew(t *testing.T) {
	s := serveProcess(t, "--redis="+redistest.Start(t).URL(), "--block-size=16", "--roles=score,ingest")
	name := simulated(t, s, true)
	right, wrong := make([]int, 320), make([]int, 320)
	for i := range right {
		right[i], wrong[i] = 65+i%26, 97+i%26
	}
	cached := func(tokens []int) int {
		var r struct{ Overlap struct{ Tokens int } }
		must.OK(t, s.tell(t, http.MethodPost, "/v1/route", map[string]any{"model": "m", "tokens": tokens}, &r))
		return r.Overlap.Tokens
	}
	cachedOf(t, name, right)
	awaitThat(t, "the engine's blocks are read", s.log, func() bool { return cached(right) == 320 })
	must.OK(t, s.tell(t, http.MethodPost, "/v1/blocks", map[string]any{"op": "add", "model": "m", "pod": name, "tokens": wrong}, &struct{}{}))
	if got := cached(wrong); got != 320 {
		t.Fatalf("the index says %d tokens", got)
	}
	for range 40 {
		r := s.book(t, map[string]any{"tokens": wrong})
		for _, report := range []string{"done", "end"} {
			body := map[string]any{"model": "m"}
			if report == "done" {
				body["cached_tokens"] = 0
			}
			must.OK(t, s.tell(t, http.MethodPost, "/v1/requests/"+r.Reservation+"/"+report, body, &struct{}{}))
		}
	}
	awaitThat(t, "what is wrong is gone", s.log, func() bool { return cached(wrong) == 0 })
	cachedOf(t, name, append([]int{33}, right...)) // with its next event the reader notices
	awaitThat(t, "what is right is back", s.log, func() bool { return cached(right) == 320 && cached(wrong) == 0 })
}
