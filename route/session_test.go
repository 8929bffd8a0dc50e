package route_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// say routes a request of a session by the routers in turn and leaves it running.
func (f *fleet) say(session string, with func(*route.Request)) *route.Decision {
	f.Helper()
	r := f.routers[0]
	f.routers = append(f.routers[1:], r)
	q := of(words(1, 2))
	q.Score.Model, q.Session, q.Reserve = "m", session, true
	if with != nil {
		with(&q)
	}
	return must.Get(r.Route(f.Context(), q))(f)
}

func (f *fleet) wantState(d *route.Decision, want route.SessionState) {
	f.Helper()
	if d.Session == nil || d.Session.State != want {
		f.Fatalf("session %+v, want %s", d.Session, want)
	}
}

// refresh makes the next choices see the loads of this moment.
func (f *fleet) refresh() {
	f.Helper()
	for _, r := range f.routers {
		must.Get(r.Settings(f.Context(), "m"))(f)
	}
}

// A session stays where it is, whatever the policy would choose, for all routers.
func TestSessionStays(t *testing.T) {
	fleets(t, `{"policy":"least_requests"}`, func(f *fleet) {
		first := f.say("chat", nil)
		f.wantState(first, route.SessionNew)
		for range 12 { // the fewest run elsewhere by now
			d := f.say("chat", nil)
			f.wantState(d, route.SessionKept)
			if d.RankRef != first.RankRef || d.Session.Was == nil || *d.Session.Was != first.RankRef {
				f.Fatalf("went to %v, was %v; want %v", d.RankRef, d.Session.Was, first.RankRef)
			}
		}
		f.refresh()
		if d := f.say("another", nil); d.RankRef == first.RankRef {
			f.Errorf("another session went to %v as well", d.RankRef)
		}
		if d := f.say("", nil); d.Session != nil {
			f.Errorf("a request without a session has %+v", d.Session)
		}
		if f.pass != nil {
			f.pass(3601 * time.Second)
			f.wantState(f.say("chat", nil), route.SessionNew)
		}
	})
}

// Liveness, what the request asks, limits and the guard come before a session; it then stays
// with the place that was chosen instead.
func TestSessionMoves(t *testing.T) {
	fleets(t, `{"policy":"least_requests","affinity":{"absolute":3,"relative":1.5}}`, func(f *fleet) {
		first := f.say("chat", nil)
		f.refresh()
		others := []string{}
		for _, p := range []string{"a", "b", "c", "d"} {
			if p != first.Pod {
				others = append(others, p)
			}
		}
		for name, c := range map[string]struct {
			state route.SessionState
			with  func(*route.Request)
		}{
			"not among those that may be chosen": {route.SessionGone, func(q *route.Request) { q.Score.Pods, q.Reserve = others, false }},
			"pinned elsewhere":                   {route.SessionGone, func(q *route.Request) { q.Pinned, q.Reserve = &store.RankRef{Pod: others[0], Rank: -1}, false }},
			"at its limits":                      {route.SessionBusy, func(q *route.Request) { q.Overrides, q.Reserve = []byte(`{"busy":{"requests":1}}`), false }},
		} {
			if d := f.say("chat", c.with); d.Session.State != c.state || d.RankRef == first.RankRef {
				f.Errorf("%s: %+v at %v", name, d.Session, d.RankRef)
			}
		}
		f.wantState(f.say("chat", nil), route.SessionKept) // queries have bound nothing
		var d *route.Decision
		for range 6 {
			f.refresh()
			if d = f.say("chat", nil); d.RankRef != first.RankRef {
				break
			}
		}
		f.wantState(d, route.SessionUnbalanced)
		moved := d.RankRef
		f.refresh()
		if d := f.say("chat", nil); d.RankRef != moved {
			f.Errorf("it went on to %v, want %v", d.RankRef, moved)
		}
		must.Get(f.index.Retire(f.Context(), moved.Pod))(f)
		d = f.say("chat", nil)
		f.wantState(d, route.SessionGone)
		if d.RankRef == moved {
			f.Errorf("it went to %v, which is gone", d.RankRef)
		}
	})
}

// A place that has reached its limits since the last picture is left at the booking.
func TestSessionIsBusyAtBooking(t *testing.T) {
	fleets(t, `{"policy":"least_requests","busy":{"requests":1}}`, func(f *fleet) {
		first := f.say("chat", nil)
		d := f.say("chat", nil) // by the picture of before, where time stands still
		f.wantState(d, route.SessionBusy)
		if d.RankRef == first.RankRef || d.Reservation == "" {
			f.Errorf("went to %v, booked as %q", d.RankRef, d.Reservation)
		}
	})
}

