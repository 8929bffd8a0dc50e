package wire

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvatlas/kvatlas/sim/engine"
)

// metrics are an engine's, under its names. Gauges and counters are read from the ranks at a scrape;
// histograms are filled as requests go on.
type metrics struct {
	kind     engine.Kind
	release  release
	config   Config
	life     *life
	registry *prometheus.Registry
	series   []*series

	ttft, e2e, itl, tpot, queue, prefill, decode, inference, promptTokens, outputTokens *prometheus.HistogramVec
	// Of vLLM alone: what was asked for, what of prompts was computed, and an old name.
	maxTokens, mostTokens, answers, computed, oldITL *prometheus.HistogramVec

	aborted []atomic.Uint64 // by rank
	stopped []atomic.Uint64 // by rank: answers that ended by themselves
}

// series is a gauge or a counter whose value is read from a rank.
type series struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	mean  bool // where ranks are not told apart it is their mean, not their sum
	value func(rank int, s *engine.Stats) float64
}

// The buckets of vLLM 0.33, which TensorRT-LLM has as well, and of SGLang.
var (
	ttftBuckets       = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets        = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	latencyBuckets    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	tokenBuckets      = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000}
	sglangTTFTBuckets = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	sglangITLBuckets  = []float64{.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .06, .08, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8}
)

func newMetrics(kind engine.Kind, r release, c Config, l *life) *metrics {
	m := &metrics{kind: kind, release: r, config: c, life: l, registry: prometheus.NewRegistry(), aborted: make([]atomic.Uint64, c.Ranks), stopped: make([]atomic.Uint64, c.Ranks)}
	switch kind {
	case engine.VLLM:
		m.vllm()
	case engine.SGLang:
		m.sglang()
	case engine.TRTLLM:
		m.trtllm()
	}
	m.registry.MustRegister(m)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// common are the labels of every series of a kind, but for the rank.
func (m *metrics) common() prometheus.Labels {
	switch m.kind {
	case engine.SGLang:
		return prometheus.Labels{"model_name": m.config.Model, "engine_type": "unified"}
	case engine.TRTLLM:
		return prometheus.Labels{"model_name": "undefined", "engine_type": "undefined"}
	default:
		return prometheus.Labels{"model_name": m.config.Model}
	}
}

// rankLabels returns the names of the labels that tell ranks apart, and their values of one.
func (m *metrics) rankLabels(rank int) (names, values []string) {
	n := strconv.Itoa(rank)
	switch {
	case m.kind == engine.VLLM:
		return []string{"engine"}, []string{n}
	case m.kind == engine.SGLang && m.config.Ranks > 1:
		return []string{"tp_rank", "pp_rank", "moe_ep_rank", "dp_rank"}, []string{n, "0", "0", n}
	case m.kind == engine.SGLang:
		return []string{"tp_rank", "pp_rank", "moe_ep_rank"}, []string{"0", "0", "0"}
	}
	return nil, nil
}

// add adds a series; further labels have the values given.
func (m *metrics) add(name string, kind prometheus.ValueType, value func(rank int, s *engine.Stats) float64, further ...string) {
	all := m.common()
	for i := 0; i+1 < len(further); i += 2 {
		all[further[i]] = further[i+1]
	}
	names, _ := m.rankLabels(0)
	m.series = append(m.series, &series{desc: prometheus.NewDesc(name, "Simulated.", names, all), kind: kind, mean: mean(name), value: value})
}

// mean reports whether a metric is a part of something, or a setting.
func mean(name string) bool {
	return strings.HasSuffix(name, "_rate") || strings.HasSuffix(name, "utilization") || strings.HasSuffix(name, "_per_block")
}

func (m *metrics) gauge(name string, value func(s *engine.Stats) float64, further ...string) {
	m.add(name, prometheus.GaugeValue, func(_ int, s *engine.Stats) float64 { return value(s) }, further...)
}

func (m *metrics) counter(name string, value func(s *engine.Stats) float64, further ...string) {
	m.add(name, prometheus.CounterValue, func(_ int, s *engine.Stats) float64 { return value(s) }, further...)
}

func (m *metrics) histogram(name string, buckets []float64) *prometheus.HistogramVec {
	names, _ := m.rankLabels(0)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: "Simulated.", Buckets: buckets, ConstLabels: m.common()}, names)
	m.registry.MustRegister(v)
	for rank := range m.config.Ranks {
		_, values := m.rankLabels(rank)
		v.WithLabelValues(values...)
	}
	return v
}

