package wire_test

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	prom "github.com/prometheus/common/model"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/ingest/discover"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
)

// names are those that a release has of what routers read, and of what else is there for
// all engines of the kind.
var names = map[engine.Kind][]string{
	engine.VLLM: {
		"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "vllm:kv_cache_usage_perc",
		"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total", "vllm:prompt_tokens_by_source_total",
		"vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_cached_by_source_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
		"vllm:num_preemptions_total", "vllm:request_success_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
		"vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
		"vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds", "vllm:cache_config_info",
		"vllm:lora_requests_info", "vllm:mm_cache_queries_total", "vllm:engine_sleep_state", "vllm:request_params_n", "vllm:request_params_max_tokens",
		"vllm:request_max_num_generation_tokens", "vllm:request_prefill_kv_computed_tokens",
	},
	engine.SGLang: {
		"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:full_token_usage", "sglang:num_used_tokens",
		"sglang:max_total_num_tokens", "sglang:kv_available_tokens", "sglang:kv_evictable_tokens", "sglang:kv_used_tokens", "sglang:cache_hit_rate",
		"sglang:cached_tokens_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_requests_total",
		"sglang:time_to_first_token_seconds", "sglang:e2e_request_latency_seconds", "sglang:inter_token_latency_seconds", "sglang:queue_time_seconds",
		"sglang:page_size", "sglang:num_pages", "sglang:context_len", "sglang:evicted_tokens_total",
	},
	engine.TRTLLM: {
		"trtllm_num_requests_running", "trtllm_num_requests_waiting", "trtllm_kv_cache_utilization", "trtllm_kv_cache_hit_rate",
		"trtllm_kv_cache_max_blocks", "trtllm_kv_cache_free_blocks", "trtllm_kv_cache_used_blocks", "trtllm_kv_cache_tokens_per_block",
		"trtllm_kv_cache_host_utilization", "trtllm_kv_cache_iter_reuse_rate", "trtllm_max_num_active_requests",
		"trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total", "trtllm_prompt_tokens_total", "trtllm_generation_tokens_total",
		"trtllm_prompt_cached_tokens_total", "trtllm_request_success_total", "trtllm_time_to_first_token_seconds",
		"trtllm_time_per_output_token_seconds", "trtllm_e2e_request_latency_seconds", "trtllm_request_queue_time_seconds",
	},
}

// scrape reads the metrics of a pod: the sum of each name's values, or counts, over the
// series that have a label.
func scrape(t *testing.T, p *wire.Pod, path string) func(name string, label ...string) float64 {
	t.Helper()
	_, b := call(t, p, http.MethodGet, path, nil)
	parser := expfmt.NewTextParser(prom.UTF8Validation)
	families := must.Get(parser.TextToMetricFamilies(bytes.NewReader(b)))(t)
	return func(name string, label ...string) float64 {
		f := families[name]
		if f == nil {
			return -1
		}
		sum := 0.
		for _, m := range f.Metric {
			match := len(label) == 0
			for _, l := range m.Label {
				match = match || l.GetName() == label[0] && l.GetValue() == label[1]
			}
			if match {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return sum
	}
}

// Metrics have the names of the engines, and say what was done.
func TestMetrics(t *testing.T) {
	for kind, all := range names {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind, HostBlocks: 100}, Ranks: 2, LoRAs: []string{"law"}})
		path := "/metrics"
		if kind == engine.TRTLLM {
			path = "/prometheus/metrics"
		}
		for range 2 {
			ask(t, p, http.MethodPost, "/v1/completions", fields{"prompt": strings.Repeat("m", 100), "max_tokens": 7, "data_parallel_rank": 1})
		}
		of := scrape(t, p, path)
		for _, name := range all {
			if of(name) < 0 {
				t.Errorf("%v has no %s", kind, name)
			}
		}
		for _, x := range map[engine.Kind][]struct {
			name, label, value string
			want               float64
		}{
			engine.VLLM: {
				{"vllm:prefix_cache_queries_total", "engine", "1", 200}, {"vllm:prefix_cache_hits_total", "engine", "1", 96},
				{"vllm:prefix_cache_hits_total", "engine", "0", 0}, {"vllm:generation_tokens_total", "engine", "1", 14},
				{"vllm:time_to_first_token_seconds", "engine", "1", 2}, {"vllm:inter_token_latency_seconds", "engine", "1", 12},
				{"vllm:cache_config_info", "block_size", "16", 2}, {"vllm:cache_config_info", "num_gpu_blocks", "2000", 2},
				{"vllm:request_success_total", "finished_reason", "length", 2},
			},
			engine.SGLang: {
				{"sglang:cached_tokens_total", "cache_source", "device", 96}, {"sglang:prompt_tokens_total", "dp_rank", "1", 200},
				{"sglang:page_size", "dp_rank", "0", 16}, {"sglang:num_pages", "dp_rank", "1", 2000}, {"sglang:num_requests_total", "dp_rank", "1", 2},
			},
			engine.TRTLLM: {
				{"trtllm_kv_cache_reused_blocks_total", "model_name", "undefined", 6}, {"trtllm_prompt_tokens_total", "engine_type", "undefined", 200},
				{"trtllm_kv_cache_max_blocks", "model_name", "undefined", 4000}, {"trtllm_kv_cache_tokens_per_block", "model_name", "undefined", 16},
			},
		}[kind] {
			if got := of(x.name, x.label, x.value); got != x.want {
				t.Errorf("%s{%s=%q} is %v, want %v", x.name, x.label, x.value, got, x.want)
			}
		}
	}
}

