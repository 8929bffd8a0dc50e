package redis

import (
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route/loads"
)

// bookArgs are the arguments of lua/book.lua.
func (s *Store) bookArgs(c *loads.PairCall) []any {
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
	args := make([]any, 0, 7+len(c.Candidates)+len(c.Prefill))
	args = append(args, s.now(), c.ID, packCall(&c.Call, tail, overdueAtOnce), packed, packCandidates(c.Candidates), packCandidates(c.Prefill), pair)
	for _, list := range [][]loads.Candidate{c.Candidates, c.Prefill} {
		for i := range list {
			args = append(args, field(list[i].RankRef))
		}
	}
	return args
}

// packCall returns the numbers of a call. With overdue above 0 the script returns up to so many
// overdue reservations where these are in the way, and books nothing.
func packCall(c *loads.Call, tail int64, overdue int) []byte {
	w, wanted := &c.Weights, 0.0
	if c.WantLoads {
		wanted = 1
	}
	return appendNumbers(make([]byte, 0, 17*8), float64(c.Lease.Microseconds()), float64(c.Tokens), float64(tail), float64(c.Expected), float64(c.BlockSize),
		c.Temperature, c.Draw, loads.MaxReservations, float64(c.Settings), float64(overdue), w.Wait, w.Prefill, w.Decode, w.Blocks, w.Requests, c.Quadratic, wanted)
}

func packCandidates(cs []loads.Candidate) []byte {
	b := make([]byte, 0, 11*8*len(cs))
	for i := range cs {
		d := &cs[i]
		b = appendNumbers(b, float64(d.Generation), float64(d.Uncached), float64(d.Work), d.Base, d.Floor, d.Factor, d.Speed,
			float64(d.Limits.Requests), float64(d.Limits.Prefill), float64(d.Limits.Blocks), d.Twin)
	}
	return b
}

// readBooked reads the reply of lua/book.lua.
func readBooked(reply []any, c *loads.PairCall) (out loads.BookedPair, err error) {
	r := reader{reply: reply}
	state, paired := r.text(), len(c.Prefill) > 0
	out.Now = r.time()
	if r.err == nil && state == "full" {
		return out, loads.ErrFull
	}
	if r.err == nil && state == "settings" {
		return out, loads.ErrSettings
	}
	name := r.text()
	prefills := name
	if out.Again = state == "again"; out.Again {
		prefills = r.text()
	} else {
		out.Costs, out.Loads = r.weighed(c.Candidates, c.WantLoads)
		if paired {
			prefills = r.text()
			out.PrefillCosts, out.PrefillLoads = r.weighed(c.Prefill, c.WantLoads)
			totals := r.text()
			out.Resorted = r.int() == 1
			n := len(c.Options)
			if out.Resorted {
				n = len(c.Resorts)
			}
			t := reader{reply: []any{totals}}
			if out.Totals = t.numbers(n); r.err == nil {
				r.err = t.err
			}
		}
	}
	if r.err != nil {
		return loads.BookedPair{}, r.err
	}
	if state == "busy" {
		return out, loads.ErrBusy
	}
	if out.RankRef, err = parseField(name); err != nil {
		return loads.BookedPair{}, err
	}
	out.Prefill, err = parseField(prefills)
	return out, err
}
