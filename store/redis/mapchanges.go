package redis

import (
	"cmp"
	"math/bits"
	"slices"
)

// mapChanges are changes of a map, in the order in which they were made or, by last,
// ascending. A fold has many: they are rows of bytes, and small things without pointers
// that say where in them each is.
type mapChanges struct {
	rows []byte
	list []mapChange
}

// mapChange is one of them.
type mapChange struct {
	place uint64 // of its hash
	at    uint32 // in the rows
	part  uint16
	size  uint8 // of its row
	del   bool
}

// row is the change as it stands in a list or a page.
func (c *mapChanges) row(m mapChange) []byte { return c.rows[m.at : m.at+uint32(m.size)] }

// add appends a change.
func (c *mapChanges) add(e mapEntry) {
	at := len(c.rows)
	c.rows = e.appendTo(c.rows)
	c.note(e, at, len(c.rows))
}

// addRows appends an element of a list, as far as it can be read, and reports whether that
// was all of it.
func (c *mapChanges) addRows(element string) bool {
	at := len(c.rows)
	c.rows = append(c.rows, element...)
	for at < len(c.rows) {
		e, rest, ok := nextEntry(c.rows[at:])
		if !ok {
			return false
		}
		next := len(c.rows) - len(rest)
		c.note(e, at, next)
		at = next
	}
	return true
}

func (c *mapChanges) note(e mapEntry, at, next int) {
	c.list = append(c.list, mapChange{place: mapPlace(e.Hash), at: uint32(at), part: e.Part, size: uint8(next - at), del: e.value == nil})
}

// last returns the last change of each entry, ascending by place and part, of changes in
// the order in which they were made.
func (c *mapChanges) last() mapChanges {
	// Places are even, so that cut by their highest bits they are some eight a piece,
	// whose sorting takes no time that grows with their number.
	width := bits.Len(uint(len(c.list) / 8))
	pieceOf := func(m mapChange) uint64 { return m.place >> (64 - width) }
	ends := make([]uint32, 1<<width+1)
	for _, m := range c.list {
		ends[pieceOf(m)+1]++
	}
	for i := range ends[1:] {
		ends[i+1] += ends[i]
	}
	sorted := make([]mapChange, len(c.list))
	for _, m := range c.list {
		p := pieceOf(m)
		sorted[ends[p]] = m
		ends[p]++ // it ends where the next one begins, when all are there
	}
	out := sorted[:0]
	from := uint32(0)
	for _, to := range ends[:1<<width] {
		piece := sorted[from:to]
		from = to
		slices.SortFunc(piece, func(a, b mapChange) int {
			if a.place != b.place {
				return cmp.Compare(a.place, b.place)
			}
			return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.at, b.at))
		})
		for i, m := range piece {
			if i+1 == len(piece) || piece[i+1].place != m.place || piece[i+1].part != m.part {
				out = append(out, m)
			}
		}
	}
	return mapChanges{rows: c.rows, list: out}
}

// pageChange is a page and its changes.
type pageChange struct {
	n    int
	list []mapChange
}

// byPage cuts ascending changes into those of each page.
func byPage(list []mapChange, pages int) []pageChange {
	var out []pageChange
	for len(list) > 0 {
		n, to := pageAt(list[0].place, pages), 1
		for to < len(list) && pageAt(list[to].place, pages) == n {
			to++
		}
		out = append(out, pageChange{n, list[:to]})
		list = list[to:]
	}
	return out
}

// merge returns the page that comes of the entries of a page and changes of c, which
// ascend and have each key once, and how many entries it has and had.
func (c *mapChanges) merge(page []byte, list []mapChange) (out []byte, entries, had int, ok bool) {
	size := 1 + len(page)
	for _, m := range list {
		size += int(m.size)
	}
	out = append(make([]byte, 0, size), pageFormat)
	put := func(m mapChange) {
		if !m.del {
			out = append(out, c.row(m)...)
			entries++
		}
	}
	// What does not change goes over as it is.
	same, at := 0, 0
	for at < len(page) {
		e, rest, ok := nextEntry(page[at:])
		if !ok {
			break
		}
		next, place := len(page)-len(rest), mapPlace(e.Hash)
		had++
		entries++
		for len(list) > 0 {
			order := cmp.Or(cmp.Compare(list[0].place, place), cmp.Compare(list[0].part, e.Part))
			if order > 0 {
				break
			}
			out = append(out, page[same:at]...)
			same = at
			put(list[0])
			list = list[1:]
			if order == 0 {
				same = next
				entries--
				break
			}
		}
		at = next
	}
	out = append(out, page[same:at]...)
	for _, m := range list {
		put(m)
	}
	return out, entries, had, at == len(page)
}
