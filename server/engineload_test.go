package server_test

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// TestPushLoad lets an engine tell what runs there, and the routing go by it.
func TestPushLoad(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	w := r.do("POST", "/v1/pods/b/load", `{"rank":1,"running":3,"waiting":9,"waiting_tokens":90000,"kv_usage":0.25,"kv_tokens":3200}`)
	if w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"pod":"b","rank":1,"stale_after_s":10}` {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.ok("POST", "/v1/pods/a/load", `{"running":0,"waiting":0}`)
	body := r.do("GET", "/v1/loads?model=demo", "").Body.String()
	for _, want := range []string{
		`"pod":"b","rank":1,"generation":0,"work":0,"prefill_tokens":0,"blocks":0,"requests":0,"engine":{"running":3,"waiting":9,"waiting_tokens":90000,"kv_usage":0.25,"kv_tokens":3200,"age_s":`,
		`"pod":"a","rank":0,"generation":0,"work":0,"prefill_tokens":0,"blocks":0,"requests":0,"engine":{"running":0,"waiting":0,"age_s":`,
		`{"pod":"b","rank":0,"generation":0,"work":0,"prefill_tokens":0,"blocks":0,"requests":0}`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s\nlacks %s", body, want)
		}
	}
	// It holds the prompt, and is not chosen.
	got := r.ok("POST", "/v1/route", `{"model":"demo","tokens":[`+upTo(100)+`],"explain":true}`)
	if got.Pod == "b" && got.Rank == 1 {
		t.Errorf("%+v", got)
	}
	if body := r.do("POST", "/v1/route", `{"model":"demo","tokens":[`+upTo(100)+`],"explain":true}`).Body.String(); !strings.Contains(body, `"engine_extra":{"work":`) || strings.Count(body, "engine_extra") != 1 {
		t.Error(body)
	}
}

func TestPushLoadRefusals(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	r.ok("POST", "/v1/pods", `{"name":"w","model":"demo","part_of":{"pod":"a","workers":1}}`)
	for _, c := range []struct {
		pod, body string
		status    int
		code      string
	}{
		{"zz", `{"running":1,"waiting":0}`, 404, "unknown_pod"},
		{"w", `{"running":1,"waiting":0}`, 400, "invalid_request"},
		{"a", `{"running":1}`, 400, "invalid_request"},
		{"a", `{"waiting":1}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"rank":1}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"rank":5000}`, 400, "invalid_request"},
		{"a", `{"running":-1,"waiting":0}`, 400, "invalid_request"},
		{"a", `{"running":1.5,"waiting":0}`, 400, "invalid_request"},
		{"a", `{"running":1099511627777,"waiting":0}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"kv_usage":1.5}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"kv_usage":-0.5}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"kv_usage":"0.5"}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"kv_usage":1e999}`, 400, "invalid_request"},
		{"a", `{"running":1,"waiting":0,"colour":1}`, 400, "unknown_field"},
		{"a", `[]`, 400, "invalid_json"},
	} {
		refused(t, r.do("POST", "/v1/pods/"+c.pod+"/load", c.body), c.status, c.code)
	}
	if body := r.do("GET", "/v1/loads", "").Body.String(); strings.Contains(body, "engine") {
		t.Error(body)
	}
	refused(t, r.do("GET", "/v1/loads?format=xml", ""), 400, "invalid_request")
}

// TestLoadsForPrometheus reads the aggregated loads as a scraper does.
func TestLoadsForPrometheus(t *testing.T) {
	r := newRouting(t, loads.NewMemory(nil))
	r.ok("POST", "/v1/pods", `{"name":"q\"uo\\te","model":"other"}`)
	r.ok("POST", "/v1/route", `{"model":"demo","tokens":[`+upTo(100)+`],"reserve":true,"pinned":{"pod":"b","rank":1}}`)
	r.ok("POST", "/v1/pods/b/load", `{"rank":1,"running":2,"waiting":1,"kv_usage":0.5}`)
	w := r.do("GET", "/v1/loads?format=prometheus", "")
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Error(w.Header())
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families := must.Get(parser.TextToMetricFamilies(w.Body))(t)
	values := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			key := name
			for _, l := range m.Label {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			values[key] = m.GetGauge().GetValue()
		}
	}
	const b1 = " model=demo pod=b rank=1"
	for key, want := range map[string]float64{
		"kvatlas_rank_requests" + b1: 1, "kvatlas_rank_prefill_tokens" + b1: 36, "kvatlas_rank_work_units" + b1: 36, "kvatlas_rank_blocks" + b1: 7,
		"kvatlas_rank_engine_requests_running" + b1: 2, "kvatlas_rank_engine_requests_waiting" + b1: 1, "kvatlas_rank_engine_kv_usage_ratio" + b1: 0.5,
		"kvatlas_rank_requests model=other pod=q\"uo\\te rank=0": 0, "kvatlas_rank_requests model=demo pod=b rank=0": 0,
	} {
		if got, ok := values[key]; !ok || got != want {
			t.Errorf("%s is %v, expected %v", key, got, want)
		}
	}
	if _, ok := values["kvatlas_rank_engine_waiting_tokens"+b1]; ok {
		t.Error("waiting_tokens that nobody has told")
	}
	if _, ok := values["kvatlas_rank_engine_age_seconds model=demo pod=a rank=0"]; ok {
		t.Error("an engine that has told nothing has an age")
	}
	w = r.do("GET", "/v1/loads?format=prometheus&model=other", "")
	if strings.Contains(w.Body.String(), "demo") || !strings.Contains(w.Body.String(), "other") {
		t.Error(w.Body)
	}
}

// TestTruthInLoads shows what requests were promised and given.
func TestTruthInLoads(t *testing.T) {
	kept := loads.NewMemory(nil)
	r := newRouting(t, kept)
	add := func(gen store.Generation) {
		must.OK(t, kept.AddTruth(t.Context(), "demo", []loads.Truth{{RankRef: store.RankRef{Pod: "b", Rank: 1}, Generation: gen, Requests: 40, Predicted: 4000, Delivered: 100}}))
	}
	add(0)
	body := r.do("GET", "/v1/loads?model=demo", "").Body.String()
	if !strings.Contains(body, `"truth":{"requests":40,"predicted_tokens":4000,"delivered_tokens":100,"lies":true}`) || strings.Count(body, "truth") != 1 {
		t.Error(body)
	}
	add(9)
	if body := r.do("GET", "/v1/loads?model=demo", "").Body.String(); strings.Contains(body, "truth") {
		t.Errorf("of a generation that is not the present one: %s", body)
	}
}