func part01[N int | uint64](n, of N) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func (m *metrics) vllm() {
	r := m.release
	m.gauge("vllm:num_requests_running", func(s *engine.Stats) float64 { return float64(s.Running) })
	m.gauge("vllm:num_requests_waiting", func(s *engine.Stats) float64 { return float64(s.Waiting) })
	if r >= v0(20, 0) {
		m.gauge("vllm:num_requests_waiting_by_reason", func(s *engine.Stats) float64 { return float64(s.Waiting) }, "reason", "capacity")
		m.gauge("vllm:num_requests_waiting_by_reason", func(*engine.Stats) float64 { return 0 }, "reason", "deferred")
	}
	use := func(s *engine.Stats) float64 { return part01(s.Used, s.Total) }
	prompt := func(s *engine.Stats) float64 { return float64(s.Prompt) }
	gpu := func(s *engine.Stats) float64 { return float64(s.Reused.GPU) }
	below := func(s *engine.Stats) float64 { return float64(s.Reused.Host + s.Reused.Disk) }
	m.gauge("vllm:kv_cache_usage_perc", use)
	m.counter("vllm:prefix_cache_queries_total", prompt)
	m.counter("vllm:prefix_cache_hits_total", gpu)
	if r < v0(11, 0) {
		m.gauge("vllm:gpu_cache_usage_perc", use)
		m.counter("vllm:gpu_prefix_cache_queries_total", prompt)
		m.counter("vllm:gpu_prefix_cache_hits_total", gpu)
	}
	if r >= v0(11, 1) {
		m.counter("vllm:external_prefix_cache_queries_total", func(s *engine.Stats) float64 {
			if m.config.Engine.HostBlocks == 0 {
				return 0
			}
			return float64(s.Prompt - s.Reused.GPU)
		})
		m.counter("vllm:external_prefix_cache_hits_total", below)
		m.counter("vllm:mm_cache_queries_total", func(*engine.Stats) float64 { return 0 })
		m.counter("vllm:mm_cache_hits_total", func(*engine.Stats) float64 { return 0 })
		for state, v := range map[string]float64{"awake": 1, "weights_offloaded": 0, "discard_all": 0} {
			m.gauge("vllm:engine_sleep_state", func(*engine.Stats) float64 { return v }, "sleep_state", state)
		}
	}
	if r >= v0(16, 0) {
		computed := func(s *engine.Stats) float64 { return float64(s.Prompt - s.Reused.Tokens()) }
		m.counter("vllm:prompt_tokens_by_source_total", computed, "source", "local_compute")
		m.counter("vllm:prompt_tokens_by_source_total", gpu, "source", "local_cache_hit")
		m.counter("vllm:prompt_tokens_by_source_total", below, "source", "external_kv_transfer")
		m.counter("vllm:prompt_tokens_cached_total", func(s *engine.Stats) float64 { return float64(s.Reused.Tokens()) })
	}
	if r >= v0(32, 0) {
		m.counter("vllm:prompt_tokens_cached_by_source_total", gpu, "source", "device")
		m.counter("vllm:prompt_tokens_cached_by_source_total", func(s *engine.Stats) float64 { return float64(s.Reused.Host) }, "source", "host")
		m.counter("vllm:prompt_tokens_cached_by_source_total", func(s *engine.Stats) float64 { return float64(s.Reused.Disk) }, "source", "disk")
	}
	if r >= v0(24, 0) && m.config.Engine.HostBlocks > 0 {
		m.gauge("vllm:kv_offload_cpu_cache_usage_perc", func(s *engine.Stats) float64 { return part01(s.Host, s.HostTotal) })
	}
	m.counter("vllm:prompt_tokens_total", prompt)
	m.counter("vllm:generation_tokens_total", func(s *engine.Stats) float64 { return float64(s.Generated) })
	m.counter("vllm:num_preemptions_total", func(s *engine.Stats) float64 { return float64(s.Preempted) })
	m.finished("vllm:request_success_total")
	m.add("vllm:request_success_total", prometheus.CounterValue, func(rank int, _ *engine.Stats) float64 { return float64(m.aborted[rank].Load()) }, "finished_reason", "abort")
	c := &m.config.Engine
	info := []string{
		"block_size", strconv.Itoa(c.BlockSize), "num_gpu_blocks", strconv.Itoa(c.Blocks), "enable_prefix_caching", "True",
		"prefix_caching_hash_algo", "sha256", "cache_dtype", "auto", "sliding_window", "None", "gpu_memory_utilization", "0.9", "num_cpu_blocks", "None",
	}
	if c.Window > 0 {
		info[11] = strconv.Itoa(c.Window)
	}
	if r >= v0(20, 0) {
		info = append(info, "hash_block_size", strconv.Itoa(c.BlockSize))
	}
	if r >= v0(24, 0) {
		info = append(info, "kv_cache_size_tokens", strconv.Itoa(c.Blocks*c.BlockSize))
	}
	if r >= v0(30, 0) {
		info = append(info, "prefix_cache_retention_interval", retentionText(c.Retention))
	}
	if c.State {
		info = append(info, "mamba_cache_mode", "align")
	}
	m.add("vllm:cache_config_info", prometheus.GaugeValue, func(int, *engine.Stats) float64 { return 1 }, info...)

	m.ttft = m.histogram("vllm:time_to_first_token_seconds", ttftBuckets)
	m.e2e = m.histogram("vllm:e2e_request_latency_seconds", latencyBuckets)
	m.queue = m.histogram("vllm:request_queue_time_seconds", latencyBuckets)
	m.inference = m.histogram("vllm:request_inference_time_seconds", latencyBuckets)
	m.prefill = m.histogram("vllm:request_prefill_time_seconds", latencyBuckets)
	m.decode = m.histogram("vllm:request_decode_time_seconds", latencyBuckets)
	m.promptTokens = m.histogram("vllm:request_prompt_tokens", tokenBuckets)
	m.outputTokens = m.histogram("vllm:request_generation_tokens", tokenBuckets)
	m.answers = m.histogram("vllm:request_params_n", []float64{1, 2, 5, 10, 20})
	m.maxTokens = m.histogram("vllm:request_params_max_tokens", tokenBuckets)
	m.mostTokens = m.histogram("vllm:request_max_num_generation_tokens", tokenBuckets)
	if r >= v0(13, 0) {
		m.computed = m.histogram("vllm:request_prefill_kv_computed_tokens", tokenBuckets)
	}
	m.itl = m.histogram("vllm:inter_token_latency_seconds", itlBuckets)
	if r < v0(12, 0) {
		m.oldITL = m.histogram("vllm:time_per_output_token_seconds", itlBuckets)
	}
	if r >= v0(11, 0) {
		m.tpot = m.histogram("vllm:request_time_per_output_token_seconds", itlBuckets)
	}
}

