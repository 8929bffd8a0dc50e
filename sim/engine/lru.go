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
func (l *lru) pushLast(of links, i int32) { l.insert(of, l.last, i, none) }

// pushFirst adds i as the first to be evicted.
func (l *lru) pushFirst(of links, i int32) { l.insert(of, none, i, l.first) }

// insert adds i between two neighbours, none at an end.
func (l *lru) insert(of links, prev, i, next int32) {
	*of.link(i) = link{prev: prev, next: next, in: true}
	l.join(of, prev, i)
	l.join(of, i, next)
	l.n++
}

// join makes two numbers neighbours, or one the end of the list where the other is none.
func (l *lru) join(of links, prev, next int32) {
	if prev == none {
		l.first = next
	} else {
		of.link(prev).next = next
	}
	if next == none {
		l.last = prev
	} else {
		of.link(next).prev = prev
	}
}

// remove takes i out, if it is in.
func (l *lru) remove(of links, i int32) {
	k := of.link(i)
	if !k.in {
		return
	}
	l.join(of, k.prev, k.next)
	*k = link{prev: none, next: none}
	l.n--
}