// A release has the names that it had.
func TestMetricsOfReleases(t *testing.T) {
	since := map[string]string{
		"vllm:prompt_tokens_by_source_total": "0.16.0", "vllm:prompt_tokens_cached_by_source_total": "0.32.0", "vllm:num_requests_waiting_by_reason": "0.20.0",
		"vllm:engine_sleep_state": "0.11.1", "vllm:request_prefill_kv_computed_tokens": "0.13.0", "vllm:external_prefix_cache_queries_total": "0.11.1",
		"vllm:inter_token_latency_seconds": "0.10.2", "vllm:request_time_per_output_token_seconds": "0.11.0",
	}
	until := map[string]string{"vllm:time_per_output_token_seconds": "0.12.0", "vllm:gpu_cache_usage_perc": "0.11.0", "vllm:gpu_prefix_cache_hits_total": "0.11.0"}
	number := func(v string) (n int) {
		for part := range strings.SplitSeq(v, ".") {
			i := must.Get(strconv.Atoi(part))(t)
			n = n*1000 + i
		}
		return n
	}
	for _, version := range []string{"0.10.2", "0.11.0", "0.11.1", "0.12.0", "0.13.0", "0.16.0", "0.19.0", "0.20.0", "0.24.0", "0.32.0", "0.33.0"} {
		p := start(t, wire.Config{Version: version})
		value := scrape(t, p, "/metrics")
		for name, v := range since {
			if got, want := value(name) >= 0, number(version) >= number(v); got != want {
				t.Errorf("%s has %s: %v", version, name, got)
			}
		}
		for name, v := range until {
			if got, want := value(name) >= 0, number(version) < number(v); got != want {
				t.Errorf("%s has %s: %v", version, name, got)
			}
		}
	}
}

// Answers are counted by why they ended: a chat whose length is not asked for ends by itself.
func TestFinishReasons(t *testing.T) {
	for kind, name := range map[engine.Kind]string{engine.VLLM: "vllm:request_success_total", engine.TRTLLM: "trtllm_request_success_total"} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind}, Ranks: 2})
		messages := []fields{{"role": "user", "content": "Hello"}}
		for _, asked := range []fields{{}, {}, {"max_tokens": 3}} {
			asked["messages"] = messages
			ask(t, p, http.MethodPost, "/v1/chat/completions", asked)
		}
		path := map[engine.Kind]string{engine.VLLM: "/metrics", engine.TRTLLM: "/prometheus/metrics"}[kind]
		value := scrape(t, p, path)
		for reason, want := range map[string]float64{"stop": 2, "length": 1} {
			if got := value(name, "finished_reason", reason); got != want {
				t.Errorf("%v: %v answers ended by %s, want %v", kind, got, reason, want)
			}
		}
	}
}

