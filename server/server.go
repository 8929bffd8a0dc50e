package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/telemetry"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// Config is what a Server is made of.
type Config struct {
	// Scorer answers /v1/score. Required.
	Scorer *scorer.Scorer
	// Index is the block index behind the scorer. Required.
	Index store.Index
	// Shared is the same index where several processes share it; nil where it is
	// this process's alone.
	Shared SharedIndex
	// Tokenizer answers /v1/tokenize, and is the scorer's own; nil refuses
	// texts there.
	Tokenizer scorer.Tokenizer
	// Tokenizers, if not nil, lists the tokenizers that are loaded: in the metrics
	// and in GET /v1/models.
	Tokenizers Tokenizers
	// Detokenizer answers /detokenize; nil refuses it.
	Detokenizer Detokenizer
	// Events applies what comes to /v1/events; nil refuses it there.
	Events Pusher
	// Relay answers the routes below /v1/ingest; nil refuses them.
	Relay Relay
	// Syncer answers /v1/lmcache/sync; nil refuses it.
	Syncer Syncer
	// Router answers /v1/route and what belongs to it; nil refuses them.
	Router *route.Router
	// BlockSize is the index block size, in tokens, that the first add of a
	// model fixes for it. It should be that of scorer.Config. Default
	// store.DefaultBlockSize.
	BlockSize int
	// Access says what each caller may ask for; nil lets every caller do everything.
	Access *access.Guard
	// Log takes a line for each request that failed, took longer than a second or was a dump,
	// restore or reset. It takes lines of others at level debug. The zero Logger drops them.
	Log zerolog.Logger
	// LogEveryRequest writes the lines of all requests but probes at level info.
	LogEveryRequest bool
	// Metrics counts; nil makes one.
	Metrics *telemetry.Metrics
	// Limits bound requests; zero fields take their defaults.
	Limits Limits
	// StrictReady makes /readyz fail while the index cannot be reached. By
	// default it does not, since degraded answers are still given.
	StrictReady bool
	// Ready, if not nil, is asked by /readyz besides SetReady; an error says why the
	// server is not ready.
	Ready func() error
	// Version is the program's version, Backend the index's kind ("memory",
	// "redis" or "replica"); both are shown by /healthz and in the metrics.
	Version, Backend string
}

// SharedIndex is what an index can do beside store.Index where several processes share it.
type SharedIndex interface {
	store.UnregisteredSetter
	// LogOffsets returns the id of the last entry of each log of changes, by the log's name.
	LogOffsets(ctx context.Context) (map[string]string, error)
}

// Tokenizers lists loaded tokenizers.
type Tokenizers interface {
	Stats() tokenpool.Stats
	Models() []tokenpool.Model
}

func (c *Config) validate() error {
	if c.Scorer == nil {
		return errors.New("server: Config.Scorer is required")
	}
	if c.Index == nil {
		return errors.New("server: Config.Index is required")
	}
	c.BlockSize = cmp.Or(c.BlockSize, store.DefaultBlockSize)
	if c.BlockSize < 1 || c.BlockSize > store.MaxBlockSize {
		return fmt.Errorf("server: Config.BlockSize is %d, it must be within 1 and %d", c.BlockSize, store.MaxBlockSize)
	}
	if c.Metrics == nil {
		c.Metrics = telemetry.NewMetrics()
	}
	return c.Limits.validate()
}

// Server is the HTTP API. It starts no goroutine and holds nothing that needs
// closing.
type Server struct {
	cfg      Config
	metrics  *telemetry.Metrics
	handler  http.Handler
	page     frontPage
	requests request.Limits
	calls    sync.Pool // of *call

	inFlight      atomic.Int64 // requests to /v1 being worked on
	inFlightBytes atomic.Int64 // memory that they and transfers take
	transfers     transfers
	reading       chan struct{} // turns to read large bodies; a send takes one
	streams       atomic.Int64  // dumps, restores and resets being worked on
	draining      atomic.Bool
	life          context.Context // of streams; ends when draining begins
	endStreams    context.CancelFunc
	notReady      atomic.Pointer[error] // nil is ready
}