// retentionText is a Retention as vLLM's CacheConfig has it.
func retentionText(retention int) string {
	switch retention {
	case engine.RetainAll:
		return "None"
	case engine.RetainEnds:
		return "0"
	}
	return strconv.Itoa(retention)
}

// finished adds how many answers have ended, by why.
func (m *metrics) finished(name string) {
	stopped := func(rank int) float64 { return float64(m.stopped[rank].Load()) }
	m.add(name, prometheus.CounterValue, func(rank int, _ *engine.Stats) float64 { return stopped(rank) }, "finished_reason", "stop")
	m.add(name, prometheus.CounterValue, func(rank int, s *engine.Stats) float64 { return max(0, float64(s.Finished)-stopped(rank)) }, "finished_reason", "length")
}

func (m *metrics) sglang() {
	size := float64(m.config.Engine.BlockSize)
	m.gauge("sglang:num_running_reqs", func(s *engine.Stats) float64 { return float64(s.Running) })
	m.gauge("sglang:num_queue_reqs", func(s *engine.Stats) float64 { return float64(s.Waiting) })
	m.gauge("sglang:num_grammar_queue_reqs", func(*engine.Stats) float64 { return 0 })
	use := func(s *engine.Stats) float64 { return part01(s.Used, s.Total) }
	m.gauge("sglang:token_usage", use)
	m.gauge("sglang:full_token_usage", use)
	m.gauge("sglang:num_used_tokens", func(s *engine.Stats) float64 { return float64(s.Used) * size })
	m.gauge("sglang:max_total_num_tokens", func(s *engine.Stats) float64 { return float64(s.Total) * size })
	m.gauge("sglang:kv_used_tokens", func(s *engine.Stats) float64 { return float64(s.Used) * size })
	m.gauge("sglang:kv_evictable_tokens", func(s *engine.Stats) float64 { return float64(s.Idle) * size })
	m.gauge("sglang:kv_available_tokens", func(s *engine.Stats) float64 { return float64(s.Total-s.Used-s.Idle) * size })
	m.gauge("sglang:cache_hit_rate", func(s *engine.Stats) float64 { return s.LastHitRate })
	m.gauge("sglang:page_size", func(*engine.Stats) float64 { return size })
	m.gauge("sglang:num_pages", func(s *engine.Stats) float64 { return float64(s.Total) })
	m.gauge("sglang:context_len", func(*engine.Stats) float64 { return float64(m.config.MaxModelLen) })
	m.counter("sglang:evicted_tokens_total", func(s *engine.Stats) float64 { return float64(s.Evicted) * size })
	m.counter("sglang:prompt_tokens_total", func(s *engine.Stats) float64 { return float64(s.Prompt) })
	m.counter("sglang:generation_tokens_total", func(s *engine.Stats) float64 { return float64(s.Generated) })
	m.counter("sglang:num_requests_total", func(s *engine.Stats) float64 { return float64(s.Finished) })
	for source, value := range map[string]func(s *engine.Stats) float64{
		"device":  func(s *engine.Stats) float64 { return float64(s.Reused.GPU) },
		"host":    func(s *engine.Stats) float64 { return float64(s.Reused.Host) },
		"storage": func(s *engine.Stats) float64 { return float64(s.Reused.Disk) },
	} {
		m.counter("sglang:cached_tokens_total", value, "cache_source", source)
	}
	m.ttft = m.histogram("sglang:time_to_first_token_seconds", sglangTTFTBuckets)
	m.e2e = m.histogram("sglang:e2e_request_latency_seconds", sglangTTFTBuckets)
	m.itl = m.histogram("sglang:inter_token_latency_seconds", sglangITLBuckets)
	m.tpot = m.histogram("sglang:request_time_per_output_token_seconds", sglangITLBuckets)
	m.queue = m.histogram("sglang:queue_time_seconds", sglangTTFTBuckets)
}

