package blocks

import (
	"fmt"
	"math"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// span is where a value lies in a buffer. A nil, which is what the server has to
// say of a key that is not there or is no string, has len noValue.
type span struct{ at, len int32 }

const noValue = -1

// of returns the value; ok is false for none.
func (s span) of(buf []byte) (v []byte, ok bool) {
	if s.len == noValue {
		return nil, false
	}
	return buf[s.at : s.at+s.len], true
}

// readArray reads a reply to MGET of want keys, in either version of RESP, and
// appends where its values are. The reply begins at place at of buf. A value that is the same
// as the last one may be redisx.Again, and then lies where that does.
//
// It is hand-written because it is the hot path of a lookup: go-redis would
// make a string and an interface of each value.
func readArray(dst []span, buf []byte, at, want int) ([]span, error) {
	b := buf[at:]
	if len(buf) > math.MaxInt32 {
		return dst, fmt.Errorf("%w: it has %d bytes", keyspace.ErrProtocol, len(buf))
	}
	if len(b) == 0 {
		return dst, fmt.Errorf("%w: it is empty", keyspace.ErrProtocol)
	}
	if err := redisx.ReplyError(b); err != nil {
		return dst, err
	}
	if b[0] != '*' {
		return dst, fmt.Errorf("%w: it begins with %q where an array should", keyspace.ErrProtocol, b[0])
	}
	n, i, err := readLen(buf, at+1)
	if err != nil {
		return dst, err
	}
	if n != want {
		return dst, fmt.Errorf("%w: it has %d values for %d keys", keyspace.ErrProtocol, n, want)
	}
	last := span{0, noValue}
	for range n {
		if i >= len(buf) {
			return dst, fmt.Errorf("%w: it is cut short", keyspace.ErrProtocol)
		}
		kind := buf[i]
		var l int
		l, i, err = readLen(buf, i+1)
		switch {
		case err != nil:
			return dst, err
		case kind == '_' || kind == '$' && l < 0:
			dst = append(dst, span{0, noValue})
		case kind == '$' && i+l+2 <= len(buf):
			last = span{int32(i), int32(l)}
			dst = append(dst, last)
			i += l + 2
		case kind == redisx.Again && last.len != noValue:
			dst = append(dst, last)
		default:
			return dst, fmt.Errorf("%w: a value begins with %q and has %d bytes", keyspace.ErrProtocol, kind, l)
		}
	}
	return dst, nil
}

// readLen reads the number that ends at the end of a line, and returns where the
// next line begins. No digits are 0.
func readLen(buf []byte, at int) (n, next int, err error) {
	neg := false
	for i := at; i < len(buf); i++ {
		switch c := buf[i]; {
		case c-'0' < 10:
			n = n*10 + int(c-'0')
			if n > 1<<30 {
				return 0, 0, fmt.Errorf("%w: a length of %s", keyspace.ErrProtocol, strconv.Itoa(n))
			}
		case c == '-' && i == at:
			neg = true
		case c == '\r' && i+1 < len(buf) && buf[i+1] == '\n':
			if neg {
				n = -n
			}
			return n, i + 2, nil
		default:
			return 0, 0, fmt.Errorf("%w: %q in a length", keyspace.ErrProtocol, c)
		}
	}
	return 0, 0, fmt.Errorf("%w: it is cut short", keyspace.ErrProtocol)
}