// Where nothing can be booked no session is bound, and its request says so. What was bound stays.
func TestSessionIsNotBound(t *testing.T) {
	var a *away
	w := newWorld(t, func(c *route.Config) { a = &away{Store: c.Loads}; c.Loads, c.Notes = a, notes.NewMemory(c.Now) })
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	say := func(session string, with func(*route.Request)) *route.Decision {
		q := reserving(ask(prompt(1, 32)))
		q.Session = session
		if with != nil {
			with(&q)
		}
		return w.route(q)
	}
	first := say("known", nil)
	a.set(true)
	for name, c := range map[string]struct {
		session string
		with    func(*route.Request)
		state   route.SessionState
	}{
		"a new one":       {"new", nil, route.SessionUnknown},
		"the same again":  {"new", nil, route.SessionUnknown},
		"a query":         {"new", func(q *route.Request) { q.Reserve = false }, route.SessionNew},
		"one that stays":  {"known", nil, route.SessionKept},
		"one that leaves": {"known", func(q *route.Request) { q.Score.Pods = []string{map[string]string{"a": "b", "b": "a"}[first.Pod]} }, route.SessionUnknown},
	} {
		if d := say(c.session, c.with); d.Session == nil || d.Session.State != c.state || d.Reservation != "" {
			t.Errorf("%s: %+v, booked as %q; want %s", name, d.Session, d.Reservation, c.state)
		}
	}
	a.set(false)
	if d := say("known", nil); d.Session.State != route.SessionKept || d.RankRef != first.RankRef {
		t.Errorf("it went on to %v as %+v, want %v", d.RankRef, d.Session, first.RankRef)
	}
	if d := say("new", nil); d.Session.State != route.SessionNew {
		t.Errorf("one that is bound at last: %+v", d.Session)
	}
}

// A server without memory tells of what it has. A request that runs gets its first choice once more, and a
// session stays; a new one says that it is not bound.
func TestSessionWithoutMemory(t *testing.T) {
	fleets(t, `{"policy":"least_requests"}`, func(f *fleet) {
		if f.fill == nil {
			return // a process has no such limit
		}
		named := func(id string) func(*route.Request) { return func(q *route.Request) { q.ID = id } }
		first := f.say("chat", named("first"))
		f.wantState(first, route.SessionNew)
		alone := f.say("", named("alone"))
		f.fill()
		f.refresh()
		for range 3 {
			d := f.say("another", nil)
			f.wantState(d, route.SessionUnknown)
			if !d.Local || d.Reservation != "" {
				f.Errorf("booked as %q, without loads: %t", d.Reservation, d.Local)
			}
		}
		if d := f.say("", named("alone")); !d.Again || d.Local || d.RankRef != alone.RankRef {
			f.Errorf("a repeat: again %t, local %t, %v; want %v", d.Again, d.Local, d.RankRef, alone.RankRef)
		}
		d := f.say("chat", named("first"))
		f.wantState(d, route.SessionKept)
		if !d.Again || d.RankRef != first.RankRef {
			f.Errorf("a repeat in a session: again %t, %v; want %v", d.Again, d.RankRef, first.RankRef)
		}
		d = f.say("chat", nil)
		f.wantState(d, route.SessionKept)
		if !d.Local || d.RankRef != first.RankRef {
			f.Errorf("the session: local %t, %v; want %v", d.Local, d.RankRef, first.RankRef)
		}
	})
}

// Without notes requests are routed as if they had no session, and say so.
func TestSessionUnknown(t *testing.T) {
	w := newWorld(t, func(c *route.Config) { c.Notes = lostNotes{} })
	w.register(store.Pod{Name: "a"})
	d, err := w.Route(t.Context(), route.Request{Session: "s", Reserve: true, Score: scorer.Request{Model: "m", Input: scorer.Tokens(words(1, 2))}})
	if err != nil || d.Pod != "a" || d.Session.State != route.SessionUnknown {
		t.Errorf("%+v, %v", d, err)
	}
	for name, q := range map[string]route.Request{
		"a pair":      {Session: "s", Role: route.RolePair},
		"a long name": {Session: strings.Repeat("s", notes.MaxSession+1)},
	} {
		q.Score = scorer.Request{Model: "m", Input: scorer.Tokens(words(1, 2))}
		if _, err := w.Route(t.Context(), q); err == nil || !strings.Contains(fmt.Sprint(err), "session") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type lostNotes struct{ notes.Store }

func (lostNotes) Session(context.Context, string, string) (notes.Bound, error) {
	return notes.Bound{}, notes.ErrUnavailable
}

func (lostNotes) Bind(context.Context, string, string, store.RankRef, time.Duration) error {
	return notes.ErrUnavailable
}
