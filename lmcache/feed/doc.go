// Package feed writes into the index what LMCache's workers hold, for lmcache/controller and
// lmcache/coordinator, which hear of it.
//
// Each worker is a registration of its own beside the pod's ([store.PartOf]), with its
// own lease and generation. So one that dies or restarts loses its blocks in O(1) and
// its siblings keep theirs. [Pods.Find] says which pod an instance of LMCache belongs
// to, a [Worker] is the registration and the writing for it.
//
// # One writer among replicas
//
// LMCache chooses which replica of kvatlas it talks to, so there are no leases to write. The replica that
// hears a worker takes its generation over, under a fence above the one it finds. The low 20 bits of a fence
// are random. So two replicas that take over at the same moment have two fences, and the higher one keeps
// the generation. The other one learns of it with its next write (store.ErrFenced). It takes over anew when
// the worker goes on talking to it.
//
// What a writer must know to go on where another one was left is in the generation's map as
// marks. These are numbers that are written with the blocks, in one step.
package feed
