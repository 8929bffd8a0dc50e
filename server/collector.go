package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvatlas/kvatlas/store"
)

// indexCollector reads the index's figures at each scrape.
type indexCollector struct {
	stats    func() store.Stats
	registry func() *store.Registry
}

var (
	indexBlocks  = prometheus.NewDesc("kvatlas_index_blocks", "Blocks held in this process; absent when they are elsewhere.", nil, nil)
	indexBytes   = prometheus.NewDesc("kvatlas_index_bytes", "Memory of those blocks; absent when they are elsewhere.", nil, nil)
	indexEvicted = prometheus.NewDesc("kvatlas_index_evicted_blocks_total", "Blocks dropped because the index was full.", nil, nil)
	indexGarbled = prometheus.NewDesc("kvatlas_index_garbled_values_total", "Values that could not be read.", nil, nil)
	indexTrips   = prometheus.NewDesc("kvatlas_index_round_trips_total", "Round trips to the index's server.", nil, nil)
	indexKeys    = prometheus.NewDesc("kvatlas_index_keys_read_total", "Block keys looked up.", nil, nil)
	indexReloads = prometheus.NewDesc("kvatlas_index_registry_loads_total", "Reloads of the registry of pods.", nil, nil)
	indexPods    = prometheus.NewDesc("kvatlas_index_pods", "Pods in the registry as last seen.", nil, nil)
	indexModels  = prometheus.NewDesc("kvatlas_index_models", "Models in the registry as last seen.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *indexCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		indexBlocks, indexBytes, indexEvicted, indexGarbled, indexTrips, indexKeys, indexReloads, indexPods, indexModels,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *indexCollector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge := func(d *prometheus.Desc, v int64) {
		if v >= 0 {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
		}
	}
	st, reg := c.stats(), c.registry()
	gauge(indexBlocks, st.Blocks)
	gauge(indexBytes, st.Bytes)
	counter(indexEvicted, st.Evicted)
	counter(indexGarbled, st.Garbled)
	counter(indexTrips, st.RoundTrips)
	counter(indexKeys, st.KeysRead)
	counter(indexReloads, st.RegistryLoads)
	gauge(indexPods, int64(len(reg.Pods)))
	gauge(indexModels, int64(len(reg.Models)))
}
