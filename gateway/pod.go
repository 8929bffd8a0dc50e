package gateway

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// When a pod is ejected, and for how long at least.
const (
	// ejectAfter is after how many requests in a row that it has not answered.
	ejectAfter = 3
	// probesAfter is after how many probes in a row.
	probesAfter = 2
	// firstEjection doubles with each ejection soon after the last, up to maxEjection.
	firstEjection = time.Second
	maxEjection   = 30 * time.Second
)

// errEjected ends attempts that wait at a pod whose health is gone.
var errEjected = errors.New("gateway: the pod does not answer to probes of its health any more")

// pod is what a Gateway knows of an engine.
type pod struct {
	name    string
	running atomic.Int64 // requests of this gateway
	heard   atomic.Int64 // when its last byte came, in ns of the Unix epoch
	down    atomic.Bool
	at      atomic.Pointer[podAddress]

	mu       sync.Mutex // protects all below
	failures int        // in a row
	misses   int        // of probes, in a row
	ejected  int        // how often, in a row
	until    time.Time  // how long it stays ejected at least
}

// podAddress is an address as it is registered, and parsed.
type podAddress struct {
	text string
	url  *url.URL
}

// pods are all that a Gateway has to do with.
type pods struct {
	observer Observer
	now      func() time.Time
	downs    atomic.Int64 // how many are ejected

	mu     sync.RWMutex // protects byName
	byName map[string]*pod
}

func (ps *pods) get(name string) *pod {
	ps.mu.RLock()
	p := ps.byName[name]
	ps.mu.RUnlock()
	if p != nil {
		return p
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p = ps.byName[name]; p == nil {
		p = &pod{name: name}
		ps.byName[name] = p
	}
	return p
}

// isDown reports whether a pod is ejected.
func (ps *pods) isDown(name string) bool {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	p := ps.byName[name]
	return p != nil && p.down.Load()
}

// forget drops pods that are not registered any more and that no request is at.
func (ps *pods) forget(reg *store.Registry) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for name, p := range ps.byName {
		if _, known := reg.PodIndex(name); known || p.running.Load() > 0 {
			continue
		}
		if p.down.Load() {
			ps.downs.Add(-1)
		}
		delete(ps.byName, name)
	}
}

// answered notes that a pod has answered a request.
func (p *pod) answered(now time.Time) {
	p.heard.Store(now.UnixNano())
	p.mu.Lock()
	p.failures, p.misses, p.ejected = 0, 0, 0
	p.mu.Unlock()
}

// failed notes that a pod has given no answer. One that refuses connections is not there.
func (ps *pods) failed(p *pod, why error) {
	p.mu.Lock()
	p.failures++
	gone := p.failures >= ejectAfter || errors.Is(why, syscall.ECONNREFUSED)
	p.mu.Unlock()
	if gone {
		ps.eject(p, why)
	}
}

func (ps *pods) eject(p *pod, why error) {
	p.mu.Lock()
	if p.down.Load() {
		p.mu.Unlock()
		return
	}
	p.until = ps.now().Add(min(maxEjection, firstEjection<<min(p.ejected, 8)))
	p.ejected++
	p.failures = 0
	p.down.Store(true)
	ps.downs.Add(1)
	p.mu.Unlock()
	ps.observer.Ejected(p.name, why)
}

// probed notes what a probe of a pod's health has found, and reports whether what waits there
// is to go elsewhere. A busy engine may be slow to answer it: one from which bytes of answers
// come is alive.
func (ps *pods) probed(p *pod, began time.Time, err error) (gone bool) {
	if err != nil && p.heard.Load() >= began.UnixNano() {
		err = nil
	}
	p.mu.Lock()
	down := p.down.Load()
	switch {
	case err != nil:
		p.misses++
	case down && ps.now().Before(p.until):
		p.misses = 0
	case down:
		p.misses, p.failures = 0, 0
		p.down.Store(false)
		ps.downs.Add(-1)
	default:
		p.misses = 0
	}
	admitted := down && !p.down.Load()
	gone = p.misses >= probesAfter
	p.mu.Unlock()
	if admitted {
		ps.observer.Admitted(p.name)
	}
	if gone {
		ps.eject(p, err)
	}
	return gone
}

// isConnectFailure reports whether an error of a transport says that no connection came up, so
// that nothing of the request was sent.
func isConnectFailure(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// probeAll asks the pods of a registry for their health, and forgets those that are gone.
func (g *Gateway) probeAll(ctx context.Context) {
	reg := g.registry(ctx, g.c.Probe)
	g.pods.forget(reg)
	var all sync.WaitGroup
	turns := make(chan struct{}, 32)
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil {
			continue
		}
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			began := g.c.Now()
			err := g.askHealth(ctx, p)
			if of := g.pods.get(p.Name); ctx.Err() == nil && g.pods.probed(of, began, err) {
				g.giveUpAt(of)
			}
		})
	}
	all.Wait()
}
