package engine

import (
	"slices"

	"github.com/kvatlas/kvatlas/ingest/event"
)

// tree is a tree of pages, each with the content of one page and a place behind its
// parent's: SGLang's radix tree and TensorRT-LLM's. A page is there once. A page that no
// request holds is in the order of eviction. There a page is always before its parent,
// so that what is evicted is a leaf.
//
// A radix tree keeps runs of pages in nodes, and SGLang evicts whole nodes. Here a page is
// in the node of its parent if it has joined it and the node was not cut behind the parent.
type tree struct {
	*tell
	config   *Config
	pages    []page
	free     []int32
	places   map[event.Hash]int32
	idle     [2]lru // by level: the GPU's, and for TensorRT-LLM the host's
	onGPU    int    // pages of the tree that the GPU has
	private  int    // pages of the GPU that requests have for themselves
	reserved int
	occupied int
	below    *shelf // SGLang
	evicted  uint64
}

type page struct {
	link
	hash   event.Hash
	parent int32
	refs   int32
	level  uint8
	joined bool
	cut    bool
}

// The levels of a page.
const (
	onGPU = iota
	onHost
)

func (t *tree) link(i int32) *link { return &t.pages[i].link }

// mediumPinned and mediumDisk are SGLang's words for the host's memory and what is below.
const (
	mediumPinned = "CPU_PINNED"
	mediumDisk   = "DISK"
)

func newTree(c *Config, told *tell) *tree {
	t := &tree{tell: told, config: c, places: map[event.Hash]int32{}, idle: [2]lru{newLRU(), newLRU()}}
	if c.Kind == SGLang {
		t.below = newShelves(c, told, mediumPinned, mediumDisk)
	}
	return t
}

// match returns the pages of q that the tree has, on either level.
func (t *tree) match(q *sequence) (path []int32) {
	for _, h := range q.keys[:mostReusable(q, t.config.BlockSize)] {
		i, ok := t.places[h]
		if !ok {
			break
		}
		path = append(path, i)
	}
	return path
}

// count returns where the pages of a path are, and how much further the shelves go on.
func (t *tree) count(q *sequence, path []int32) (hit Hit, idle int) {
	size := t.config.BlockSize
	for _, i := range path {
		p := &t.pages[i]
		if p.level == onHost {
			hit.Host += size
		} else {
			hit.GPU += size
			if p.refs == 0 {
				idle++
			}
		}
	}
	_, host, disk := t.below.find(q.keys, len(path), mostReusable(q, size))
	hit.Host += host * size
	hit.Disk += disk * size
	return hit, idle
}

func (t *tree) reusable(q *sequence) Hit {
	hit, _ := t.count(q, t.match(q))
	return hit
}

// room is how many pages of the GPU can be had.
func (t *tree) room() int {
	return t.config.Blocks - t.onGPU - t.private - t.occupied + t.idle[onGPU].n
}

func (t *tree) admit(q *sequence, reserve int) bool {
	size := t.config.BlockSize
	path := t.match(q)
	hit, idle := t.count(q, path)
	fresh := ceil(len(q.tokens), size) - hit.GPU/size
	if idle+fresh+reserve > t.room()-t.reserved {
		return false
	}
	if n := len(path); n > 0 {
		t.pages[path[n-1]].cut = true
	}
	for _, i := range path {
		t.hold(i)
	}
	q.path = append(q.path[:0], path...)
	for _, i := range path {
		if t.bringUp(i) {
			fresh--
		}
	}
	if t.config.Reserve {
		q.reserve = fresh + reserve
		t.reserved += q.reserve
	}
	for _, i := range path {
		t.below.touchAll(t.pages[i].hash)
	}
	q.shelved, q.prefill = 0, len(q.tokens)
	q.hit = hit
	q.computed = hit.Tokens()
	if n := q.computed / size; n > len(path) {
		t.take(q, q.computed)
		for _, h := range q.keys[len(path):n] {
			t.below.touchAll(h)
		}
		t.insert(q, n)
	}
	return true
}

// hold pins a page.
func (t *tree) hold(i int32) {
	p := &t.pages[i]
	if p.refs++; p.refs == 1 {
		t.idle[p.level].remove(t, i)
	}
}

// letGo unpins a page, which is the last to be evicted then.
func (t *tree) letGo(i int32) {
	p := &t.pages[i]
	if p.refs--; p.refs == 0 {
		t.idle[p.level].pushLast(t, i)
	}
}

// bringUp has a page that is held on the GPU, and reports whether it was not.
func (t *tree) bringUp(i int32) bool {
	if t.pages[i].level == onGPU {
		return false
	}
	t.makeRoom(1)
	t.pages[i].level = onGPU
	t.onGPU++
	return true
}

func (t *tree) extend(q *sequence, n int) bool {
	need := ceil(n, t.config.BlockSize) - len(q.path) - q.private
	if need > t.room()-max(0, t.reserved-q.reserve) {
		return false
	}
	t.take(q, n)
	return true
}

// take gives q pages of its own for its first n tokens.
func (t *tree) take(q *sequence, n int) {
	need := ceil(n, t.config.BlockSize) - len(q.path) - q.private
	if need <= 0 {
		return
	}
	t.makeRoom(need)
	t.private += need
	q.private += need
	kept := min(need, q.reserve)
	q.reserve -= kept
	t.reserved -= kept
}

// makeRoom evicts until n pages of the GPU are free.
func (t *tree) makeRoom(n int) {
	for t.config.Blocks-t.onGPU-t.private-t.occupied < n && t.idle[onGPU].n > 0 {
		t.evict()
	}
}

