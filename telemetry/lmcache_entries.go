package telemetry

import "github.com/kvatlas/kvatlas/lmcache/entries"

// LMCacheEntries shows the figures of what writes LMCache's entries; it is called at most
// once.
func (m *Metrics) LMCacheEntries(read func() entries.Stats) error {
	type s = entries.Stats
	return m.registry.Register(figures[s]{read, []figure[s]{
		gauge("kvatlas_lmcache_entries", "Entries of LMCache that this process keeps in Redis.", func(s s) int { return s.Entries }),
		counter("kvatlas_lmcache_entries_written_total", "Entries written.", func(s s) uint64 { return s.Written }),
		counter("kvatlas_lmcache_entries_deleted_total", "Entries deleted.", func(s s) uint64 { return s.Deleted }),
		counter("kvatlas_lmcache_entries_renewed_total", "Times to live renewed.", func(s s) uint64 { return s.Renewed }),
		counter("kvatlas_lmcache_entries_full_total", "Chunks whose entries found no room.", func(s s) uint64 { return s.Full }),
		counter("kvatlas_lmcache_entries_nameless_total", "Chunks that have no entry: of pods that are not registered, or with hashes that no key can have.", func(s s) uint64 { return s.Nameless }),
		counter("kvatlas_lmcache_entries_failures_total", "Calls of Redis that failed.", func(s s) uint64 { return s.Failures }),
	}})
}
