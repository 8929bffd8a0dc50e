package keyspace

import (
	"testing"
)

// TestOnceLogIsBounded: beyond its limit it says again what it said long ago.
func TestOnceLogIsBounded(t *testing.T) {
	l := newOnceLog(2)
	for i, tc := range []struct {
		name, text string
		first      bool
	}{
		{"a", "x", true}, {"a", "x", false}, {"a", "y", true}, {"b", "y", true}, {"a", "y", false},
		{"c", "", true}, {"a", "y", false}, {"b", "y", true},
	} {
		if got := l.first(tc.name, tc.text); got != tc.first {
			t.Errorf("%d: %s %q: first is %v", i, tc.name, tc.text, got)
		}
	}
}
