package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// page is what a scrape gets.
func page(m *Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// What is counted is in the next scrape, and an unforeseen value makes no series.
func TestMetrics(t *testing.T) {
	m := NewMetrics()
	var inFlight, rest atomic.Int64
	seen := Server{
		Version: "v1", Backend: "memory", InFlight: &inFlight, InFlightBytes: &rest, Streams: &rest,
		Index: func() store.Stats { return store.Stats{Blocks: -1, RoundTrips: 3} },
		Registry: func() *store.Registry {
			return &store.Registry{Pods: []store.Pod{{Name: "a"}, {Name: "a/worker", PartOf: &store.PartOf{Pod: "a", Workers: 1}}}}
		},
		Models: func() []tokenpool.Model { return []tokenpool.Model{{Name: "org/m", MemoryBytes: 5}} },
	}
	must.OK(t, m.Watch(seen))
	if err := m.Watch(seen); err == nil {
		t.Error("it watches two servers")
	}
	inFlight.Store(2)
	m.Panicked()
	m.Overloaded()
	m.CutOffClient()
	m.Route("", "/v1/any").Observe(404, time.Millisecond)
	get := m.Route(http.MethodGet, "/healthz")
	get.Observe(200, time.Millisecond)
	get.Observe(200, time.Millisecond)
	o := m.Scorer()
	o.Scored("a model", &scorer.Response{Degraded: "chosen", Source: "chosen", Tokens: 7})
	o.Scored("a model", &scorer.Response{Source: scorer.SourceTokens, Tokens: 9, Blocks: 4, Best: "a", Pods: []scorer.PodScore{{Pod: "b", Blocks: 4}, {Pod: "a", Blocks: 2}}})
	o.Stage("chosen", time.Second)
	text := page(m)
	for _, want := range []string{
		`kvatlas_build_info{backend="memory",version="v1"} 1`,
		`kvatlas_http_in_flight 2`, `kvatlas_http_panics_total 1`, `kvatlas_http_overloaded_total 1`, `kvatlas_http_slow_clients_total 1`,
		`kvatlas_http_requests_total{method="other",route="/v1/any",status="404"} 1`,
		`kvatlas_http_requests_total{method="GET",route="/healthz",status="200"} 2`,
		`kvatlas_http_request_seconds_count{method="GET",route="/healthz"} 2`,
		`kvatlas_index_round_trips_total 3`, `kvatlas_index_pods 1`, `kvatlas_tokenizer_memory_bytes{model="org/m"} 5`,
		`kvatlas_scored_prompts_total{degraded="other"} 1`, `kvatlas_scored_prompts_total{degraded="none"} 1`,
		`kvatlas_scored_tokens_total{source="other"} 7`, `kvatlas_scored_tokens_total{source="tokens"} 9`,
		`kvatlas_matched_blocks_ratio_sum 0.5`, `kvatlas_score_stage_seconds_count{stage="other"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	for _, not := range []string{"chosen", "a model", "kvatlas_index_blocks ", "kvatlas_tokenizer_runs_total"} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s", not)
		}
	}
}
