// Package demand counts which beginnings prompts share, in little memory and without their
// texts. The block keys of what is routed go in, and the prefixes that are asked for most come
// out. Processes count apart, and what they have counted is merged.
//
// A Sketch is exact while few prompts come, and a lower bound otherwise. It keeps up to maxNodes
// blocks, and forgets half of each count in HalfLife. It counts up to a few hundred requests a
// second and lets them stand for the others. Nothing here does I/O.
package demand

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Limits of a Sketch.
const (
	// HalfLife is the time in which half of a count fades.
	HalfLife = 10 * time.Minute
	// maxNodes is how many blocks a Sketch counts. When there are more, the less demanded half
	// goes.
	maxNodes = 4096
	// maxPlaces is of how many places a Sketch knows what was sent there.
	maxPlaces = 1024
	// placesKept is to how many places of one block requests are counted: those that get most.
	placesKept = 4
	// perSecond is about how many requests are counted in a second. With more, each that is
	// counted stands for several.
	perSecond = 256
	// maxEvery is how many requests one stands for at most.
	maxEvery = 1 << 20
	// grown is how many blocks a request adds at most that were not counted before. So a prompt
	// that comes once takes little room, and one that comes often is soon known whole.
	grown = 4
	// rescaleAt is the weight of a request at which all counts are made small again.
	rescaleAt = 1 << 40
)

// Sketch counts the requests of one model. Its methods must not be called concurrently.
type Sketch struct {
	at     map[blockkey.Key]int32 // index in nodes
	nodes  []node
	all    float64 // requests, as nodes count them
	places map[store.RankRef]uint16
	names  []store.RankRef

	epoch int64 // when a request weighs 1, in microseconds

	every   float64 // how many requests one that is counted stands for
	skip    int     // how many come before the next one
	came    int     // since window
	counted int     // since window
	window  int64
	rand    *rand.Rand
}

// node is a block, and with it the prefix that ends there.
type node struct {
	key, parent blockkey.Key // parent is that of the block counted before it, 0 for none
	blocks      int32        // of the prefix
	samples     uint8        // requests of it that were counted one by one, at most all that fit
	requests    float64
	missed      float64
	cut         float64 // requests that went on, of which no further block was counted
	guessed     float64 // of requests: those that were cut before, and are taken to have come here
	sent        [placesKept]sent
}

// sent is how many requests went to a place.
type sent struct {
	place    uint16 // index in names + 1; 0 means none
	requests float32
}

// New returns an empty Sketch.
func New() *Sketch {
	return &Sketch{at: map[blockkey.Key]int32{}, places: map[store.RankRef]uint16{}, every: 1, rand: rand.New(rand.NewPCG(1, 2))}
}

// nextDepth returns the block after which the next one is counted. Blocks are counted close
// where prompts share most, at 1, 2, ... 16, 18, 20, 22, 24, 27, ...: 57 of them in 2,048.
func nextDepth(at int) int { return at + max(1, at/8) }

// Skips reports whether the next request is not to be counted, as one that is counted stands
// for it. It is the cheap half of Add: call it first.
func (s *Sketch) Skips() bool {
	s.came++
	if s.skip > 0 {
		s.skip--
		return true
	}
	return false
}

// Add counts a request with these blocks from its beginning on. It was sent to a place that held
// so many of them, at a time in microseconds of the Unix epoch.
func (s *Sketch) Add(keys []blockkey.Key, at store.RankRef, held int, now int64) {
	if len(keys) == 0 {
		return
	}
	w := s.every * s.weight(now)
	s.pace(now)
	s.all += w
	place, added := s.placeOf(at), 0
	last := node{} // the one before, where its requests that were cut off go on
	for depth := nextDepth(0); depth <= len(keys); depth = nextDepth(depth) {
		key := keys[depth-1]
		i, known := s.at[key]
		if !known {
			if added == grown {
				s.nodes[s.at[last.key]].cut += w
				return
			}
			added++
			if last.cut > 0 {
				s.nodes[s.at[last.key]].cut = 0
			}
			fresh := node{key: key, parent: last.key, blocks: int32(depth), requests: last.cut, cut: last.cut, guessed: last.cut}
			if last.cut > 0 {
				fresh.missed = last.cut * last.missed / last.requests
			}
			i = s.addNode(fresh)
		}
		n := &s.nodes[i]
		last = *n
		n.requests += w
		n.samples = max(n.samples, n.samples+1)
		if depth > held {
			n.missed += w
		}
		n.addSent(place, float32(w))
	}
}

// pace sets how many requests the next one that is counted stands for, by how many came in the
// last second.
func (s *Sketch) pace(now int64) {
	s.counted++
	switch passed := float64(now-s.window) / 1e6; {
	case passed >= 1 || passed < 0:
		s.every = min(maxEvery, max(1, math.Floor(float64(s.came)/max(1, passed)/perSecond)))
		s.window, s.came, s.counted = now, 0, 0
	case s.counted >= perSecond:
		s.every, s.counted = min(maxEvery, s.every*2), 0
	}
	if s.every > 1 { // by chance, lest it goes with a rhythm of the requests
		s.skip = s.rand.IntN(2*int(s.every) - 1)
	}
}

// weight is what a request counts at a time, in the units of the counts. It doubles with each
// half-life, in place of halving all earlier counts.
func (s *Sketch) weight(now int64) float64 {
	if s.epoch == 0 {
		s.epoch = now
	}
	w := math.Exp2(float64(now-s.epoch) / float64(HalfLife.Microseconds()))
	if w < rescaleAt {
		return w
	}
	s.all /= w
	for i := range s.nodes {
		n := &s.nodes[i]
		n.requests, n.missed, n.cut, n.guessed = n.requests/w, n.missed/w, n.cut/w, n.guessed/w
		for k := range n.sent {
			n.sent[k].requests /= float32(w)
		}
	}
	s.epoch = now
	return 1
}

// placeOf is a place's index in names + 1, 0 where there is no room for another.
func (s *Sketch) placeOf(at store.RankRef) uint16 {
	i, known := s.places[at]
	if !known && len(s.names) < maxPlaces {
		s.names = append(s.names, at)
		i = uint16(len(s.names))
		s.places[at] = i
	}
	return i
}

// addSent counts a request to a place. A new place takes the room, and the count, of the one
// with the fewest, as a space-saving sketch does. Its count is then an upper bound.
func (n *node) addSent(place uint16, w float32) {
	least := 0
	for k := range n.sent {
		if n.sent[k].place == place {
			n.sent[k].requests += w
			return
		}
		if n.sent[k].requests < n.sent[least].requests {
			least = k
		}
	}
	n.sent[least].place = place
	n.sent[least].requests += w
}

// addNode adds a block, for which the less demanded half of all makes room if need be.
func (s *Sketch) addNode(n node) int32 {
	if len(s.nodes) >= maxNodes {
		slices.SortFunc(s.nodes, byDemand)
		s.nodes = s.nodes[:maxNodes/2]
		clear(s.at)
		for i := range s.nodes {
			s.at[s.nodes[i].key] = int32(i)
		}
	}
	i := int32(len(s.nodes))
	s.nodes = append(s.nodes, n)
	s.at[n.key] = i
	return i
}

// byDemand puts what is asked for more first, and of a chain what comes first.
func byDemand(a, b node) int {
	return cmp.Or(cmp.Compare(b.requests, a.requests), cmp.Compare(a.blocks, b.blocks), cmp.Compare(a.key, b.key))
}
