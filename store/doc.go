// Package store is the contract of the block index: which pods hold which
// blocks. [Index] is implemented by store/memory within one process and by
// store/redis for a fleet; store/storetest holds both to the contract.
//
// Writers name blocks by block key and say which rank of which pod holds them in
// which tier ([Batch]). Readers give the chain of a prompt and a [Folder]. The
// folder receives the holders of block after block, by small integer ids, and
// stops the reading once it knows enough. Names come in only at the edge, from
// the [Registry] that belongs to the answer.
package store
