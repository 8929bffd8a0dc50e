package loadstest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

func truths(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	a, b := pod("a b:1", 3), pod("b", 0)
	get := func(at store.RankRef) loads.Truth {
		all := must.Get(s.Truths(ctx, "m"))(t)
		return all[at]
	}
	add := func(at store.RankRef, gen store.Generation, requests, predicted, delivered int64) {
		must.OK(t, s.AddTruth(ctx, "m", []loads.Truth{{RankRef: at, Generation: gen, Requests: requests, Predicted: predicted, Delivered: delivered}}))
	}
	add(a, 5, 31, 3100, 0)
	got := get(a)
	equal(t, loads.Truth{RankRef: a, Generation: 5, Requests: 31, Predicted: 3100}, got)
	equal(t, false, got.Lies(), "too few to tell")
	add(a, 5, 1, 100, 100)
	got = get(a)
	equal(t, true, got.Lies())
	add(a, 4, 100, 100, 100)
	equal(t, got, get(a), "what is told late of an earlier generation")
	add(a, 6, 2, 200, 150)
	equal(t, loads.Truth{RankRef: a, Generation: 6, Requests: 2, Predicted: 200, Delivered: 150}, get(a))
	for range 100 {
		add(b, 0, 10, 1000, 1000)
	}
	got = get(b)
	equal(t, true, got.Requests <= loads.TruthWindow && got.Requests > loads.TruthWindow/3 && !got.Lies())
	for range 40 {
		add(b, 0, 10, 1000, 0)
	}
	got = get(b)
	equal(t, true, got.Lies(), "what was long ago counts less")
	must.OK(t, s.AddTruth(ctx, "m", nil))
	for _, bad := range []loads.Truth{{}, {RankRef: b, Requests: -1}, {RankRef: b, Delivered: 1}, {RankRef: pod("b", -1)}} {
		equal(t, true, errors.Is(s.AddTruth(ctx, "m", []loads.Truth{bad}), loads.ErrInvalid), bad)
	}
	clock.Advance(loads.TruthForget + time.Second)
	zero(t, get(b))
}

func claims(t *testing.T, open Open) {
	clock := NewClock()
	s := open(t, clock)
	claim := func(model, what string) bool {
		got := must.Get(s.Claim(ctx, model, what, time.Minute))(t)
		return got
	}
	equal(t, true, claim("m", "x:a b"))
	equal(t, false, claim("m", "x:a b"))
	equal(t, true, claim("m", "y"))
	equal(t, true, claim("other", "y"))
	clock.Advance(time.Minute + time.Second)
	equal(t, true, claim("m", "x:a b"))
	_, err := s.Claim(ctx, "m", "", time.Minute)
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	_, err = s.Claim(ctx, "m", "z", 0)
	equal(t, true, errors.Is(err, loads.ErrInvalid))
	var got atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if ok, err := s.Claim(ctx, "m", fmt.Sprint("race", i%4), time.Minute); err == nil && ok {
				got.Add(1)
			}
		})
	}
	wg.Wait()
	equal(t, 4, got.Load())
}