func (m *metrics) trtllm() {
	size := m.config.Engine.BlockSize
	m.gauge("trtllm_num_requests_running", func(s *engine.Stats) float64 { return float64(s.Running) })
	m.gauge("trtllm_num_requests_waiting", func(s *engine.Stats) float64 { return float64(s.Waiting) })
	m.gauge("trtllm_kv_cache_utilization", func(s *engine.Stats) float64 { return part01(s.Used, s.Total) })
	m.gauge("trtllm_kv_cache_hit_rate", func(s *engine.Stats) float64 { return part01(s.Reused.Tokens(), s.Prompt) })
	m.gauge("trtllm_kv_cache_max_blocks", func(s *engine.Stats) float64 { return float64(s.Total) })
	m.gauge("trtllm_kv_cache_free_blocks", func(s *engine.Stats) float64 { return float64(s.Total - s.Used) })
	m.gauge("trtllm_kv_cache_used_blocks", func(s *engine.Stats) float64 { return float64(s.Used) })
	m.gauge("trtllm_kv_cache_tokens_per_block", func(*engine.Stats) float64 { return float64(size) })
	m.gauge("trtllm_kv_cache_host_utilization", func(s *engine.Stats) float64 { return part01(s.Host, s.HostTotal) })
	m.gauge("trtllm_kv_cache_iter_reuse_rate", func(s *engine.Stats) float64 { return s.LastHitRate })
	m.gauge("trtllm_max_num_active_requests", func(*engine.Stats) float64 { return float64(m.config.Engine.BatchRequests) })
	m.counter("trtllm_kv_cache_reused_blocks_total", func(s *engine.Stats) float64 { return float64(s.Reused.Tokens() / uint64(size)) })
	m.counter("trtllm_kv_cache_missed_blocks_total", func(s *engine.Stats) float64 { return float64((s.Prompt - s.Reused.Tokens()) / uint64(size)) })
	m.counter("trtllm_prompt_tokens_total", func(s *engine.Stats) float64 { return float64(s.Prompt) })
	m.counter("trtllm_generation_tokens_total", func(s *engine.Stats) float64 { return float64(s.Generated) })
	m.counter("trtllm_prompt_cached_tokens_total", func(s *engine.Stats) float64 { return float64(s.Reused.Tokens()) })
	m.finished("trtllm_request_success_total")
	m.ttft = m.histogram("trtllm_time_to_first_token_seconds", ttftBuckets)
	m.tpot = m.histogram("trtllm_time_per_output_token_seconds", itlBuckets)
	m.e2e = m.histogram("trtllm_e2e_request_latency_seconds", latencyBuckets)
	m.queue = m.histogram("trtllm_request_queue_time_seconds", latencyBuckets)
	m.prefill = m.histogram("trtllm_request_prefill_time_seconds", latencyBuckets)
	m.decode = m.histogram("trtllm_request_decode_time_seconds", latencyBuckets)
	m.inference = m.histogram("trtllm_request_inference_time_seconds", latencyBuckets)
}

