//go:build race

package snapshot_test

// manyBlocks is how many blocks the test of bounded memory has: with the race
// detector they take ten times as long.
const manyBlocks = 100_000
