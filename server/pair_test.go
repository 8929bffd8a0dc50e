package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
)

// paired is the part of an answer on a pair that tests look at.
type paired struct {
	Pod, Reservation string
	Again            bool
	Prefill          *struct {
		Pod, Address string
		Fallbacks    []struct{ Pod string }
		Overlap      struct{ Blocks, Tokens int }
		Costs        []struct{ Pod string }
	}
	LocalPrefill string `json:"local_prefill"`
	Pairs        []struct {
		Prefill, Decode struct{ Pod string }
		Total           *float64
		Terms           map[string]float64
	}
	Headers map[string]string
}

func (r *routing) pair(body string) (out paired) {
	r.Helper()
	w := r.do("POST", "/v1/route", body)
	if w.Code != 200 {
		r.Fatalf("%s: %d %s", body, w.Code, w.Body)
	}
	must.OK(r, json.Unmarshal(w.Body.Bytes(), &out))
	return out
}

// newPairs is a server with two pods that prefill and two that decode.
func newPairs(t *testing.T) *routing {
	r := newRouting(t, loads.NewMemory(nil))
	for _, p := range []string{
		`{"name":"p1","model":"pd","role":"prefill","labels":{"zone":"1"},"address":"http://10.0.0.1:80"}`,
		`{"name":"p2","model":"pd","role":"prefill","labels":{"zone":"2"}}`,
		`{"name":"d1","model":"pd","role":"decode","labels":{"zone":"1"}}`,
		`{"name":"d2","model":"pd","role":"decode","labels":{"zone":"2"}}`,
	} {
		r.ok("POST", "/v1/pods", p)
	}
	r.ok("POST", "/v1/blocks", `{"op":"add","model":"pd","pod":"p1","tokens":[`+upTo(640)+`]}`)
	r.ok("PUT", "/v1/models/pd/routing", `{"pair":{"require_same":["zone"]}}`)
	return r
}

