package scorer

import (
	"fmt"
	"math"
	"strings"

	"github.com/kvatlas/kvatlas/internal/nearest"
	"github.com/kvatlas/kvatlas/store"
)

// Strategy says how held blocks become a score.
type Strategy string

// The strategies.
const (
	// LongestPrefix sums the tier weights of the consecutive blocks that a pod
	// holds from the start of the prompt: what a prefix cache can reuse.
	LongestPrefix Strategy = "longest_prefix"
	// HighestBlock is the 1-based index of the highest block that a pod holds,
	// whether or not it holds those before it.
	HighestBlock Strategy = "highest_block"
	// Coverage sums the tier weights of all blocks that a pod holds, wherever
	// they stand in the prompt.
	Coverage Strategy = "coverage"
)

// rule is how a strategy works: which blocks count, and what their score is for one slot, a pure
// function of the match.
type rule struct {
	name   Strategy
	extent Extent
	score  func(m *Match, slot int, w *Weights) float64
}

// rules are all strategies. A new one is a constant above and a line here.
var rules = [...]rule{
	{LongestPrefix, Prefix, func(m *Match, slot int, w *Weights) float64 { return w.score(m.Usable(slot)) }},
	{HighestBlock, Anywhere, func(m *Match, slot int, _ *Weights) float64 { return float64(m.Highest[slot]) }},
	{Coverage, Anywhere, func(m *Match, slot int, w *Weights) float64 { return w.score(m.Held[slot]) }},
}

// Strategies lists all strategies.
func Strategies() []Strategy {
	names := make([]Strategy, len(rules))
	for i := range rules {
		names[i] = rules[i].name
	}
	return names
}

// ParseStrategy reads a strategy's name.
func ParseStrategy(s string) (Strategy, error) {
	r, err := ruleOf(Strategy(s))
	if err != nil {
		return "", err
	}
	return r.name, nil
}

func ruleOf(s Strategy) (*rule, error) {
	var names []string
	for i := range rules {
		if rules[i].name == s {
			return &rules[i], nil
		}
		names = append(names, string(rules[i].name))
	}
	return nil, fmt.Errorf("%w: strategy %.40q is not one of %s%s", ErrRequest, s, strings.Join(names, ", "), nearest.Clause(string(s), names))
}

// Weights is what a block counts by the tier that holds it, indexed by
// store.Tier. A block held in several tiers counts its best.
type Weights [store.NumTiers]float64

// DefaultWeights are the weights unless configured: a GPU block counts 1, the others less by
// what bringing them back costs.
func DefaultWeights() Weights {
	return Weights{store.GPU: 1, store.CPU: 0.8, store.Disk: 0.5, store.Shared: 0.3}
}

// validate refuses weights that would turn the ranking over.
func (w *Weights) validate() error {
	for t, v := range w {
		if math.IsNaN(v) || v < 0 || v > 1000 {
			return fmt.Errorf("scorer: weight of tier %s is %v, it must be within 0 and 1000", store.Tier(t), v)
		}
	}
	return nil
}

// order returns for each tier its place among the tiers by falling weight, ties
// to the faster tier. Of two tiers the one with the lower place counts.
func (w *Weights) order() (place [store.NumTiers]uint8) {
	for t := range w {
		for u := range w {
			if w[u] > w[t] || (w[u] == w[t] && u < t) {
				place[t]++
			}
		}
	}
	return place
}

// score turns block counts by tier into a score. It is computed from whole
// counts in a fixed order and rounded to 1e-6. So the same blocks give the
// same number whatever windows they were read in.
func (w *Weights) score(blocks TierCounts) float64 {
	var sum float64
	for t, n := range blocks {
		sum += float64(n) * w[t]
	}
	if sum == float64(int64(sum)) {
		return sum // as it would be rounded
	}
	return math.Round(sum*1e6) / 1e6
}
