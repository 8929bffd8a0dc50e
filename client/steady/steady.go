// Package steady is a client for callers that need an answer in time more than the best one. A
// scheduler on a request's path is one. Where package client retries nothing and returns every error,
// this one retries and hedges within a budget and then falls open.
//
//	c, err := steady.New(steady.Config{Client: plain})
//	...
//	to, err := c.Route(ctx, request, pods...)   // one of pods, whatever becomes of kvatlas
//
// Only calls that may be made twice are: queries, and bookings under a name, which one
// without a name is given.
package steady

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/failsafe-go/failsafe-go/retrypolicy"

	"github.com/kvatlas/kvatlas/client"
)

// Unreachable is the reason of answers that were made here.
const Unreachable = "unreachable"

// Config configures a Client. Zero fields take their defaults.
type Config struct {
	// Client makes the calls. Required.
	Client *client.Client
	// Timeout bounds a Score or a Route with all its tries. Default 250 ms.
	Timeout time.Duration
	// Retries is how often a call that failed is tried again. Default 2; below 0 never.
	Retries int
	// HedgeAfter is how long a call may take before a second one is sent beside it; the
	// first answer counts. 0 sends none. The p95 of the answers' times is a good value.
	HedgeAfter time.Duration
	// Budget is the share of the calls under way that may be retries, and the same of hedges. So a
	// server that is overloaded is not loaded more. Default 0.2; three at a time always may.
	Budget float64
	// Failed receives the error of each call that fell open, from the goroutine of the
	// call. May be nil.
	Failed func(error)
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	cfg     Config
	score   failsafe.Executor[*client.ScoreResponse]
	route   failsafe.Executor[*client.RouteResponse]
	reports failsafe.Executor[*client.Report]
	turn    atomic.Uint64
}

// New returns a Client. It does not connect.
func New(cfg Config) (*Client, error) {
	if cfg.Client == nil {
		return nil, errors.New("steady: Config.Client is missing")
	}
	cfg.Timeout, cfg.Retries, cfg.Budget = cmp.Or(cfg.Timeout, 250*time.Millisecond), cmp.Or(cfg.Retries, 2), cmp.Or(cfg.Budget, 0.2)
	if cfg.Timeout < 0 || cfg.HedgeAfter < 0 || cfg.Budget < 0 || cfg.Budget > 1 {
		return nil, errors.New("steady: Config.Timeout and HedgeAfter must not be negative, Budget not above 1")
	}
	share := func() budget.Budget { return budget.NewBuilder().WithMaxRate(cfg.Budget).WithMinConcurrency(3).Build() }
	retries, hedges := share(), share()
	return &Client{
		cfg:     cfg,
		score:   executor[*client.ScoreResponse](&cfg, retries, hedges),
		route:   executor[*client.RouteResponse](&cfg, retries, hedges),
		reports: executor[*client.Report](&cfg, retries, hedges),
	}, nil
}

// executor returns what makes calls with an answer of type R: retries around hedges.
func executor[R any](cfg *Config, retries, hedges budget.Budget) failsafe.Executor[R] {
	retry := retrypolicy.NewBuilder[R]().
		HandleIf(func(_ R, err error) bool { return mayPass(err) }).
		WithMaxRetries(max(0, cfg.Retries)).
		WithDelayFunc(func(e failsafe.ExecutionAttempt[R]) time.Duration { return pause(e.LastError(), e.Retries()) }).
		WithBudget(retries).
		ReturnLastFailure().
		Build()
	if cfg.HedgeAfter == 0 {
		return failsafe.With[R](retry)
	}
	answered := func(_ R, err error) bool { return err == nil }
	hedge := hedgepolicy.NewBuilderWithDelay[R](cfg.HedgeAfter).CancelIf(answered).WithBudget(hedges).Build()
	return failsafe.With[R](retry, hedge)
}

// call makes a call. Where retries end for want of budget or time, the error is that and
// what the last try failed for.
func call[R any](ctx context.Context, x failsafe.Executor[R], try func(context.Context) (R, error)) (R, error) {
	var last atomic.Pointer[error]
	out, err := x.WithContext(ctx).GetWithExecution(func(e failsafe.Execution[R]) (R, error) {
		out, err := try(e.Context())
		if err != nil {
			last.Store(&err)
		}
		return out, err
	})
	if cause := last.Load(); err != nil && cause != nil && !errors.Is(err, *cause) {
		err = fmt.Errorf("%w: %w", err, *cause)
	}
	return out, err
}

