package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
)

// routing is a server that routes, with three pods of model demo.
type routing struct {
	*testing.T
	h      http.Handler
	router *route.Router
	looks  []func() // what the upkeep of each server does
}

func newRouting(t *testing.T, kept loads.Store) *routing {
	t.Helper()
	index := openIndex(t)
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 16}))(t)
	router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: kept, Seed: 1}))(t)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), Router: router, BlockSize: 16}))(t)
	r := &routing{T: t, h: s.Handler(), router: router}
	r.ok("POST", "/v1/pods", `{"name":"a","model":"demo","labels":{"zone":"1"},"aliases":["nick"],"kv_tokens":1600}`)
	r.ok("POST", "/v1/pods", `{"name":"b","model":"demo","ranks":2,"adapters":["poet"],"address":"10.0.0.2:8000"}`)
	r.ok("POST", "/v1/pods", `{"name":"c","model":"demo","role":"prefill"}`)
	r.ok("POST", "/v1/blocks", `{"op":"add","model":"demo","pod":"b","rank":1,"tokens":[`+upTo(64)+`]}`)
	return r
}

// upTo are the numbers from 1 to n.
func upTo(n int) string {
	var s []string
	for i := range n {
		s = append(s, fmt.Sprint(i+1))
	}
	return strings.Join(s, ",")
}

