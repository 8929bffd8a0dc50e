package engine

import "github.com/kvatlas/kvatlas/ingest/event"

// The kinds of groups of vLLM's layers. Groups are numbered in their order.
const (
	full = iota
	windowed
	stateful
	kinds
)

// specs are what vLLM calls the kinds.
var specs = [kinds]string{"full_attention", "sliding_window", "mamba"}

// The media of vLLM.
const (
	mediumGPU     = "GPU"
	mediumCPU     = "CPU"
	mediumStorage = "STORAGE"
)

// paged is vLLM's block pool. A block that no request holds stands in the queue of those
// to take next, with its content, until it is taken.
type paged struct {
	*tell
	config *Config
	groups []int // the kinds that there are: the group of a number
	number [kinds]int
	blocks []pagedBlock
	queue  lru
	// copies are the blocks of a hash in the cache, by kind: the first of a list.
	copies [kinds]map[event.Hash]int32
	// fresh are the states that this iteration computes, from which it cannot go on.
	fresh    map[int32]bool
	reserved int // blocks that are kept for admitted requests
	occupied []int32
	host     *shelf
	evicted  uint64
}

type pagedBlock struct {
	link
	hash   event.Hash
	cached bool
	kind   uint8
	refs   int32
	next   int32 // the next copy of its hash
}

func (p *paged) link(i int32) *link { return &p.blocks[i].link }

func newPaged(c *Config, t *tell) *paged {
	p := &paged{tell: t, config: c, queue: newLRU(), host: newShelves(c, t, mediumCPU, mediumStorage), fresh: map[int32]bool{}}
	for kind, there := range [kinds]bool{full: true, windowed: c.Window > 0, stateful: c.State} {
		if there {
			p.number[kind] = len(p.groups)
			p.groups = append(p.groups, kind)
			p.copies[kind] = map[event.Hash]int32{}
		}
	}
	p.blocks = make([]pagedBlock, c.Blocks-1) // one is the null block
	for i := range p.blocks {
		p.blocks[i].next = none
		p.queue.pushLast(p, int32(i))
	}
	return p
}

func (p *paged) begin() { clear(p.fresh) }

// liveStates is how many states a request has at a time: the one that a chunk begins with
// and the one that it ends with.
const liveStates = 2

func (p *paged) capacity() int {
	blocks, growing := len(p.blocks), 1
	if p.config.Window > 0 {
		growing++
	}
	if p.config.State {
		blocks = max(0, blocks-liveStates)
	}
	return blocks / growing * p.config.BlockSize
}

// first returns the copy of a block that a request would reuse, none if there is none.
func (p *paged) first(kind int, h event.Hash) int32 {
	if i, ok := p.copies[kind][h]; ok {
		return i
	}
	return none
}

// windowBlocks is how many blocks of the windowed group a request needs before a place.
func (p *paged) windowBlocks() int { return ceil(p.config.Window-1, p.config.BlockSize) }

// match returns how many leading blocks of q every group can go on from, and how many full
// attention alone could.
func (p *paged) match(q *sequence) (n, alone int) {
	limit := mostReusable(q, p.config.BlockSize)
	for alone < limit && p.first(full, q.keys[alone]) != none {
		alone++
	}
	n = alone
	for before := -1; n != before; {
		before = n
		if p.config.Window > 0 {
			n = p.matchWindow(q, n)
		}
		if p.config.State {
			for n > 0 && p.first(stateful, q.keys[n-1]) == none {
				n--
			}
		}
	}
	return n, alone
}

// matchWindow returns the last place within n blocks before which the window is held, or
// all from the start.
func (p *paged) matchWindow(q *sequence, n int) int {
	need, have := p.windowBlocks(), 0
	for i := n - 1; i >= 0; i-- {
		if p.first(windowed, q.keys[i]) == none {
			have = 0
			continue
		}
		if have++; have >= need {
			return i + have
		}
	}
	return have
}

func (p *paged) reusable(q *sequence) Hit {
	n, _ := p.match(q)
	_, host, disk := p.host.find(q.keys, n, p.mostLoadable(q))
	return p.hit(n, host, disk)
}

// mostLoadable is how many blocks of q can come up from below at the most: all that are
// full, but for windows. Its last token is computed all the same.
func (p *paged) mostLoadable(q *sequence) int {
	if len(p.groups) > 1 {
		return mostReusable(q, p.config.BlockSize)
	}
	return len(q.tokens) / p.config.BlockSize
}

func (p *paged) hit(gpu, host, disk int) Hit {
	size := p.config.BlockSize
	return Hit{GPU: gpu * size, Host: host * size, Disk: disk * size}
}

// held is the first block of a group that a request needs to go on behind n blocks.
func (p *paged) held(kind, n int) int {
	switch kind {
	case windowed:
		return max(0, n-p.windowBlocks())
	case stateful:
		return max(0, n-1)
	}
	return 0
}