// mayPass reports whether a call that failed so may do better in a moment.
func mayPass(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrResponseTooLarge) || errors.Is(err, client.ErrBadResponse) {
		return false
	}
	refused, ok := errors.AsType[*client.Error](err)
	return !ok || refused.Temporary() && !decides(err) // without a refusal it was not reached, or the connection broke
}

// decides reports whether a refusal is the router's decision: no pod may take the request,
// or none has room.
func decides(err error) bool {
	refused, ok := errors.AsType[*client.Error](err)
	return ok && (refused.Code == "no_pod" || refused.Code == "pods_busy")
}

// pause is how long to wait before the next try: as long as the server asks, else 5 ms and
// twice as long each time.
func pause(err error, retries int) time.Duration {
	if refused, ok := errors.AsType[*client.Error](err); ok && refused.RetryAfter > 0 {
		return refused.RetryAfter
	}
	return 5 * time.Millisecond << retries
}

// Score ranks the pods for one prompt. It always returns an answer: without the server's it
// has no scores, and Degraded with the reason Unreachable.
func (c *Client) Score(ctx context.Context, r client.ScoreRequest) *client.ScoreResponse {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	out, err := call(ctx, c.score, func(ctx context.Context) (*client.ScoreResponse, error) { return c.cfg.Client.Score(ctx, r) })
	if err == nil {
		return out
	}
	c.failed(err)
	return &client.ScoreResponse{Scores: map[string]float64{}, Matched: map[string]client.Match{}, Degraded: &client.Degraded{Reason: Unreachable}}
}

// Route chooses the place for a request. Without the server's answer it is one of open, in
// turn, with the others as Fallbacks, no reservation, and Degraded with the reason Unreachable.
// An error is a decision, an *client.Error with the code no_pod or pods_busy, or the last
// failure where open is empty.
func (c *Client) Route(ctx context.Context, r client.RouteRequest, open ...client.Place) (*client.RouteResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if r.Reserve && r.ID == "" {
		r.ID = rand.Text() // so that a second try finds what the first has booked
	}
	out, err := call(ctx, c.route, func(ctx context.Context) (*client.RouteResponse, error) { return c.cfg.Client.Route(ctx, r) })
	switch {
	case err == nil:
		return out, nil
	case decides(err):
		return nil, err
	}
	c.failed(err)
	if len(open) == 0 {
		return nil, err
	}
	at := int((c.turn.Add(1) - 1) % uint64(len(open)))
	return &client.RouteResponse{
		Place: open[at], Fallbacks: append(append([]client.Place{}, open[at+1:]...), open[:at]...),
		Degraded: &client.Degraded{Reason: Unreachable},
	}, nil
}

// Done reports that the prefill of a request is over, with retries, within the context alone. A
// report is not on a request's path, and sent twice it changes nothing. See client.Client.
func (c *Client) Done(ctx context.Context, model, id string, cached *int) (*client.Report, error) {
	return call(ctx, c.reports, func(ctx context.Context) (*client.Report, error) { return c.cfg.Client.Done(ctx, model, id, cached) })
}

// Output reports how many tokens the output of a request has so far, as Done does.
func (c *Client) Output(ctx context.Context, model, id string, tokens int) (*client.Report, error) {
	return call(ctx, c.reports, func(ctx context.Context) (*client.Report, error) { return c.cfg.Client.Output(ctx, model, id, tokens) })
}

// End reports that a request is over, as Done does.
func (c *Client) End(ctx context.Context, model, id string) (*client.Report, error) {
	return call(ctx, c.reports, func(ctx context.Context) (*client.Report, error) { return c.cfg.Client.End(ctx, model, id) })
}

// Settle reports that a request is over whose answer came in one piece, as Done does.
func (c *Client) Settle(ctx context.Context, model, id string, cached int) (*client.Report, error) {
	return call(ctx, c.reports, func(ctx context.Context) (*client.Report, error) { return c.cfg.Client.Settle(ctx, model, id, cached) })
}

func (c *Client) failed(err error) {
	if c.cfg.Failed != nil {
		c.cfg.Failed(err)
	}
}
