package redis

import (
	"fmt"
	"math"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// bookArgs are the arguments of lua/book.lua. With overdue above 0 the script returns up to so many
// overdue reservations where these are in the way, and books nothing.
func (s *Store) bookArgs(c *loads.PairCall, overdue int) []any {
	marks, tail := c.Marked()
	packed := make([]byte, 0, 8*len(marks))
	for _, k := range marks {
		b := blockkey.StoreKey(k).Bytes()
		packed = append(packed, b[:]...)
	}
	var pair []byte
	if len(c.Prefill) > 0 {
		w := &c.PrefillWeights
		pair = appendNumbers(make([]byte, 0, 8*(7+4*(len(c.Options)+len(c.Resorts)))), w.Wait, w.Prefill, w.Decode, w.Blocks, w.Requests,
			float64(len(c.Options)), float64(len(c.Resorts)))
		for _, list := range [][]loads.Option{c.Options, c.Resorts} {
			for _, o := range list {
				pair = appendNumbers(pair, float64(o.Prefill+1), float64(o.Decode+1), o.Extra, o.Factor)
			}
		}
	}
	n := len(c.Candidates) + len(c.Prefill)
	told := appendCall(append(make([]byte, 0, 8*(19+12*n)), s.now()...), &c.Call, tail, overdue)
	all := int64((c.Tokens + c.BlockSize - 1) / c.BlockSize)
	told = appendIdle(told, c.Candidates, c.Weights, all)
	told = appendIdle(told, c.Prefill, c.PrefillWeights, all)
	told = appendCandidates(told, c.Candidates)
	told = appendCandidates(told, c.Prefill)
	args := append(make([]any, 0, 4+n), told, c.ID, packed)
	for _, list := range [][]loads.Candidate{c.Candidates, c.Prefill} {
		for i := range list {
			args = append(args, field(list[i].RankRef))
		}
	}
	if pair != nil {
		args = append(args, pair)
	}
	return args
}

// appendCall appends the numbers of a call.
func appendCall(b []byte, c *loads.Call, tail int64, overdue int) []byte {
	w, wanted := &c.Weights, 0.0
	if c.WantLoads {
		wanted = 1
	}
	return appendNumbers(b, float64(c.Lease.Microseconds()), float64(c.Tokens), float64(tail), float64(c.Expected), float64(c.BlockSize),
		c.Temperature, c.Draw, loads.MaxReservations, float64(c.Settings), float64(overdue), w.Wait, w.Prefill, w.Decode, w.Blocks, w.Requests, c.Quadratic, wanted,
		float64(len(c.Candidates)))
}

// appendIdle appends what each candidate costs where nothing runs, with all blocks of the prompt: the
// script works out those alone where something does.
func appendIdle(b []byte, cs []loads.Candidate, w loads.Weights, blocks int64) []byte {
	var idle loads.Load
	for i := range cs {
		cost := math.NaN()
		if !cs[i].Limits.Busy(&idle) {
			cost = cs[i].Cost(w, &idle, blocks, 0)
		}
		b = appendNumbers(b, cost)
	}
	return b
}

func appendCandidates(b []byte, cs []loads.Candidate) []byte {
	for i := range cs {
		d := &cs[i]
		b = appendNumbers(b, float64(d.Generation), float64(d.Uncached), float64(d.Work), d.Base, d.Floor, d.Factor, d.Speed,
			float64(d.Limits.Requests), float64(d.Limits.Prefill), float64(d.Limits.Blocks), d.Twin)
	}
	return b
}

// What lua/book.lua says first of how it went.
const (
	stateBooked = iota
	stateAgain
	stateFull
	stateSettings
	stateBusy
)

// readBooked reads the reply of lua/book.lua.
func readBooked(reply string, c *loads.PairCall) (out loads.BookedPair, err error) {
	r := numberReader{rest: reply}
	state, now := r.next(), r.next()
	out.Now = int64(now)
	switch {
	case r.err != nil:
		return loads.BookedPair{}, r.err
	case state == stateFull:
		return out, loads.ErrFull
	case state == stateSettings:
		return out, loads.ErrSettings
	case state == stateAgain:
		out.Again = true
		length, other := r.next(), r.next()
		if r.err != nil {
			return loads.BookedPair{}, r.err
		}
		out.RankRef, out.Prefill, err = readNames(r.rest, length, other)
		return out, err
	}
	who, prefills := r.next(), 0.0
	out.Costs = r.list(len(c.Candidates))
	if len(c.Prefill) > 0 {
		prefills = r.next()
		out.PrefillCosts = r.list(len(c.Prefill))
		out.Resorted = r.next() == 1
		n := len(c.Options)
		if out.Resorted {
			n = len(c.Resorts)
		}
		out.Totals = r.list(n)
	}
	if c.WantLoads {
		out.Loads = r.loads(c.Candidates)
		out.PrefillLoads = r.loads(c.Prefill)
	}
	if r.err == nil && len(r.rest) > 0 {
		r.fail()
	}
	if r.err != nil {
		return loads.BookedPair{}, r.err
	}
	if state == stateBusy {
		return out, loads.ErrBusy
	}
	// The places are numbered from 1, those that prefill behind the others.
	if out.RankRef, err = place(c, who); err == nil {
		out.Prefill = out.RankRef
		if len(c.Prefill) > 0 {
			out.Prefill, err = place(c, prefills)
		}
	}
	if err != nil {
		return loads.BookedPair{}, err
	}
	return out, nil
}

// place is the i-th candidate of a call, counted from 1.
func place(c *loads.PairCall, i float64) (store.RankRef, error) {
	n := len(c.Candidates)
	switch at := int(i) - 1; {
	case at >= 0 && at < n:
		return c.Candidates[at].RankRef, nil
	case at >= n && at < n+len(c.Prefill):
		return c.Prefill[at-n].RankRef, nil
	}
	return store.RankRef{}, fmt.Errorf("%w: a script has booked at candidate %v of %d", loads.ErrUnavailable, i, n+len(c.Prefill))
}
