package gateway

import (
	"context"
	"fmt"
	"io"
	"log" //nolint:depguard // only to keep httputil from writing to stderr
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// Gateway is an http.Handler that passes requests on to engines. It is safe for concurrent use.
type Gateway struct {
	c         Config
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	buffers   *buffers
	pods      pods
	reports   *reports
	draining  atomic.Bool
	looking   atomic.Bool  // a request looks for pods, for all that wait
	buffered  atomic.Int64 // bytes of bodies
	running   exchanges

	end     context.CancelFunc
	working sync.WaitGroup
}

// Stats are the figures of a Gateway.
type Stats struct {
	// Requests is how many are passed on now, Buffered how many bytes of bodies are kept.
	Requests, Buffered int64
	// Ejected is how many pods get no requests now, Owed how many reports are tried again.
	Ejected, Owed int64
}

// exchanges are the requests that are passed on now.
type exchanges struct {
	count atomic.Int64 // those that are let in
	mu    sync.Mutex   // protects all
	all   map[*exchange]struct{}
}

// New returns a Gateway, which asks pods for their health until Close.
func New(c Config) (*Gateway, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: c.Connect, KeepAlive: 15 * time.Second, Control: c.Control}
	g := &Gateway{
		c: c,
		transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: c.Connect, ForceAttemptHTTP2: false,
			MaxIdleConns: 0, MaxIdleConnsPerHost: c.MaxRequests, IdleConnTimeout: 90 * time.Second,
			DisableCompression:    true, // what the client takes is the client's
			ExpectContinueTimeout: time.Second, ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
		},
		pods: pods{observer: c.Observer, now: c.Now, byName: map[string]*pod{}},
	}
	g.running.all = map[*exchange]struct{}{}
	g.reports = newReports(&g.c)
	g.buffers = newBuffers()
	g.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: g, FlushInterval: -1, BufferPool: g.buffers,
		ModifyResponse: func(r *http.Response) error { exchangeOf(r.Request).mark(r); return nil },
		ErrorLog:       log.New(io.Discard, "", 0), // Served has what it says
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { exchangeOf(r).refuse(w, err) },
	}
	var ctx context.Context
	ctx, g.end = context.WithCancel(context.Background())
	g.working.Go(func() { g.every(ctx, c.Probe, func() { g.probeAll(ctx) }) })
	g.working.Go(func() { g.every(ctx, lookEvery, g.look) })
	g.working.Go(func() { g.every(ctx, g.c.watchEvery(), g.endOverdue) })
	return g, nil
}

// every does something again and again until ctx ends.
func (g *Gateway) every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// Drain makes /health answer 503, so that load balancers look elsewhere. Requests go on.
func (g *Gateway) Drain() { g.draining.Store(true) }

// Close ends the watch over pods, and waits until the router knows of all that has ended.
// Call it when no request runs any more.
func (g *Gateway) Close() error {
	g.end()
	g.working.Wait()
	g.reports.close()
	g.transport.CloseIdleConnections()
	return nil
}

// Stats returns the figures of now.
func (g *Gateway) Stats() Stats {
	return Stats{Requests: g.running.count.Load(), Buffered: g.buffered.Load(), Ejected: g.pods.downs.Load(), Owed: g.reports.owes()}
}

// ServeHTTP passes a request on. It has /health for itself.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		g.health(w)
		boundRest(w, r)
		return
	}
	x := &exchange{g: g, w: w, ctx: r.Context(), began: g.c.Now(), predicted: -1, tokens: -1, delivered: -1}
	x.client.open(x, r)
	x.id, x.method, x.path = r.Header.Get(headerRequest), r.Method, r.URL.Path
	defer func() {
		x.finish() // before, so that nothing sets another deadline
		x.client.end(w, r)
	}()
	if g.running.count.Add(1) > int64(g.c.MaxRequests) {
		x.refuse(w, errOverloaded)
		return
	}
	if r.Method == http.MethodConnect || r.Method == "PRI" { // a tunnel, HTTP/2 without TLS
		x.refuse(w, errMethod)
		return
	}
	if r.Method == http.MethodGet && r.URL.Path == "/v1/models" && g.listModels(x, w, r) {
		return
	}
	x.begin()
	g.running.mu.Lock()
	g.running.all[x] = struct{}{}
	g.running.mu.Unlock()
	if err := x.prepare(r); err != nil {
		x.refuse(w, err)
		return
	}
	if x.streamed {
		x.client.answerEarly(w, r)
	}
	x.from, x.header = r.URL, r.Header
	g.proxy.ServeHTTP(&stallWriter{w, x}, r.WithContext(x.work.Load().ctx))
}

type exchangeKey struct{}

// exchangeOf is the exchange of a request that ServeHTTP has given to the proxy.
func exchangeOf(r *http.Request) *exchange {
	x, _ := r.Context().Value(exchangeKey{}).(*exchange)
	return x
}

// health answers whether there is a pod to send requests to.
func (g *Gateway) health(w http.ResponseWriter) {
	status := http.StatusServiceUnavailable
	if !g.draining.Load() {
		reg := g.c.Index.Cached()
		for i := range reg.Pods {
			if p := &reg.Pods[i]; p.PartOf == nil && !g.pods.isDown(p.Name) {
				status = http.StatusOK
				break
			}
		}
	}
	w.WriteHeader(status)
}

// askHealth asks a pod for its health. That it has no such page is an answer, too.
func (g *Gateway) askHealth(ctx context.Context, p *store.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 2*g.c.Probe)
	defer cancel()
	resp, err := g.page(ctx, p, "health", "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("gateway: /health of the pod: status %d", resp.StatusCode)
	}
	return nil
}

// page asks a pod for a page of its own, with the Authorization of a client or "".
func (g *Gateway) page(ctx context.Context, p *store.Pod, path, authorization string) (*http.Response, error) {
	at, err := g.placeOf(g.c.Index.Cached(), store.RankRef{Pod: p.Name}, p.Address, "")
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.url.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	return g.transport.RoundTrip(req)
}

// buffers are what answers pass through, of copyBytes each.
type buffers struct{ pool sync.Pool }

func newBuffers() *buffers {
	return &buffers{sync.Pool{New: func() any { return new([copyBytes]byte) }}}
}

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte { return b.pool.Get().(*[copyBytes]byte)[:] }

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[copyBytes]byte)(p)) }

// stallWriter bounds how long a client may take nothing of an answer that has come.
type stallWriter struct {
	http.ResponseWriter
	x *exchange
}

// Unwrap is for http.ResponseController.
func (w *stallWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *stallWriter) Write(p []byte) (int, error) {
	w.x.await(phaseClient, clientStall)
	return w.ResponseWriter.Write(p)
}
