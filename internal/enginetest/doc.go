// Package enginetest stands in for engines in tests. It runs the publishers of real ones.
// They are the very code by which releases of vLLM and SGLang publish their events, and a
// plain PUB and ROUTER of libzmq. The latter do what engines do not (CURVE, faults at will).
// It runs their own caches under a random load, without a GPU: see [Cache]. Package
// sim/encode writes events itself, in the form of a given release.
//
// scripts/fetch-engines.sh prepares what this needs of engines; without that a test that
// starts one fails and says so. -short leaves such tests out.
package enginetest
