package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// place is where a request goes, and why.
type place struct {
	store.RankRef
	url    *url.URL
	ranked bool // the pod has several ranks
	why    string
}

// nameWait is how long the index may take to say what a name means that this process has not
// heard of.
const nameWait = 50 * time.Millisecond

// meaning is what the name of a model in a request means.
func (g *Gateway) meaning(ctx context.Context, name string) (store.Reading, bool) {
	if r, known := g.c.Index.Cached().Read(name); known {
		return r, true
	}
	if r, known := g.registry(ctx, nameWait).Read(name); known {
		return r, true
	}
	return store.Reading{Model: name}, false
}

// placeOf is a (pod, rank) with its address.
func (g *Gateway) placeOf(reg *store.Registry, at store.RankRef, address, why string) (*place, error) {
	p := &place{RankRef: at, why: why}
	if i, ok := reg.PodIndex(at.Pod); ok {
		p.ranked = reg.Pods[i].Ranks > 1
		address = cmp.Or(address, reg.Pods[i].Address)
	}
	address = cmp.Or(address, at.Pod)
	var err error
	p.url, err = g.pods.get(at.Pod).urlOf(address)
	return p, err
}

// urlOf is the URL of an address, which is parsed when it is another than before.
func (p *pod) urlOf(address string) (*url.URL, error) {
	if was := p.at.Load(); was != nil && was.text == address {
		return was.url, nil
	}
	full := address
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" {
		return nil, errors.New("gateway: the address of pod " + p.name + " is no URL")
	}
	p.at.Store(&podAddress{address, u})
	return u, nil
}

// fewest overrides a model's policy where the prompt is not known.
var fewest = []byte(`{"policy":"least_requests"}`)

// choose has the router choose for a request, and books it. Where it cannot, the pod with the
// fewest requests of this gateway takes it. Its error is errNoPods or route.ErrBusy.
func (x *exchange) choose() error {
	g := x.g
	if x.model == "" {
		return x.chooseAlone("unread", nil)
	}
	if len(x.tried) > 0 {
		x.begin() // the work before was given up
	}
	ctx := x.work.Load().ctx
	x.await(phaseRoute, routeWait)
	defer x.awaitNothing()
	q := route.Request{Score: x.score, Reserve: true, Session: x.session}
	q.Score.Model = x.model
	q.Score.Pods = g.usable(x.model, x.tried)
	if x.pinned != nil {
		q.Pinned, q.Session = x.pinned, ""
	}
	why := x.unread
	if why != "" {
		q.Overrides = fewest
	}
	d, err := g.c.Router.Route(ctx, q)
	if err != nil && why == "" && !isRefusal(err) && ctx.Err() == nil {
		// The prompt cannot be tokenized here: the engine will say what is wrong with it.
		q.Score.Input, q.Score.Media, q.Score.Truncation, q.Overrides, why = scorer.Input{}, nil, scorer.Truncation{}, fewest, "unread"
		d, err = g.c.Router.Route(ctx, q)
	}
	switch {
	case errors.Is(err, route.ErrBusy):
		return err
	case err != nil && x.ctx.Err() != nil:
		return x.ctx.Err()
	case err != nil:
		if ctx.Err() != nil {
			x.begin()
		}
		return x.chooseAlone("fewest", err)
	}
	if why != "" {
		why = "unread"
	} else {
		why = d.Policy
	}
	if d.Session != nil && d.Session.State == route.SessionKept {
		why = "session"
	}
	if d.Score != nil && d.Score.Degraded != "" {
		why += "; " + string(d.Score.Degraded)
	}
	if d.Local {
		why += "; loads_stale"
	}
	x.decided(d)
	x.place, err = g.placeOf(g.c.Index.Cached(), d.RankRef, d.Address, why)
	return err
}

// isRefusal reports whether the router has understood a request and has no place for it.
func isRefusal(err error) bool {
	return errors.Is(err, route.ErrBusy) || errors.Is(err, route.ErrNobody)
}

// usable are the pods of a model that may be chosen; nil is all of them. Where all are ejected
// all may be: that a request fails is no worse than that none is sent.
func (g *Gateway) usable(model string, tried []string) []string {
	if len(tried) == 0 && g.pods.downs.Load() == 0 {
		return nil
	}
	reg := g.c.Index.Cached()
	var up, untried []string
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil || p.Model != model || slices.Contains(tried, p.Name) {
			continue
		}
		untried = append(untried, p.Name)
		if !g.pods.isDown(p.Name) {
			up = append(up, p.Name)
		}
	}
	if len(up) == 0 {
		return untried
	}
	return up
}

// chooseAlone takes the pod with the fewest requests of this gateway, without the router.
func (x *exchange) chooseAlone(why string, because error) error {
	reg := x.g.c.Index.Cached()
	best := x.leastBusy(reg)
	if best < 0 { // a pod may have registered since this process last looked something up
		reg = x.g.anyPods(x.ctx)
		best = x.leastBusy(reg)
	}
	if best < 0 {
		return cmp.Or[error](because, errNoPods)
	}
	x.predicted, x.tokens = -1, -1
	var err error
	if x.place, err = x.g.placeOf(reg, store.RankRef{Pod: reg.Pods[best].Name}, "", why); err != nil {
		return err
	}
	x.place.ranked = false // the engine chooses one
	return nil
}

// podsWait is how long a request waits where no pod at all is known. A gateway that has just
// begun, or a Redis that has come back empty, knows them again within a second.
const podsWait = 3 * time.Second

// anyPods is the registry as soon as it has pods, or what it is after podsWait. One request
// looks for all that wait.
func (g *Gateway) anyPods(ctx context.Context) *store.Registry {
	reg := g.registry(ctx, nameWait)
	again := time.NewTicker(nameWait)
	defer again.Stop()
	for end := time.After(podsWait); len(reg.Pods) == 0; {
		select {
		case <-ctx.Done():
			return reg
		case <-end:
			return reg
		case <-again.C:
		}
		if g.looking.CompareAndSwap(false, true) {
			reg = g.registry(ctx, nameWait)
			g.looking.Store(false)
		} else {
			reg = g.c.Index.Cached()
		}
	}
	return reg
}

// registry is the one that stands, or else the last one known.
func (g *Gateway) registry(ctx context.Context, wait time.Duration) *store.Registry {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	reg, err := g.c.Index.Registry(ctx)
	if err != nil {
		return g.c.Index.Cached()
	}
	return reg
}

// leastBusy returns the pod with the fewest requests of this gateway, of those that are not
// ejected if there are any; -1 means none.
func (x *exchange) leastBusy(reg *store.Registry) int {
	best, least, bestDown := -1, int64(0), false
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil || x.model != "" && p.Model != x.model || slices.Contains(x.tried, p.Name) {
			continue
		}
		known := x.g.pods.get(p.Name)
		n, down := known.running.Load(), known.down.Load()
		if best < 0 || bestDown && !down || bestDown == down && n < least {
			best, least, bestDown = i, n, down
		}
	}
	return best
}
