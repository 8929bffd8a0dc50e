package telemetry

import (
	"io"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// RankLoad is a rank's load for WriteLoads.
type RankLoad struct {
	store.RankRef
	Model string
	Load  loads.Load
	// Engine is what the engine has reported lately, nil for nothing. Now is the time by the same
	// clock.
	Engine *loads.Engine
	Now    int64
}

// loadGauge is a gauge of each rank. One below 0 is not shown: it is not known.
type loadGauge struct {
	desc  *prometheus.Desc
	value func(r *RankLoad) float64
}

func ofLoad(name, help string, value func(l *loads.Load) float64) loadGauge {
	return ofRank(name, help, func(r *RankLoad) float64 { return value(&r.Load) })
}

func ofEngine(name, help string, value func(e *loads.Engine) float64) loadGauge {
	return ofRank("engine_"+name, help, func(r *RankLoad) float64 {
		if r.Engine == nil {
			return -1
		}
		return value(r.Engine)
	})
}

func ofRank(name, help string, value func(r *RankLoad) float64) loadGauge {
	return loadGauge{prometheus.NewDesc("kvatlas_rank_"+name, help, []string{"model", "pod", "rank"}, nil), value}
}

// loadGauges are those of GET /v1/loads?format=prometheus. docs/http-api.md has them in this
// order.
var loadGauges = []loadGauge{
	ofLoad("requests", "Requests that are booked.", func(l *loads.Load) float64 { return float64(l.Requests) }),
	ofLoad("prefill_tokens", "Prefill that is booked and not done, in tokens.", func(l *loads.Load) float64 { return float64(l.Prefill) }),
	ofLoad("work_units", "The same in units of work.", func(l *loads.Load) float64 { return float64(l.Work) }),
	ofLoad("blocks", "Index blocks that booked requests have in use.", func(l *loads.Load) float64 { return float64(l.Blocks) }),
	ofLoad("speed", "Units of prefill a millisecond that were learnt, 0 for none.", func(l *loads.Load) float64 { return l.Speed }),
	ofEngine("requests_running", "Requests that the engine says it runs.", func(e *loads.Engine) float64 { return float64(e.Running) }),
	ofEngine("requests_waiting", "Requests that the engine says wait.", func(e *loads.Engine) float64 { return float64(e.Waiting) }),
	ofEngine("waiting_tokens", "Tokens that those have to prefill.", func(e *loads.Engine) float64 { return float64(e.WaitingTokens) }),
	ofEngine("kv_usage_ratio", "Share of the engine's cache that is in use.", func(e *loads.Engine) float64 { return e.KVUsage }),
	ofEngine("kv_tokens", "Tokens that the engine's cache has room for, 0 if not known.", func(e *loads.Engine) float64 { return float64(e.KVTokens) }),
	ofEngine("requests_gone", "Booked requests that the engine does not have.", func(e *loads.Engine) float64 { return float64(e.Gone) }),
	ofRank("engine_age_seconds", "How long ago the engine said so.", func(r *RankLoad) float64 {
		if r.Engine == nil {
			return -1
		}
		return float64(max(0, r.Now-r.Engine.At)) / 1e6
	}),
}

// LoadsType is the content type of WriteLoads.
var LoadsType = string(expfmt.NewFormat(expfmt.TypeTextPlain))

// WriteLoads writes the loads of ranks in the text format of Prometheus. Each rank is given
// once.
func WriteLoads(w io.Writer, ranks []RankLoad) error {
	registry := prometheus.NewRegistry()
	c := labelled{read: func(show showFunc) {
		for i := range ranks {
			r := &ranks[i]
			for _, g := range loadGauges {
				if v := g.value(r); v >= 0 {
					show(g.desc, prometheus.GaugeValue, v, r.Model, r.Pod, strconv.Itoa(r.Rank))
				}
			}
		}
	}}
	for _, g := range loadGauges {
		c.descs = append(c.descs, g.desc)
	}
	if err := registry.Register(c); err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}
