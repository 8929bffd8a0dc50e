package zmq

import (
	"context"
	"fmt"
)

// Dials bounds how many connections are being made at once by all Subscribers that share
// it. Addresses come from registrations: many that never answer must neither take
// a file descriptor each nor hold up those that do. So the first try of a Subscriber, and
// the first after a connection, has other places than a try after one that failed. It is
// safe for concurrent use.
type Dials struct{ first, again chan struct{} }

// NewDials returns a Dials with n places for first tries and n for others; n is above 0.
func NewDials(n int) *Dials {
	return &Dials{make(chan struct{}, n), make(chan struct{}, n)}
}

// enter waits for a place, which leave gives back. A nil Dials has room for all.
func (d *Dials) enter(ctx context.Context, failed bool) (leave func(), err error) {
	if d == nil {
		return func() {}, nil
	}
	places := d.first
	if failed {
		places = d.again
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("zmq: waiting to connect: %w", ctx.Err())
	}
}
