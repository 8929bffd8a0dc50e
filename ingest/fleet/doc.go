// Package fleet decides which replica reads which rank. Each rank that sends events has exactly one reader
// among all replicas of kvatlas. It stays so while replicas and engines come and go.
//
// Each replica runs a [Fleet]. A few times a second it says that it lives, and sees which others do and what
// each reads ([store.Leases]). It works out by itself what is to be done (plan.go, a pure function of that
// view). All replicas that see the same come to the same, so no leader has to be chosen. Where two see
// different things, the index lets one of them have the rank. What it guarantees:
//
//   - A rank is read by one replica. Should one be stopped and come back, what it
//     writes is refused, since its fence is the lower one.
//   - The ranks of a replica that dies are taken over by the others within TTL and one
//     beat, 2.5 s by default, and go on from the sequence that stands in the index.
//     One that ends in an orderly way gives them up at once.
//   - Ranks are spread evenly. One moves only when that makes the spread more even by
//     more than the slack, a few at a time; so a replica that comes or goes does not
//     shake those that stay.
//   - After an index that could not be reached, when all replicas look dead to each
//     other, none takes anything from another until they have had time to come back.
//
// What to read comes from the registry: each pod with an Events endpoint. See
// [Sources] for how the ranks' endpoints are made of it.
package fleet
