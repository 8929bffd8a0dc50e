// Package trial runs simulated engines, an index that follows their events, and a router on
// it, so that policies can be compared. It has one clock of virtual time and no socket.
//
// A trial is deterministic: the same Config gives the same Result.
package trial
