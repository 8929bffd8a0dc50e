package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ErrForbidden refuses a known caller whose role is not enough.
var ErrForbidden = errors.New("access: not with this role")

// LimitError refuses a caller that asks too often.
type LimitError struct {
	// Wait is when it may ask again.
	Wait time.Duration
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("access: too many requests, the next one in %v", e.Wait.Round(time.Millisecond))
}

// Guard decides for each request whether it is let in. A nil *Guard lets everything in. Its
// fields may not change once it is in use; it is safe for concurrent use.
type Guard struct {
	// Credentials are the callers that are known; nil knows none.
	Credentials *Credentials
	// Anonymous is the role of callers that bring no credentials, where the listener that they
	// have come through has none of its own (WithAnonymous).
	Anonymous Role
	// Limiter bounds how often each caller asks; nil does not.
	Limiter *Limiter
}

type anonymousKey struct{}

// WithAnonymous returns a context, for http.Server's BaseContext, whose requests have the role
// without credentials. A role in it costs a request nothing.
func WithAnonymous(ctx context.Context, role Role) context.Context {
	return context.WithValue(ctx, anonymousKey{}, role)
}

type callerKey struct{}

// WithCaller returns a context that says whose request it is, for CallerOf.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of WithCaller, or one without a name.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Admit returns the sender of the request, if its role is enough. Its errors
// are ErrUnauthorized, for a caller without credentials whose role is not enough too,
// ErrForbidden and *LimitError. A request that needs no role is admitted unchecked.
func (g *Guard) Admit(r *http.Request, need Role) (Caller, error) {
	if g == nil || need == None {
		return Caller{}, nil
	}
	caller, known, err := g.caller(r)
	if err != nil {
		// Guesses are bounded by the address that they come from.
		return Caller{}, errors.Join(err, g.limit(Caller{}, r))
	}
	if err := g.limit(caller, r); err != nil {
		return caller, err
	}
	switch {
	case caller.Role >= need:
		return caller, nil
	case known:
		return caller, fmt.Errorf("%w: this needs role %s, and %q has %s", ErrForbidden, need, caller.Name, caller.Role)
	case g.Credentials == nil:
		return caller, fmt.Errorf("%w: this needs role %s; a server that others can reach and that has no credentials gives %s only: give it a file of credentials, or set anonymous", ErrForbidden, need, caller.Role)
	}
	return caller, fmt.Errorf("%w: this needs role %s: send Authorization: Bearer TOKEN", ErrUnauthorized, need)
}

func (g *Guard) caller(r *http.Request) (caller Caller, known bool, err error) {
	if g.Credentials != nil {
		if caller, known, err = g.Credentials.Caller(r); known || err != nil {
			return caller, known, err
		}
	}
	role, ok := r.Context().Value(anonymousKey{}).(Role)
	if !ok {
		role = g.Anonymous
	}
	return Caller{Role: role}, false, nil
}

func (g *Guard) limit(caller Caller, r *http.Request) error {
	if g.Limiter == nil {
		return nil
	}
	if wait, ok := g.Limiter.Allow(caller, r.RemoteAddr, time.Now()); !ok {
		return &LimitError{Wait: wait}
	}
	return nil
}
