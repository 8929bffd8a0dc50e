// Package loads keeps what running requests take of each (pod, rank). So any number of
// routers that share nothing but Redis choose by one truth.
//
// A request is booked once. In one atomic step Book weighs the candidates by their loads
// as they are at that moment, takes one, and adds the request to it. Done says that its
// prefill has ended, Output how far it has come, End that it is over. All of them are
// idempotent by the request's id, so that a client may repeat any call whose answer it has
// not seen. A reservation has a lease by the index's own clock. When clients, routers and
// pods die, every load is back at zero one lease later, without a sweeper.
//
// A load belongs to a generation of its rank. When the caller knows a newer one, the engine
// has restarted and none of its requests runs any more. The load is void then, at a cost of
// O(1).
//
// Memory is the implementation in one process; loads/redis shares loads among processes.
// The suite in loads/loadstest holds both to one contract and to a plain model.
package loads
