package route

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/store"
)

// topology says which places are near each other.
type topology struct {
	prefill, decode []domain // by candidate
	weights         []float64
	factors         map[uint64]float64 // by the preferred labels that two share
}

// domain is where a candidate is.
type domain struct {
	// number is of the values of the labels that must be the same; 0 is of a pod that lacks one.
	// Number class is that of all labels that count.
	number, class int
	// values are numbers of the values of preferred labels, 0 without one.
	values []int
}

func newTopology(s *Pair, reg *store.Registry, prefill, decode []Candidate) topology {
	t := topology{factors: map[uint64]float64{0: 1}}
	labels := slices.Sorted(maps.Keys(s.PreferSame))
	for _, l := range labels {
		t.weights = append(t.weights, s.PreferSame[l])
	}
	numbers := map[string]int{}
	number := func(key []byte) int {
		n := numbers[string(key)]
		if n == 0 {
			n = len(numbers) + 1
			numbers[string(key)] = n
		}
		return n
	}
	var key []byte
	read := func(cs []Candidate) []domain {
		out := make([]domain, len(cs))
		for i := range cs {
			d := &out[i]
			var of map[string]string
			if n, ok := reg.PodIndex(cs[i].Pod); ok {
				of = reg.Pods[n].Labels
			}
			key, whole := append(key[:0], 'd'), true
			for _, l := range s.RequireSame {
				value, ok := of[l]
				key, whole = strconv.AppendQuote(key, value), whole && ok
			}
			if whole {
				d.number = number(key)
			}
			class := strconv.AppendInt([]byte{'c'}, int64(d.number), 10)
			if len(labels) > 0 {
				d.values = make([]int, len(labels))
			}
			for j, l := range labels {
				if value, ok := of[l]; ok {
					d.values[j] = number(strconv.AppendQuote(strconv.AppendInt(append(key[:0], 'v'), int64(j), 10), value))
				}
				class = strconv.AppendInt(append(class, ' '), int64(d.values[j]), 10)
			}
			d.class = number(class)
		}
		return out
	}
	t.prefill, t.decode = read(prefill), read(decode)
	return t
}

// near reports whether places may work together.
func (t *topology) near(i, k int) bool {
	if i >= len(t.prefill) || k >= len(t.decode) {
		return false
	}
	_, ok := t.factor(i, k)
	return ok
}

// factor returns what the cost of candidates i of prefill and k of decode is multiplied by,
// and whether they may work together.
func (t *topology) factor(i, k int) (float64, bool) {
	a, b := &t.prefill[i], &t.decode[k]
	if a.number == 0 || a.number != b.number {
		return 0, false
	}
	shared := uint64(0) // a pod has at most 64 labels
	for j, v := range a.values {
		if v != 0 && v == b.values[j] {
			shared |= 1 << j
		}
	}
	f, ok := t.factors[shared]
	if !ok {
		sum := 0.0
		for j, w := range t.weights {
			if shared&(1<<j) != 0 {
				sum += w
			}
		}
		f = math.Exp(-math.Tanh(sum))
		t.factors[shared] = f
	}
	return f, true
}
