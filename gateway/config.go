package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// What a Gateway does at most.
const (
	// maxAttempts is to how many pods one request is sent, one after the other.
	maxAttempts = 5
	// routeWait bounds how long a request waits to be routed. Index, tokenizer and loads have
	// budgets of their own, which are shorter.
	routeWait = 2 * time.Second
	// reportWait bounds one report to the router: none takes more than twice as long.
	reportWait = 2 * time.Second
	// reporters is how many reports go at a time, and queuedReports how many wait for each of
	// them. What finds no room is lost, and the lease ends the reservation.
	reporters     = 8
	queuedReports = 4096
	// maxOwed is how many reports that failed are tried again.
	maxOwed = 1 << 14
	// lookEvery is how often running requests are checked for news that the router needs.
	lookEvery = 500 * time.Millisecond
	// tellTokens is after how many more tokens of an answer the router is told.
	tellTokens = 256
	// wholeAnswer is up to which length an answer that gives its length is read before it is
	// passed on. So its header can say how many tokens were cached.
	wholeAnswer = 1 << 20
	// copyBytes is the size of the buffers that answers pass through.
	copyBytes = 8 << 10
	// tailBytes is how much of the end of an answer is kept to find its usage in.
	tailBytes = 4 << 10
	// maxEvent is the longest event of a stream that is kept back until it is whole.
	maxEvent = 1 << 20
	// clientStall is how long a client may take no byte of an answer that has come.
	clientStall = time.Minute
	// bodyStall is how long a client may send no byte of its body. It may let the gateway wait as
	// long in all, and a second more for each bodyRate bytes that have come. Time in which the engine
	// takes nothing does not count.
	bodyStall = 30 * time.Second
	bodyRate  = 1 << 10
)

// RestWait is how long the server waits, when a request has been answered, for the rest of a body
// that did not come whole. net/http reads up to 256 KiB of it, so that the connection can be used
// again, and has no bound for that.
const RestWait = time.Second

// Router chooses where requests go, and is told what becomes of them. *route.Router is one.
type Router interface {
	Route(ctx context.Context, q route.Request) (*route.Decision, error)
	Done(ctx context.Context, model, id string, cached int) (loads.Report, error)
	Output(ctx context.Context, model, id string, tokens int) (loads.Report, error)
	Settle(ctx context.Context, model, id string, done *loads.Report, cached int) (loads.Report, error)
}

// Index knows which pods are registered. Every store.Index does.
type Index interface {
	// Cached returns the last registry, without I/O.
	Cached() *store.Registry
	// Registry returns the one that stands.
	Registry(ctx context.Context) (*store.Registry, error)
}

// Config is what a Gateway is made of. The zero value of each field but Router and Index is
// its default.
type Config struct {
	// Router and Index are required.
	Router Router
	Index  Index
	// Control, if not nil, is asked before each connection to an engine, as net.Dialer's.
	Control func(network, address string, c syscall.RawConn) error
	// Salt, if not nil, returns the cache salt of a request, given the one that its body asks for,
	// "" for none. A client that gets one when it asks for none has it in all its requests.
	// The gateway sends it to the engine, and refuses what has no place for it.
	Salt func(ctx context.Context, asked string) string
	// Scoped is needed with Salt. It returns the name under which engines and the router know what
	// such a client calls name, a request or a session. No other client has the same.
	Scoped func(ctx context.Context, name string) string
	// Connect is how long a connection to an engine may take to come up, 2 s.
	Connect time.Duration
	// Header is how long an engine may take from there until the header of its answer, 10
	// minutes. An answer in one piece has its header when all of it is there.
	Header time.Duration
	// FirstToken is how long it may take from the header until the first byte of the body, 10
	// minutes.
	FirstToken time.Duration
	// Idle is how long an answer may pause, 2 minutes.
	Idle time.Duration
	// MaxBody is the longest body of a request in bytes, 64 MiB.
	MaxBody int64
	// MaxBuffered is how many bytes of bodies are kept at a time, 512 MiB, until their
	// answers begin.
	MaxBuffered int64
	// MaxRequests is how many requests are passed on at a time, 4096.
	MaxRequests int
	// LeaveUsage leaves streams as they were asked for. Otherwise engines are asked for the usage
	// at the end of each. The chunk with it is taken out if the client did not ask for it.
	LeaveUsage bool
	// Probe is how often the health of pods is asked, 1 s, and how long an answer may take is
	// twice that.
	Probe time.Duration
	// Observer receives what happens.
	Observer Observer
	// Now is the clock, time.Now if nil.
	Now func() time.Time
}

// Observer is told what a Gateway does. Nil funcs are skipped; they are called by several
// goroutines and must not block.
type Observer struct {
	// Served is called with the end of each request. It must not keep the Served.
	Served func(s *Served)
	// Retried says that a request is sent to another pod, as this one gave no answer.
	Retried func(pod string, why error)
	// Ejected says that a pod gets no requests any more, and Admitted that it does again.
	Ejected  func(pod string, why error)
	Admitted func(pod string)
	// Unreported receives each request that could not be reported to the router.
	Unreported func(err error)
}

// Served is what became of a request.
type Served struct {
	// RequestID is the client's X-Request-Id of up to 128 bytes, or else the name of the reservation;
	// empty if there is neither.
	RequestID    string
	Method, Path string
	// Model is what the request's model means; empty if none was found.
	Model string
	// Status is that of the answer; 499 if the client left before there was one.
	Status int
	// Pod has answered, and Why is by what it was chosen, as the header says.
	Pod, Why string
	// Attempts is to how many pods the request was sent.
	Attempts int
	// Stream says that the answer was a stream, Cut that it was not passed on to its end.
	Stream, Cut bool
	// Prompt is the length of the prompt in tokens. Predicted is how many of them the pod held by
	// the index, Delivered how many it had; -1 is not known.
	Prompt, Predicted, Delivered int
	// Routed is how long it took to choose. First is how long until the first byte of the answer
	// came, 0 if none did, and Took until the end.
	Routed, First, Took time.Duration
}

func (c *Config) validate() error {
	if c.Router == nil || c.Index == nil {
		return errors.New("gateway: Router and Index are required")
	}
	defaults.Funcs(&c.Observer)
	if (c.Salt == nil) != (c.Scoped == nil) {
		return errors.New("gateway: Salt and Scoped go together")
	}
	for _, d := range []struct {
		name string
		is   *time.Duration
		def  time.Duration
	}{
		{"Connect", &c.Connect, 2 * time.Second}, {"Header", &c.Header, 10 * time.Minute}, {"FirstToken", &c.FirstToken, 10 * time.Minute},
		{"Idle", &c.Idle, 2 * time.Minute}, {"Probe", &c.Probe, time.Second},
	} {
		if *d.is = cmp.Or(*d.is, d.def); *d.is < time.Millisecond {
			return fmt.Errorf("gateway: Config.%s is %v, it must be at least 1 ms", d.name, *d.is)
		}
	}
	c.MaxBody, c.MaxBuffered, c.MaxRequests = cmp.Or(c.MaxBody, 64<<20), cmp.Or(c.MaxBuffered, 512<<20), cmp.Or(c.MaxRequests, 4096)
	if c.MaxBody < 1 || c.MaxBuffered < c.MaxBody || c.MaxRequests < 1 {
		return fmt.Errorf("gateway: MaxBody is %d, MaxBuffered %d, MaxRequests %d: all must be above 0, and a body must find room", c.MaxBody, c.MaxBuffered, c.MaxRequests)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}
