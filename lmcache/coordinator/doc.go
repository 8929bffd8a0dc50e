// Package coordinator stands in for the coordinator of LMCache's MP mode, as of 0.5.6:
// servers of it that run with --coordinator-url and --coordinator-event-reporting tell
// what they store and delete, and it goes into the index as chunks of the pods that they
// serve.
//
// # What is answered
//
//	POST /events                       applied, duplicates, stale
//	POST /directory/lookup             the holders of the chunks of tokens, or some keys
//	GET, POST /instances               membership
//	PUT /instances/{id}/heartbeat
//	DELETE /instances/{id}
//	GET /healthz
//
// The other paths of LMCache's coordinator are 501 with the reason: the index keeps
// neither whole hashes nor sizes and tokens, so it cannot list keys, match fragments, or
// tell how full a tier is, and quotas, pins and prefetches are orders to servers, which
// kvatlas does not give. Errors have FastAPI's shape, {"detail": ...}.
//
// # Placements
//
// An entry's kv_rank says which worker of how many it is of, and each is a registration
// beside the pod, see package filing. l1 is the tier cpu; l2 is shared when it says so,
// and disk else. Left out and counted are entries with a cache salt, which must not be
// found without it, those of object groups but the first, and those of models that the
// instance's pods do not serve.
//
// # Order
//
// Batches are numbered within an incarnation. An older incarnation is stale and a number
// that was there is a duplicate; both are dropped. A newer incarnation is a new process:
// the credit of l1 ends. A hole in the numbers means that deletions may have been lost,
// for a batch that cannot be delivered is dropped by LMCache, and nothing can ask for
// what is held: all credit of the instance ends, and grows again with what it stores.
//
// Incarnation and number are written with the blocks, in one step, for all workers of the
// instance. So any replica of kvatlas can take the next batch: it takes the instance over
// and goes on.
package coordinator