// Describe is part of prometheus.Collector. What is collected is not described: several
// series have one name.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect is part of prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	stats := make([]engine.Stats, 0, len(m.life.ranks))
	for _, r := range m.life.ranks {
		stats = append(stats, r.stats())
	}
	for _, s := range m.series {
		sum := 0.0
		for rank := range stats {
			value := s.value(rank, &stats[rank])
			sum += value
			if _, labels := m.rankLabels(rank); labels != nil {
				out <- prometheus.MustNewConstMetric(s.desc, s.kind, value, labels...)
			}
		}
		if m.kind != engine.TRTLLM {
			continue
		}
		// It has no label for ranks: all of them are one.
		if s.mean {
			sum /= float64(len(stats))
		}
		out <- prometheus.MustNewConstMetric(s.desc, s.kind, sum)
	}
	if m.kind == engine.VLLM && len(m.config.LoRAs) > 0 {
		m.collectLoRAs(out)
	}
}

// collectLoRAs tells which adapters run and wait. The value is the time.
func (m *metrics) collectLoRAs(out chan<- prometheus.Metric) {
	running, waiting := map[string]bool{}, map[string]bool{}
	for _, r := range m.life.ranks {
		r.do(func(e *engine.Engine) { e.Adapters(running, waiting) })
	}
	desc := prometheus.NewDesc("vllm:lora_requests_info", "Simulated.", nil, prometheus.Labels{
		"max_lora": strconv.Itoa(len(m.config.LoRAs)), "running_lora_adapters": sortedList(running), "waiting_lora_adapters": sortedList(waiting),
	})
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(time.Now().UnixMicro())/1e6)
}

// observe adds to a histogram that the engine has.
func (m *metrics) observe(v *prometheus.HistogramVec, rank int, x float64) {
	if v != nil {
		_, labels := m.rankLabels(rank)
		v.WithLabelValues(labels...).Observe(x)
	}
}

// abort counts a request whose client has gone.
func (m *metrics) abort(rank int) { m.aborted[rank].Add(1) }

// output counts a token of an answer.
func (m *metrics) output(rank int, a *answer, o engine.Output) {
	if o.First {
		a.first = o.At
		m.observe(m.ttft, rank, (o.At - a.arrived).Seconds())
	} else {
		m.observe(m.itl, rank, (o.At - a.last).Seconds())
		m.observe(m.oldITL, rank, (o.At - a.last).Seconds())
	}
	a.last = o.At
	a.said++
	if !o.Last {
		return
	}
	if a.stops {
		m.stopped[rank].Add(1)
	}
	m.observe(m.e2e, rank, (o.At - a.arrived).Seconds())
	m.observe(m.queue, rank, (o.Admitted - a.arrived).Seconds())
	m.observe(m.inference, rank, (o.At - o.Admitted).Seconds())
	m.observe(m.prefill, rank, (a.first - o.Admitted).Seconds())
	m.observe(m.decode, rank, (o.At - a.first).Seconds())
	m.observe(m.promptTokens, rank, float64(a.prompt))
	m.observe(m.outputTokens, rank, float64(a.said))
	m.observe(m.mostTokens, rank, float64(a.said))
	m.observe(m.answers, rank, 1)
	if !a.stops {
		m.observe(m.maxTokens, rank, float64(a.said))
	}
	m.observe(m.computed, rank, float64(a.prompt-o.Hit.Tokens()))
	if a.said > 1 {
		m.observe(m.tpot, rank, (o.At-a.first).Seconds()/float64(a.said-1))
	}
}

// sortedList is the names of a set, with commas.
func sortedList(set map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(set)), ",")
}
