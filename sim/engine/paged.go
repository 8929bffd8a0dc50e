package engine

import "github.com/kvatlas/kvatlas/ingest/event"

// The groups of vLLM's layers.
const (
	full = iota
	windowed
)

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
	groups int
	blocks []pagedBlock
	queue  lru
	// copies are the blocks of a hash in the cache, by group: the first of a list.
	copies   [2]map[event.Hash]int32
	reserved int // blocks that are kept for admitted requests
	occupied []int32
	host     *shelf
	evicted  uint64
}

type pagedBlock struct {
	link
	hash   event.Hash
	cached bool
	group  uint8
	refs   int32
	next   int32 // the next copy of its hash
}

func (p *paged) link(i int32) *link { return &p.blocks[i].link }

func newPaged(c *Config, t *tell) *paged {
	p := &paged{tell: t, config: c, groups: 1, queue: newLRU(), host: newShelves(c, t, mediumCPU, mediumStorage)}
	if c.Window > 0 {
		p.groups = 2
	}
	for g := range p.groups {
		p.copies[g] = map[event.Hash]int32{}
	}
	p.blocks = make([]pagedBlock, c.Blocks-1) // one is the null block
	for i := range p.blocks {
		p.blocks[i].next = none
		p.queue.pushLast(p, int32(i))
	}
	return p
}

// first returns the copy of a block that a request would reuse, none if there is none.
func (p *paged) first(group int, h event.Hash) int32 {
	if i, ok := p.copies[group][h]; ok {
		return i
	}
	return none
}

// windowBlocks is how many blocks of the windowed group a request needs before a place.
func (p *paged) windowBlocks() int { return ceil(p.config.Window-1, p.config.BlockSize) }

// match returns how many leading blocks of q every group can go on from.
func (p *paged) match(q *sequence) int {
	n, limit := 0, mostReusable(q, p.config.BlockSize)
	for n < limit && p.first(full, q.keys[n]) != none {
		n++
	}
	if p.groups == 1 {
		return n
	}
	// The last place within that before which the window is held, or all from the start.
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
	n := p.match(q)
	_, host, disk := p.host.find(q.keys, n, p.mostLoadable(q))
	return p.hit(n, host, disk)
}

// mostLoadable is how many blocks of q can come up from below at the most: all that are
// full, but for windows. Its last token is computed all the same.
func (p *paged) mostLoadable(q *sequence) int {
	if p.groups > 1 {
		return mostReusable(q, p.config.BlockSize)
	}
	return len(q.tokens) / p.config.BlockSize
}

func (p *paged) hit(gpu, host, disk int) Hit {
	size := p.config.BlockSize
	return Hit{GPU: gpu * size, Host: host * size, Disk: disk * size}
}

func (p *paged) admit(q *sequence, reserve int) bool {
	size := p.config.BlockSize
	n := p.match(q)
	total, host, disk := p.host.find(q.keys, n, p.mostLoadable(q))

	// What stands in the queue and is reused is not free.
	first := max(0, n-p.windowBlocks())
	taken := 0
	for g := range p.groups {
		for i := range n {
			if (g == full || i >= first) && p.blocks[p.first(g, q.keys[i])].refs == 0 {
				taken++
			}
		}
	}
	fresh := (ceil(len(q.tokens), size) - n) * p.groups
	if taken+fresh+reserve*p.groups > p.queue.n-p.reserved {
		return false
	}
	for g := range p.groups {
		q.blocks[g] = q.blocks[g][:0]
		for i := range n {
			if g == windowed && i < first {
				q.blocks[g] = append(q.blocks[g], none)
				continue
			}
			b := p.first(g, q.keys[i])
			if p.blocks[b].refs == 0 {
				p.queue.remove(p, b)
			}
			p.blocks[b].refs++
			q.blocks[g] = append(q.blocks[g], b)
		}
		q.cached[g] = n
	}
	q.shelved, q.seen = 0, 0
	if p.config.Reserve {
		q.reserve = fresh + reserve*p.groups
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

// touchBelow makes the copies of a block the last to leave the shelves.
func (p *paged) touchBelow(h event.Hash) {
	for s := p.host; s != nil; s = s.below {
		s.touch(h)
	}
}

func (p *paged) extend(q *sequence, n int) bool {
	size := p.config.BlockSize
	if p.groups > 1 {
		p.leaveWindow(q)
	}
	need := 0
	for g := range p.groups {
		need += max(0, ceil(n, size)-len(q.blocks[g]))
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

// take gives q blocks for its first n tokens, and puts those that are full into the
// cache.
func (p *paged) take(q *sequence, n int) {
	size := p.config.BlockSize
	for g := range p.groups {
		for len(q.blocks[g]) < ceil(n, size) {
			q.blocks[g] = append(q.blocks[g], p.takeBlock())
			if q.reserve > 0 {
				q.reserve--
				p.reserved--
			}
		}
	}
	for g := range p.groups {
		p.cache(q, g, n/size)
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
		p.removed(mediumGPU, int(b.group), b.hash)
	}
	return i
}

// forget takes a block out of the cache.
func (p *paged) forget(i int32) {
	b := &p.blocks[i]
	copies := p.copies[b.group]
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

// cache puts the blocks of q up to the n-th into the cache of a group.
func (p *paged) cache(q *sequence, group, n int) {
	from := q.cached[group]
	if n <= from {
		return
	}
	for i := from; i < n; i++ {
		b := q.blocks[group][i]
		p.blocks[b].hash, p.blocks[b].group, p.blocks[b].cached = q.keys[i], uint8(group), true
		at, ok := p.copies[group][q.keys[i]]
		if !ok {
			p.copies[group][q.keys[i]] = b
			continue
		}
		for p.blocks[at].next != none {
			at = p.blocks[at].next
		}
		p.blocks[at].next = b
	}
	q.cached[group] = n
	e := q.stored(from, n, p.config.BlockSize, mediumGPU)
	if from > 0 {
		e.Salt = "" // it goes into the first block's hash alone, and is told with it
	}
	e.Group, e.Spec = group, "full_attention"
	if group == windowed {
		e.Spec, e.SlidingWindow = "sliding_window", p.config.Window
	}
	p.add(e)
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
			p.touchBelow(q.keys[i])
		}
	}
	for g := range p.groups {
		blocks := q.blocks[g]
		for i := len(blocks) - 1; i >= 0; i-- {
			if blocks[i] != none {
				p.giveBack(blocks[i])
			}
		}
		q.blocks[g], q.cached[g] = blocks[:0], 0
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
	for g := range p.groups {
		clear(p.copies[g])
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
	for g := range p.groups {
		u.Cached += len(p.copies[g])
	}
	p.host.count(&u)
	return u
}
