package prefixcache

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"
)

// node is a node of a Trie together with the edge that leads to it.
//
// Its tokens are the difference to those of the nodes above it: take back drop
// of them, then add tokens. What the nodes from the root to this one give
// together never changes while the node is in the tree, whatever happens around
// it. So readers need no lock. Fields data, label, tokens and drop are fixed
// when a node is made; kids, term and ref are atomic. The rest belongs to the
// writer.
type node struct {
	data   string   // label, then the ends of tokens; in a root, the scope's name
	label  uint32   // length of the label
	drop   uint32   // tokens of the nodes above to take back
	tokens []uint32 // tokens that end within the label, and their ends in data

	kids atomic.Pointer[[]kid]    // by first byte of their labels, ascending; the slice is never changed
	term atomic.Pointer[terminal] // set when a text ends at the end of the label
	ref  atomic.Bool              // read since the writer last looked

	size       uint32 // of data as allocated; fixed
	gone       bool   // no longer in the tree; guarded by Trie.mu, as all below
	parent     *node
	prev, next *node // in the list of leaves; nil in inner nodes
}

// kid is a child and the first byte of its label.
type kid struct {
	first byte
	node  *node
}

// terminal says how the tokens of a whole text differ from those of the nodes
// down to its end. They do by the special tokens behind the text, or since
// another text with the same bytes, but other tokens, came first.
type terminal struct {
	drop   uint32
	tokens []uint32
}

// sameTokens is the terminal of all texts whose tokens are just those of their
// nodes.
var sameTokens = new(terminal)

// Sizes in bytes, for the accounting. A slice behind an atomic pointer takes a
// header of its own.
const (
	nodeSize     = int64(unsafe.Sizeof(node{}))
	terminalSize = int64(unsafe.Sizeof(terminal{}))
	kidSize      = int64(unsafe.Sizeof(kid{}))
	headerSize   = int64(unsafe.Sizeof([]kid{}))
)

// newNode makes a node. ends are those of tokens in the text, and start is
// where in the text the label begins.
func newNode(label string, start int, drop int, tokens []uint32, ends []int) *node {
	// The first end is written as its distance from start, which is negative
	// where tokens of the nodes above are corrected. Each other end is written
	// as its distance from the one before.
	var stack [2 * defaultMaxLabel]byte
	buf := append(stack[:0], label...)
	if len(ends) > 0 {
		buf = binary.AppendVarint(buf, int64(ends[0]-start))
		last := ends[0]
		for _, end := range ends {
			if d := end - last; d < 0x80 {
				buf = append(buf, byte(d))
			} else {
				buf = binary.AppendUvarint(buf, uint64(d))
			}
			last = end
		}
	}
	// A Builder says how much was allocated.
	var b strings.Builder
	b.Grow(len(buf))
	b.Write(buf)
	return &node{
		data:   b.String(),
		label:  uint32(len(label)),
		drop:   uint32(drop),
		tokens: slices.Clone(tokens),
		size:   uint32(b.Cap()),
	}
}

// endReader decodes the ends of a node's tokens one after the other.
type endReader struct {
	data string
	end  int // of the token before
}

// endsFrom starts decoding. start is where in the text the label begins.
func (n *node) endsFrom(start int) endReader {
	e := endReader{data: n.data[n.label:], end: start}
	if len(n.tokens) > 0 {
		v := e.uvarint()
		e.end += int(int64(v>>1) ^ -int64(v&1)) // zigzag
	}
	return e
}

// next returns the next token's end in the text.
func (e *endReader) next() int {
	if c := e.data[0]; c < 0x80 {
		e.data = e.data[1:]
		e.end += int(c)
		return e.end
	}
	e.end += int(e.uvarint())
	return e.end
}

// uvarint reads what binary.AppendUvarint wrote.
func (e *endReader) uvarint() (v uint64) {
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		c := e.data[i]
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			e.data = e.data[i+1:]
			return v
		}
	}
}

// edge returns the label.
func (n *node) edge() string { return n.data[:n.label] }

// upTo returns how many of the node's tokens end within the first m bytes of
// the label.
func (n *node) upTo(m int) int {
	e := n.endsFrom(0)
	for i := range n.tokens {
		if e.next() > m {
			return i
		}
	}
	return len(n.tokens)
}