func (r *routing) do(method, path, body string) *httptest.ResponseRecorder {
	r.Helper()
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

// routed is the part of an answer that tests look at.
type routed struct {
	Pod, Address, Policy, Reservation string
	Rank                              int
	Again                             bool
	Fallbacks                         []struct {
		Pod  string
		Rank int
	}
	Overlap struct {
		Blocks, Tokens int
		Best           int `json:"best_tokens"`
		Tiers          map[string]int
	}
	Tokens struct {
		Total  int
		Source string
		Exact  bool
	}
	Resolved *struct{ Model, LoRA string }
	Costs    []struct {
		Pod   string
		Total *float64
		Terms map[string]float64
		Load  loads.Load
	}
	Degraded *struct{ Reason string }
}

func (r *routing) ok(method, path, body string) (out routed) {
	r.Helper()
	w := r.do(method, path, body)
	if w.Code >= 300 {
		r.Fatalf("%s %s: %d %s", path, body, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		r.Fatalf("%s: %v", w.Body, err)
	}
	return out
}

func TestRoute(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	got := r.ok("POST", "/v1/route", `{"model":"demo","tokens":[`+upTo(100)+`],"explain":true}`)
	if got.Pod != "b" || got.Rank != 1 || got.Address != "10.0.0.2:8000" || got.Policy != "eta" || got.Overlap.Tokens != 64 || got.Overlap.Blocks != 4 ||
		got.Overlap.Tiers["gpu"] != 64 || len(got.Fallbacks) != 2 || got.Reservation != "" || got.Tokens.Total != 100 || !got.Tokens.Exact {
		t.Errorf("%+v", got)
	}
	if len(got.Costs) != 3 || got.Costs[0].Pod != "b" || got.Costs[0].Terms["prefill_ms"] <= 0 || *got.Costs[0].Total >= *got.Costs[1].Total {
		t.Errorf("%+v", got.Costs)
	}
	if got := r.ok("POST", "/v1/route", `{"model":"demo","messages":[{"role":"user","content":"hi"}],"policy":"least_requests"}`); got.Tokens.Source != "estimate" || got.Tokens.Exact {
		t.Errorf("%+v", got)
	}
	if got := r.ok("POST", "/v1/route", `{"model":"nick","tokens":[1]}`); got.Resolved == nil || got.Resolved.Model != "demo" {
		t.Errorf("%+v", got)
	}
	// The adapter's pod is one of those that may take it: pod a does not say which it has.
	if got := r.ok("POST", "/v1/route", `{"model":"poet","tokens":[1],"labels":{"zone":"1"}}`); got.Resolved == nil || got.Resolved.LoRA != "poet" || got.Pod != "a" {
		t.Errorf("%+v", got)
	}
	for body, want := range map[string]string{
		`"pods":["a"]`:                          "a",
		`"labels":{"zone":"1"}`:                 "a",
		`"pinned":{"pod":"c"},"role":"prefill"`: "c",
		`"prefer":{"zone=1":5},"policy":"eta"`:  "a",
	} {
		if got := r.ok("POST", "/v1/route", `{"model":"demo","tokens":[7],`+body+`}`); got.Pod != want {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

// TestRouteReports follows requests from booking to end.
func TestRouteReports(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	body := `{"model":"demo","tokens":[` + upTo(100) + `],"reserve":true,"request_id":"a/b c","expected_output_tokens":100}`
	if got := r.ok("POST", "/v1/route", body); got.Reservation != "a/b c" || got.Again {
		t.Errorf("%+v", got)
	}
	if got := r.ok("POST", "/v1/route", body); !got.Again || got.Pod != "b" {
		t.Errorf("%+v", got)
	}
	loadsOf := func() string { return r.do("GET", "/v1/loads?model=demo", "").Body.String() }
	if l := loadsOf(); !strings.Contains(l, `{"pod":"b","rank":1,"generation":0,"work":36,"prefill_tokens":36,"blocks":7,"requests":1}`) {
		t.Error(l)
	}
	for _, step := range []struct{ report, body, want string }{
		{"output", `{"model":"demo","tokens":32}`, `"known":true,"pod":"b","rank":1,"first":true,"predicted_tokens":64`},
		{"output", `{"model":"demo","tokens":32}`, `"known":true,"pod":"b","rank":1,"first":false`},
		{"done", `{"model":"nick","cached_tokens":64}`, `"known":true,"pod":"b","rank":1,"first":true`},
		{"end", `{"model":"demo"}`, `"known":true`},
		{"end", `{"model":"demo"}`, `"known":false`},
		{"end", `{"model":"demo","cached_tokens":64}`, `"known":false`},
		{"done", `{"model":"demo"}`, `"known":false`},
	} {
		w := r.do("POST", "/v1/requests/a%2Fb%20c/"+step.report, step.body)
		if w.Code != 200 || !strings.Contains(w.Body.String(), step.want) {
			t.Errorf("%s %s: %d %s", step.report, step.body, w.Code, w.Body)
		}
	}
	if l := loadsOf(); strings.Contains(l, `"requests":1`) {
		t.Error(l)
	}
	if o := r.router.Outcomes(); len(o) != 1 || o[0].Delivered != 64 {
		t.Errorf("%+v", o)
	}
	// Of an answer that comes in one piece.
	r.ok("POST", "/v1/route", body)
	w := r.do("POST", "/v1/requests/a%2Fb%20c/end", `{"model":"nick","cached_tokens":32}`)
	if want := `"known":true,"pod":"b","rank":1,"first":true,"predicted_tokens":64`; w.Code != 200 || !strings.Contains(w.Body.String(), want) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if o := r.router.Outcomes(); len(o) != 1 || o[0].Delivered != 96 {
		t.Errorf("%+v", o)
	}
	if l := loadsOf(); strings.Contains(l, `"requests":1`) {
		t.Error(l)
	}
}

func TestRouteRefusals(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	for _, c := range []struct {
		method, path, body string
		status             int
		code, param        string
	}{
		{"POST", "/v1/route", `{"tokens":[1]}`, 400, "invalid_request", "model"},
		{"POST", "/v1/route", `{"model":"demo"}`, 400, "invalid_request", "prompt"},
		{"POST", "/v1/route", `{"model":"demo","prompt":["a","b"]}`, 400, "invalid_request", "prompt"},
		{"POST", "/v1/route", `{"model":"demo","prompts":["a"]}`, 400, "unknown_field", "prompts"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"policy":"nearest"}`, 400, "invalid_request", "policy"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"overrides":{"colour":1}}`, 400, "unknown_field", "overrides.colour"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"overrides":{"Beta":1}}`, 400, "unknown_field", "overrides.Beta"},
		{"PUT", "/v1/models/demo/routing", `{"beta":1,"BETA":3}`, 400, "unknown_field", "BETA"},
		{"PUT", "/v1/models/demo/routing", `{"busy":{"requests":1,"Requests":7}}`, 400, "unknown_field", "busy.Requests"},
		{"PUT", "/v1/models/demo/routing", `{"speed":5,"ſpeed":99}`, 400, "unknown_field", "ſpeed"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"overrides":[1]}`, 400, "invalid_request", "overrides"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"policy":"eta","overrides":{"policy":"eta"}}`, 400, "invalid_request", "policy"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"overrides":{"temperature":-1}}`, 400, "invalid_request", "overrides"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"role":"both"}`, 400, "invalid_request", "role"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"pinned":{"rank":1}}`, 400, "invalid_request", "pinned"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"pinned":{"pod":"a","rank":1024}}`, 400, "invalid_request", "pinned.rank"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"prefer":{"zone":1}}`, 400, "invalid_request", "prefer"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"prefer":[1]}`, 400, "invalid_request", "prefer"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"request_id":""}`, 400, "invalid_request", "request_id"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"pods":["zz"]}`, 404, "no_pod", ""},
		{"POST", "/v1/route", `{"model":"none","tokens":[1]}`, 404, "no_pod", ""},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"pods":["a"],"overrides":{"busy":{"kv_fraction":1e-9}},"reserve":true}`, 200, "", ""},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"pods":["a"],"overrides":{"busy":{"kv_fraction":1e-9}},"reserve":true}`, 503, "pods_busy", ""},
		{"POST", "/v1/requests/r/done", `{}`, 400, "invalid_request", "model"},
		{"POST", "/v1/requests/r/output", `{"model":"demo"}`, 400, "invalid_request", "tokens"},
		{"POST", "/v1/requests/r/end", `{"model":"demo","tokens":1}`, 400, "unknown_field", "tokens"},
		{"POST", "/v1/requests/" + strings.Repeat("r", 129) + "/end", `{"model":"demo"}`, 400, "invalid_request", "id"},
		{"PUT", "/v1/models/demo/routing", `{"policy":"nearest"}`, 400, "invalid_request", ""},
		{"PUT", "/v1/models/demo/routing", `nothing`, 400, "invalid_request", ""},
		{"PUT", "/v1/models/demo/routing", ``, 400, "invalid_json", ""},
		{"PUT", "/v1/models/demo/routing", ` null `, 400, "invalid_request", ""},
		{"PUT", "/v1/models/demo/routing", `{"beta":1,"beta":2}`, 400, "invalid_request", "beta"},
		{"PUT", "/v1/models/demo/routing", `{"beta":1,"bet\u0061":2}`, 400, "invalid_request", "beta"},
		{"PUT", "/v1/models/demo/routing", `{"policy":null}`, 400, "invalid_request", "policy"},
		{"PUT", "/v1/models/demo/routing", `{"pair":{"prefer_same":{"zone":1,"zone":2}}}`, 400, "invalid_request", "pair.prefer_same.zone"},
		{"PUT", "/v1/models/demo/routing", `{"pull":{"tiers":["gpu",null]}}`, 400, "invalid_request", "pull.tiers[1]"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"overrides":{"beta":1,"beta":2}}`, 400, "invalid_request", "overrides.beta"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"policy":"eta","overrides":{"busy":{"requests":1,"requests":2}}}`, 400, "invalid_request", "overrides.busy.requests"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"overrides":{"pair":null}}`, 400, "invalid_request", "overrides.pair"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"prefer":{"a=b":1,"a=b":2}}`, 400, "invalid_request", "prefer.a=b"},
		{"POST", "/v1/route", `{"model":"demo","tokens":[1],"prefer":{"a=b":null}}`, 400, "invalid_request", "prefer.a=b"},
	} {
		w := r.do(c.method, c.path, c.body)
		if c.code == "" {
			if w.Code != c.status {
				t.Errorf("%s: %d %s", c.body, w.Code, w.Body)
			}
			continue
		}
		e := refused(t, w, c.status, c.code)
		if param := ""; e.Error.Param != nil || c.param != "" {
			if e.Error.Param != nil {
				param = *e.Error.Param
			}
			if param != c.param {
				t.Errorf("%s: param %q, expected %q: %s", c.body, param, c.param, w.Body)
			}
		}
		if c.status == 503 && w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", c.body)
		}
		if regexp.MustCompile(`^(loads|notes|route|store): `).MatchString(e.Error.Message) {
			t.Errorf("%s: the message begins with a package: %s", c.body, e.Error.Message)
		}
	}
}

func TestRoutingSettings(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	get := func() string { return r.do("GET", "/v1/models/demo/routing", "").Body.String() }
	if s := get(); !strings.Contains(s, `"policy":"eta"`) || !strings.Contains(s, `"tier_weights":{"cpu":0.8,"disk":0.5,"gpu":1,"shared":0.3}`) {
		t.Error(s)
	}
	w := r.do("PUT", "/v1/models/demo/routing", `{"policy":"round_robin","busy":{"requests":3}}`)
	if w.Code != 200 || w.Body.String() != get() || !strings.Contains(get(), `"policy":"round_robin"`) {
		t.Errorf("%d %s %s", w.Code, w.Body, get())
	}
	if got := r.ok("POST", "/v1/route", `{"model":"demo","tokens":[1],"reserve":true}`); got.Policy != "round_robin" {
		t.Errorf("%+v", got)
	}
	if w := r.do("PUT", "/v1/models/demo/routing", `{}`); w.Code != 200 || !strings.Contains(get(), `"policy":"eta"`) {
		t.Errorf("%d %s", w.Code, get())
	}
}

// TestNoRouter answers what belongs to routing on a server without it.
func TestNoRouter(t *testing.T) {
	s := newServer(t, openIndex(t))
	for _, c := range [][3]string{
		{"POST", "/v1/route", `{}`}, {"POST", "/v1/requests/r/done", `{}`}, {"POST", "/v1/requests/r/output", `{}`}, {"POST", "/v1/requests/r/end", `{}`},
		{"GET", "/v1/loads", ""}, {"GET", "/v1/models/m/routing", ""}, {"PUT", "/v1/models/m/routing", "{}"},
	} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(c[0], c[1], strings.NewReader(c[2])))
		refused(t, w, 501, "not_implemented")
	}
}
