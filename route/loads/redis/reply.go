package redis

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

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

// load reads a load; what is none reads as an empty one, as the scripts take it.
func (r *reader) load() (l loads.Load) {
	f := strings.Fields(r.text())
	if len(f) != 8 {
		return l
	}
	var n [8]int64
	for i := range f {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil || v < 0 {
			return l
		}
		n[i] = v
	}
	return loads.Load{Generation: store.Generation(n[0]), Work: n[3], Prefill: n[4], Blocks: n[5], Requests: n[6], Since: n[7]}
}

// speed reads a learnt speed into l.
func (r *reader) speed(l *loads.Load) {
	f := strings.Fields(r.text())
	if len(f) != 3 {
		return
	}
	speed, err1 := strconv.ParseFloat(f[0], 64)
	samples, err2 := strconv.ParseInt(f[1], 10, 64)
	at, err3 := strconv.ParseInt(f[2], 10, 64)
	if err1 == nil && err2 == nil && err3 == nil && speed > 0 && !math.IsInf(speed, 0) && samples > 0 {
		l.Speed, l.Samples, l.Learnt = speed, samples, at
	}
}

// state reads what the reply of a booking begins with: what became of it, and when. The error
// is ErrFull or ErrSettings.
func (r *reader) state(out *loads.Booked) (state string, err error) {
	state = r.text()
	out.Now = r.int()
	switch {
	case r.err != nil:
	case state == "full":
		err = loads.ErrFull
	case state == "settings":
		err = loads.ErrSettings
	}
	return state, err
}

// weighed reads the costs of candidates, and their loads.
func (r *reader) weighed() (costs []float64, all []loads.Load) {
	list, rows, speeds := r.list(), r.list(), r.list()
	costs = list.floats()
	for range costs {
		l := rows.load()
		speeds.speed(&l)
		all = append(all, l)
	}
	r.err = errors.Join(r.err, list.err, rows.err, speeds.err)
	return costs, all
}

// floats reads what is left as numbers.
func (r *reader) floats() (out []float64) {
	for r.more() {
		text := r.text()
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			r.fail(text)
		}
		out = append(out, v)
	}
	return out
}
