package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kvatlas/kvatlas/store/snapshot"
)

// Snapshots is the observer for snapshot.KeeperConfig; it is called at most once.
func (m *Metrics) Snapshots() snapshot.Observer {
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(m.registry).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	saves := m.counters("kvatlas_snapshot_saves_total", "Snapshots of the index in memory, saved or failed.", "result")
	saved, failed := saves.WithLabelValues("saved"), saves.WithLabelValues("failed")
	last := gauge("kvatlas_snapshot_last_save_timestamp_seconds", "When the last snapshot was saved, in seconds since 1970; 0 is not since the start.")
	blocks := gauge("kvatlas_snapshot_blocks", "Blocks in the last snapshot saved.")
	size := gauge("kvatlas_snapshot_bytes", "Size of the last snapshot saved.")
	restored := gauge("kvatlas_snapshot_restored_blocks", "Blocks restored at the start.")
	return snapshot.Observer{
		Saved: func(s snapshot.Summary, _ time.Duration, err error) {
			if err != nil {
				failed.Inc()
				return
			}
			saved.Inc()
			last.SetToCurrentTime()
			blocks.Set(float64(s.Blocks))
			size.Set(float64(s.Bytes))
		},
		Restored: func(r snapshot.Report, _ time.Duration, _ error) { restored.Set(float64(r.Blocks)) },
	}
}
