package pages

import "testing"

// TestMake makes slices of values that fill a page, less and more, and none.
func TestMake(t *testing.T) {
	for n := range 20 {
		for what, got := range map[string]int{
			"bytes": len(Make[byte](n * 1000)), "pages": len(Make[[size]byte](n * 1000)), "more": len(Make[[size + 1]byte](n * 1000)), "nothing": len(Make[struct{}](n * 1000)),
		} {
			if got != n*1000 {
				t.Fatalf("%d of %s, want %d", got, what, n*1000)
			}
		}
	}
	for i, v := range Make[uint64](1 << 14) {
		if v != 0 {
			t.Fatalf("value %d is %d", i, v)
		}
	}
}
