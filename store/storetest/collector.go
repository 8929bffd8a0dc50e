package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// At is a place where a block is held, in names.
type At struct {
	Pod  string
	Rank int
	Tier store.Tier
	// Until is when a prediction ends, in ms of the Unix epoch; 0 of all else.
	Until int64
}

func (a At) String() string {
	if a.Until != 0 {
		return fmt.Sprintf("%s/%d/%s-%d", a.Pod, a.Rank, a.Tier, a.Until)
	}
	return fmt.Sprintf("%s/%d/%s", a.Pod, a.Rank, a.Tier)
}

func compareAt(a, b At) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Until, b.Until))
}

// Answer is what a lookup has told. For each block of the chain in order it has
// the live places where it is, ascending by pod, rank and tier.
type Answer [][]At

// Equal reports whether both answers say the same. The order within a block does
// not matter.
func (a Answer) Equal(b [][]At) bool {
	return slices.EqualFunc(a, b, func(x, y []At) bool {
		x, y = slices.Clone(x), slices.Clone(y)
		slices.SortFunc(x, compareAt)
		slices.SortFunc(y, compareAt)
		return slices.Equal(x, y)
	})
}

// String lists the blocks a line each; equal neighbours are joined.
func (a Answer) String() string {
	if len(a) == 0 {
		return "no blocks"
	}
	var sb strings.Builder
	for i := 0; i < len(a); {
		j := i + 1
		for j < len(a) && slices.Equal(a[j], a[i]) {
			j++
		}
		fmt.Fprintf(&sb, "  blocks %d-%d: %v\n", i, j-1, a[i])
		i = j
	}
	return sb.String()
}

// Collector is a [store.Folder] that keeps everything it is told in names, and
// notes each breach of Folder's contract.
type Collector struct {
	// Keys is the length of the chain.
	Keys int
	// Stop makes Run return false once this many blocks have been told; 0 is
	// never.
	Stop int

	// Registry is what Begin was called with.
	Registry *store.Registry
	// Answer is what was told; Runs is in how many calls, IDs which holder ids
	// were live in them.
	Answer Answer
	Runs   int
	IDs    []store.HolderID

	stopped bool
	breach  error
}

func (c *Collector) breakf(format string, args ...any) {
	if c.breach == nil {
		c.breach = fmt.Errorf(format, args...)
	}
}

// Begin implements [store.Folder].
func (c *Collector) Begin(r *store.Registry) {
	if r == nil {
		c.breakf("Begin without a registry")
		r = store.NewRegistry(0, nil, nil, nil, time.Time{})
	}
	if c.Registry != nil {
		c.breakf("Begin was called twice")
	}
	c.Registry = r
}

// endOf is when a prediction ends, 0 of other holders.
func (c *Collector) endOf(id store.HolderID, s store.Slot, tier store.Tier) int64 {
	if tier != store.Predicted {
		return 0
	}
	for _, h := range c.Registry.Predicted(c.Registry.Pods[s.Pod].Name, s.Rank) {
		if h.ID == id {
			return h.Until.UnixMilli()
		}
	}
	c.breakf("holder %d is a prediction without an end", id)
	return 0
}

// Run implements [store.Folder].
func (c *Collector) Run(n int, holders []store.HolderID) bool {
	switch {
	case c.Registry == nil:
		c.breakf("Run before Begin")
		return false
	case c.stopped:
		c.breakf("Run after Run had returned false")
		return false
	case n < 1:
		c.breakf("a run of %d blocks", n)
		return true
	case len(c.Answer)+n > c.Keys:
		c.breakf("runs of %d blocks for a chain of %d", len(c.Answer)+n, c.Keys)
		return false
	}
	c.Runs++
	var at []At
	for i, id := range holders {
		if i > 0 && id <= holders[i-1] {
			c.breakf("holders do not ascend: %v", holders)
		}
		slot, tier, live := c.Registry.AnyHolder(id)
		if !live {
			continue
		}
		s := c.Registry.Slots[slot]
		at = append(at, At{Pod: c.Registry.Pods[s.Pod].Name, Rank: s.Rank, Tier: tier, Until: c.endOf(id, s, tier)})
		if !slices.Contains(c.IDs, id) {
			c.IDs = append(c.IDs, id)
		}
	}
	slices.SortFunc(at, compareAt)
	if d := slices.Compact(slices.Clone(at)); len(d) != len(at) {
		c.breakf("two live holders of one place: %v", at)
	}
	for range n {
		c.Answer = append(c.Answer, at)
	}
	c.stopped = c.Stop > 0 && len(c.Answer) >= c.Stop
	// What is handed over is valid only during the call, and it is the index's:
	// nothing here keeps it.
	return !c.stopped
}

// Err returns the first breach of the contract. An answer that ends before the
// end of the chain is one, unless the collector has said stop.
func (c *Collector) Err() error {
	switch {
	case c.breach != nil:
		return c.breach
	case c.Registry == nil:
		return fmt.Errorf("Begin was never called")
	case !c.stopped && len(c.Answer) != c.Keys:
		return fmt.Errorf("runs of %d blocks for a chain of %d", len(c.Answer), c.Keys)
	}
	return nil
}