// shared returns how many of the node's first count tokens are the same, ends
// included, as the first of tokens.
func (n *node) shared(start, count int, tokens []uint32, in []int) int {
	e := n.endsFrom(start)
	count = min(count, len(tokens))
	for i, t := range n.tokens[:count] {
		if t != tokens[i] || e.next() != in[i] {
			return i
		}
	}
	return count
}

// kid returns the child whose label begins with first, or nil.
func (n *node) kid(first byte) *node {
	kids := n.kids.Load()
	if kids == nil {
		return nil
	}
	if i, ok := find(*kids, first); ok {
		return (*kids)[i].node
	}
	return nil
}

// find returns the place of first in kids.
func find(kids []kid, first byte) (int, bool) {
	i, j := 0, len(kids)
	for i < j {
		h := int(uint(i+j) >> 1)
		if kids[h].first < first {
			i = h + 1
		} else {
			j = h
		}
	}
	return i, i < len(kids) && kids[i].first == first
}

// setKid adds c to the children, or replaces the one with the same first byte.
func (n *node) setKid(c *node) {
	c.parent = n
	first := c.data[0]
	var old []kid
	if p := n.kids.Load(); p != nil {
		old = *p
	}
	i, ok := find(old, first)
	if ok {
		kids := append(slices.Grow([]kid(nil), len(old)), old...)
		kids[i].node = c
		n.kids.Store(&kids)
		return
	}
	kids := append(slices.Grow([]kid(nil), len(old)+1), old[:i]...)
	kids = append(append(kids, kid{first, c}), old[i:]...)
	n.kids.Store(&kids)
}

// removeKid takes c from the children.
func (n *node) removeKid(c *node) {
	old := *n.kids.Load()
	if len(old) == 1 {
		n.kids.Store(nil)
		return
	}
	i, _ := find(old, c.data[0])
	kids := append(slices.Grow([]kid(nil), len(old)-1), old[:i]...)
	kids = append(kids, old[i+1:]...)
	n.kids.Store(&kids)
}

// adopt takes over the children and the terminal of from, which leaves the tree.
func (n *node) adopt(from *node) {
	kids := from.kids.Load()
	n.kids.Store(kids)
	if kids != nil {
		for _, k := range *kids {
			k.node.parent = n
		}
	}
	n.term.Store(from.term.Load())
	n.ref.Store(from.ref.Load())
}

// mark marks n as read. It writes only when that changes something, so that
// hot nodes stay in the caches of all CPUs.
func (n *node) mark() {
	if !n.ref.Load() {
		n.ref.Store(true)
	}
}

// cost is what the node takes, in bytes.
func (n *node) cost() int64 {
	c := nodeSize + int64(n.size) + int64(cap(n.tokens))*4
	if kids := n.kids.Load(); kids != nil {
		c += headerSize + int64(cap(*kids))*kidSize
	}
	if t := n.term.Load(); t != nil {
		c += t.cost()
	}
	return c
}

// cost is what the terminal takes, in bytes.
func (t *terminal) cost() int64 {
	if t == sameTokens {
		return 0
	}
	return terminalSize + int64(cap(t.tokens))*4
}

// leaves is the list of the nodes without children, the one that was placed
// longest ago first to go.
type leaves struct {
	root node // sentinel: next is the newest, prev the oldest
	n    int
}

func (l *leaves) init() {
	l.root.next, l.root.prev = &l.root, &l.root
	l.n = 0
}

// insert puts v behind at, that is, makes it older than at.
func (l *leaves) insert(v, at *node) {
	v.prev, v.next = at, at.next
	at.next.prev = v
	at.next = v
	l.n++
}

func (l *leaves) pushNewest(v *node) { l.insert(v, &l.root) }
func (l *leaves) pushOldest(v *node) { l.insert(v, l.root.prev) }

// remove takes v from the list if it is there.
func (l *leaves) remove(v *node) {
	if v.next == nil {
		return
	}
	v.prev.next, v.next.prev = v.next, v.prev
	v.prev, v.next = nil, nil
	l.n--
}

// oldest returns the oldest leaf, or nil.
func (l *leaves) oldest() *node {
	if l.n == 0 {
		return nil
	}
	return l.root.prev
}
