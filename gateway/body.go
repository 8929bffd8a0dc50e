package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// clientBody is the body of a client's request, which is read once. It stays open until its
// request has an answer, so that a request of which nothing was sent can go to another pod.
//
// It is not read beyond its length. A transport reads on there to find the end, beside the
// answer. The server has closed the body by then, and for that error the transport would cut
// the answer of an engine that was quick.
type clientBody struct {
	x    *exchange
	mu   sync.Mutex // held by a read, protects body, left, room and patience
	body io.ReadCloser
	left int64 // bytes that are to come, negative if that is not known
	room int64 // bytes that may come

	patience time.Duration // how long reads may still wait

	due   atomic.Int64 // when a read that waits now is given up, in ns of the Unix epoch; 0 if none does
	read  atomic.Bool
	whole atomic.Bool // it has come to its end
	ended atomic.Bool // its request has been answered

	duplex bool // the answer goes out while it comes, on the same connection

	failed atomic.Pointer[refusal] // what is wrong with it, nil for nothing
}

// open begins with the body of a request.
func (b *clientBody) open(x *exchange, r *http.Request) {
	b.x, b.body, b.left, b.room, b.patience = x, r.Body, r.ContentLength, x.g.c.MaxBody, bodyStall
}

// Read implements io.Reader. Its errors but io.EOF are what the client is told.
func (b *clientBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended.Load() {
		return 0, context.Canceled
	}
	b.read.Store(true)
	if b.left == 0 {
		b.whole.Store(true)
		return 0, io.EOF
	}
	if b.patience <= 0 {
		return 0, b.fail(errBodyStall)
	}
	start := b.x.g.c.Now()
	b.due.Store(start.Add(min(bodyStall, b.patience)).UnixNano())
	n, err := b.body.Read(p)
	b.due.Store(0)
	b.patience += time.Duration(n)*time.Second/bodyRate - b.x.g.c.Now().Sub(start)
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

// answerEarly lets the answer go out before the body has come whole. net/http would wait for what a
// transport reads of it, and then read the rest, before the first byte of an answer.
func (b *clientBody) answerEarly(w http.ResponseWriter, r *http.Request) {
	b.duplex = r.ProtoMajor == 1                         // HTTP/2 always does
	_ = http.NewResponseController(w).EnableFullDuplex() // recorders of tests have none
}

// leavesRest reports whether an answer that begins now must end its connection. net/http does not
// look whether the next request on it begins behind the body.
func (b *clientBody) leavesRest() bool { return b.duplex && !b.whole.Load() }

// end ends the reading of a body when its request has been answered, and bounds how long the
// server waits for what is left of it. A transport may still read it: it passes on what an engine
// has not waited for. net/http would break that read off, and take away the bound with it. So the
// read ends here, within the bound.
func (b *clientBody) end(w http.ResponseWriter, r *http.Request) {
	b.ended.Store(true)
	if b.whole.Load() {
		return
	}
	boundRest(w, r)
	if r.ProtoMajor == 1 { // with HTTP/2 the answer would end later for it
		b.mu.Lock() // no read goes on then
		defer b.mu.Unlock()
	}
}

// boundRest bounds how long the server waits for what a handler has left of a request's body.
func boundRest(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		setReadDeadline(w, time.Now().Add(RestWait))
	}
}

// Close implements io.Closer; the server closes the body itself.
func (b *clientBody) Close() error { return nil }
