// Package wire gives simulated engines the sockets of real ones. They have OpenAI's API
// and each engine's own pages over HTTP, and Prometheus metrics under its names. Their KV
// events come over ZMQ, in the bytes of a release, with its replay socket.
//
// A [Pod] is one engine process with all of its data-parallel ranks. A [Fleet] is several
// of them, and the [Fleet.Handler] by which faults are ordered. What an engine does, and
// how long it takes, is package sim/engine's; this one only keeps the time, sped up where
// asked. All methods are safe for concurrent use.
package wire
