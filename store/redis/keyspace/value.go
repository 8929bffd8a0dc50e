package keyspace

import (
	"bytes"
	"slices"

	"github.com/kvatlas/kvatlas/store"
)

// AppendHolders appends the holder ids of a block's value, ascending and without
// duplicates. A value that is not written by the rules is garbled: ok is false. The
// rules are ids in decimal without leading zeros, joined by single commas.
//
// Ids that do not ascend are put in order: an engine-side writer may have
// appended without looking.
func AppendHolders(dst []store.HolderID, v []byte) (ids []store.HolderID, ok bool) {
	ids, _, ok = appendIDs(dst, v)
	return ids, ok
}

// appendIDs is AppendHolders, and reports whether the ids ascend in the value itself.
func appendIDs(dst []store.HolderID, v []byte) (ids []store.HolderID, ascending, ok bool) {
	begin := len(dst)
	var n uint64
	digits := 0
	ascending = true
	last := store.HolderID(0)
	for i := 0; ; i++ {
		if i < len(v) && v[i]-'0' < 10 {
			if digits > 0 && n == 0 {
				return dst[:begin], false, false
			}
			n = n*10 + uint64(v[i]-'0')
			if n >= uint64(store.FirstLocal) {
				return dst[:begin], false, false
			}
			digits++
			continue
		}
		if digits == 0 || n == 0 || (i < len(v) && v[i] != ',') {
			return dst[:begin], false, false
		}
		id := store.HolderID(n)
		ascending = ascending && id > last
		last = id
		dst = append(dst, id)
		if i == len(v) {
			break
		}
		n, digits = 0, 0
	}
	if !ascending {
		part := dst[begin:]
		slices.Sort(part)
		dst = dst[:begin+len(slices.Compact(part))]
	}
	return dst, ascending, true
}

const (
	// MaxText is the longest value of texts, in bytes.
	MaxText = 4096
	// MaxName is the longest of them.
	MaxName = 255
)

// IsText reports whether a value is texts, which are printable ASCII without spaces
// and quotes, each with something that is no digit. A comma in front is as if it were
// not there: a writer that adds a text by APPEND begins with one.
func IsText(v []byte) bool {
	if len(v) > MaxText {
		return false
	}
	v = bytes.TrimPrefix(v, []byte{','})
	if len(v) == 0 {
		return false
	}
	begin, digits := 0, true
	for i := 0; ; i++ {
		if i == len(v) || v[i] == ',' {
			if digits || i-begin > MaxName {
				return false
			}
			if i == len(v) {
				return true
			}
			begin, digits = i+1, true
			continue
		}
		switch c := v[i]; {
		case c <= ' ' || c >= 0x7f || c == '"' || c == '\'' || c == '\\':
			return false
		case c < '0' || c > '9':
			digits = false
		}
	}
}
