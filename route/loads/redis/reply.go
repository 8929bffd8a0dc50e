package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// reader reads a reply, one value after the other. err is the first that was not as it
// should be.
type reader struct {
	reply []any
	at    int
	err   error
}

func (r *reader) more() bool { return r.at < len(r.reply) }

func (r *reader) fail(v any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: a script's reply has %q at %d", loads.ErrUnavailable, fmt.Sprint(v), r.at)
	}
}

func (r *reader) next() any {
	if !r.more() {
		r.fail(nil)
		return nil
	}
	r.at++
	return r.reply[r.at-1]
}

func (r *reader) text() string {
	v := r.next()
	s, ok := v.(string)
	if !ok {
		r.fail(v)
	}
	return s
}

func (r *reader) int() int64 {
	switch v := r.next().(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			r.fail(v)
		}
		return n
	default:
		r.fail(v)
		return 0
	}
}

func (r *reader) list() *reader {
	v := r.next()
	l, ok := v.([]any)
	if !ok {
		r.fail(v)
	}
	return &reader{reply: l}
}

// rowSize is the size of a load in lua/loads.lua.
const rowSize = 13 * 8

// appendNumbers appends numbers as the scripts read them.
func appendNumbers(b []byte, ns ...float64) []byte {
	for _, n := range ns {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return b
}

// number returns the i-th number of those in s.
func number(s string, i int) float64 {
	var b [8]byte
	copy(b[:], s[8*i:])
	return math.Float64frombits(binary.LittleEndian.Uint64(b[:]))
}

// readLoad reads a load; what is not a load reads as an empty one, as the scripts take it.
func readLoad(row string) (l loads.Load) {
	if len(row) != rowSize {
		return l
	}
	var n [13]int64
	for i := range n {
		v := number(row, i)
		if !(v >= 0 && v < 1<<53) {
			return l
		}
		n[i] = int64(v)
	}
	l = loads.Load{Generation: store.Generation(n[0]), Work: n[3], Prefill: n[4], Blocks: n[5], Requests: n[6], Since: n[7]}
	if n[9] > 0 {
		l.Speed, l.Samples, l.Learnt = number(row, 8), n[9], n[10]
	}
	if n[12] > 0 {
		l.Filled, l.FilledAt = number(row, 11), n[12]
	}
	return l
}

// time reads a time in microseconds.
func (r *reader) time() int64 {
	s := r.text()
	if len(s) != 8 {
		r.fail(s)
		return 0
	}
	return int64(number(s, 0))
}

// numberReader reads a string of numbers. err is the first failure.
type numberReader struct {
	rest string
	err  error
}

func (r *numberReader) fail() {
	if r.err == nil {
		r.err = fmt.Errorf("%w: a script's reply ends with %.80q", loads.ErrUnavailable, r.rest)
	}
}

func (r *numberReader) next() float64 {
	if len(r.rest) < 8 {
		r.fail()
		return 0
	}
	v := number(r.rest, 0)
	r.rest = r.rest[8:]
	return v
}

// list reads n numbers.
func (r *numberReader) list(n int) []float64 {
	if len(r.rest) < 8*n {
		r.fail()
		return nil
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = number(r.rest, i)
	}
	r.rest = r.rest[8*n:]
	return out
}

// loads reads the loads of candidates, as they stand in their generations; nil for none.
func (r *numberReader) loads(cs []loads.Candidate) []loads.Load {
	if len(cs) == 0 {
		return nil
	}
	if len(r.rest) < rowSize*len(cs) {
		r.fail()
		return nil
	}
	all := make([]loads.Load, len(cs))
	for i := range cs {
		l := readLoad(r.rest[rowSize*i : rowSize*(i+1)])
		all[i] = l.In(cs[i].Generation)
	}
	r.rest = r.rest[rowSize*len(cs):]
	return all
}

// cutNames cuts off the name of a place and, where its length is not 0, that of another one which prefills.
func cutNames(s string, length, other float64) (at, prefills string, ok bool) {
	if !(length >= 0 && other >= 0 && length+other <= float64(len(s))) {
		return "", "", false
	}
	return s[:int(length)], s[int(length):int(length+other)], true
}

// readNames reads the name of a place and of the one that prefills, which may be the same.
func readNames(s string, length, other float64) (at, prefills store.RankRef, err error) {
	name, otherName, ok := cutNames(s, length, other)
	if !ok {
		return at, prefills, fmt.Errorf("%w: the names in %.80q are %v and %v long", loads.ErrUnavailable, s, length, other)
	}
	if at, err = parseField(name); err != nil || otherName == "" {
		return at, at, err
	}
	prefills, err = parseField(otherName)
	return at, prefills, err
}

// reservationSize is the size of the numbers of a reservation in lua/loads.lua.
const reservationSize = 16 * 8

// reservation is what reports tell of one. Its form is that of lua/loads.lua.
type reservation struct {
	prefilled                 bool
	output, predicted, tokens int
	// at is where it runs, prefills where it was prefilled.
	at, prefills store.RankRef
}

// readReservation reads the numbers and names of a reservation.
func readReservation(v string) (r reservation, err error) {
	if len(v) < reservationSize {
		return r, fmt.Errorf("%w: %.80q is no reservation", loads.ErrUnavailable, v)
	}
	r.at, r.prefills, err = readNames(v[reservationSize:], number(v, 13), number(v, 14))
	r.prefilled, r.output = number(v, 1) == 1, int(number(v, 2))
	r.tokens = int(number(v, 8))
	r.predicted = r.tokens - int(number(v, 5))
	return r, err
}
