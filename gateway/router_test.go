package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
)

type routeOutcome = route.Outcome

// broken is a router of which nothing works.
type broken struct{}

var errBroken = errors.New("broken")

func (broken) Route(context.Context, route.Request) (*route.Decision, error) { return nil, errBroken }
func (broken) Done(context.Context, string, string, int) (loads.Report, error) {
	return loads.Report{}, errBroken
}
func (broken) Output(context.Context, string, string, int) (loads.Report, error) {
	return loads.Report{}, errBroken
}
func (broken) Settle(context.Context, string, string, *loads.Report, int) (loads.Report, error) {
	return loads.Report{}, errBroken
}

// away is a router whose loads cannot be told anything for a time.
type away struct {
	gateway.Router
	is     atomic.Bool
	mu     sync.Mutex // protects failed
	failed int
}

func (a *away) Settle(ctx context.Context, model, id string, done *loads.Report, cached int) (loads.Report, error) {
	if a.is.Load() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.failed++
		return loads.Report{}, loads.ErrUnavailable
	}
	return a.Router.Settle(ctx, model, id, done, cached)
}

// Ends that cannot be told are told later, so that no load stays behind.
func TestOwedReports(t *testing.T) {
	_, addresses := startSims(t, 2, wire.Config{})
	a := &away{}
	base := newFleet(t, gateway.Config{}, addresses...) // whose router and index are used
	a.Router = base.router
	f := newFleet(t, gateway.Config{Router: a}, addresses...)
	a.is.Store(true)
	for range 20 {
		if r := f.post("/v1/chat/completions", chat(10, "")); r.status != 200 {
			t.Fatalf("%+v", r)
		}
	}
	eventually.True(t, "reports that are owed", func() bool { return f.g.Stats().Owed > 0 })
	a.is.Store(false)
	base.idle()
	eventually.True(t, "end of all that is owed", func() bool { return f.g.Stats().Owed == 0 })
}

// TestPodsThatComeLate: where no pod at all is known a request waits for one, as after a Redis
// that has come back empty.
func TestPodsThatComeLate(t *testing.T) {
	_, addresses := startSims(t, 1, wire.Config{})
	f := newFleet(t, gateway.Config{})
	got := make(chan reply, 1)
	go func() { got <- f.post("/v1/chat/completions", chat(10, "")) }()
	eventually.True(t, "the request waits", func() bool { return f.g.Stats().Requests == 1 })
	f.register(store.Pod{Name: addresses[0], Model: model})
	if r := <-got; r.status != http.StatusOK {
		t.Fatalf("%d %s", r.status, r.body)
	}
}

// noting is a router that notes what it has booked.
type noting struct {
	gateway.Router
	booked chan string
}

func (n *noting) Route(ctx context.Context, q route.Request) (*route.Decision, error) {
	d, err := n.Router.Route(ctx, q)
	if err == nil {
		n.booked <- d.Reservation
	}
	return d, err
}

// TestRequestIDs: a request is logged by the client's name for it, else by that of its reservation.
func TestRequestIDs(t *testing.T) {
	_, addresses := startSims(t, 1, wire.Config{})
	base := newFleet(t, gateway.Config{}, addresses...)
	n := &noting{base.router, make(chan string, 1)}
	f := newFleet(t, gateway.Config{Router: n}, addresses...)
	for _, name := range []string{"mine", "", strings.Repeat("long", 100)} {
		r := f.post("/v1/chat/completions", chat(10, ""), "X-Request-Id", name)
		want := <-n.booked
		if name == "mine" {
			want = name
		}
		if s := f.last(); r.status != 200 || want == "" || s.RequestID != want {
			t.Errorf("%.10s: %d, the log has %q, want %q", name, r.status, s.RequestID, want)
		}
	}
	f.send("GET", "/v1/models", nil)
	if s := f.last(); s.RequestID != "" {
		t.Errorf("a request that has no name is logged as %q", s.RequestID)
	}
}