func TestRoutePair(t *testing.T) {
	r := newPairs(t)
	body := `{"model":"pd","tokens":[` + upTo(1000) + `],"role":"pair","reserve":true,"request_id":"r","explain":true}`
	got := r.pair(body)
	if got.Pod != "d1" || got.Prefill == nil || got.Prefill.Pod != "p1" || got.Prefill.Address != "http://10.0.0.1:80" || got.Prefill.Overlap.Tokens != 640 || got.Prefill.Overlap.Blocks != 40 ||
		len(got.Prefill.Costs) == 0 || len(got.Prefill.Fallbacks) != 0 || got.LocalPrefill != "" || got.Headers["x-prefiller-host-port"] != "10.0.0.1:80" {
		t.Errorf("%+v %+v", got, got.Prefill)
	}
	if len(got.Pairs) != 2 || got.Pairs[0].Prefill.Pod != "p1" || got.Pairs[1].Decode.Pod != "d2" || *got.Pairs[0].Total != got.Pairs[0].Terms["prefill"]+got.Pairs[0].Terms["decode"] {
		t.Errorf("%+v", got.Pairs)
	}
	if got := r.pair(body); !got.Again || got.Pod != "d1" || got.Prefill.Pod != "p1" {
		t.Errorf("%+v", got)
	}
	loadOf := func(pod string) string {
		s := r.do("GET", "/v1/loads?model=pd", "").Body.String()
		_, s, _ = strings.Cut(s, fmt.Sprintf(`{"pod":%q,"rank":0,"generation":`, pod))
		_, s, _ = strings.Cut(s, ",")
		s, _, _ = strings.Cut(s, "}")
		return s
	}
	check := func(when, p, d string) {
		t.Helper()
		if got := loadOf("p1"); got != p {
			t.Errorf("%s: p1 has %s", when, got)
		}
		if got := loadOf("d1"); got != d {
			t.Errorf("%s: d1 has %s", when, got)
		}
	}
	const none = `"work":0,"prefill_tokens":0,"blocks":0,"requests":0`
	const decodes = `"work":0,"prefill_tokens":0,"blocks":63,"requests":1`
	check("booked", `"work":376,"prefill_tokens":360,"blocks":63,"requests":1`, decodes)
	if w := r.do("POST", "/v1/requests/r/done", `{"model":"pd"}`); !strings.Contains(w.Body.String(), `"known":true,"pod":"p1","rank":0,"first":true,"predicted_tokens":640`) {
		t.Error(w.Body)
	}
	check("done", none, decodes)
	if w := r.do("POST", "/v1/requests/r/end", `{"model":"pd"}`); !strings.Contains(w.Body.String(), `"known":true,"pod":"d1"`) {
		t.Error(w.Body)
	}
	check("end", none, none)

	if got := r.pair(`{"model":"pd","tokens":[7],"role":"pair"}`); got.Prefill != nil || got.LocalPrefill != "short" || got.Headers != nil {
		t.Errorf("%+v", got)
	}
	if got := r.pair(`{"model":"pd","tokens":[` + upTo(1000) + `],"role":"pair","pinned":{"pod":"d2"},"pinned_prefill":{"pod":"p2","rank":0}}`); got.Prefill.Pod != "p2" || got.Pod != "d2" {
		t.Errorf("%+v", got)
	}
	for body, want := range map[string]string{
		`"role":"pair","pinned":{"pod":"d2"},"pinned_prefill":{"pod":"p1"}`: "no_pod",
		`"role":"prefill","pinned_prefill":{"pod":"p1"}`:                    "pinned_prefill",
		`"role":"pair","pinned_prefill":{"rank":1}`:                         "pinned_prefill has no pod",
		`"role":"pair","overrides":{"pair":{"local_share":2}}`:              "pair.local_share is 2",
		`"role":"pair","overrides":{"pair":{"prefer_same":{"zone":1e9}}}`:   "pair.prefer_same",
	} {
		if w := r.do("POST", "/v1/route", `{"model":"pd","tokens":[`+upTo(1000)+`],`+body+`}`); w.Code < 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	r.ok("PUT", "/v1/models/pd/routing", `{}`)
	if s := r.do("GET", "/v1/models/pd/routing", "").Body.String(); !strings.Contains(s, `"pair":{"require_same":[],"prefer_same":{},"local_tokens":256,"local_share":0.1,"local_fallback":true},"pull":{"block_bytes":0,"bandwidth":0,"overhead_ms":0,"tiers":["gpu","cpu"],"port":5710}`) {
		t.Error(s)
	}
}

// TestRoutePull names the place to fetch from, and what the other ways cost.
func TestRoutePull(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	for _, p := range []string{`{"name":"10.0.0.1:8000","model":"pull","ranks":2}`, `{"name":"c","model":"pull"}`} {
		r.ok("POST", "/v1/pods", p)
	}
	r.ok("POST", "/v1/blocks", `{"op":"add","model":"pull","pod":"10.0.0.1:8000","rank":1,"tokens":[`+upTo(1600)+`]}`)
	r.ok("PUT", "/v1/models/pull/routing", `{"pull":{"block_bytes":1000000,"bandwidth":1e10,"port":6000}}`)
	ask := func(more string) (out struct {
		Pod      string
		PullFrom *struct {
			Pod    string
			Rank   int
			Tokens int
			MS     float64
		} `json:"pull_from"`
		Params *struct {
			Source struct {
				ID   string `json:"kv_request_id"`
				Host string `json:"remote_host"`
				Port int    `json:"remote_port"`
			} `json:"remote_kv_source"`
		} `json:"kv_transfer_params"`
		Headers map[string]string
		Plan    *struct {
			Wait, Recompute, Pull *struct {
				Pod   string
				Total float64
			}
		} `json:"pull_plan"`
	}) {
		w := r.do("POST", "/v1/route", `{"model":"pull","tokens":[`+upTo(2000)+`],"explain":true`+more+`}`)
		if err := json.Unmarshal(w.Body.Bytes(), &out); w.Code != 200 || err != nil {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return out
	}
	got := ask("")
	if got.Pod != "10.0.0.1:8000" || got.PullFrom != nil || got.Headers != nil || got.Params != nil || got.Plan == nil || got.Plan.Wait.Pod != "10.0.0.1:8000" ||
		!(got.Plan.Wait.Total < got.Plan.Pull.Total && got.Plan.Pull.Total < got.Plan.Recompute.Total) {
		t.Errorf("%+v", got)
	}
	got = ask(`,"pinned":{"pod":"c"},"request_id":"mine"`)
	if got.Pod != "c" || got.PullFrom == nil || got.PullFrom.Pod != "10.0.0.1:8000" || got.PullFrom.Rank != 1 || got.PullFrom.Tokens != 1600 || got.PullFrom.MS != 10 ||
		got.Headers["x-kv-cache-source-host-port"] != "10.0.0.1:8000" || got.Params.Source.ID != "mine" || got.Params.Source.Host != "10.0.0.1" || got.Params.Source.Port != 6001 || got.Plan.Wait != nil {
		t.Errorf("%+v", got)
	}
	first, second := ask(`,"pinned":{"pod":"c"}`), ask(`,"pinned":{"pod":"c"}`)
	if first.Params.Source.ID == "" || first.Params.Source.ID == second.Params.Source.ID {
		t.Errorf("%+v, %+v", first.Params, second.Params)
	}
	if w := r.do("PUT", "/v1/models/pull/routing", `{"pull":{"tiers":["tape"]}}`); w.Code != 400 || !strings.Contains(w.Body.String(), "tape") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
