package redis_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/loadstest"
	"github.com/kvatlas/kvatlas/store"
)

// pair is a request that p prefills and d decodes.
func pair(id, p, d string) *loads.PairCall {
	c := &loads.PairCall{Call: *request(id, d), Prefill: request(id, p).Candidates, Options: []loads.Option{{Factor: 1}}}
	c.Candidates[0].Uncached, c.Candidates[0].Work = 0, 0
	return c
}

// TestPairDrift spoils the load of either half, or takes it away, and lets Audit mend it.
func TestPairDrift(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	s := newStore(t, client, "kva", loadstest.NewClock())
	for i := range 3 {
		must.Get(s.BookPair(ctx, pair(fmt.Sprint(i), "p", "d")))(t)
	}
	must.Get(s.Done(ctx, "m", "1", loads.Done{Cached: -1}))(t)
	before, err := s.Loads(ctx, "m")
	if err != nil || before.Loads[store.RankRef{Pod: "p"}].Requests != 2 || before.Loads[store.RankRef{Pod: "d"}].Requests != 3 {
		t.Fatalf("%+v, %v", before.Loads, err)
	}
	key := client.Keys(ctx, "kva{*}:l3:*").Val()[0]
	for _, half := range []string{"0:p", "0:d"} {
		row := []byte(client.HGet(ctx, key, half).Val())
		binary.LittleEndian.PutUint64(row[6*8:], math.Float64bits(77)) // requests
		client.HSet(ctx, key, half, row)
		d, err := s.Audit(ctx, "m")
		if err != nil || len(d) != 1 || d[0].Load.Requests != 77 || d[0].Reserved != before.Loads[d[0].RankRef] {
			t.Errorf("%s: %+v, %v", half, d, err)
		}
		if after, _ := s.Loads(ctx, "m"); !maps.Equal(after.Loads, before.Loads) {
			t.Errorf("%s: %v, expected %v", half, after.Loads, before.Loads)
		}
	}
	client.HDel(ctx, key, "0:p")
	for i := range 3 {
		if !isKnown(t, s, fmt.Sprint(i)) {
			t.Error(i)
		}
	}
	if p, err := s.Loads(ctx, "m"); err != nil || len(p.Loads) != 0 {
		t.Errorf("%v, %v", p.Loads, err)
	}
}

// TestPairOfTwoProcesses lets one store book and another one, which shares only Redis, report.
func TestPairOfTwoProcesses(t *testing.T) {
	server := redistest.Start(t)
	clock := loadstest.NewClock()
	one, two := newStore(t, server.Client(), "kva", clock), newStore(t, server.Client(), "kva", clock)
	must.Get(one.BookPair(context.Background(), pair("r", "p", "d")))(t)
	if b, err := two.BookPair(context.Background(), pair("r", "x", "y")); err != nil || !b.Again || b.Prefill.Pod != "p" || b.Pod != "d" {
		t.Errorf("%+v, %v", b, err)
	}
	if r, err := two.Done(context.Background(), "m", "r", loads.Done{Cached: -1}); err != nil || !r.First || r.Pod != "p" {
		t.Errorf("%+v, %v", r, err)
	}
	if !isKnown(t, two, "r") || isKnown(t, one, "r") {
		t.Error("the request was not ended once")
	}
}
