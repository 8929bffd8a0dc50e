package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// exchange is one request on its way. Its fields belong to the request's goroutine, but for
// those that say otherwise.
type exchange struct {
	g     *Gateway
	w     http.ResponseWriter
	ctx   context.Context // the client's
	began time.Time

	due  atomic.Int64         // until when it may wait, and for what: see await
	work atomic.Pointer[work] // what is done for it now

	id, method, path string
	from             *url.URL    // of the client's request, as its header
	header           http.Header // of the client's request

	of      api
	score   scorer.Request
	model   string // what the request's model means; "" is not known
	unread  string // why the prompt is not known
	session string
	salted  bool // the client has a cache salt in all its requests
	stream  bool // the client asks for a stream
	asks    bool // the engine is asked for a usage that the client did not ask for

	client   clientBody
	streamed bool   // the client's body is passed on as it comes
	body     []byte // nil when it is not kept
	hosted   int64  // of Gateway.buffered

	place     *place
	pinned    *store.RankRef
	fallbacks []store.RankRef
	tried     []string // that have given no answer

	reservation string                  // the last one
	booking     atomic.Pointer[booking] // nil without a reservation; Gateway.look reads it
	first       time.Time               // when the first byte of the answer came

	predicted, tokens, delivered int
	routed                       time.Duration
	status                       int
	isStream, cut                bool
}

// begin begins the work for the exchange.
func (x *exchange) begin() {
	ctx, cancel := context.WithCancelCause(context.WithValue(x.ctx, exchangeKey{}, x))
	x.work.Store(&work{ctx: ctx, cancel: cancel})
}

// prepare reads a request that is understood, and chooses where it goes.
func (x *exchange) prepare(r *http.Request) error {
	g := x.g
	if r.ContentLength > g.c.MaxBody {
		return errTooLarge
	}
	x.of = apis[r.URL.Path]
	if r.Method != http.MethodPost || r.Header.Get("Content-Encoding") != "" {
		x.of = apiOther
	}
	if x.session = r.Header.Get(headerSession); x.session != "" && notes.CheckSession(x.session) != nil {
		x.session = ""
	}
	if x.salted = g.c.Salt != nil && g.c.Salt(x.ctx, "") != ""; x.salted {
		if err := checkSalted(x.of, r); err != nil {
			return err
		}
		if x.session != "" {
			x.session = g.c.Scoped(x.ctx, x.session)
		}
	}
	if x.of == apiOther {
		x.streamed = r.ContentLength != 0
		return x.chooseAlone("unread", nil)
	}
	if err := x.readBody(r); err != nil {
		return err
	}
	if x.salted {
		var err error
		if x.body, err = withSalt(x.body, func(asked string) string { return g.c.Salt(x.ctx, asked) }); err != nil {
			return err
		}
	}
	a, err := readAsked(x.of, x.body)
	if err != nil { // the engine says so in its own words
		return x.chooseAlone("unread", nil)
	}
	x.score, x.unread, x.stream = a.score, a.unread, a.stream
	if x.salted {
		x.score.Scope = g.c.Salt(x.ctx, "")
	}
	if reading, known := g.meaning(x.ctx, a.model); known {
		x.model = reading.Model
		if reading.LoRA != "" {
			x.score.LoRA = reading.LoRA
		}
	}
	start := g.c.Now()
	if err := x.choose(); err != nil {
		return err
	}
	x.routed = g.c.Now().Sub(start)
	if x.stream && (x.of == apiChat || x.of == apiCompletions) && !a.usage.told && !g.c.LeaveUsage {
		x.body, x.asks = a.withUsage(x.body), true
	}
	return nil
}

// readBody reads the whole body, which then counts among those that are kept.
func (x *exchange) readBody(r *http.Request) error {
	g := x.g
	buf := make([]byte, 0, min(max(r.ContentLength, 511), 1<<20)+1)
	for {
		if len(buf) == cap(buf) {
			next := make([]byte, len(buf), min(2*cap(buf), int(g.c.MaxBody)+1))
			copy(next, buf)
			buf = next
		}
		n, err := x.client.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if g.buffered.Add(int64(n)) > g.c.MaxBuffered {
			g.buffered.Add(-int64(n))
			return errOverloaded
		}
		x.hosted += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			x.body = buf
			return nil
		case err != nil:
			return err
		}
	}
}

