package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// figures is a collector that reads a T at each scrape and shows its parts.
type figures[T any] struct {
	read func() T
	list []figure[T]
}

// figure is one part of a T. A gauge below 0 is not shown: it is not known.
type figure[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(T) float64
}

func gauge[T any, N int | int64](name, help string, of func(T) N) figure[T] {
	return figure[T]{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, func(t T) float64 { return float64(of(t)) }}
}

func counter[T any](name, help string, of func(T) uint64) figure[T] {
	return figure[T]{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, func(t T) float64 { return float64(of(t)) }}
}

// Describe implements prometheus.Collector.
func (f figures[T]) Describe(ch chan<- *prometheus.Desc) {
	for i := range f.list {
		ch <- f.list[i].desc
	}
}

// Collect implements prometheus.Collector.
func (f figures[T]) Collect(ch chan<- prometheus.Metric) {
	t := f.read()
	for i := range f.list {
		p := &f.list[i]
		if v := p.of(t); v >= 0 {
			ch <- prometheus.MustNewConstMetric(p.desc, p.kind, v)
		}
	}
}

func indexFigures(read func() store.Stats) prometheus.Collector {
	type s = store.Stats
	return figures[s]{read, []figure[s]{
		gauge("kvatlas_index_blocks", "Blocks held in this process; absent when they are elsewhere.", func(s s) int64 { return s.Blocks }),
		gauge("kvatlas_index_bytes", "Memory of the blocks held in this process; absent when they are elsewhere.", func(s s) int64 { return s.Bytes }),
		counter("kvatlas_index_evicted_blocks_total", "Blocks dropped because the index was full.", func(s s) uint64 { return s.Evicted }),
		counter("kvatlas_index_garbled_values_total", "Values that could not be read and counted for no pod.", func(s s) uint64 { return s.Garbled }),
		counter("kvatlas_index_texts_total", "Values that name pods by text.", func(s s) uint64 { return s.Texts }),
		counter("kvatlas_index_unknown_texts_total", "Values that name pods by text, of which none counts.", func(s s) uint64 { return s.UnknownTexts }),
		counter("kvatlas_index_round_trips_total", "Round trips to the index's server.", func(s s) uint64 { return s.RoundTrips }),
		counter("kvatlas_index_keys_read_total", "Block keys looked up.", func(s s) uint64 { return s.KeysRead }),
		counter("kvatlas_index_duplicate_batches_total", "Guarded writes that were skipped because they had been made before.", func(s s) uint64 { return s.Duplicates }),
		counter("kvatlas_index_registry_loads_total", "Reloads of the registry of pods.", func(s s) uint64 { return s.RegistryLoads }),
	}}
}

func registryFigures(read func() *store.Registry) prometheus.Collector {
	type r = *store.Registry
	return figures[r]{read, []figure[r]{
		gauge("kvatlas_index_pods", "Live pods in the registry as last seen; the workers of LMCache are parts of pods and do not count.", wholePods),
		gauge("kvatlas_index_models", "Models in the registry as last seen.", func(r r) int { return len(r.Models) }),
	}}
}

// wholePods counts the pods that are no parts of others: what serves prompts, and what
// /v1/score can name.
func wholePods(r *store.Registry) (n int) {
	for i := range r.Pods {
		if r.Pods[i].PartOf == nil {
			n++
		}
	}
	return n
}

