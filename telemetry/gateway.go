package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvatlas/kvatlas/gateway"
)

// Gateway counts what a gateway does.
type Gateway struct {
	registry                 *prometheus.Registry
	requests                 *prometheus.CounterVec
	routed, first            prometheus.Histogram
	cut                      prometheus.Counter
	retried, ejected, untold prometheus.Counter
	statuses                 map[int]prometheus.Counter
}

// waits are the buckets of times until a first token, in seconds.
var waits = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// Gateway returns the counters of the gateway; it is called at most once.
func (m *Metrics) Gateway() *Gateway {
	g := &Gateway{
		registry: m.registry,
		requests: m.counters("kvatlas_gateway_requests_total", "Requests that the gateway has answered or passed on, by the hundred of the status; gone are those whose client left before.", "status"),
		routed:   m.histogram("kvatlas_gateway_route_seconds", "Time until it was chosen where a request goes.", latency),
		first:    m.histogram("kvatlas_gateway_first_byte_seconds", "Time from a request's header to the first byte of its answer's body.", waits),
		cut:      m.counter("kvatlas_gateway_cut_total", "Answers that have begun and were not passed on to their end: the engine or the client has gone."),
		retried:  m.counter("kvatlas_gateway_retries_total", "Times that a request was sent to another engine, as one had not answered."),
		ejected:  m.counter("kvatlas_gateway_ejections_total", "Times that an engine was ejected."),
		untold:   m.counter("kvatlas_gateway_unreported_total", "Reports on requests that the loads could not be told; ends are tried again."),
		statuses: map[int]prometheus.Counter{},
	}
	for class, name := range map[int]string{1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx", 0: "gone"} {
		g.statuses[class] = g.requests.WithLabelValues(name)
	}
	return g
}

// Watch shows the figures of the gateway.
func (g *Gateway) Watch(read func() gateway.Stats) error {
	type s = gateway.Stats
	return g.registry.Register(figures[s]{read, []figure[s]{
		gauge("kvatlas_gateway_in_flight", "Requests that are passed on now, streams among them.", func(s s) int64 { return s.Requests }),
		gauge("kvatlas_gateway_buffered_bytes", "Bodies of requests that no engine has begun to answer.", func(s s) int64 { return s.Buffered }),
		gauge("kvatlas_gateway_ejected_pods", "Engines that get no requests now.", func(s s) int64 { return s.Ejected }),
		gauge("kvatlas_gateway_owed_reports", "Ends of requests that the loads are still to be told.", func(s s) int64 { return s.Owed }),
	}})
}

// Served counts a request.
func (g *Gateway) Served(r *gateway.Served) {
	class := r.Status / 100
	if r.Status == gateway.StatusGone {
		class = 0
	}
	if c := g.statuses[class]; c != nil {
		c.Inc()
	}
	if r.Routed > 0 {
		g.routed.Observe(r.Routed.Seconds())
	}
	if r.First > 0 && r.Status < http.StatusBadRequest {
		g.first.Observe(r.First.Seconds())
	}
	if r.Cut && r.Status != gateway.StatusGone {
		g.cut.Inc()
	}
}

// Retried counts a request that was sent to another engine.
func (g *Gateway) Retried() { g.retried.Inc() }

// Ejected counts an engine that was ejected.
func (g *Gateway) Ejected() { g.ejected.Inc() }

// Unreported counts a report that has failed.
func (g *Gateway) Unreported() { g.untold.Inc() }
