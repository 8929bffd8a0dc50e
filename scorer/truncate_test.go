package scorer_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/scorer"
)

func TestTruncation(t *testing.T) {
	all := []uint32{1, 2, 3, 4, 5}
	for _, c := range []struct {
		name                  string
		cut                   scorer.Truncation
		exact, special, media bool
		want                  []uint32
		refused               bool
	}{
		{"not asked for", scorer.Truncation{}, true, true, true, all, false},
		{"short enough", scorer.Truncation{Keep: 5}, true, true, true, all, false},
		{"the beginning goes", scorer.Truncation{Keep: 2}, true, false, false, []uint32{4, 5}, false},
		{"left", scorer.Truncation{Keep: 2, Side: scorer.CutLeft}, true, true, false, []uint32{4, 5}, false},
		{"right", scorer.Truncation{Keep: 2, Side: scorer.CutRight}, true, true, false, []uint32{1, 2}, false},
		{"right of a part", scorer.Truncation{Keep: 2, Side: scorer.CutRight}, false, true, false, []uint32{1, 2}, false},
		{"right of a shorter part", scorer.Truncation{Keep: 7, Side: scorer.CutRight}, false, true, false, all, false},
		{"left of a part", scorer.Truncation{Keep: 7, Side: scorer.CutLeft}, false, true, false, nil, false},
		{"special tokens are in the way", scorer.Truncation{Keep: 2}, true, true, false, nil, true},
		{"media are", scorer.Truncation{Keep: 2, Side: scorer.CutRight}, true, false, true, nil, true},
	} {
		got, err := c.cut.Apply(slices.Clone(all), c.exact, c.special, c.media)
		if !slices.Equal(got, c.want) || errors.Is(err, scorer.ErrCut) != c.refused {
			t.Errorf("%s: %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}
