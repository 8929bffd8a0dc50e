package telemetry

import (
	"github.com/kvatlas/kvatlas/lmcache/controller"
	"github.com/kvatlas/kvatlas/lmcache/coordinator"
)

// LMCacheController shows the figures of what stands in for LMCache's controller; it is
// called at most once.
func (m *Metrics) LMCacheController(read func() controller.Stats) error {
	type s = controller.Stats
	return m.registry.Register(figures[s]{read, []figure[s]{
		gauge("kvatlas_lmcache_workers", "Workers of LMCache that this process hears.", func(s s) int { return s.Workers }),
		gauge("kvatlas_lmcache_unmapped_workers", "Workers of instances for which no pod is known, and those that the index has no room for.", func(s s) int { return s.Unmapped }),
		gauge("kvatlas_lmcache_syncing_workers", "Workers in a full sync.", func(s s) int { return s.Syncing }),
		gauge("kvatlas_lmcache_connections", "Connections of workers.", func(s s) int { return s.Peers }),
		gauge("kvatlas_lmcache_queue_keys", "Keys that wait to be written.", func(s s) int64 { return s.QueueKeys }),
		gauge("kvatlas_lmcache_sync_keys", "Keys of the full syncs under way.", func(s s) int64 { return s.SyncKeys }),
		counter("kvatlas_lmcache_messages_total", "Messages of workers that were understood.", func(s s) uint64 { return s.Messages }),
		counter("kvatlas_lmcache_malformed_total", "Frames that were no messages, and peers disconnected for what they sent.", func(s s) uint64 { return s.Malformed }),
		counter("kvatlas_lmcache_refused_total", "Messages that asked for something that does not exist, or went beyond a limit.", func(s s) uint64 { return s.Refused }),
		counter("kvatlas_lmcache_stale_messages_total", "Messages that did not count: on connections that had spoken for a worker before it registered on another one.", func(s s) uint64 { return s.Stale }),
		counter("kvatlas_lmcache_admitted_keys_total", "Chunks admitted.", func(s s) uint64 { return s.Admitted }),
		counter("kvatlas_lmcache_evicted_keys_total", "Chunks evicted.", func(s s) uint64 { return s.Evicted }),
		counter("kvatlas_lmcache_unknown_location_keys_total", "Operations in locations of an unknown tier.", func(s s) uint64 { return s.Unknown }),
		counter("kvatlas_lmcache_unmapped_keys_total", "Operations of workers for which no pod was known.", func(s s) uint64 { return s.Unplaced }),
		counter("kvatlas_lmcache_dropped_keys_total", "Operations that found no room in the queue.", func(s s) uint64 { return s.Dropped }),
		counter("kvatlas_lmcache_gaps_total", "Holes in the numbers of operations.", func(s s) uint64 { return s.Gaps }),
		counter("kvatlas_lmcache_cleared_tiers_total", "Tiers whose credit ended because something may have been missed.", func(s s) uint64 { return s.Cleared }),
		counter("kvatlas_lmcache_syncs_asked_total", "Full syncs asked for.", func(s s) uint64 { return s.Asked }),
		counter("kvatlas_lmcache_syncs_total", "Full syncs written.", func(s s) uint64 { return s.Synced }),
		counter("kvatlas_lmcache_syncs_failed_total", "Full syncs that ended without being written.", func(s s) uint64 { return s.Unsynced }),
		counter("kvatlas_lmcache_lives_total", "Lives of workers begun or taken over.", func(s s) uint64 { return s.Began }),
		counter("kvatlas_lmcache_taken_over_total", "Lives of workers taken over from another process.", func(s s) uint64 { return s.TookOver }),
		counter("kvatlas_lmcache_fenced_total", "Lives that another process took from this one.", func(s s) uint64 { return s.Fenced }),
		counter("kvatlas_lmcache_silent_workers_total", "Workers that fell silent and lost their leases.", func(s s) uint64 { return s.Lapsed }),
		counter("kvatlas_lmcache_failures_total", "Calls of the index that failed.", func(s s) uint64 { return s.Failures }),
	}})
}

// LMCacheCoordinator shows the figures of what stands in for the coordinator of LMCache's
// MP mode; it is called at most once.
func (m *Metrics) LMCacheCoordinator(read func() coordinator.Stats) error {
	type s = coordinator.Stats
	return m.registry.Register(figures[s]{read, []figure[s]{
		gauge("kvatlas_lmcache_mp_instances", "Instances of LMCache's MP mode that this process has heard of.", func(s s) int { return s.Instances }),
		counter("kvatlas_lmcache_mp_batches_total", "Batches of events taken in.", func(s s) uint64 { return s.Applied }),
		counter("kvatlas_lmcache_mp_duplicate_batches_total", "Batches that had been there before.", func(s s) uint64 { return s.Duplicates }),
		counter("kvatlas_lmcache_mp_stale_batches_total", "Batches of incarnations that have ended.", func(s s) uint64 { return s.Stale }),
		counter("kvatlas_lmcache_mp_stored_total", "Chunks stored.", func(s s) uint64 { return s.Stored }),
		counter("kvatlas_lmcache_mp_deleted_total", "Chunks deleted.", func(s s) uint64 { return s.Deleted }),
		counter("kvatlas_lmcache_mp_skipped_total", "Entries left out: with a cache salt, of a further object group, of one worker too many.", func(s s) uint64 { return s.Skipped }),
		counter("kvatlas_lmcache_mp_foreign_total", "Entries of models that the instance's pods do not serve.", func(s s) uint64 { return s.Foreign }),
		counter("kvatlas_lmcache_mp_unmapped_total", "Entries of instances for which no pod was known.", func(s s) uint64 { return s.Unplaced }),
		counter("kvatlas_lmcache_mp_gaps_total", "Holes in the numbers of batches, after which all credit of the instance ends.", func(s s) uint64 { return s.Gaps }),
		counter("kvatlas_lmcache_mp_taken_over_total", "Instances that another process had written.", func(s s) uint64 { return s.TookOver }),
		counter("kvatlas_lmcache_mp_refused_total", "Requests that could not be understood.", func(s s) uint64 { return s.Refused }),
		counter("kvatlas_lmcache_mp_failures_total", "Requests that the index did not take.", func(s s) uint64 { return s.Failures }),
		counter("kvatlas_lmcache_mp_lookups_total", "Lookups of MP mode.", func(s s) uint64 { return s.Lookups }),
	}})
}