// errStarting is what /readyz says before the first SetReady.
var errStarting = errors.New("starting")

// New returns a Server. /readyz fails until SetReady(nil).
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: cfg.Metrics, requests: cfg.Limits.requests()}
	s.life, s.endStreams = context.WithCancel(context.Background())
	s.transfers.slowAfter = slowAfter
	s.reading = make(chan struct{}, runtime.GOMAXPROCS(0))
	s.calls.New = func() any { return &call{s: s} }
	s.SetReady(errStarting)
	err := s.watch()
	if err != nil {
		return nil, err
	}
	s.page = s.makeFront()
	s.handler = s.routes()
	return s, nil
}

// watch has the metrics read s at each scrape.
func (s *Server) watch() error {
	seen := telemetry.Server{
		Version: s.cfg.Version, Backend: s.cfg.Backend,
		InFlight: &s.inFlight, InFlightBytes: &s.inFlightBytes, Streams: &s.streams,
		Index: s.cfg.Index.Stats, Registry: s.cfg.Index.Cached,
	}
	if t := s.cfg.Tokenizers; t != nil {
		seen.Tokenizers, seen.Models = t.Stats, t.Models
	}
	if err := s.metrics.Watch(seen); err != nil {
		return fmt.Errorf("server: Config.Metrics is already another server's: %w", err)
	}
	return nil
}

// Handler is the whole API.
func (s *Server) Handler() http.Handler { return s.handler }

// Drain turns /readyz to 503 "draining", so that load balancers look
// elsewhere. Requests go on being answered; dumps, restores and resets end, since they could go on for any
// time.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.endStreams()
}

// SetReady makes /readyz say why the server is not ready, or, with nil, that
// it is.
func (s *Server) SetReady(reason error) {
	if reason == nil {
		s.notReady.Store(nil)
		return
	}
	s.notReady.Store(&reason)
}

// apiRoute is one entry of the API. The table of routes is what the OpenAPI
// document is held against.
type apiRoute struct {
	method, pattern string
	handle          func(*call) error
	duty            duty
	role            access.Role // that its caller needs
}

// duty says what bounds the work for a route.
type duty uint8

const (
	// probe is answered under any load.
	probe duty = iota
	// work counts against MaxInFlight and has a deadline.
	work
	// reading is work that counts once the request's body has come.
	reading
	// stream counts against MaxStreams, and may take as long as it goes on.
	stream
)

