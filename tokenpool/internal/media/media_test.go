package media

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/prompt"
)

// TestPrefixes: what a text's known prefix gives is a prefix of what the whole
// gives, with the media in it.
func TestPrefixes(t *testing.T) {
	rules := Rules{
		"image": {target: []uint32{7}, repeat: 8},
		"audio": {target: []uint32{5, 6}, before: []uint32{1}, repeat: 9, after: []uint32{2}},
	}
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		plan := &Plan{rules: rules, items: map[string][]prompt.Medium{}}
		var ids []uint32
		known := true
		for range rnd.IntN(30) {
			m := prompt.Medium{Hash: "x", Tokens: 3 + rnd.IntN(4)}
			if rnd.IntN(8) == 0 {
				m.Hash = ""
			}
			switch rnd.IntN(4) {
			case 0:
				ids, plan.items["image"] = append(ids, 7), append(plan.items["image"], m)
				known = known && m.Hash != ""
			case 1:
				ids, plan.items["audio"] = append(ids, 5, 6), append(plan.items["audio"], m)
				known = known && m.Hash != ""
			default:
				ids = append(ids, 20)
			}
		}
		whole, placed, all, found := plan.Apply(ids)
		if all != known || !found {
			t.Fatalf("seed %d: all %v, found %v", seed, all, found)
		}
		for _, m := range placed {
			if m.Offset+m.Length > len(whole) || m.Length < 3 {
				t.Errorf("seed %d: %+v of %d", seed, m, len(whole))
			}
		}
		for n := range ids {
			if n > 0 && ids[n] == 6 {
				continue // a text is not cut there, between two added tokens, without a mark
			}
			part, some, _, _ := plan.Apply(ids[:n])
			if len(part) > len(whole) || !slices.Equal(part, whole[:len(part)]) || !slices.Equal(some, placed[:len(some)]) {
				t.Errorf("seed %d: the first %d give %v %v, the whole %v %v", seed, n, part, some, whole, placed)
			}
		}
	}
}
