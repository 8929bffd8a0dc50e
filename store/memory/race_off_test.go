//go:build !race

package memory

// upheavals is how many rounds TestLookupsDuringUpheaval has.
const upheavals = 1500
