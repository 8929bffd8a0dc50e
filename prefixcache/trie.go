package prefixcache

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Trie is a Store that keeps the texts in radix trees over their bytes, one a
// scope. See the package comment for what it promises.
//
// Reads take no lock for the walk: a node never changes what it gives, and
// what points to it is replaced atomically. Writers find the place of a text
// and build all that is new without a lock as well. They take turns only to put
// it in and to make room for it:
//
//  1. note the number of purges; walk; build the new nodes
//  2. lock; if there was a purge, or the node at the place has left the tree or
//     got a child where the text goes on, unlock and begin again
//  3. make room; if that took the node away, unlock and begin again
//  4. split the node if the text leaves it in the middle; put the new nodes in
//
// After a few vain attempts a writer keeps the lock throughout.
//
// Lock order: mu before scopesMu; readers take scopesMu alone.
type Trie struct {
	maxBytes int64
	maxLabel int
	tries    int

	mu     sync.Mutex // held by the one that changes a tree; protects leaves
	leaves leaves
	bytes  atomic.Int64  // written under mu
	nodes  atomic.Int64  // written under mu
	purges atomic.Uint64 // written under mu

	scopesMu sync.RWMutex // protects scopes
	scopes   map[string]*node

	counters counters
}

// defaultMaxLabel is the longest label of a node, in bytes. A longer text
// becomes a row of nodes. So a split or a merge copies no more than this, and a
// long text is dropped from its end, a piece at a time.
const defaultMaxLabel = 4096

// NewTrie makes a Trie.
func NewTrie(cfg Config) (*Trie, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Trie{maxBytes: cfg.MaxBytes, maxLabel: defaultMaxLabel, tries: defaultTries, scopes: make(map[string]*node)}
	t.leaves.init()
	return t, nil
}

// Find implements Store. It allocates nothing but the growth of dst.
func (t *Trie) Find(dst []uint32, scope, text string) Match {
	m := Match{Tokens: dst}
	for n := t.scope(scope); n != nil; {
		n.mark()
		rest := text[m.Bytes:]
		if rest == "" {
			if w := n.term.Load(); w != nil {
				m.Tokens = append(m.Tokens[:len(m.Tokens)-int(w.drop)], w.tokens...)
				m.Whole = true
			}
			break
		}
		n = n.kid(rest[0])
		if n == nil {
			break
		}
		matched, tokens := len(n.edge()), n.tokens
		if !strings.HasPrefix(rest, n.edge()) {
			matched = sharedBytes(rest, n.edge())
			tokens = tokens[:n.upTo(matched)]
		}
		m.Tokens = append(m.Tokens[:len(m.Tokens)-int(n.drop)], tokens...)
		m.Bytes += matched
		if matched < len(n.edge()) {
			n.mark()
			break
		}
	}
	t.counters.found(m, len(m.Tokens)-len(dst))
	return m
}

