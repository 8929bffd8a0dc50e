package lmcache

import "testing"

// What CPython 3.11 printed, and of hash("0") also 3.8 to 3.10.

func TestPyString(t *testing.T) {
	for _, tc := range []struct {
		text   string
		seed   uint32
		python int
		want   int64
	}{
		{"0", 0, 11, 5313149338359954478},
		{"0", 0, 10, -5282990986457227702},
		{"1", 1, 11, -3509053104883717537},
		{"42", 42, 13, 866561823186450123},
		{"4294967295", 4294967295, 11, 8891781246207573802},
		{"123456789", 123456789, 12, 1343418324787453457},
		{"abcdefgh1234567", 123456789, 12, -7193416027162919195},
		{"abcdefgh1234567", 0, 11, 979248594355450033},
		{"", 42, 11, 0},
	} {
		if got := pyString(tc.text, tc.seed, tc.python); got != tc.want {
			t.Errorf("hash(%q), seed %d, Python 3.%d: %d, want %d", tc.text, tc.seed, tc.python, got, tc.want)
		}
	}
}

func TestPyInt(t *testing.T) {
	for v, want := range map[int64]int64{
		0: 0, 1: 1, -1: -2, -2: -2, 1<<61 - 1: 0, 1<<61 - 2: 1<<61 - 2, -(1<<61 - 1): 0,
		1<<63 - 1: 3, -1 << 63: -4, -1 << 62: -2,
	} {
		if got := int64(pyInt(v)); got != want {
			t.Errorf("hash(%d): %d, want %d", v, got, want)
		}
	}
}

func TestBuiltin(t *testing.T) {
	for _, tc := range []struct {
		prev        int64
		tokens      []uint32
		two, threes int64
	}{
		{0, nil, -5190988587195632635, 9096108955250143618},
		{-1, []uint32{1, 2, 3}, 2377809051905919458, 592499971835444413},
		{5, []uint32{4294967295, 0}, 4560156910395858576, -3766495751179458795},
		{-1 << 63, []uint32{0, 1, 2, 3, 4}, 8517105845197626076, -4692171064330923671},
	} {
		two, threes := builtin(tc.prev, tc.tokens, thirdAbsent), builtin(tc.prev, tc.tokens, thirdEmpty)
		if two != tc.two || threes != tc.threes {
			t.Errorf("%d, %v: %d and %d, want %d and %d", tc.prev, tc.tokens, two, threes, tc.two, tc.threes)
		}
	}
}
