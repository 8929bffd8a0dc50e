package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvatlas/kvatlas/store/replica"
)

// Replica shows the figures of a replica of the index; it is called at most once.
func (m *Metrics) Replica(status func() replica.Status) error {
	if err := m.registry.Register(replicaFigures(status)); err != nil {
		return err
	}
	return m.registry.Register(labelled{[]*prometheus.Desc{replicaLookups}, func(show showFunc) {
		for mode, n := range status().Lookups {
			show(replicaLookups, prometheus.CounterValue, float64(n), replica.Mode(mode).String())
		}
	}})
}

func replicaFigures(read func() replica.Status) prometheus.Collector {
	type s = replica.Status
	return figures[s]{read, []figure[s]{
		{prometheus.NewDesc("kvatlas_replica_lag_seconds", "How old an answer from the replica may be.", nil, nil), prometheus.GaugeValue, func(s s) float64 { return s.Lag.Seconds() }},
		gauge("kvatlas_replica_behind_entries", "Entries of the change log that are known to be there and not in the replica.", func(s s) int64 { return int64(s.Behind) }),
		gauge("kvatlas_replica_blocks", "Blocks in the replica.", func(s s) int64 { return s.Blocks }),
		gauge("kvatlas_replica_bytes", "Memory of the replica.", func(s s) int64 { return s.Bytes }),
		gauge("kvatlas_replica_limit_bytes", "Limit of the memory of the replica.", func(s s) int64 { return s.MaxBytes }),
		gauge("kvatlas_replica_in_use", "1 while lookups are answered from the replica, else 0.", func(s s) int64 {
			if s.Mode == replica.Redis {
				return 0
			}
			return 1
		}),
		counter("kvatlas_replica_snapshots_total", "Snapshots of the index read.", func(s s) uint64 { return s.Snapshots }),
		counter("kvatlas_replica_gaps_total", "Times that a change log did not go on where it was left.", func(s s) uint64 { return s.Gaps }),
		counter("kvatlas_replica_entries_total", "Entries of the change log read.", func(s s) uint64 { return s.Entries }),
	}}
}

var replicaLookups = prometheus.NewDesc("kvatlas_replica_lookups_total",
	"Lookups by where they were answered from: memory, redis, or stale, which is memory while Redis is away.", []string{"from"}, nil)
