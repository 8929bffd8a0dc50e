//go:build race

package memory

// upheavals is how many rounds TestLookupsDuringUpheaval has. Under the race
// detector a round takes many times as long, and finds more.
const upheavals = 100
