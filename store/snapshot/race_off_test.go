//go:build !race

package snapshot_test

// manyBlocks is how many blocks the test of bounded memory has.
const manyBlocks = 1_000_000
