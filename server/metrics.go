package server

import (
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// Metrics counts what the server and the packages below it do, in a Prometheus
// registry of its own. It is made before them, since they take its observers.
// No label takes a value that a client chooses.
type Metrics struct {
	registry *prometheus.Registry
	exporter http.Handler

	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	panics     prometheus.Counter
	overloaded prometheus.Counter

	slowClients prometheus.Counter

	scored      *prometheus.CounterVec
	matched     prometheus.Histogram
	tokens      *prometheus.CounterVec
	stages      *prometheus.HistogramVec
	indexFailed prometheus.Counter

	tokenizeRun    prometheus.Histogram
	tokenizeQueued prometheus.Histogram
	tokenizeFailed prometheus.Counter
}

// latency are the buckets of times, in seconds, from 20 us to 10 s.
var latency = []float64{20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1, 2, 5, 10}

// NewMetrics returns the metrics, all zero.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	one := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}

	m.requests = counters("kvatlas_http_requests_total", "Requests answered.", "method", "route", "status")
	m.seconds = histogram("kvatlas_http_request_seconds", "Time from a request's header to its answer.", latency, "method", "route")
	m.panics = counter("kvatlas_http_panics_total", "Panics turned into 500.")
	m.overloaded = counter("kvatlas_http_overloaded_total", "Requests refused because too many were in flight.")
	m.slowClients = counter("kvatlas_http_slow_clients_total", "Clients cut off because they sent or took slowly and there was no room for others.")
	m.scored = counters("kvatlas_scored_prompts_total", "Prompts scored, by what cut the answer short.", "degraded")
	m.matched = one("kvatlas_matched_blocks_ratio", "Blocks that the best pod holds, of the blocks of the prompt.",
		[]float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999, 1})
	m.tokens = counters("kvatlas_scored_tokens_total", "Tokens of scored prompts, by where they came from.", "source")
	m.stages = histogram("kvatlas_score_stage_seconds", "Time of each stage of scoring.", latency, "stage")
	m.indexFailed = counter("kvatlas_index_failed_lookups_total", "Lookups that the index failed or did not finish in time.")
	m.tokenizeRun = one("kvatlas_tokenizer_run_seconds", "Time of one run of a tokenizer.", latency)
	m.tokenizeQueued = one("kvatlas_tokenizer_queued_seconds", "Time that a text waited for its run, loading included.", latency)
	m.tokenizeFailed = counter("kvatlas_tokenizer_failed_runs_total", "Runs in which the tokenizer failed on the text.")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.exporter = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return m
}

// Handler serves the metrics in Prometheus' text format or OpenMetrics.
func (m *Metrics) Handler() http.Handler { return m.exporter }

// Register adds a collector, for what the program around the server counts.
func (m *Metrics) Register(c prometheus.Collector) error { return m.registry.Register(c) }

// The values of labels that come from the packages below. What is none of
// them counts as "other", so that no series is ever made by a caller.
var (
	degradations = []string{"", string(scorer.IndexUnavailable), string(scorer.IndexTimeout), string(scorer.IndexStale), string(scorer.TokenizationBudget), string(scorer.TokenizationBusy), string(scorer.Multimodal)}
	sources      = []string{scorer.SourceTokens, scorer.SourceBlockKeys, string(tokenpool.FromTokenizer), string(tokenpool.FromPrefixStore), string(tokenpool.FromNowhere)}
	stageNames   = []string{"tokenize", "hash", "lookup", "rank"}
)

const other = "other"

// series are the children of a vector with one label, made beforehand.
func series[T any](with func(...string) T, values []string) func(string) T {
	made := make(map[string]T, len(values)+1)
	for _, v := range values {
		name := v
		if v == "" {
			name = "none"
		}
		made[v] = with(name)
	}
	rest := with(other)
	return func(v string) T {
		if c, ok := made[v]; ok {
			return c
		}
		return rest
	}
}

