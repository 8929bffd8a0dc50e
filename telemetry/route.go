package telemetry

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/scrape"
)

// EngineLoads shows the figures of a reader of engines' metrics; it is called at most once.
func (m *Metrics) EngineLoads(read func() scrape.Stats) error {
	type s = scrape.Stats
	return m.registry.Register(figures[s]{read, []figure[s]{
		counter("kvatlas_engine_loads_read_total", "Metrics of engines that were read for their load.", func(s s) uint64 { return s.Read }),
		counter("kvatlas_engine_loads_failed_total", "Metrics of engines that could not be read; the log has why.", func(s s) uint64 { return s.Failed }),
	}})
}

var (
	routedTokens    = prometheus.NewDesc("kvatlas_route_prompt_tokens_total", "Tokens of prompts that were booked at the pod.", []string{"pod"}, nil)
	heldTokens      = prometheus.NewDesc("kvatlas_route_held_tokens_total", "Tokens of those that any candidate held, and that the chosen pod held.", []string{"pod", "by"}, nil)
	predictedTokens = prometheus.NewDesc("kvatlas_route_predicted_tokens_total", "Tokens that the index said are cached, of requests whose engine has reported what was.", []string{"pod"}, nil)
	deliveredTokens = prometheus.NewDesc("kvatlas_route_delivered_tokens_total", "Tokens of the same requests that the engine had cached.", []string{"pod"}, nil)
	lostTokens      = prometheus.NewDesc("kvatlas_route_lost_tokens_total", "Tokens that were computed anew, by cause: workload, as no pod held them; routing, as another pod did; index, as the engine did not have what it said.", []string{"pod", "cause"}, nil)
)

// showOutcomes shows what requests came to, by pod. Only pods that are registered have series.
func showOutcomes(all []route.Outcome, show showFunc) {
	sums := map[string]*route.Outcome{}
	for _, one := range all {
		s := sums[one.Pod]
		if s == nil {
			s = &route.Outcome{}
			sums[one.Pod] = s
		}
		s.Prompt, s.Anybody, s.Chosen = s.Prompt+one.Prompt, s.Anybody+one.Anybody, s.Chosen+one.Chosen
		s.Predicted, s.Delivered, s.Missing = s.Predicted+one.Predicted, s.Delivered+one.Delivered, s.Missing+one.Missing
	}
	for pod, s := range sums {
		count := func(d *prometheus.Desc, n uint64, more ...string) {
			show(d, prometheus.CounterValue, float64(n), append([]string{pod}, more...)...)
		}
		count(routedTokens, s.Prompt)
		count(heldTokens, s.Anybody, "anybody")
		count(heldTokens, s.Chosen, "chosen")
		count(predictedTokens, s.Predicted)
		count(deliveredTokens, s.Delivered)
		count(lostTokens, s.Prompt-s.Anybody, "workload")
		count(lostTokens, s.Anybody-s.Chosen, "routing")
		count(lostTokens, s.Missing, "index")
	}
}

// Upkeep is what the upkeep of loads and of the index's truth counts.
type Upkeep struct {
	audits, differing, mended, unmended prometheus.Counter
	requests                            prometheus.Counter
}

// Routing shows what requests came to, and returns the counters of the upkeep; it is called
// at most once.
func (m *Metrics) Routing(read func() []route.Outcome) (*Upkeep, error) {
	err := m.registry.Register(labelled{[]*prometheus.Desc{routedTokens, heldTokens, predictedTokens, deliveredTokens, lostTokens}, func(show showFunc) {
		showOutcomes(read(), show)
	}})
	if err != nil {
		return nil, err
	}
	lies := m.counters("kvatlas_route_lies_total", "Ranks that had less than half of what the index said, and were read anew or cannot be.", "mended")
	return &Upkeep{
		audits:    m.counter("kvatlas_loads_audits_total", "Audits of the loads of a model by this server."),
		differing: m.counter("kvatlas_loads_differences_total", "Ranks whose load was not the sum of its reservations, and was set right."),
		requests:  m.counter("kvatlas_loads_difference_requests_total", "By how many requests those were off."),
		mended:    lies.WithLabelValues("true"), unmended: lies.WithLabelValues("false"),
	}, nil
}

// Audited counts an audit.
func (u *Upkeep) Audited(found []loads.Difference) {
	u.audits.Inc()
	u.differing.Add(float64(len(found)))
	for i := range found {
		u.requests.Add(math.Abs(float64(found[i].Load.Requests - found[i].Reserved.Requests)))
	}
}

// Lied counts a rank whose index lied.
func (u *Upkeep) Lied(mended bool) {
	if mended {
		u.mended.Inc()
	} else {
		u.unmended.Inc()
	}
}
