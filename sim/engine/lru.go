package engine

// none is no block, page or entry.
const none = -1

// link is a place in an lru.
type link struct {
	prev, next int32
	in         bool
}

// lru is a list of numbers in the order in which they are to be evicted. link returns
// that of a number.
type lru struct {
	first, last int32
	n           int
}

func newLRU() lru { return lru{first: none, last: none} }

// links are what an lru links.
type links interface{ link(i int32) *link }

// pushLast adds i as the last to be evicted.
func (l *lru) pushLast(of links, i int32) {
	k := of.link(i)
	*k = link{prev: l.last, next: none, in: true}
	if l.last == none {
		l.first = i
	} else {
		of.link(l.last).next = i
	}
	l.last = i
	l.n++
}

// pushFirst adds i as the first to be evicted.
func (l *lru) pushFirst(of links, i int32) {
	k := of.link(i)
	*k = link{prev: none, next: l.first, in: true}
	if l.first == none {
		l.last = i
	} else {
		of.link(l.first).prev = i
	}
	l.first = i
	l.n++
}

// remove takes i out, if it is in.
func (l *lru) remove(of links, i int32) {
	k := of.link(i)
	if !k.in {
		return
	}
	if k.prev == none {
		l.first = k.next
	} else {
		of.link(k.prev).next = k.next
	}
	if k.next == none {
		l.last = k.prev
	} else {
		of.link(k.next).prev = k.prev
	}
	*k = link{prev: none, next: none}
	l.n--
}