// A server that asks pods what they are learns all that it needs to read their events.
func TestDiscovered(t *testing.T) {
	for _, x := range []struct {
		kind    engine.Kind
		version string
		events  bool
	}{{engine.VLLM, "", true}, {engine.VLLM, "0.30.0", false}, {engine.SGLang, "", true}, {engine.TRTLLM, "", false}} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: x.kind, BlockSize: 32}, Version: x.version, Ranks: 2, Topic: "kv"})
		if err := (&discover.Asker{Client: (*access.Networks)(nil).Client()}).Healthy(t.Context(), &store.Pod{Name: p.Address()}); err != nil {
			t.Errorf("%v: %v", x.kind, err)
		}
		got := store.Pod{Name: p.Address()}
		must.OK(t, (&discover.Asker{Client: (*access.Networks)(nil).Client()}).Ask(t.Context(), &got))
		c := p.Config()
		want := store.Pod{Name: p.Address(), Model: c.Model, Engine: x.kind.String()}
		if x.events {
			want.Events, want.Replay, want.Ranks = c.Events, c.Replay, 2
			if x.kind == engine.SGLang { // which leaves it to the client
				want.Events, want.Replay = strings.Replace(c.Events, "127.0.0.1", "*", 1), strings.Replace(c.Replay, "127.0.0.1", "*", 1)
			}
		}
		if got.Model != want.Model || got.Engine != want.Engine || got.Events != want.Events || got.Replay != want.Replay || got.Ranks != want.Ranks {
			t.Errorf("%v %s: it says %+v, want %+v", x.kind, x.version, got, want)
		}
	}
}

// Each engine has its own pages.
func TestPages(t *testing.T) {
	all := []string{"/health", "/version", "/v1/models"}
	for kind, more := range map[engine.Kind][]string{
		engine.VLLM:   {"/ping", "/load", "/metrics", "/kv_event_sources", "/server_info"},
		engine.SGLang: {"/health_generate", "/ready", "/metrics", "/get_model_info", "/model_info", "/get_server_info", "/server_info", "/v1/loads", "/flush_cache"},
		engine.TRTLLM: {"/health_generate", "/metrics", "/perf_metrics", "/prometheus/metrics"},
	} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind}, LoRAs: []string{"law"}})
		for _, path := range slices.Concat(all, more) {
			if status, b := call(t, p, http.MethodGet, path, nil); status != http.StatusOK {
				t.Errorf("%v %s: %d %s", kind, path, status, b)
			}
		}
		cards := ask(t, p, http.MethodGet, "/v1/models", nil)
		if at(cards, "data", 0, "id") != "sim/model" || at(cards, "data", 1, "id") != "law" {
			t.Errorf("%v: %v", kind, cards)
		}
		if kind == engine.TRTLLM {
			continue
		}
		field := map[engine.Kind]string{engine.VLLM: "prompt", engine.SGLang: "text"}[kind]
		tokens := ask(t, p, http.MethodPost, "/tokenize", fields{"prompt": "Grüße"})
		if tokens["count"] != 7. {
			t.Errorf("%v: %v", kind, tokens)
		}
		if text := ask(t, p, http.MethodPost, "/detokenize", fields{"tokens": tokens["tokens"]}); text[field] != "Grüße" {
			t.Errorf("%v: %v", kind, text)
		}
		chat := fields{"messages": []fields{{"role": "user", "content": []fields{{"type": "text", "text": "hi"}}}}}
		count := ask(t, p, http.MethodPost, "/tokenize", chat)["count"]
		if u := ask(t, p, http.MethodPost, "/v1/chat/completions", chat); at(u, "usage", "prompt_tokens") != count {
			t.Errorf("%v: a chat of %v tokens: %v", kind, count, u)
		}
	}
}

// A clear over HTTP empties the cache; it is refused under a request.
func TestClearOverHTTP(t *testing.T) {
	for kind, path := range map[engine.Kind]string{engine.VLLM: "/reset_prefix_cache", engine.SGLang: "/flush_cache"} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind}})
		body := fields{"prompt": strings.Repeat("c", 100), "max_tokens": 1}
		ask(t, p, http.MethodPost, "/v1/completions", body)
		if status, b := call(t, p, http.MethodPost, path, nil); status != http.StatusOK || kind == engine.VLLM && !strings.Contains(string(b), "true") {
			t.Errorf("%v: %d %s", kind, status, b)
		}
		if got := at(ask(t, p, http.MethodPost, "/v1/completions", body), "usage", "prompt_tokens_details", "cached_tokens"); got != 0. {
			t.Errorf("%v: %v are cached", kind, got)
		}
	}
}
