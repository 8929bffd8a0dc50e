package demand

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

const (
	// goesOn is the share of a prefix's requests that must go on alike for the longer prefix to
	// stand for both.
	goesOn = 0.9
	// perCopy is how many requests of late a further copy needs.
	perCopy = 10
	// maxChain bounds how many blocks a chain has, in case what others tell goes in circles.
	maxChain = 128
)

// Prefix is a beginning that prompts share.
type Prefix struct {
	// Key is that of its last block that is counted, and names the prefix. Chain are the block
	// keys that are counted of it, the last of them Key.
	Key   blockkey.Key
	Chain []blockkey.Key
	// Blocks is how many it has. It may go on for an eighth more, as not every block is counted.
	Blocks int
	// Requests are those whose prompts begin so, Missed those of them that were sent to a place
	// which did not hold it. Both fade: see HalfLife.
	Requests, Missed float64
	// Share is the part of all requests of the model.
	Share float64
	// Sent is how many requests went to a place, of those that got most, most first.
	Sent []Sent
}

// Sent is how many requests went to a place.
type Sent struct {
	store.RankRef
	Requests float64
}

// Merge adds up what processes have counted, as of a time. It returns the prefixes that are
// asked for most, most first, and how many requests there were. Of prefixes that are asked for
// together it returns only the longest. It leaves out one after which at least nine of ten
// requests go on alike.
func Merge(told []Counted, now int64, most int) (out []Prefix, requests float64) {
	type sum struct {
		Prefix
		parent blockkey.Key
		next   float64 // the most requests of one that goes on
		sent   map[store.RankRef]float64
	}
	all := map[blockkey.Key]*sum{}
	for i := range told {
		c := &told[i]
		left := math.Exp2(-float64(max(0, now-c.At)) / float64(HalfLife.Microseconds()))
		requests += c.Requests * left
		for k := range c.Nodes {
			n := &c.Nodes[k]
			s := all[n.Key]
			if s == nil {
				s = &sum{Prefix: Prefix{Key: n.Key, Blocks: n.Blocks}, parent: n.Parent, sent: map[store.RankRef]float64{}}
				all[n.Key] = s
			}
			s.Requests += n.Requests * left
			s.Missed += n.Missed * left
			for _, x := range n.Sent {
				s.sent[c.Places[x.Place]] += x.Requests * left
			}
		}
	}
	for _, s := range all {
		if p := all[s.parent]; p != nil {
			p.next = max(p.next, s.Requests)
		}
	}
	list := make([]*sum, 0, len(all))
	for _, s := range all {
		if s.Requests >= minRequests && s.next < goesOn*s.Requests {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *sum) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(b.Blocks, a.Blocks), cmp.Compare(a.Key, b.Key))
	})
	for _, s := range list[:min(most, len(list))] {
		for at := s; at != nil && len(s.Chain) < maxChain; at = all[at.parent] {
			s.Chain = append(s.Chain, at.Key)
		}
		slices.Reverse(s.Chain)
		for at, n := range s.sent {
			s.Sent = append(s.Sent, Sent{at, n})
		}
		slices.SortFunc(s.Sent, func(a, b Sent) int {
			return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank))
		})
		s.Share = min(1, s.Requests/max(requests, 1e-9))
		out = append(out, s.Prefix)
	}
	return out, requests
}

// Copies is how many of so many places should hold the prefix. They are as many as its share of
// all requests fills when every place has an equal part. It is at most one for each ten recent
// requests, and at least one.
func (p *Prefix) Copies(places int) int {
	return max(1, min(int(math.Ceil(p.Share*float64(places)-1e-9)), int(p.Requests/perCopy), places))
}

// Lacking returns which places should hold the prefix besides its holders, so that there are as
// many as Copies says. First come those that requests with it are sent to already, most first.
// Then a hash of prefix and place decides, so that each caller gets the same.
func (p *Prefix) Lacking(places, holders []store.RankRef) []store.RankRef {
	n := p.Copies(len(places)) - len(holders)
	if n <= 0 {
		return nil
	}
	type lack struct {
		store.RankRef
		sent float64
		rank uint64
	}
	var list []lack
	for _, at := range places {
		if slices.Contains(holders, at) {
			continue
		}
		l := lack{RankRef: at, rank: p.hashOf(at)}
		for _, s := range p.Sent {
			if s.RankRef == at {
				l.sent = s.Requests
			}
		}
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b lack) int { return cmp.Or(cmp.Compare(b.sent, a.sent), cmp.Compare(a.rank, b.rank)) })
	var out []store.RankRef
	for _, l := range list[:min(n, len(list))] {
		out = append(out, l.RankRef)
	}
	return out
}

func (p *Prefix) hashOf(at store.RankRef) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, uint64(p.Key))
	b = binary.LittleEndian.AppendUint64(b, uint64(at.Rank))
	return xxh3.Hash(append(b, at.Pod...))
}
