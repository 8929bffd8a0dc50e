// Package enginetest runs the publishers of real engines for tests: the very code by
// which releases of vLLM and SGLang publish their events, and a plain PUB and ROUTER
// of libzmq that can do what engines do not (CURVE, faults at will).
//
// scripts/fetch-engines.sh prepares what it needs; without that a test that starts a
// publisher fails and says so. -short leaves such tests out.
package enginetest