// sharedBytes returns the length of the common prefix of a and b.
func sharedBytes(a, b string) int {
	const step = 32
	n, i := min(len(a), len(b)), 0
	for i+step <= n && a[i:i+step] == b[i:i+step] {
		i += step
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// scope returns the root of a scope's tree, or nil.
func (t *Trie) scope(name string) *node {
	t.scopesMu.RLock()
	defer t.scopesMu.RUnlock()
	return t.scopes[name]
}

// Put implements Store. What is there already of the text is kept as it is.
func (t *Trie) Put(scope, text string, tokens []uint32, ends []int) error {
	ends, body, err := check(text, tokens, ends)
	if err == nil {
		if need := t.estimate(len(text), len(tokens), len(scope)); need > t.maxBytes {
			err = fmt.Errorf("%w: needs about %d bytes of %d", ErrTooLarge, need, t.maxBytes)
		}
	}
	if err != nil {
		t.counters.refused.Add(1)
		return err
	}
	for range t.tries {
		if t.try(scope, text, tokens, ends, body, false) {
			return nil
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.try(scope, text, tokens, ends, body, true) { // making room can still move the place
	}
	return nil
}

// defaultTries is how often a writer looks for the place of a text without
// holding the lock.
const defaultTries = 3

// try puts a text in, unless it is there already. It returns false if the tree
// has changed at the text's place since it was looked for. Argument held says
// that the caller holds mu. Then only the making of room changes the tree,
// which comes to an end when all is empty.
func (t *Trie) try(scope, text string, tokens []uint32, ends []int, body int, held bool) bool {
	p := t.walk(scope, text, tokens, ends, body)
	if p.known() {
		return true
	}
	r := t.build(&p)
	if !held {
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	return t.insert(&p, &r)
}

// estimate bounds from above what a text takes that shares nothing: a row of
// nodes, a terminal, and a root with the scope's name. Ends take a byte a
// token, one more for every 128 bytes between two of them, and up to eleven for
// the first.
func (t *Trie) estimate(text, tokens, scope int) int64 {
	const eachNode = nodeSize + headerSize + kidSize + 11 + 3*allocSlack
	nodes := int64(text/t.maxLabel) + 2
	fill := int64(text) + int64(text)/128 + 5*int64(tokens) + int64(scope)
	return nodes*eachNode + padded(fill) + terminalSize + allocSlack + scopeSize
}

// scopeSize is what a scope takes beside its root node: its share of the map.
const scopeSize = 64

// place is where in a tree a text leaves what is there already.
type place struct {
	scope, text string
	tokens      []uint32
	ends        []int
	body        int
	purges      uint64 // before the walk

	node   *node // the last node entered; nil if the scope has no tree yet
	off    int   // how much of its label is matched
	count  int   // how many of its tokens end there
	at     int   // how much of the text is matched
	have   int   // how many tokens the nodes give so far
	common int   // how many of these, from the first, are the text's own, with the same ends
}

// walk finds the place of a text and marks the way to it as read.
func (t *Trie) walk(scope, text string, tokens []uint32, ends []int, body int) place {
	p := place{scope: scope, text: text, tokens: tokens, ends: ends, body: body}
	p.purges = t.purges.Load()
	p.node = t.scope(scope)
	if p.node == nil {
		return p
	}
	for p.node.mark(); p.at < len(text); {
		n := p.node.kid(text[p.at])
		if n == nil {
			break
		}
		n.mark()
		p.node, p.off, p.count = n, len(n.edge()), len(n.tokens)
		if !strings.HasPrefix(text[p.at:], n.edge()) {
			p.off = sharedBytes(text[p.at:], n.edge())
			p.count = n.upTo(p.off)
		}
		p.have -= int(n.drop)
		if p.common >= p.have {
			p.common = p.have
			p.common += n.shared(p.at, p.count, tokens[p.common:body], ends[p.common:body])
		}
		p.have += p.count
		p.at += p.off
		if p.off < len(n.edge()) {
			break
		}
	}
	return p
}

// inside says that the place is within the label of its node.
func (p *place) inside() bool { return p.node != nil && p.off < len(p.node.edge()) }

// known says that the whole text with exactly its tokens is there already.
func (p *place) known() bool {
	if p.node == nil || p.inside() || p.at < len(p.text) {
		return false
	}
	w := p.node.term.Load()
	if w == nil {
		return false
	}
	from := p.have - int(w.drop)
	return from <= p.common && len(p.tokens)-from == len(w.tokens) &&
		sharedTokens(w.tokens, p.tokens[from:]) == len(w.tokens)
}

// row is what is new of a text: nodes one below the other, and what to say
// where the text ends. The nodes are complete, but not in the tree yet.
type row struct {
	first, last *node // nil if the text ends where its place is
	nodes       int64
	term        *terminal
	cost        int64 // of all this, in bytes
}

// build makes the row of a text from its place on.
func (t *Trie) build(p *place) (r row) {
	at, common, drop := p.at, p.common, p.have-p.common
	for at < len(p.text) {
		to := min(at+t.maxLabel, len(p.text))
		upto := common
		for upto < p.body && p.ends[upto] <= to {
			upto++
		}
		n := newNode(p.text[at:to], at, drop, p.tokens[common:upto], p.ends[common:upto])
		if r.last == nil {
			r.first = n
		} else {
			r.last.setKid(n)
			r.cost += r.last.cost()
		}
		r.nodes++
		r.last, at, common, drop = n, to, upto, 0
	}
	r.term = sameTokens
	if drop > 0 || common < len(p.tokens) {
		r.term = &terminal{drop: uint32(drop), tokens: slices.Clone(p.tokens[common:])}
	}
	if r.last != nil {
		r.last.term.Store(r.term)
		r.cost += r.last.cost()
	} else {
		r.cost = r.term.cost()
	}
	return r
}

// growth bounds from above by how much the store grows when the row is put in.
func (p *place) growth(r *row) int64 {
	// One child more may need the next size of a list of up to 256.
	g := r.cost + headerSize + kidSize + allocSlack + 256*kidSize/4
	switch {
	case p.node == nil:
		g += nodeSize + scopeSize + padded(int64(len(p.scope))) + allocSlack
	case p.inside():
		// A split makes a second node, and may round each part up anew.
		g += nodeSize + headerSize + kidSize + 11 + 5*allocSlack + (int64(p.node.size)+int64(cap(p.node.tokens))*4)/4
	}
	return g
}

// insert puts a row in at its place. It returns false if the tree has changed
// there since the walk. The caller holds mu.
func (t *Trie) insert(p *place, r *row) bool {
	n := p.node
	switch {
	case p.purges != t.purges.Load():
		return false
	case n == nil:
		if t.scope(p.scope) != nil {
			return false
		}
	case n.gone, r.first != nil && !p.inside() && n.kid(p.text[p.at]) != nil:
		return false
	}
	for need := p.growth(r); t.bytes.Load()+need > t.maxBytes && t.evict(); {
	}
	if n != nil && n.gone {
		return false
	}
	switch {
	case n == nil:
		n = t.newRoot(p.scope)
	case p.inside():
		n = t.split(n, p.at-p.off, p.off, p.count)
	}
	before := n.cost()
	grown := int64(0)
	if r.first == nil {
		n.term.Store(r.term)
	} else {
		n.setKid(r.first)
		grown = r.cost
		t.nodes.Add(r.nodes)
		t.leaves.remove(n)
		t.leaves.pushNewest(r.last)
	}
	t.bytes.Add(grown + n.cost() - before)
	return true
}

// newRoot makes the tree of a scope.
func (t *Trie) newRoot(scope string) *node {
	n := newNode(scope, 0, 0, nil, nil)
	n.label = 0
	t.scopesMu.Lock()
	t.scopes[n.data] = n
	t.scopesMu.Unlock()
	t.bytes.Add(n.cost() + scopeSize)
	t.nodes.Add(1)
	t.leaves.pushNewest(n)
	return n
}

// split cuts n in two after off bytes of its label, which begins at start in a
// text. Within these bytes the first count of its tokens end. It returns the
// upper part; the lower one takes over all that hangs on n.
func (t *Trie) split(n *node, start, off, count int) *node {
	all := make([]int, len(n.tokens))
	e := n.endsFrom(start)
	for i := range all {
		all[i] = e.next()
	}
	label := n.edge()
	upper := newNode(label[:off], start, int(n.drop), n.tokens[:count], all[:count])
	lower := newNode(label[off:], start+off, 0, n.tokens[count:], all[count:])
	lower.adopt(n)
	upper.ref.Store(n.ref.Load())
	upper.setKid(lower)
	t.replace(n, lower)
	n.gone = true
	n.parent.setKid(upper)
	t.bytes.Add(upper.cost() + lower.cost() - n.cost())
	t.nodes.Add(1)
	return upper
}

// replace puts v at the place of n in the list of leaves, if n is there.
func (t *Trie) replace(n, v *node) {
	if n.next != nil {
		t.leaves.insert(v, n)
		t.leaves.remove(n)
	}
}

// evict drops the leaf that was placed longest ago and not read since. It
// returns false when there is none at all. Leaves read since are placed anew.
// Readers cannot keep it going for ever: after as many of these as there are
// leaves it drops the next one, read or not.
func (t *Trie) evict() bool {
	for range t.leaves.n {
		v := t.leaves.oldest()
		if !v.ref.Swap(false) {
			break
		}
		t.leaves.remove(v)
		t.leaves.pushNewest(v)
	}
	v := t.leaves.oldest()
	if v == nil {
		return false
	}
	t.leaves.remove(v)
	v.gone = true
	t.bytes.Add(-v.cost())
	t.nodes.Add(-1)
	t.counters.evicted.Add(1)
	p := v.parent
	if p == nil {
		t.dropRoot(v)
		return true
	}
	before := p.cost()
	p.removeKid(v)
	t.bytes.Add(p.cost() - before)
	if kids := p.kids.Load(); kids == nil {
		// What is left of a text is as old as what has just gone.
		t.leaves.pushOldest(p)
	} else if len(*kids) == 1 {
		t.merge(p, (*kids)[0].node)
	}
	return true
}

// dropRoot forgets the scope whose tree is the lone root n.
func (t *Trie) dropRoot(n *node) {
	t.scopesMu.Lock()
	delete(t.scopes, n.data)
	t.scopesMu.Unlock()
	t.bytes.Add(-scopeSize)
}

// merge makes one node of p and its only child c. It does so if no text ends
// between them and the one is no larger than the two.
func (t *Trie) merge(p, c *node) {
	if p.parent == nil || p.term.Load() != nil || len(p.edge())+len(c.edge()) > t.maxLabel {
		return
	}
	// Ends count from where p begins: only differences are kept.
	keep, drop := len(p.tokens)-int(c.drop), int(p.drop)
	if keep < 0 {
		keep, drop = 0, drop-keep
	}
	tokens := make([]uint32, 0, keep+len(c.tokens))
	all := make([]int, 0, cap(tokens))
	tokens = append(append(tokens, p.tokens[:keep]...), c.tokens...)
	e := p.endsFrom(0)
	for range keep {
		all = append(all, e.next())
	}
	e = c.endsFrom(len(p.edge()))
	for range c.tokens {
		all = append(all, e.next())
	}
	m := newNode(p.edge()+c.edge(), 0, drop, tokens, all)
	m.adopt(c)
	change := m.cost() - p.cost() - c.cost()
	if change > 0 {
		c.adopt(m)
		return
	}
	if p.ref.Load() {
		m.ref.Store(true)
	}
	t.replace(c, m)
	p.gone, c.gone = true, true
	p.parent.setKid(m)
	t.bytes.Add(change)
	t.nodes.Add(-1)
}

// Stats implements Store.
func (t *Trie) Stats() Stats {
	st := Stats{Entries: t.nodes.Load(), Bytes: t.bytes.Load(), MaxBytes: t.maxBytes}
	t.counters.fill(&st)
	return st
}

// Purge implements Store.
func (t *Trie) Purge() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scopesMu.Lock()
	t.scopes = make(map[string]*node)
	t.scopesMu.Unlock()
	t.purges.Add(1)
	t.leaves.init()
	t.bytes.Store(0)
	t.nodes.Store(0)
}
