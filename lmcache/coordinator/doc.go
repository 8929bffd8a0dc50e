// Package coordinator stands in for the coordinator of LMCache's MP mode, as of 0.5.6.
// MP servers that run with --coordinator-url and --coordinator-event-reporting report
// what they store and delete. It goes into the index as chunks of the pods that they
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
// The other paths of LMCache's coordinator are 501 with the reason. The index keeps
// neither whole hashes nor sizes and tokens, so it cannot list keys, match fragments, or
// tell how full a tier is. Quotas, pins and prefetches are orders to servers, which
// kvatlas does not give. Errors have FastAPI's shape, {"detail": ...}.
//
// # Placements
//
// An entry's kv_rank says which worker of how many it is of, and each is a registration
// beside the pod, see package feed. Level l1 is the tier cpu; l2 is shared when it
// says so, and disk else. Entries with a cache salt are left out and counted, since
// they must not be found without it. So are those of object groups but the first, and
// those of models that the instance's pods do not serve.
//
// # Order
//
// Batches are numbered within an incarnation. An older incarnation is stale and a number
// that was there is a duplicate; both are dropped. A newer incarnation is a new process:
// the credit of l1 ends. A hole in the numbers means that deletions may have been lost,
// since LMCache drops a batch that it cannot deliver. Nothing can ask for what is held,
// so all credit of the instance ends, and grows again with what it stores.
//
// Incarnation and number are written with the blocks, in one step, for all workers of the
// instance. So any replica of kvatlas can take the next batch: it takes the instance over
// and goes on.
package coordinator