// wanted is how many blocks a request of so many tokens takes of a group at once, behind n
// that it has.
func (p *paged) wanted(kind, tokens, n int) int {
	wanted := ceil(tokens, p.config.BlockSize) - n
	if kind == stateful {
		return min(wanted, 1)
	}
	return wanted
}

func (p *paged) admit(q *sequence, reserve int) bool {
	size := p.config.BlockSize
	n, alone := p.match(q)
	total, host, disk := p.host.find(q.keys, n, p.mostLoadable(q))
	if n > 0 && p.config.State && p.fresh[p.first(stateful, q.keys[n-1])] {
		return false // it is there in the next iteration
	}

	// What stands in the queue and is reused is not free.
	taken, wanted := 0, 0
	for _, kind := range p.groups {
		for i := p.held(kind, n); i < n; i++ {
			if p.blocks[p.first(kind, q.keys[i])].refs == 0 {
				taken++
			}
		}
		wanted += p.wanted(kind, len(q.tokens), n) + reserve
	}
	if taken+wanted > p.queue.n-p.reserved {
		return false
	}
	for _, kind := range p.groups {
		blocks := q.blocks[kind][:0]
		for i := range n {
			if i < p.held(kind, n) {
				blocks = append(blocks, none)
				continue
			}
			b := p.first(kind, q.keys[i])
			if p.blocks[b].refs == 0 {
				p.queue.remove(p, b)
			}
			p.blocks[b].refs++
			blocks = append(blocks, b)
		}
		q.blocks[kind], q.cached[kind] = blocks, n
	}
	q.shelved, q.seen, q.gone, q.junction = 0, 0, p.held(stateful, n), 0
	if alone > n {
		q.junction = alone * size
	}
	if p.config.Reserve {
		q.reserve = wanted
		p.reserved += q.reserve
	}
	// What is on a shelf comes up, and is in the cache.
	if total > n {
		p.take(q, total*size)
		q.shelved, q.seen = total, n
	}
	q.computed = min(total*size, len(q.tokens)-1)
	q.hit = p.hit(n, host, disk)
	return true
}

func (p *paged) extend(q *sequence, n int) bool {
	if p.config.Window > 0 {
		p.leaveWindow(q)
	}
	if p.config.State {
		p.leaveStates(q)
	}
	need := 0
	for _, kind := range p.groups {
		need += max(0, p.wanted(kind, n, len(q.blocks[kind])))
	}
	if need > p.queue.n-max(0, p.reserved-q.reserve) {
		return false
	}
	p.take(q, n)
	return true
}

// leaveWindow gives back the blocks that q's window has left behind.
func (p *paged) leaveWindow(q *sequence) {
	gone := max(0, q.computed-p.config.Window+1) / p.config.BlockSize
	blocks := q.blocks[windowed]
	for i := min(gone, len(blocks)) - 1; i >= 0 && blocks[i] != none; i-- {
		p.giveBack(blocks[i])
		blocks[i] = none
	}
}

// leaveStates gives back the states of q before the one that it goes on from.
func (p *paged) leaveStates(q *sequence) {
	blocks := q.blocks[stateful]
	last := min(max(0, q.computed-1)/p.config.BlockSize, len(blocks))
	for i := last - 1; i >= q.gone; i-- {
		if blocks[i] != none {
			p.giveBack(blocks[i])
			blocks[i] = none
		}
	}
	q.gone = max(q.gone, last)
}

// take gives q blocks for its first n tokens, and puts those that are full into the
// cache.
func (p *paged) take(q *sequence, n int) {
	size := p.config.BlockSize
	for _, kind := range p.groups {
		for len(q.blocks[kind]) < ceil(n, size) {
			i := int32(none)
			if kind != stateful || len(q.blocks[kind]) == ceil(n, size)-1 {
				i = p.takeBlock()
				if q.reserve > 0 {
					q.reserve--
					p.reserved--
				}
			}
			q.blocks[kind] = append(q.blocks[kind], i)
		}
	}
	for _, kind := range p.groups {
		p.cache(q, kind, n/size)
	}
}

// takeBlock takes the first block of the queue, and what it holds out of the cache.
func (p *paged) takeBlock() int32 {
	i := p.queue.first
	p.queue.remove(p, i)
	b := &p.blocks[i]
	b.refs = 1
	if b.cached {
		p.forget(i)
		p.evicted++
		p.removed(mediumGPU, p.number[b.kind], b.hash)
	}
	return i
}

// forget takes a block out of the cache.
func (p *paged) forget(i int32) {
	b := &p.blocks[i]
	copies := p.copies[b.kind]
	at := copies[b.hash]
	if at == i {
		if b.next == none {
			delete(copies, b.hash)
		} else {
			copies[b.hash] = b.next
		}
	} else {
		for p.blocks[at].next != i {
			at = p.blocks[at].next
		}
		p.blocks[at].next = b.next
	}
	b.next, b.cached = none, false
}