// evict takes the page that was not used for the longest time from the GPU: away, or to
// the host.
func (t *tree) evict() {
	i := t.idle[onGPU].first
	if t.config.Kind == SGLang {
		t.evictNode(i)
		return
	}
	t.evicted++
	if t.config.HostBlocks == 0 {
		t.removed(mediumGPU, 0, t.drop(i))
		return
	}
	if t.idle[onHost].n >= t.config.HostBlocks {
		t.removed(mediumGPU, 0, t.drop(t.idle[onHost].first))
	}
	t.idle[onGPU].remove(t, i)
	t.pages[i].level = onHost
	t.onGPU--
	t.idle[onHost].pushLast(t, i)
}

// evictNode drops the node that ends in a page.
func (t *tree) evictNode(i int32) {
	var hashes []event.Hash
	for {
		p := t.pages[i]
		hashes = append(hashes, t.drop(i))
		t.evicted++
		if !p.joined || p.parent == none || t.pages[p.parent].cut || t.pages[p.parent].refs > 0 {
			break
		}
		i = p.parent
	}
	slices.Reverse(hashes)
	t.removed(mediumGPU, 0, hashes...)
}

// drop takes a page out of the tree.
func (t *tree) drop(i int32) event.Hash {
	p := &t.pages[i]
	t.idle[p.level].remove(t, i)
	if p.level == onGPU {
		t.onGPU--
	}
	delete(t.places, p.hash)
	t.free = append(t.free, i)
	return p.hash
}

// insert puts the pages of q up to the n-th into the tree. Where the tree has one, q goes
// on with that, and its own is free.
func (t *tree) insert(q *sequence, n int) {
	size := t.config.BlockSize
	from := len(q.path)
	tell := func(to int) {
		if to > from {
			t.add(q.stored(from, to, size, mediumGPU))
		}
		from = to + 1
	}
	for i := from; i < n; i++ {
		q.private--
		t.private--
		if at, ok := t.places[q.keys[i]]; ok {
			tell(i)
			t.hold(at)
			t.bringUp(at)
			q.path = append(q.path, at)
			continue
		}
		p := page{hash: q.keys[i], parent: none, refs: 1, joined: i > from}
		if i > 0 {
			p.parent = q.path[i-1]
			if !p.joined {
				t.pages[p.parent].cut = true
			}
		}
		q.path = append(q.path, t.place(p))
		t.onGPU++
	}
	tell(n)
}

// place puts a page into the tree.
func (t *tree) place(p page) int32 {
	var i int32
	if n := len(t.free); n > 0 {
		i = t.free[n-1]
		t.free = t.free[:n-1]
		t.pages[i] = p
	} else {
		i = int32(len(t.pages))
		t.pages = append(t.pages, p)
	}
	t.places[p.hash] = i
	return i
}

func (t *tree) fill(q *sequence) {
	switch {
	case q.computed > q.prefill:
		return // what is generated comes in when the request ends
	case t.config.Kind == TRTLLM && q.computed < q.prefill:
		return
	}
	t.insert(q, q.computed/t.config.BlockSize)
	t.writeThrough(q)
}

// writeThrough copies the pages of q in the tree to the host.
func (t *tree) writeThrough(q *sequence) {
	if t.below == nil {
		return
	}
	for ; q.shelved < len(q.path); q.shelved++ {
		i := q.shelved
		t.below.offer(q.keys[i], q.stored(i, i+1, t.config.BlockSize, mediumPinned))
	}
}

func (t *tree) release(q *sequence, ended bool) {
	if ended {
		t.insert(q, q.computed/t.config.BlockSize)
		t.writeThrough(q)
	}
	t.private -= q.private
	q.private = 0
	for i := len(q.path) - 1; i >= 0; i-- {
		t.letGo(q.path[i])
	}
	q.path = q.path[:0]
	t.reserved -= q.reserve
	q.reserve, q.shelved = 0, 0
}

func (t *tree) clear() bool {
	if t.private > 0 || t.occupied > 0 || t.idle[onGPU].n < t.onGPU {
		return false
	}
	if t.config.Kind == TRTLLM {
		// Its stream has no word for it.
		var hashes []event.Hash
		for level := range t.idle {
			for t.idle[level].n > 0 {
				hashes = append(hashes, t.drop(t.idle[level].first))
			}
		}
		if len(hashes) > 0 {
			t.removed(mediumGPU, 0, hashes...)
		}
		return true
	}
	t.pages, t.free, t.onGPU, t.idle[onGPU] = nil, nil, 0, newLRU()
	clear(t.places)
	t.below.clear()
	t.add(event.Event{Kind: event.Cleared})
	return true
}

func (t *tree) occupy(n int) int {
	t.occupied = min(t.occupied, n)
	if more := min(n-t.occupied, t.room()-t.reserved); more > 0 {
		t.makeRoom(more)
		t.occupied += more
	}
	return t.occupied
}

func (t *tree) begin() {}

func (t *tree) capacity() int { return t.config.Blocks * t.config.BlockSize }

func (t *tree) usage() Usage {
	u := Usage{
		Total: t.config.Blocks, Used: t.onGPU - t.idle[onGPU].n + t.private + t.occupied, Cached: t.onGPU, Idle: t.idle[onGPU].n, Evicted: t.evicted,
		Host: t.idle[onHost].n, HostTotal: t.config.HostBlocks,
	}
	t.below.count(&u)
	return u
}
