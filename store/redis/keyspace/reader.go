package keyspace

import (
	"bytes"
	"encoding/binary"

	"github.com/kvatlas/kvatlas/store"
)

// HolderReader reads the values of blocks that follow each other in a chain. Where many
// hold them, such values differ in a few ids, and what is alike is not read again. It is for one
// goroutine; the zero value is ready.
type HolderReader struct {
	value []byte           // the last value, if its ids ascend; else nil
	ids   []store.HolderID // those of the last value
	spare []store.HolderID
}

// minAlike is the length in bytes from which on values are compared: ids of shorter ones are
// read faster than that.
const minAlike = 128

// Read is AppendHolders of one value. The ids are good until the next Read, to which the value
// must still be there, or Forget.
func (r *HolderReader) Read(v []byte) (ids []store.HolderID, ok bool) {
	r.ids, r.spare = r.spare[:0], r.ids
	ascending := false
	if len(v) >= minAlike && len(r.value) >= minAlike {
		r.ids, ascending = appendAlike(r.ids, v, r.value, r.spare)
	}
	if ok = ascending; !ok {
		r.ids, ascending, ok = appendIDs(r.ids[:0], v)
	}
	if r.value = nil; ascending {
		r.value = v
	}
	return r.ids, ok
}

// Forget tells that the last value is not there any more.
func (r *HolderReader) Forget() { r.value = nil }

// Held returns how many ids the reader has room for.
func (r *HolderReader) Held() int { return cap(r.ids) + cap(r.spare) }

// appendAlike appends the ids of v, which ascend, by comparing it with another value and its
// ids. It gives up, with ok false, on a value that is not written by the rules or whose ids do
// not ascend. It also gives up on one that differs so much that comparing does not pay.
func appendAlike(dst []store.HolderID, v, other []byte, ids []store.HolderID) (_ []store.HolderID, ok bool) {
	for left := 8 + len(v)/minAlike; left > 0; left-- {
		n := sameBytes(v, other)
		if n == len(v) && n == len(other) {
			return append(dst, ids...), true
		}
		whole := bytes.LastIndexByte(v[:n], ',') + 1
		count := bytes.Count(v[:whole], []byte{','})
		dst = append(dst, ids[:count]...)
		v, other, ids = v[whole:], other[whole:], ids[count:]

		id, width := firstID(v)
		switch {
		case width == 0:
			return dst, false
		case len(ids) > 0 && ids[0] <= id:
			if ids[0] == id {
				dst, v = append(dst, id), v[width:]
			}
			ids, other = ids[1:], other[bytes.IndexByte(other, ',')+1:]
			if len(ids) == 0 {
				other = nil
			}
		case len(dst) > 0 && dst[len(dst)-1] >= id:
			return dst, false
		default:
			dst, v = append(dst, id), v[width:]
		}
		if len(v) == 0 {
			return dst, true
		}
	}
	return dst, false
}

// firstID reads the first id of a value. Result width is what it takes with the comma behind it.
// It is 0 where the value does not begin with an id, or ends with that comma.
func firstID(v []byte) (id store.HolderID, width int) {
	var n uint64
	for i, c := range v {
		switch {
		case c-'0' < 10 && n < uint64(store.FirstLocal):
			if n = n*10 + uint64(c-'0'); n == 0 {
				return 0, 0
			}
		case c == ',' && n > 0 && n < uint64(store.FirstLocal) && i+1 < len(v):
			return store.HolderID(n), i + 1
		default:
			return 0, 0
		}
	}
	if n == 0 || n >= uint64(store.FirstLocal) {
		return 0, 0
	}
	return store.HolderID(n), len(v)
}

// sameBytes returns how many of the first bytes are the same.
func sameBytes(a, b []byte) (n int) {
	const width = 32
	for len(a) >= width && len(b) >= width {
		x, y := (*[width]byte)(a), (*[width]byte)(b)
		if (word(x[0:])^word(y[0:]))|(word(x[8:])^word(y[8:]))|(word(x[16:])^word(y[16:]))|(word(x[24:])^word(y[24:])) != 0 {
			break
		}
		a, b = a[width:], b[width:]
		n += width
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return n + i
		}
	}
	return n + min(len(a), len(b))
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
