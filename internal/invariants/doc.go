// Package invariants says whether packages check what must always hold after each change of
// their state, which costs too much for production. The build tag kvatlas_invariants turns
// the checks on: what does not hold panics. scripts/test.sh runs tests with it.
package invariants
