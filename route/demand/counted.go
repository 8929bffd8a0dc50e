package demand

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Limits of what a process tells.
const (
	toldNodes  = 512
	toldPlaces = 256
	// minRequests is how much of a block's count must be left to be told: more than one request.
	minRequests = 1.01
	// minSamples is how many requests of a block must have been counted one by one. With many
	// requests a second one that is counted has the weight of several, and yet came once.
	minSamples = 2
)

// errCounted says that what a process has counted cannot be read.
var errCounted = errors.New("demand: cannot be read")

// Counted is what one process has counted, in the form in which it is told to others. It has
// block keys and no texts.
type Counted struct {
	// At is when that was, in microseconds of the Unix epoch. Counts are as of then.
	At int64 `json:"at"`
	// Requests are all that were counted of late.
	Requests float64 `json:"requests"`
	// Places are those that Sent of Nodes refer to, by index.
	Places []store.RankRef `json:"places"`
	// Nodes are the blocks that are asked for most, parents before children.
	Nodes []Node `json:"nodes"`
}

// Node is a block, and with it the prefix that ends there.
type Node struct {
	// Key is the block's, Parent that of the block of the same prefix that is counted before it,
	// 0 for none. Blocks is how many the prefix has.
	Key    blockkey.Key `json:"key"`
	Parent blockkey.Key `json:"parent"`
	Blocks int          `json:"blocks"`
	// Requests are those whose prompts begin so, Missed those of them whose place did not
	// hold it.
	Requests float64 `json:"requests"`
	Missed   float64 `json:"missed"`
	// Sent are the places that got most of them.
	Sent []Share `json:"sent"`
}

// Share is how many requests went to a place.
type Share struct {
	Place    int     `json:"place"`
	Requests float64 `json:"requests"`
}

// Counted returns what is asked for most, as of a time.
func (s *Sketch) Counted(now int64) Counted {
	w := s.weight(now)
	out := Counted{At: now, Requests: s.all / w}
	nodes := slices.Clone(s.nodes)
	slices.SortFunc(nodes, byDemand)
	places := map[uint16]int{}
	for i := range nodes {
		n := &nodes[i]
		if n.requests/w < minRequests || len(out.Nodes) == toldNodes {
			break
		}
		if n.samples < minSamples || (n.requests-n.guessed)/w < minRequests {
			continue
		}
		told := Node{Key: n.key, Parent: n.parent, Blocks: int(n.blocks), Requests: round(n.requests / w), Missed: round(n.missed / w)}
		for _, x := range n.sent {
			requests := float64(x.requests) / w
			if x.place == 0 || requests < 0.5 {
				continue
			}
			at, known := places[x.place]
			if !known {
				if len(out.Places) == toldPlaces {
					continue
				}
				at = len(out.Places)
				places[x.place] = at
				out.Places = append(out.Places, s.names[x.place-1])
			}
			told.Sent = append(told.Sent, Share{at, round(requests)})
		}
		out.Nodes = append(out.Nodes, told)
	}
	return out
}

// round keeps three decimals, which is more than a count is worth.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

// Encode is the form in which a process tells what it has counted.
func (c *Counted) Encode() ([]byte, error) { return json.Marshal(c) }

// Decode reads it back. The error is errCounted.
func Decode(b []byte) (c Counted, err error) {
	if err := json.Unmarshal(b, &c); err != nil {
		return Counted{}, fmt.Errorf("%w: %w", errCounted, err)
	}
	if len(c.Nodes) > toldNodes || len(c.Places) > toldPlaces || !isCount(c.Requests) {
		return Counted{}, fmt.Errorf("%w: %d blocks, %d places, %v requests", errCounted, len(c.Nodes), len(c.Places), c.Requests)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Blocks < 1 || n.Blocks > math.MaxInt32 || !isCount(n.Requests) || !isCount(n.Missed) || len(n.Sent) > placesKept {
			return Counted{}, fmt.Errorf("%w: block %d is wrong", errCounted, i)
		}
		for _, x := range n.Sent {
			if x.Place < 0 || x.Place >= len(c.Places) || !isCount(x.Requests) {
				return Counted{}, fmt.Errorf("%w: block %d was sent to a wrong place", errCounted, i)
			}
		}
	}
	return c, nil
}

func isCount(x float64) bool { return x >= 0 && x < 1e15 }
