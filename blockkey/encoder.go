package blockkey

import (
	"encoding/binary"
	"math"
	"slices"
)

// encoder writes the two serializations that vLLM hashes, of the few types it
// hashes. One is Python's pickle, protocol 5, as CPython's C implementation writes
// it. The other is canonical CBOR (RFC 8949, 4.2.1) as the cbor2 module writes it.
type encoder struct {
	b       []byte
	pickled bool
	memo    int // of a pickle: how many values are in its memo
}

// array is CBOR's major type of arrays.
const array = 4

// begin begins what an algorithm hashes, and finish ends it.
func (e *encoder) begin(a VLLMAlgorithm) {
	e.b, e.memo, e.pickled = e.b[:0], 0, a.pickled()
	if e.pickled {
		e.b = append(e.b, opProto, pickleProtocol, opFrame, 0, 0, 0, 0, 0, 0, 0, 0)
	}
}

func (e *encoder) finish() {
	if !e.pickled {
		return
	}
	e.b = append(e.b, opStop)
	n := len(e.b) - pickleHead
	if n < minFrame {
		e.b = slices.Delete(e.b, 2, pickleHead)
		return
	}
	binary.LittleEndian.PutUint64(e.b[3:], uint64(n))
}

// openTuple is in front of the n values of a tuple, closeTuple behind them.
func (e *encoder) openTuple(n int) {
	switch {
	case !e.pickled:
		e.cborHead(array, uint64(n))
	case n > maxTupleWithCode:
		e.b = append(e.b, opMark)
	}
}

func (e *encoder) closeTuple(n int) {
	switch {
	case !e.pickled:
		return
	case n == 0:
		e.b = append(e.b, opEmptyTuple)
		return // Python has one empty tuple, and no memo of it
	case n <= maxTupleWithCode:
		e.b = append(e.b, opTuple1+byte(n-1))
	default:
		e.b = append(e.b, opTuple)
	}
	e.memoize()
}

// tokens writes a tuple of token ids.
func (e *encoder) tokens(list []uint32) {
	e.openTuple(len(list))
	if e.pickled {
		for _, t := range list {
			e.pickleInt(int64(t))
		}
	} else {
		for _, t := range list {
			e.cborHead(0, uint64(t))
		}
	}
	e.closeTuple(len(list))
}

func (e *encoder) null() {
	if e.pickled {
		e.b = append(e.b, opNone)
	} else {
		e.b = append(e.b, 0xf6)
	}
}

// integer writes an int.
func (e *encoder) integer(v int64) {
	switch {
	case e.pickled:
		e.pickleInt(v)
	case v < 0:
		e.cborHead(1, uint64(-(v + 1)))
	default:
		e.cborHead(0, uint64(v))
	}
}

// unsigned writes an int that is not negative.
func (e *encoder) unsigned(v uint64) {
	switch {
	case !e.pickled:
		e.cborHead(0, v)
	case v <= math.MaxInt64:
		e.pickleInt(int64(v))
	default:
		e.pickleLong(append(binary.LittleEndian.AppendUint64(nil, v), 0)) // with a sign
	}
}

// text writes a str of its own.
func (e *encoder) text(s string) {
	switch {
	case !e.pickled:
		e.cborHead(3, uint64(len(s)))
	case len(s) <= math.MaxUint8:
		e.b = append(e.b, opShortUnicode, byte(len(s)))
	default:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinUnicode), uint32(len(s)))
	}
	e.b = append(e.b, s...)
	e.memoize()
}

// constant writes a str that a pickle has once: at is where the memo has it, -1 before the first.
func (e *encoder) constant(s string, at *int) {
	switch {
	case *at < 0 || !e.pickled:
		*at = e.memo
		e.text(s)
	case *at <= math.MaxUint8:
		e.b = append(e.b, opBinGet, byte(*at))
	default:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opLongBinGet), uint32(*at))
	}
}

// bytes writes bytes, 255 at most.
func (e *encoder) bytes(s []byte) {
	if e.pickled {
		e.b = append(e.b, opShortBinBytes, byte(len(s)))
	} else {
		e.cborHead(2, uint64(len(s)))
	}
	e.b = append(e.b, s...)
	e.memoize()
}

// memoize counts a value that a pickle keeps in its memo.
func (e *encoder) memoize() {
	if e.pickled {
		e.b = append(e.b, opMemoize)
		e.memo++
	}
}

// Opcodes of a pickle.
const (
	opProto          = 0x80
	opFrame          = 0x95
	opStop           = '.'
	opNone           = 'N'
	opMark           = '('
	opTuple          = 't'
	opTuple1         = 0x85 // and of two and three values
	opEmptyTuple     = ')'
	opMemoize        = 0x94
	opBinGet         = 'h'
	opLongBinGet     = 'j'
	opBinInt         = 'J'
	opBinInt1        = 'K'
	opBinInt2        = 'M'
	opLong1          = 0x8a
	opShortBinBytes  = 'C'
	opShortUnicode   = 0x8c
	opBinUnicode     = 'X'
	pickleHead       = 2 + 9 // protocol and frame
	minFrame         = 4     // a shorter pickle has none
	pickleProtocol   = 5
	maxTupleWithCode = 3
)

// pickleInt writes an int.
func (e *encoder) pickleInt(v int64) {
	switch {
	case v >= 0 && v <= math.MaxUint8:
		e.b = append(e.b, opBinInt1, byte(v))
	case v >= 0 && v <= math.MaxUint16:
		e.b = binary.LittleEndian.AppendUint16(append(e.b, opBinInt2), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinInt), uint32(v))
	default:
		var le [8]byte
		binary.LittleEndian.PutUint64(le[:], uint64(v))
		e.pickleLong(le[:])
	}
}

// pickleDigest writes a digest as the int that its bytes are, the first the highest.
func (e *encoder) pickleDigest(d Digest) {
	var le [len(d) + 1]byte // with room for a sign
	for i, c := range d {
		le[len(d)-1-i] = c
	}
	e.pickleLong(le[:])
}

// pickleLong writes an int of two's complement, the lowest byte first, in as few
// bytes as hold its sign.
func (e *encoder) pickleLong(le []byte) {
	for len(le) > 1 {
		top, next := le[len(le)-1], le[len(le)-2]
		if top == 0 && next < 0x80 || top == 0xff && next >= 0x80 {
			le = le[:len(le)-1]
			continue
		}
		break
	}
	e.b = append(append(e.b, opLong1, byte(len(le))), le...)
}

// cborHead writes a major type and its argument.
func (e *encoder) cborHead(major byte, v uint64) {
	major <<= 5
	switch {
	case v < 24:
		e.b = append(e.b, major|byte(v))
	case v <= math.MaxUint8:
		e.b = append(e.b, major|24, byte(v))
	case v <= math.MaxUint16:
		e.b = binary.BigEndian.AppendUint16(append(e.b, major|25), uint16(v))
	case v <= math.MaxUint32:
		e.b = binary.BigEndian.AppendUint32(append(e.b, major|26), uint32(v))
	default:
		e.b = binary.BigEndian.AppendUint64(append(e.b, major|27), v)
	}
}
