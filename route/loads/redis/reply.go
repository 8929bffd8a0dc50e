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

// weighed reads the costs of candidates, and their loads where these were asked for.
func (r *reader) weighed(cs []loads.Candidate, wanted bool) ([]float64, []loads.Load) {
	costs, rows := r.numbers(len(cs)), r.text()
	if !wanted {
		return costs, nil
	}
	if len(rows) != rowSize*len(cs) {
		r.fail(rows)
		return nil, nil
	}
	all := make([]loads.Load, len(cs))
	for i := range cs {
		l := readLoad(rows[rowSize*i : rowSize*(i+1)])
		all[i] = l.In(cs[i].Generation)
	}
	return costs, all
}

// numbers reads n numbers.
func (r *reader) numbers(n int) []float64 {
	s := r.text()
	if len(s) != 8*n {
		r.fail(s)
		return nil
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = number(s, i)
	}
	return out
}
