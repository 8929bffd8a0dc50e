package telemetry

import (
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