// Scorer is the observer for scorer.Config.
func (m *Metrics) Scorer() scorer.Observer {
	scored := series(m.scored.WithLabelValues, degradations)
	tokens := series(m.tokens.WithLabelValues, sources)
	stages := series(m.stages.WithLabelValues, stageNames)
	return scorer.Observer{
		Scored: func(_ string, r *scorer.Response) {
			scored(string(r.Degraded)).Inc()
			tokens(r.Source).Add(float64(r.Tokens))
			if r.Blocks == 0 {
				return
			}
			held := 0
			for i := range r.Pods {
				if r.Pods[i].Pod == r.Best {
					held = r.Pods[i].Blocks
					break
				}
			}
			m.matched.Observe(float64(held) / float64(r.Blocks))
		},
		Stage:       func(name string, took time.Duration) { stages(name).Observe(took.Seconds()) },
		IndexFailed: func(error) { m.indexFailed.Inc() },
	}
}

// Tokenizer is the observer for tokenpool.Config. It times the runs; the rest
// is read from the pool's Stats at each scrape.
func (m *Metrics) Tokenizer() tokenpool.Observer {
	return tokenpool.Observer{Tokenized: func(e tokenpool.TokenizedEvent) {
		m.tokenizeQueued.Observe(e.Queued.Seconds())
		m.tokenizeRun.Observe(e.Took.Seconds())
		if e.Err != nil {
			m.tokenizeFailed.Inc()
		}
	}}
}

// PrefixStore shows the figures of the tokenizer's prefix store; it is called
// at most once.
func (m *Metrics) PrefixStore(stats func() prefixcache.Stats) error {
	return m.registry.Register(prefixFigures(stats))
}

// watch registers what is read at each scrape. A Metrics watches one server.
func (m *Metrics) watch(cfg *Config, inFlight, inFlightBytes, streams *atomic.Int64) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kvatlas_build_info", Help: "Constant 1, with the program's version and the index's kind.",
		ConstLabels: prometheus.Labels{"version": cfg.Version, "backend": cfg.Backend},
	})
	info.Set(1)
	all := []prometheus.Collector{
		info,
		figures[struct{}]{read: func() struct{} { return struct{}{} }, list: []figure[struct{}]{
			gauge("kvatlas_http_in_flight", "Requests to /v1 being worked on.", func(struct{}) int64 { return inFlight.Load() }),
			gauge("kvatlas_http_in_flight_bytes", "Bytes that requests to /v1 take, beyond 16 KiB of body each.", func(struct{}) int64 { return inFlightBytes.Load() }),
			gauge("kvatlas_http_streams", "Dumps, restores and resets being worked on.", func(struct{}) int64 { return streams.Load() }),
		}},
		indexFigures(cfg.Index.Stats),
		registryFigures(cfg.Index.Cached),
	}
	if pool, ok := cfg.Tokenizer.(interface{ Stats() tokenpool.Stats }); ok {
		all = append(all, tokenizerFigures(pool.Stats))
	}
	if pool, ok := cfg.Tokenizer.(interface{ Models() []tokenpool.Model }); ok {
		all = append(all, newTokenizerMemory(pool.Models))
	}
	for _, c := range all {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("server: Config.Metrics is already another server's: %w", err)
		}
	}
	return nil
}

// routeMetrics are the series of one route.
type routeMetrics struct {
	requests *prometheus.CounterVec
	seconds  prometheus.Observer
	byStatus [600]atomic.Pointer[prometheus.Counter]
}

func (m *Metrics) route(e *apiRoute) *routeMetrics {
	labels := prometheus.Labels{"method": e.method, "route": e.pattern}
	if e.method == "" {
		labels["method"] = other
	}
	return &routeMetrics{requests: m.requests.MustCurryWith(labels), seconds: m.seconds.With(labels)}
}

func (r *routeMetrics) observe(status int, took time.Duration) {
	r.seconds.Observe(took.Seconds())
	if c := r.byStatus[status].Load(); c != nil {
		(*c).Inc()
		return
	}
	c := r.requests.WithLabelValues(strconv.Itoa(status))
	r.byStatus[status].Store(&c)
	c.Inc()
}
