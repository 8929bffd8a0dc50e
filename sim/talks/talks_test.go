package talks_test

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/sim/talks"
)

// shared is how many tokens two prompts have in common at their beginnings.
func shared(a, b []uint32) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// The record has the conversations that its README says, and what they share.
func TestRecorded(t *testing.T) {
	all := talks.Recorded()
	if len(all) != 48 {
		t.Fatalf("%d conversations", len(all))
	}
	var prompts [][]uint32
	var tokens, reused, turns int
	for _, c := range all {
		if len(c) == 0 || len(c) > 8 || c[0].Think != 0 {
			t.Errorf("a conversation of %d turns, the first after %v", len(c), c[0].Think)
		}
		for i := range c {
			p := c[i].Prompt(0)
			if len(p) != c[i].Tokens() || c[i].Output < 1 || c[i].Think < 0 {
				t.Errorf("%d tokens of %d, an answer of %d after %v", len(p), c[i].Tokens(), c[i].Output, c[i].Think)
			}
			best := 0
			for _, q := range prompts {
				best = max(best, shared(p, q)/64)
			}
			turns, tokens, reused = turns+1, tokens+len(p)/64, reused+best
			prompts = append(prompts, p)
		}
	}
	// By the trace's own block ids.
	if turns != 364 || tokens-reused != 19040 {
		t.Errorf("%d turns, %d blocks of which %d are in earlier prompts", turns, tokens, reused)
	}
}

// A second round has the common beginnings, and nothing else, of the first.
func TestRounds(t *testing.T) {
	all := talks.Recorded()
	common := 0
	for _, c := range all {
		turn := &c[len(c)-1]
		a, b := turn.Prompt(1), turn.Prompt(2)
		if !slices.Equal(a, turn.Prompt(1)) {
			t.Fatal("a prompt is not the same twice")
		}
		n := shared(a, b)
		if n%64 != 0 || n >= len(a) {
			t.Errorf("%d of %d tokens are in both rounds", n, len(a))
		}
		if n > 0 {
			common++
		}
	}
	if common < 5 || common == len(all) {
		t.Errorf("%d of %d conversations have a beginning that others have", common, len(all))
	}
}