func (s *Server) routeTable() []apiRoute {
	return []apiRoute{
		{http.MethodGet, "/", (*call).front, probe, access.None},
		{http.MethodGet, "/healthz", (*call).healthz, probe, access.None},
		{http.MethodGet, "/readyz", (*call).readyz, probe, access.None},
		{http.MethodGet, "/metrics", (*call).metrics, probe, access.Read},
		{http.MethodGet, "/openapi.json", (*call).openAPI, probe, access.None},
		{http.MethodPost, "/v1/score", (*call).score, reading, access.Read},
		{http.MethodPost, "/v1/route", (*call).routePrompt, reading, access.Read},
		{http.MethodPost, "/v1/requests/{id}/done", (*call).requestDone, reading, access.Read},
		{http.MethodPost, "/v1/requests/{id}/output", (*call).requestOutput, reading, access.Read},
		{http.MethodPost, "/v1/requests/{id}/end", (*call).requestEnd, reading, access.Read},
		{http.MethodGet, "/v1/loads", (*call).listLoads, work, access.Read},
		{http.MethodGet, "/v1/prefixes", (*call).listPrefixes, work, access.Read},
		{http.MethodGet, "/v1/models/{model}/routing", (*call).getRouting, work, access.Read},
		{http.MethodPut, "/v1/models/{model}/routing", (*call).putRouting, reading, access.Write},
		{http.MethodPost, "/v1/tokenize", (*call).tokenize, reading, access.Read},
		{http.MethodPost, "/v1/completions/render", (*call).renderCompletion, reading, access.Read},
		{http.MethodPost, "/v1/chat/completions/render", (*call).renderChat, reading, access.Read},
		{http.MethodPost, "/v1/messages/render", (*call).renderMessages, reading, access.Read},
		{http.MethodPost, "/v1/responses/render", (*call).renderResponses, reading, access.Read},
		{http.MethodPost, "/tokenize", (*call).engineTokenize, reading, access.Read},
		{http.MethodPost, "/detokenize", (*call).engineDetokenize, reading, access.Read},
		{http.MethodPost, "/v1/blocks", (*call).blocks, reading, access.Write},
		{http.MethodPost, "/v1/events", (*call).events, reading, access.Write},
		{http.MethodGet, "/v1/pods", (*call).listPods, work, access.Read},
		{http.MethodPost, "/v1/pods", (*call).registerPod, reading, access.Write},
		{http.MethodGet, "/v1/pods/{name}", (*call).getPod, work, access.Read},
		{http.MethodDelete, "/v1/pods/{name}", (*call).deletePod, work, access.Write},
		{http.MethodPost, "/v1/pods/{name}/load", (*call).pushLoad, reading, access.Write},
		{http.MethodGet, "/v1/models", (*call).listModels, work, access.Read},
		{http.MethodPut, "/v1/models/{model}", (*call).setModel, reading, access.Write},
		{http.MethodGet, "/v1/ingest/{pod}/{rank}/events", (*call).recentEvents, work, access.Admin},
		{http.MethodGet, "/v1/ingest/{pod}/{rank}/blocks", (*call).heldBlocks, work, access.Admin},
		{http.MethodGet, "/v1/dump", (*call).dump, stream, access.Admin},
		{http.MethodPost, "/v1/restore", (*call).restore, stream, access.Admin},
		{http.MethodPost, "/v1/reset", (*call).reset, stream, access.Admin},
		{http.MethodPost, "/v1/lmcache/sync", (*call).lmcacheSync, reading, access.Admin},
	}
}

// straight are the patterns of requests that most traffic is.
var straight = map[string]bool{"/v1/score": true, "/v1/route": true}

// IsShort reports whether requests of a method to a path are short ones that come often: what
// package httploop is for. They take one answer of a length that it declares.
func IsShort(method, path string) bool {
	switch method {
	case http.MethodPost:
		return straight[path] || strings.HasPrefix(path, "/v1/requests/")
	case http.MethodGet:
		return path == "/healthz" || path == "/readyz"
	}
	return false
}

// router sends requests to their handlers: those of straight by their whole path, all others
// by chi, which copies each request.
type router struct {
	*chi.Mux
	posts map[string]http.HandlerFunc // of straight
}

// ServeHTTP implements http.Handler.
func (m *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && r.URL.RawPath == "" {
		if h := m.posts[r.URL.Path]; h != nil {
			h(w, r)
			return
		}
	}
	m.Mux.ServeHTTP(w, r)
}

func (s *Server) routes() http.Handler {
	r := &router{chi.NewRouter(), map[string]http.HandlerFunc{}}
	table := s.routeTable()
	for _, e := range table {
		h := s.serve(e)
		if e.method == http.MethodPost && straight[e.pattern] {
			r.posts[e.pattern] = h
		}
		r.Method(e.method, e.pattern, h)
		if e.method == http.MethodGet {
			r.Method(http.MethodHead, e.pattern, h)
		}
	}
	r.NotFound(s.serve(apiRoute{pattern: "unknown", handle: notFound}))
	r.MethodNotAllowed(s.serve(apiRoute{pattern: "unknown", handle: func(c *call) error {
		return methodNotAllowed(c, r)
	}}))
	return r
}
