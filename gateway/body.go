package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
)

// clientBody is the body of a client's request, which is read once. It stays open until its
// request has an answer, so that a request of which nothing was sent can go to another pod.
//
// It is not read beyond its length. A transport reads on there to find the end, beside the
// answer. The server has closed the body by then, and for that error the transport would cut
// the answer of an engine that was quick.
type clientBody struct {
	x     *exchange
	body  io.ReadCloser
	left  int64        // bytes that are to come, negative if that is not known; of the reading goroutine
	room  int64        // bytes that may come, of the reading goroutine
	due   atomic.Int64 // when a read that waits now is given up, in ns of the Unix epoch; 0 if none does
	read  atomic.Bool
	whole atomic.Bool // it has come to its end

	failed atomic.Pointer[refusal] // what is wrong with it, nil for nothing
}

// open begins with the body of a request.
func (b *clientBody) open(x *exchange, r *http.Request) {
	b.x, b.body, b.left, b.room = x, r.Body, r.ContentLength, x.g.c.MaxBody
}

// Read implements io.Reader. Its errors but io.EOF are what the client is told.
func (b *clientBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	if b.left == 0 {
		b.whole.Store(true)
		return 0, io.EOF
	}
	b.due.Store(b.x.g.c.Now().Add(bodyStall).UnixNano())
	n, err := b.body.Read(p)
	b.due.Store(0)
	if b.left > 0 {
		b.left = max(0, b.left-int64(n))
	}
	b.room -= int64(n)
	switch {
	case b.room < 0:
		return n, b.fail(errTooLarge)
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.whole.Store(true)
		return n, io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, b.fail(errBodyStall)
	case b.x.ctx.Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return n, context.Canceled
	}
	return n, b.fail(errBody)
}

// fail notes what is wrong with the body: a transport may return that the request was canceled
// instead, which the server does when a read has failed.
func (b *clientBody) fail(why *refusal) error {
	b.failed.Store(why)
	return why
}

// Close implements io.Closer; the server closes the body itself.
func (b *clientBody) Close() error { return nil }
