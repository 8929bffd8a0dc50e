package telemetry

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
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
	predicted   prometheus.Counter
	unpredicted prometheus.Counter

	tokenizeRun    prometheus.Histogram
	tokenizeQueued prometheus.Histogram
	tokenizeFailed prometheus.Counter
}

// latency are the buckets of times, in seconds, from 20 us to 10 s.
var latency = []float64{20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1, 2, 5, 10}

// NewMetrics returns the metrics, all zero.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.requests = m.counters("kvatlas_http_requests_total", "Requests answered.", "method", "route", "status")
	m.seconds = m.histograms("kvatlas_http_request_seconds", "Time from a request's header to its answer.", latency, "method", "route")
	m.panics = m.counter("kvatlas_http_panics_total", "Panics turned into 500.")
	m.overloaded = m.counter("kvatlas_http_overloaded_total", "Requests refused because too many were in flight.")
	m.slowClients = m.counter("kvatlas_http_slow_clients_total", "Clients cut off because they sent or took slowly and there was no room for others.")
	m.scored = m.counters("kvatlas_scored_prompts_total", "Prompts scored, by what cut the answer short.", "degraded")
	m.matched = m.histogram("kvatlas_matched_blocks_ratio", "Blocks that the best pod holds, of the blocks of the prompt.",
		[]float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999, 1})
	m.predicted = m.counter("kvatlas_predicted_blocks_total", "Blocks predicted to be held where a request was sent.")
	m.unpredicted = m.counter("kvatlas_predictions_failed_total", "Requests whose blocks could not be predicted: the index or the notes could not be written in time.")
	m.tokens = m.counters("kvatlas_scored_tokens_total", "Tokens of scored prompts, by where they came from.", "source")
	m.stages = m.histograms("kvatlas_score_stage_seconds", "Time of each stage of scoring.", latency, "stage")
	m.indexFailed = m.counter("kvatlas_index_failed_lookups_total", "Lookups that the index failed or did not finish in time.")
	m.tokenizeRun = m.histogram("kvatlas_tokenizer_run_seconds", "Time of one run of a tokenizer.", latency)
	m.tokenizeQueued = m.histogram("kvatlas_tokenizer_queued_seconds", "Time that a text waited for its run, loading included.", latency)
	m.tokenizeFailed = m.counter("kvatlas_tokenizer_failed_runs_total", "Runs in which the tokenizer failed on the text.")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.exporter = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return m
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	return promauto.With(m.registry).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(m.registry).NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func (m *Metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(m.registry).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// Handler serves the metrics in Prometheus' text format or OpenMetrics.
func (m *Metrics) Handler() http.Handler { return m.exporter }

// The values of labels that come from the packages below. Any other value counts as "other", so that no
// series is ever made by a caller.
var (
	degradations = []string{"", string(scorer.IndexUnavailable), string(scorer.IndexTimeout), string(scorer.IndexStale), string(scorer.TokenizationBudget), string(scorer.TokenizationBusy), string(scorer.Multimodal)}
	sources      = []string{scorer.SourceTokens, scorer.SourceBlockKeys, string(prompt.FromTokenizer), string(prompt.FromPrefixStore), string(prompt.FromNowhere)}
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

// Server is what is read of a server at each scrape.
type Server struct {
	// Version is the program's, Backend the index's kind.
	Version, Backend string
	// InFlight counts requests to /v1 being worked on, InFlightBytes what they take and
	// Streams dumps, restores and resets.
	InFlight, InFlightBytes, Streams *atomic.Int64
	// Index and Registry read the index. They must not block.
	Index    func() store.Stats
	Registry func() *store.Registry
	// Tokenizers and Models read the tokenizer pool; each is nil where there is none.
	Tokenizers func() tokenpool.Stats
	Models     func() []tokenpool.Model
}

// Watch registers what is read at each scrape. A Metrics watches one server: for
// another one it returns an error.
func (m *Metrics) Watch(s Server) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kvatlas_build_info", Help: "Constant 1, with the program's version and the index's kind.",
		ConstLabels: prometheus.Labels{"version": s.Version, "backend": s.Backend},
	})
	info.Set(1)
	all := []prometheus.Collector{
		info,
		figures[struct{}]{read: func() struct{} { return struct{}{} }, list: []figure[struct{}]{
			gauge("kvatlas_http_in_flight", "Requests to /v1 being worked on.", func(struct{}) int64 { return s.InFlight.Load() }),
			gauge("kvatlas_http_in_flight_bytes", "Bytes that requests to /v1 take, beyond 16 KiB of body each.", func(struct{}) int64 { return s.InFlightBytes.Load() }),
			gauge("kvatlas_http_streams", "Dumps, restores and resets being worked on.", func(struct{}) int64 { return s.Streams.Load() }),
		}},
		indexFigures(s.Index),
		registryFigures(s.Registry),
	}
	if s.Tokenizers != nil {
		all = append(all, tokenizerFigures(s.Tokenizers))
	}
	if s.Models != nil {
		all = append(all, tokenizerMemory(s.Models))
	}
	for _, c := range all {
		if err := m.registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// Panicked counts a panic that was turned into 500.
func (m *Metrics) Panicked() { m.panics.Inc() }

// Overloaded counts a request refused because too many were in flight.
func (m *Metrics) Overloaded() { m.overloaded.Inc() }

// CutOffClient counts a client that was cut off because it was slow.
func (m *Metrics) CutOffClient() { m.slowClients.Inc() }

// Predicted counts a prediction: so many blocks, or why none.
func (m *Metrics) Predicted(blocks int, err error) {
	if err != nil {
		m.unpredicted.Inc()
		return
	}
	m.predicted.Add(float64(blocks))
}

// Route has the series of one route.
type Route struct {
	requests *prometheus.CounterVec
	seconds  prometheus.Observer
	byStatus [600]atomic.Pointer[prometheus.Counter]
}

// Route returns the series of a route. The method is empty where it takes any.
func (m *Metrics) Route(method, pattern string) *Route {
	labels := prometheus.Labels{"method": method, "route": pattern}
	if method == "" {
		labels["method"] = other
	}
	return &Route{requests: m.requests.MustCurryWith(labels), seconds: m.seconds.With(labels)}
}

// Observe counts an answer with its status, below 600, and the time that it took.
func (r *Route) Observe(status int, took time.Duration) {
	r.seconds.Observe(took.Seconds())
	if c := r.byStatus[status].Load(); c != nil {
		(*c).Inc()
		return
	}
	c := r.requests.WithLabelValues(strconv.Itoa(status))
	r.byStatus[status].Store(&c)
	c.Inc()
}