// dropBody gives up the body, when it will not be sent again.
func (x *exchange) dropBody() {
	x.body, x.score = nil, scorer.Request{}
	x.g.buffered.Add(-x.hosted)
	x.hosted = 0
}

// decided takes over what the router has decided.
func (x *exchange) decided(d *route.Decision) {
	if d.Reservation != "" {
		x.reservation = d.Reservation
		x.booking.Store(x.g.reports.book(x.model, d.Reservation, d.Lease))
	}
	x.predicted, x.tokens = -1, -1
	if d.Score != nil && d.Tokens > 0 { // 0 is a prompt of which no token is known
		x.predicted, x.tokens = d.Cached(), d.Tokens
	}
	if x.pinned == nil {
		x.fallbacks = d.Fallbacks
	}
}

// chooseNext chooses another pod after one has given no answer, and reports whether there is
// one: those of the fallback list first.
func (x *exchange) chooseNext(failed error) bool {
	was := x.place
	if len(x.tried)+1 >= maxAttempts || x.ctx.Err() != nil {
		return false
	}
	x.tried = append(x.tried, was.Pod)
	x.release(-1)
	if !x.chooseFallback() && (x.choose() != nil || slices.Contains(x.tried, x.place.Pod)) {
		x.tried, x.place = x.tried[:len(x.tried)-1], was
		return false
	}
	x.place.why += "; fallback"
	x.cut = false
	x.g.c.Observer.Retried(was.Pod, failed)
	return true
}

// chooseFallback books the first place of the fallback list that takes the request.
func (x *exchange) chooseFallback() bool {
	defer func() { x.pinned = nil }()
	for len(x.fallbacks) > 0 {
		next := x.fallbacks[0]
		x.fallbacks = x.fallbacks[1:]
		if slices.Contains(x.tried, next.Pod) || x.g.pods.isDown(next.Pod) {
			continue
		}
		x.pinned = &next
		if x.choose() == nil && x.place.Pod == next.Pod {
			return true
		}
		x.release(-1)
	}
	return false
}

// release ends the reservation, if there is one.
func (x *exchange) release(cached int) {
	if b := x.booking.Swap(nil); b != nil {
		x.g.reports.end(b, cached)
	}
}

// firstByte notes that the answer begins.
func (x *exchange) firstByte() {
	x.first = x.g.c.Now()
	if b := x.booking.Load(); x.isStream && b != nil {
		x.g.reports.firstToken(b)
	}
}

// finish ends the exchange, however it came to its end.
func (x *exchange) finish() {
	g := x.g
	g.running.count.Add(-1)
	g.running.mu.Lock()
	delete(g.running.all, x)
	g.running.mu.Unlock()
	x.giveUp(context.Canceled)
	x.release(x.delivered)
	x.dropBody()
	s := Served{
		RequestID: x.requestID(), Method: x.method, Path: x.path, Model: x.model, Status: x.status, Attempts: len(x.tried), Stream: x.isStream, Cut: x.cut,
		Prompt: x.tokens, Predicted: x.predicted, Delivered: x.delivered, Routed: x.routed, Took: g.c.Now().Sub(x.began),
	}
	if x.place != nil {
		s.Pod, s.Why = x.place.Pod, x.place.why
		s.Attempts++
	}
	if !x.first.IsZero() {
		s.First = x.first.Sub(x.began)
	}
	g.c.Observer.Served(&s)
}

// requestID is what the request is called in a log line: by the client if it has a short name for it, else
// by the router.
func (x *exchange) requestID() string {
	if loads.CheckID(x.id) == nil {
		return x.id
	}
	return x.reservation
}

// look tells the router of the answers that have gone on, and renews leases.
func (g *Gateway) look() {
	now := g.c.Now()
	g.running.mu.Lock()
	defer g.running.mu.Unlock()
	for x := range g.running.all {
		if b := x.booking.Load(); b != nil {
			g.reports.progress(b, now)
		}
	}
	g.reports.retry()
}
