package wire

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/sim/engine"
)

// Pod is a simulated engine process, dead or alive. Its methods are safe for concurrent
// use.
type Pod struct {
	config  Config
	release release

	mu      sync.Mutex // protects all below
	address string     // where it listens; known from the first life on
	life    *life      // nil while it is dead
}

// life is one life of a pod: a process with sockets and an empty cache.
type life struct {
	pod     *Pod
	end     context.CancelFunc
	running sync.WaitGroup
	clock   *clock
	began   time.Time
	ranks   []*rank
	metrics *metrics
	server  *http.Server
	inside  atomic.Int64 // requests of any page
	open    atomic.Int64 // completions that are being answered
	ids     atomic.Uint64
	turn    atomic.Uint64
}

// ErrDead says that a pod is dead.
var ErrDead = errors.New("wire: the pod is dead")

// NewPod returns a pod that is dead: Start begins its life. Its error is ErrConfig.
func NewPod(c Config) (*Pod, error) {
	c, r, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Pod{config: c, release: r, address: c.Listen}, nil
}

// Config returns the configuration with its defaults.
func (p *Pod) Config() Config { return p.config }

// Address returns where the pod's HTTP server listens, or will.
func (p *Pod) Address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// Start begins the life of a dead pod: its sockets are bound when it returns.
func (p *Pod) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.start()
}

// start is Start with the lock held.
func (p *Pod) start() error {
	if p.life != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{pod: p, end: cancel, clock: newClock(p.config.Speed), began: time.Now()}
	l.metrics = newMetrics(p.config.Engine.Kind, p.release, p.config, l)
	if err := l.bind(); err != nil {
		return errors.Join(err, l.close())
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return errors.Join(err, l.close())
	}
	p.address = listener.Addr().String()
	for _, r := range l.ranks {
		l.running.Go(func() { r.run(ctx) })
	}
	l.server = &http.Server{Handler: l.handler(), ReadHeaderTimeout: 10 * time.Second}
	l.running.Go(func() { _ = l.server.Serve(listener) }) // it ends when the life does
	p.life = l
	return nil
}

// bind makes the ranks with their publishers.
func (l *life) bind() error {
	c := &l.pod.config
	for n := range c.Ranks {
		e, err := engine.New(c.Engine)
		if err != nil {
			return err
		}
		events, err := rankEndpoint(c.Events, n)
		if err != nil {
			return err
		}
		replay, err := rankEndpoint(c.Replay, n)
		if err != nil {
			return err
		}
		pub, err := zmq.NewPublisher(zmq.PublisherConfig{
			Endpoint: events, Replay: replay, Keep: bufferSteps, OldReplay: oldReplay(c.Engine.Kind, l.pod.release),
		})
		if err != nil {
			return err
		}
		l.ranks = append(l.ranks, &rank{
			number: n, clock: l.clock, form: form(c.Engine.Kind, l.pod.release), topic: c.Topic, pub: pub, link: newLink(pub),
			metrics: l.metrics, wake: make(chan struct{}, 1), engine: e, open: map[uint64]*answer{},
		})
	}
	return nil
}

// close ends a life. Connections are cut.
func (l *life) close() (err error) {
	l.end()
	l.clock.thaw()
	if l.server != nil {
		err = l.server.Close()
	}
	for _, r := range l.ranks {
		err = errors.Join(err, r.close())
	}
	l.running.Wait()
	return err
}

// Kill ends the pod's life: its sockets are closed, without a reason.
func (p *Pod) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kill()
}

func (p *Pod) kill() error {
	if p.life == nil {
		return nil
	}
	l := p.life
	p.life = nil
	return l.close()
}

// Restart ends the pod's life and begins a new one in its place: the same addresses, an
// empty cache, and events from number 0 on.
func (p *Pod) Restart() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.kill(); err != nil {
		return err
	}
	return p.start()
}

// current returns the life that there is.
func (p *Pod) current() (*life, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil {
		return nil, ErrDead
	}
	return p.life, nil
}

// Stats returns what each rank is doing. Its error is ErrDead.
func (p *Pod) Stats() ([]engine.Stats, error) {
	l, err := p.current()
	if err != nil {
		return nil, err
	}
	out := make([]engine.Stats, len(l.ranks))
	for i, r := range l.ranks {
		out[i] = r.stats()
	}
	return out, nil
}

// Published returns how many messages a rank has published in this life, those that were
// lost on the way included. Its error is ErrDead.
func (p *Pod) Published(rank int) (uint64, error) {
	l, err := p.current()
	if err != nil {
		return 0, err
	}
	return l.ranks[rank].published(), nil
}
