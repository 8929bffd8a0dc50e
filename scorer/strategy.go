package scorer

import (
	"fmt"
	"math"

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

// Strategies lists all strategies.
func Strategies() []Strategy { return []Strategy{LongestPrefix, HighestBlock, Coverage} }

// ParseStrategy reads a strategy's name.
func ParseStrategy(s string) (Strategy, error) {
	switch st := Strategy(s); st {
	case LongestPrefix, HighestBlock, Coverage:
		return st, nil
	default:
		return "", fmt.Errorf("%w: strategy %.40q is none of longest_prefix, highest_block, coverage", ErrRequest, s)
	}
}

// Weights is what a block counts by the tier that holds it, indexed by
// store.Tier. A block held in several tiers counts its best.
type Weights [store.NumTiers]float64

// DefaultWeights are the weights of DESIGN: a GPU block counts 1, the others
// less by what bringing them back costs.
func DefaultWeights() Weights {
	return Weights{store.GPU: 1, store.CPU: 0.8, store.Disk: 0.5, store.Shared: 0.3}
}

// validate refuses weights that would turn the ranking over.
func (w Weights) validate() error {
	for t, v := range w {
		if math.IsNaN(v) || v < 0 || v > 1000 {
			return fmt.Errorf("scorer: weight of tier %s is %v, it must be within 0 and 1000", store.Tier(t), v)
		}
	}
	return nil
}

// order returns for each tier its place among the tiers by falling weight,
// ties to the faster tier: of two tiers the one with the lower place counts.
func (w Weights) order() (place [store.NumTiers]uint8) {
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
// counts in a fixed order and rounded to 1e-6, so that the same blocks give
// the same number whatever windows they were read in.
func (w Weights) score(blocks [store.NumTiers]int32) float64 {
	var sum float64
	for t, n := range blocks {
		sum += float64(n) * w[t]
	}
	return math.Round(sum*1e6) / 1e6
}
