package redis

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/store"
)

// mapEntry is an entry of a map, or its deletion. In rows of changes and in pages it is
//
//	the hash, 8 bytes big endian; the part, a varint; the length of the value, a byte;
//	the value
//
// with the length 0 in a deletion. A page is the byte pageFormat and entries, of which none
// is a deletion; they ascend by place, and each key is there once.
type mapEntry struct {
	store.MapKey
	value []byte // nil deletes
}

// pageFormat begins a page. So no page is empty, and one that is not there has been lost.
const pageFormat = 1

// openPage returns the entries of a page. One that the server has evicted, or lost in a
// failover, says nothing about what it had, and nobody can go on from there: the
// generation is as good as ended.
func openPage(page string) ([]byte, error) {
	if page == "" || page[0] != pageFormat {
		return nil, fmt.Errorf("%w: the server has lost a page of its map, or somebody else has written it: %q", store.ErrEnded, clip(page))
	}
	return []byte(page[1:]), nil
}

// mapPlace is the place of a hash in a map. Engines' hashes need not be even, so they are
// mixed.
func mapPlace(hash uint64) uint64 { return hash * 0x9e3779b97f4a7c15 }

// cmpMapKey is the order of entries in a map: by place and part.
func cmpMapKey(a, b store.MapKey) int {
	if a.Hash != b.Hash {
		return cmp.Compare(mapPlace(a.Hash), mapPlace(b.Hash))
	}
	return cmp.Compare(a.Part, b.Part)
}

func (e *mapEntry) appendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, e.Hash)
	dst = binary.AppendUvarint(dst, uint64(e.Part))
	return append(append(dst, byte(len(e.value))), e.value...)
}

// nextEntry cuts the first entry off b. The value is a part of b.
func nextEntry(b []byte) (e mapEntry, rest []byte, ok bool) {
	if len(b) < 8 {
		return e, b, false
	}
	e.Hash = binary.BigEndian.Uint64(b)
	part, n := binary.Uvarint(b[8:])
	if n <= 0 || part > 1<<16-1 || len(b) < 8+n+1 {
		return e, b, false
	}
	e.Part = uint16(part)
	b = b[8+n:]
	size := int(b[0])
	if size > store.MaxMapValue || len(b) < 1+size {
		return e, b, false
	}
	if size > 0 {
		e.value = b[1 : 1+size : 1+size]
	}
	return e, b[1+size:], true
}

// eachEntry calls f with the entries of b, and tells whether that was all of it. What
// follows a place that cannot be read is left out.
func eachEntry(b []byte, f func(mapEntry)) bool {
	for len(b) > 0 {
		e, rest, ok := nextEntry(b)
		if !ok {
			return false
		}
		f(e)
		b = rest
	}
	return true
}

// pageOf is the page that has the entries of a hash, of so many, a power of 2: each has
// an even part of all places. Of twice as many pages, 2i and 2i+1 have what i had.
func pageOf(hash uint64, pages int) int {
	return int(mapPlace(hash) >> (64 - uint(bits.Len(uint(pages))-1)))
}

// mergePage returns the page that comes of the entries of a page and changes, which
// ascend and have each key once, and how many entries it has and had.
func mergePage(page []byte, changes []mapEntry) (out []byte, entries, had int, ok bool) {
	size := 1 + len(page)
	for _, c := range changes {
		size += 12 + len(c.value)
	}
	out = append(make([]byte, 0, size), pageFormat)
	put := func(e mapEntry) {
		if e.value != nil {
			out = e.appendTo(out)
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
		next := len(page) - len(rest)
		had++
		entries++
		for len(changes) > 0 {
			order := cmpMapKey(changes[0].MapKey, e.MapKey)
			if order > 0 {
				break
			}
			out = append(out, page[same:at]...)
			same = at
			put(changes[0])
			changes = changes[1:]
			if order == 0 {
				same = next
				entries--
				break
			}
		}
		at = next
	}
	out = append(out, page[same:at]...)
	for _, e := range changes {
		put(e)
	}
	return out, entries, had, at == len(page)
}

// lastChanges returns the last change of each entry, ascending, of changes in the order
// in which they were made.
func lastChanges(changes []mapEntry) []mapEntry {
	// Sorting small things without pointers is a third of the work of sorting those.
	type order struct {
		place uint64
		part  uint16
		at    uint32
	}
	list := make([]order, len(changes))
	for i := range changes {
		list[i] = order{mapPlace(changes[i].Hash), changes[i].Part, uint32(i)}
	}
	slices.SortFunc(list, func(a, b order) int {
		if a.place != b.place {
			return cmp.Compare(a.place, b.place)
		}
		return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.at, b.at))
	})
	out := make([]mapEntry, 0, len(list))
	for i, o := range list {
		if i+1 == len(list) || list[i+1].place != o.place || list[i+1].part != o.part {
			out = append(out, changes[o.at])
		}
	}
	return out
}
