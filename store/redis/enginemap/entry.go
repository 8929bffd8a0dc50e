package enginemap

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// Entry is an entry of a map, or its deletion. In rows of changes and in pages it is
//
//	the hash, 8 bytes big endian; the part, a varint; the length of the value, a byte;
//	the value
//
// with the length 0 in a deletion. A page is the byte pageFormat and entries, of which none
// is a deletion; they ascend by place, and each key is there once.
type Entry struct {
	store.MapKey
	Value []byte // nil deletes
}

// pageFormat begins a page. So no page is empty, and one that is not there has been lost.
const pageFormat = 1

// OpenPage returns the entries of a page. A page that the server has evicted, or lost in a
// failover, says nothing about what it had. No owner can go on from there, so the
// generation is as good as ended.
func OpenPage(page string) ([]byte, error) {
	if page == "" || page[0] != pageFormat {
		return nil, fmt.Errorf("%w: the server has lost a page of its map, or another process has written it: %q", store.ErrEnded, redisx.Clip(page))
	}
	return []byte(page[1:]), nil
}

// placeOf is the place of a hash in a map. Engines' hashes need not be even, so they are
// mixed.
func placeOf(hash uint64) uint64 { return hash * 0x9e3779b97f4a7c15 }

// AppendTo appends the entry's row.
func (e *Entry) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, e.Hash)
	dst = binary.AppendUvarint(dst, uint64(e.Part))
	return append(append(dst, byte(len(e.Value))), e.Value...)
}

// nextEntry cuts the first entry off b. The value is a part of b.
func nextEntry(b []byte) (e Entry, rest []byte, ok bool) {
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
		e.Value = b[1 : 1+size : 1+size]
	}
	return e, b[1+size:], true
}

// Each calls f with the entries of b, and reports whether that was all of it. What
// follows a place that cannot be read is left out.
func Each(b []byte, f func(Entry)) bool {
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

// PageOf is the page that has the entries of a hash, of so many, a power of 2. Each page
// has an even part of all places. Of twice as many pages, 2i and 2i+1 have what i had.
func PageOf(hash uint64, pages int) int { return pageAt(placeOf(hash), pages) }

// pageAt is the same of the hash's place.
func pageAt(place uint64, pages int) int {
	return int(place >> (64 - uint(bits.Len(uint(pages))-1)))
}
