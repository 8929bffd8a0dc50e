// Package trial runs simulated engines, an index that follows their events, and a router on
// it, with one clock of virtual time and without a socket, so that policies can be compared.
//
// A trial is deterministic: the same Config gives the same Result.
package trial
