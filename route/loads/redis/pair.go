package redis

import (
	"cmp"
	"context"

	"github.com/kvatlas/kvatlas/route/loads"
)

// BookPair implements loads.Store. The loads of a model lie in one slot, so one script sees
// both places.
func (s *Store) BookPair(ctx context.Context, c *loads.PairCall) (loads.BookedPair, error) {
	if err := c.Validate(); err != nil {
		return loads.BookedPair{}, err
	}
	args := callArgs(&c.Call, 9+11*(len(c.Candidates)+len(c.Prefill))+4*(len(c.Options)+len(c.Resorts)))
	args = appendWeights(args, c.PrefillWeights)
	args = append(args, len(c.Candidates), len(c.Prefill), len(c.Options), len(c.Resorts))
	args = appendCandidates(appendCandidates(args, c.Candidates), c.Prefill)
	for _, list := range [][]loads.Option{c.Options, c.Resorts} {
		for _, o := range list {
			args = append(args, o.Prefill+1, o.Decode+1, o.Extra, o.Factor)
		}
	}
	reply, err := s.run(ctx, pairScript, s.keys(c.Model), args...)
	if err != nil {
		return loads.BookedPair{}, err
	}
	return readPair(reply)
}

// readPair reads the reply of lua/pair.lua.
func readPair(reply []any) (out loads.BookedPair, err error) {
	r := reader{reply: reply}
	state, err := r.state(&out.Booked)
	if err != nil || r.err != nil {
		return out, cmp.Or(r.err, err)
	}
	decodes := r.text()
	if out.Again = state == "again"; !out.Again {
		out.Costs, out.Loads = r.weighed()
	}
	prefills := r.text()
	if !out.Again {
		out.PrefillCosts, out.PrefillLoads = r.weighed()
		totals := r.list()
		out.Totals = totals.floats()
		r.err = cmp.Or(r.err, totals.err)
		out.Resorted = r.int() == 1
	}
	if r.err != nil {
		return loads.BookedPair{}, r.err
	}
	if state == "busy" {
		return out, loads.ErrBusy
	}
	if out.RankRef, err = parseField(decodes); err != nil {
		return loads.BookedPair{}, err
	}
	out.Prefill, err = parseField(prefills)
	return out, err
}
