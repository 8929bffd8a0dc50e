package bench

import (
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
)

// corpus is a set of chains of random block keys. A key is a function of its
// place, so that none has to be remembered to be found or removed again.
type corpus struct {
	seed   uint64
	chains int // how many
	depth  int // blocks of each
}

// newCorpus has about so many keys in chains of the depth, but a chain at least.
func newCorpus(seed uint64, keys, depth int) corpus {
	return corpus{seed: seed, chains: max(1, keys/depth), depth: depth}
}

func (c corpus) keys() int { return c.chains * c.depth }

// key is the key of a block of a chain. There are further chains than those of
// the corpus, and chains go on beyond its depth: blocks that no pod holds.
func (c corpus) key(chain, block int) blockkey.Key {
	// The steps of splitmix64, whose outputs for different inputs differ.
	z := c.seed + (uint64(chain)<<32|uint64(block))*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return blockkey.Key(z ^ z>>31)
}

// append appends blocks of a chain.
func (c corpus) append(dst []blockkey.Key, chain, from, to int) []blockkey.Key {
	for i := from; i < to; i++ {
		dst = append(dst, c.key(chain, i))
	}
	return dst
}

// prompt is a chain of n blocks whose first percent are held.
func (c corpus) prompt(chain, n, percent int) []blockkey.Key {
	held := n * percent / 100
	keys := c.append(make([]blockkey.Key, 0, n), chain%c.chains, 0, held)
	// What follows is of a chain that no pod holds.
	return c.append(keys, c.chains+chain, held, n)
}

// each calls f with all keys, at most n at a time.
func (c corpus) each(n int, f func([]blockkey.Key) error) error {
	buf := make([]blockkey.Key, 0, n)
	for chain := range c.chains {
		for at := 0; at < c.depth; at += n {
			buf = c.append(buf[:0], chain, at, min(at+n, c.depth))
			if err := f(buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// podName is the name of a pod: an address, as engines have them.
func podName(i int) string { return fmt.Sprintf("10.%d.%d.%d:8000", 0, i/250, i%250+1) }

func podNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = podName(i)
	}
	return out
}

// Spread is a median with the quartiles around it.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// SpreadOf returns the spread of samples, which it sorts. Of no samples it is zero.
func SpreadOf(samples []float64) Spread {
	if len(samples) == 0 {
		return Spread{}
	}
	slices.Sort(samples)
	at := func(q float64) float64 {
		x := q * float64(len(samples)-1)
		i := int(x)
		if i+1 == len(samples) {
			return samples[i]
		}
		return samples[i] + (x-float64(i))*(samples[i+1]-samples[i])
	}
	return Spread{Median: at(0.5), Low: at(0.25), High: at(0.75)}
}
