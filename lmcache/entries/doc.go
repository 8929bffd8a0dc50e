// Package entries writes into Redis what LMCache's lookup servers used to write there, for workers
// that tell a controller or a coordinator what they hold. So tools that read those entries keep
// working with an LMCache that does not write them any more.
//
// There are two shapes, [Strings] of LMCache up to 0.3.6, one for each worker's chunk:
//
//	SET  vllm@model@world_size@worker_id@hash  host:port
//
// and [Hashes] of the fork that llm-d v0.1 used, with a field for each pod whose workers
// all have the chunk:
//
//	HSET model@hash  host:port  vllm@world_size@worker_id@time
//
// A [Writer] stands between the services that hear the workers and the index ([Writer.Index]). What
// has been applied there is written here, behind and never in its way. It keeps what there should
// be, so that several changes of an entry become one. A Redis that does not answer costs no more
// than the memory of that.
//
// Nothing is left behind: an entry goes when its worker evicts the chunk, clears, retires or
// falls silent. If this process goes first, it goes at the end of a time to live that is
// renewed as long as the worker lives.
package entries