// keeps reports whether block i of q is put into the cache of its group. All of full
// attention's are, of the others those that a hit can need.
func (p *paged) keeps(q *sequence, kind, i int) bool {
	size, retention := p.config.BlockSize, p.config.Retention
	if q.blocks[kind][i] == none {
		return false
	}
	if kind == full || retention == RetainAll {
		return true
	}
	need := 1 // blocks before a place to go on from
	if kind == windowed {
		need = p.windowBlocks()
	}
	if each := retention / size; retention > 0 && (need >= each || i%each >= each-need) {
		return true
	}
	for _, place := range [...]int{len(q.Tokens) - 1, q.junction} {
		if end := place / size; end-need <= i && i < end {
			return true
		}
	}
	return false
}

// cache puts those blocks of q up to the n-th that a group keeps into the group's cache,
// and reports them. Of those between it reports the tokens alone.
func (p *paged) cache(q *sequence, kind, n int) {
	from := q.cached[kind]
	if n <= from {
		return
	}
	e := q.stored(from, n, p.config.BlockSize, mediumGPU)
	if kind != full {
		e.Hashes = nil
	}
	for i := from; i < n; i++ {
		if !p.keeps(q, kind, i) {
			continue
		}
		b := q.blocks[kind][i]
		p.insert(kind, q.keys[i], b)
		if kind != full {
			e.Hashes = append(e.Hashes, q.keys[i])
		}
		if kind == stateful {
			p.fresh[b] = true
		}
	}
	q.cached[kind] = n
	if from > 0 || len(e.Hashes) == 0 || e.Hashes[0] != q.keys[0] {
		e.Salt = "" // it goes into the first block's hash alone, and is told with it
	}
	e.Group, e.Spec = p.number[kind], specs[kind]
	if kind == windowed {
		e.SlidingWindow = p.config.Window
	}
	p.add(e)
}

// insert puts a block into the cache, behind its copies.
func (p *paged) insert(kind int, h event.Hash, b int32) {
	p.blocks[b].hash, p.blocks[b].kind, p.blocks[b].cached = h, uint8(kind), true
	at, ok := p.copies[kind][h]
	if !ok {
		p.copies[kind][h] = b
		return
	}
	for p.blocks[at].next != none {
		at = p.blocks[at].next
	}
	p.blocks[at].next = b
}

// fill copies what was computed of the prompt to the host, and nothing of an answer. What
// finds no room there is tried again.
func (p *paged) fill(q *sequence) {
	if p.host == nil {
		return
	}
	if n := min(q.computed, len(q.Tokens)) / p.config.BlockSize; n > q.shelved && p.host.offerAll(q.keys[q.shelved:n]) {
		q.shelved = n
	}
}

func (p *paged) release(q *sequence, ended bool) {
	if ended && p.host != nil {
		// The head of what it brought up, or offered, is the last to leave the shelves.
		for i := q.shelved - 1; i >= q.seen; i-- {
			p.host.touchAll(q.keys[i])
		}
	}
	for _, kind := range p.groups {
		blocks := q.blocks[kind]
		for i := len(blocks) - 1; i >= 0; i-- {
			if blocks[i] != none {
				p.giveBack(blocks[i])
			}
		}
		q.blocks[kind], q.cached[kind] = blocks[:0], 0
	}
	p.reserved -= q.reserve
	q.reserve, q.shelved, q.seen = 0, 0, 0
}

// giveBack gives a block back: one with content is the last to be taken, one without the
// first.
func (p *paged) giveBack(i int32) {
	b := &p.blocks[i]
	if b.refs--; b.refs > 0 {
		return
	}
	if b.cached {
		p.queue.pushLast(p, i)
	} else {
		p.queue.pushFirst(p, i)
	}
}

func (p *paged) clear() bool {
	if p.queue.n < len(p.blocks) {
		return false
	}
	for i := range p.blocks {
		p.blocks[i].cached, p.blocks[i].next = false, none
	}
	for _, kind := range p.groups {
		clear(p.copies[kind])
	}
	p.add(event.Event{Kind: event.Cleared})
	return true
}

func (p *paged) occupy(n int) int {
	for len(p.occupied) > n {
		last := len(p.occupied) - 1
		p.giveBack(p.occupied[last])
		p.occupied = p.occupied[:last]
	}
	for len(p.occupied) < n && p.queue.n > p.reserved {
		p.occupied = append(p.occupied, p.takeBlock())
	}
	return len(p.occupied)
}

func (p *paged) usage() Usage {
	u := Usage{Total: len(p.blocks), Used: len(p.blocks) - p.queue.n, Evicted: p.evicted}
	for _, kind := range p.groups {
		u.Cached += len(p.copies[kind])
	}
	p.host.count(&u)
	return u
}