func tokenizerFigures(read func() tokenpool.Stats) prometheus.Collector {
	type s = tokenpool.Stats
	return figures[s]{read, []figure[s]{
		counter("kvatlas_tokenizer_answers_stored_total", "Texts answered whole from the prefix store.", func(s s) uint64 { return s.Whole }),
		counter("kvatlas_tokenizer_answers_tokenized_total", "Texts answered by the tokenizer.", func(s s) uint64 { return s.Tokenized }),
		counter("kvatlas_tokenizer_answers_partial_total", "Texts answered by a known prefix of them.", func(s s) uint64 { return s.Partial }),
		counter("kvatlas_tokenizer_answers_none_total", "Texts of which nothing was known in time.", func(s s) uint64 { return s.None }),
		counter("kvatlas_tokenizer_busy_total", "Answers cut short because the queue was full.", func(s s) uint64 { return s.Busy }),
		counter("kvatlas_tokenizer_over_budget_total", "Answers cut short because the budget was over.", func(s s) uint64 { return s.Budget }),
		counter("kvatlas_tokenizer_failed_total", "Requests that ended in an error.", func(s s) uint64 { return s.Failed }),
		counter("kvatlas_tokenizer_refused_total", "Texts refused because they cannot be tokenized.", func(s s) uint64 { return s.Refused }),
		counter("kvatlas_tokenizer_runs_total", "Runs of a tokenizer.", func(s s) uint64 { return s.Runs }),
		counter("kvatlas_tokenizer_joined_total", "Requests that waited for a run that another had begun.", func(s s) uint64 { return s.Joined }),
		counter("kvatlas_tokenizer_text_bytes_total", "Bytes of text that tokenizers ran over.", func(s s) uint64 { return s.TextBytes }),
		counter("kvatlas_tokenizer_tokens_total", "Tokens that tokenizers made.", func(s s) uint64 { return s.Tokens }),
		counter("kvatlas_tokenizer_tokens_reused_total", "Tokens that were known from pieces of earlier texts.", func(s s) uint64 { return s.Reused }),
		counter("kvatlas_tokenizer_loads_total", "Tokenizers loaded.", func(s s) uint64 { return s.Loads }),
		counter("kvatlas_tokenizer_load_errors_total", "Tokenizers that could not be loaded.", func(s s) uint64 { return s.LoadErrors }),
		counter("kvatlas_tokenizer_dropped_total", "Tokenizers that left memory, for room or for a newer version.", func(s s) uint64 { return s.Dropped }),
		counter("kvatlas_tokenizer_fast_total", "Texts and parts of texts that were tokenized fast.", func(s s) uint64 { return s.Fast }),
		counter("kvatlas_tokenizer_checked_total", "Texts that Hugging Face's library tokenized as well, to compare.", func(s s) uint64 { return s.Checked }),
		counter("kvatlas_tokenizer_differences_total", "Tokenizers left to Hugging Face's library, because fast tokens were others.", func(s s) uint64 { return s.Differences }),
		gauge("kvatlas_tokenizer_queued", "Texts that wait for a worker.", func(s s) int { return s.Queued }),
		gauge("kvatlas_tokenizer_queue_limit", "How many texts may wait.", func(s s) int { return s.Queue }),
		gauge("kvatlas_tokenizer_running", "Texts in work.", func(s s) int { return s.Running }),
		gauge("kvatlas_tokenizer_workers", "Workers that run tokenizers.", func(s s) int { return s.Workers }),
		gauge("kvatlas_tokenizer_waiting", "Texts that wait for a tokenizer to be loaded.", func(s s) int { return s.Waiting }),
		gauge("kvatlas_tokenizer_held_bytes", "Bytes of texts that wait or are in work.", func(s s) int64 { return s.HeldBytes }),
		counter("kvatlas_tokenizer_tokens_fleet_total", "Reused tokens that other servers had made.", func(s s) uint64 { return s.FleetReused }),
		counter("kvatlas_tokenizer_fleet_errors_total", "Calls for shared pieces that failed, and pieces that could not be read.", func(s s) uint64 { return s.FleetErrors }),
		counter("kvatlas_tokenizer_fleet_dropped_total", "Texts whose pieces were not shared because too many waited.", func(s s) uint64 { return s.FleetDropped }),
		gauge("kvatlas_tokenizer_piece_bytes", "Memory for the tokens of pieces of texts.", func(s s) int64 { return s.PieceBytes }),
		gauge("kvatlas_tokenizer_piece_limit_bytes", "Limit of the memory for pieces of texts.", func(s s) int64 { return s.MaxPieceBytes }),
		gauge("kvatlas_tokenizer_loaded", "Tokenizers in memory.", func(s s) int { return s.Tokenizers }),
	}}
}

// labelled is a collector of series with labels: what read calls show with.
type labelled struct {
	descs []*prometheus.Desc
	read  func(show showFunc)
}

// showFunc shows a value with the values of its labels.
type showFunc func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string)

// Describe implements prometheus.Collector.
func (l labelled) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range l.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l labelled) Collect(ch chan<- prometheus.Metric) {
	l.read(func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	})
}

// tokenizerMemory shows what each tokenizer in memory takes: as many series as
// tokenizers may be loaded.
func tokenizerMemory(read func() []tokenpool.Model) prometheus.Collector {
	desc := prometheus.NewDesc("kvatlas_tokenizer_memory_bytes",
		"By how much the memory of libraries grew while the tokenizer was read, and what its fast tables take.", []string{"model"}, nil)
	return labelled{[]*prometheus.Desc{desc}, func(show showFunc) {
		for _, m := range read() {
			show(desc, prometheus.GaugeValue, float64(m.MemoryBytes), m.Name)
		}
	}}
}

func prefixFigures(read func() prefixcache.Stats) prometheus.Collector {
	type s = prefixcache.Stats
	return figures[s]{read, []figure[s]{
		gauge("kvatlas_prefix_store_entries", "Chunks or nodes that the prefix store holds.", func(s s) int64 { return s.Entries }),
		gauge("kvatlas_prefix_store_bytes", "Memory of the prefix store.", func(s s) int64 { return s.Bytes }),
		gauge("kvatlas_prefix_store_limit_bytes", "Limit of the memory of the prefix store.", func(s s) int64 { return s.MaxBytes }),
		counter("kvatlas_prefix_store_evicted_total", "Entries dropped to stay below the limit.", func(s s) uint64 { return s.Evicted }),
		counter("kvatlas_prefix_store_found_whole_total", "Texts found whole.", func(s s) uint64 { return s.Whole }),
		counter("kvatlas_prefix_store_found_partial_total", "Texts of which a prefix was found.", func(s s) uint64 { return s.Partial }),
		counter("kvatlas_prefix_store_missed_total", "Texts of which nothing was found.", func(s s) uint64 { return s.Miss }),
		counter("kvatlas_prefix_store_refused_total", "Texts that it would not keep.", func(s s) uint64 { return s.Refused }),
	}}
}
