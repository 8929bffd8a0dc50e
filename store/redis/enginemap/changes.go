package enginemap

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
)

// Changes are changes of a map, in the order in which they were made or, by Last,
// ascending. A compaction has many: they are rows of bytes, and small things without pointers
// that say where in them each is.
type Changes struct {
	rows []byte
	list []change
}

// change is one of them.
type change struct {
	place uint64 // of its hash
	at    uint32 // in the rows
	part  uint16
	size  uint8 // of its row
	del   bool
}

// NewChanges makes room for n changes of so many bytes.
func NewChanges(n, bytes int) Changes {
	return Changes{rows: make([]byte, 0, bytes), list: make([]change, 0, n)}
}

// Len is how many changes there are.
func (c *Changes) Len() int { return len(c.list) }

// Bytes is how long their rows are together.
func (c *Changes) Bytes() int { return len(c.rows) }

// All are the rows of the changes, and whether each is a deletion.
func (c *Changes) All() iter.Seq2[[]byte, bool] {
	return func(yield func([]byte, bool) bool) {
		for _, m := range c.list {
			if !yield(c.row(m), m.del) {
				return
			}
		}
	}
}

// row is the change as it stands in a list or a page.
func (c *Changes) row(m change) []byte { return c.rows[m.at : m.at+uint32(m.size)] }

// Add appends a change.
func (c *Changes) Add(e Entry) {
	at := len(c.rows)
	c.rows = e.AppendTo(c.rows)
	c.note(e, at, len(c.rows))
}

// AddRows appends an element of a list, as far as it can be read, and reports whether that
// was all of it.
func (c *Changes) AddRows(element string) bool {
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

func (c *Changes) note(e Entry, at, next int) {
	c.list = append(c.list, change{place: placeOf(e.Hash), at: uint32(at), part: e.Part, size: uint8(next - at), del: e.Value == nil})
}

// Last returns the last change of each entry, ascending by place and part, of changes in
// the order in which they were made.
func (c *Changes) Last() Changes {
	// Places are even. So cut by their highest bits they are some eight a piece, whose
	// sorting takes no time that grows with their number.
	width := bits.Len(uint(len(c.list) / 8))
	pieceOf := func(m change) uint64 { return m.place >> (64 - width) }
	ends := make([]uint32, 1<<width+1)
	for _, m := range c.list {
		ends[pieceOf(m)+1]++
	}
	for i := range ends[1:] {
		ends[i+1] += ends[i]
	}
	sorted := make([]change, len(c.list))
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
		slices.SortFunc(piece, func(a, b change) int {
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
	return Changes{rows: c.rows, list: out}
}

// PageChanges are the changes of one page, N.
type PageChanges struct {
	N    int
	list []change
}

// ByPage cuts ascending changes into those of each of so many pages.
func (c *Changes) ByPage(pages int) []PageChanges {
	var out []PageChanges
	for list := c.list; len(list) > 0; {
		n, to := pageAt(list[0].place, pages), 1
		for to < len(list) && pageAt(list[to].place, pages) == n {
			to++
		}
		out = append(out, PageChanges{n, list[:to]})
		list = list[to:]
	}
	return out
}

// Merge returns the page that comes of the entries of a page and changes of c, which
// ascend and have each key once. It also returns how many entries it has and had.
func (c *Changes) Merge(page []byte, changes PageChanges) (out []byte, entries, had int, ok bool) {
	list := changes.list
	size := 1 + len(page)
	for _, m := range list {
		size += int(m.size)
	}
	out = append(make([]byte, 0, size), pageFormat)
	put := func(m change) {
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
		next, place := len(page)-len(rest), placeOf(e.Hash)
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
