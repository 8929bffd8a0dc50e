package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/store"
)

// LifeLabel is the label of a registration that names the life of the pod's engine, as
// its source knows it. It keeps replicas from ending it once each.
const LifeLabel = "kvatlas.io/life"

// Config is what a Registrar is made of. The zero value of each field but Index is its
// default.
type Config struct {
	// Index is where pods are registered.
	Index store.Index
	// Sources find pods. Of two with the same name the earlier source's counts.
	Sources []Source
	// Template has what is the same for all pods.
	Template Template
	// Asker asks engines for what is not known otherwise; nil asks none.
	Asker *Asker
	// Lease is how long a pod stays registered that is not found any more, 30 s. It is
	// renewed at a third of that.
	Lease time.Duration
	// MaxPods is how many pods there may be, 10,000; those that come later in the
	// order of names are left out.
	MaxPods int
	// Parallel is how many pods are asked and registered at a time, 8.
	Parallel int
	// Observer is told what happens.
	Observer Observer
}

// Observer is told what happens. Any func may be nil. They are called from several
// goroutines and must not block.
type Observer struct {
	// Registered says that a pod is in the index that was not, or has begun a new life.
	Registered func(p store.Pod)
	// Retired says that a pod has ended.
	Retired func(pod string)
	// Failed says that a source, an engine or the index could not be asked, or that
	// there are too many pods.
	Failed func(err error)
}

var errConfig = errors.New("discover: invalid config")

// Registrar keeps what is found registered.
type Registrar struct {
	config  Config
	changed chan struct{}
	// All belong to Run. They say that the index cannot be asked, that it can and refuses pods,
	// and that there are too many of them. Each was reported.
	away, refuses, crowded bool
	unasked                atomic.Bool // an engine of the last pass could not be asked

	mu    sync.Mutex         // protects all below
	found []map[string]Found // by source
	pods  map[string]pod     // what is registered by us
	told  map[string]string  // a pod's last reported fault
}

// pod is one that we have registered.
type pod struct {
	found Found
	reg   store.Pod // as registered
	ends  bool      // its source knows of ends
	asked bool
}

// New returns a Registrar that does nothing until Run.
func New(c Config) (*Registrar, error) {
	if c.Index == nil {
		return nil, fmt.Errorf("%w: no Index", errConfig)
	}
	defaults.Funcs(&c.Observer)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.MaxPods = cmp.Or(c.MaxPods, 10_000)
	c.Parallel = cmp.Or(c.Parallel, 8)
	if c.Lease < time.Second || c.Lease > store.MaxLease {
		return nil, fmt.Errorf("%w: Lease is %v, it can be 1 s to %v", errConfig, c.Lease, store.MaxLease)
	}
	if c.MaxPods < 1 || c.Parallel < 1 {
		return nil, fmt.Errorf("%w: MaxPods is %d, Parallel %d", errConfig, c.MaxPods, c.Parallel)
	}
	r := &Registrar{config: c, changed: make(chan struct{}, 1), found: make([]map[string]Found, len(c.Sources)), pods: map[string]pod{}, told: map[string]string{}}
	return r, nil
}

// Run finds and registers until ctx is done, and returns nil then. It leaves what is
// registered to its leases: other replicas go on renewing them.
func (r *Registrar) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	for i, s := range r.config.Sources {
		watching.Go(func() {
			// It ends with ctx, whose error is not needed.
			_ = s.Watch(ctx, Watcher{Report: func(pods []Found) { r.report(i, pods) }, Failed: r.failed})
		})
	}
	renew, look := time.NewTicker(r.config.Lease/3), time.NewTicker(lookEvery)
	again := time.NewTimer(r.config.Lease) // of engines that could not be asked
	defer renew.Stop()
	defer look.Stop()
	defer again.Stop()
	pause := firstPause
	for {
		r.pass(ctx)
		renew.Reset(r.config.Lease / 3)
		again.Stop()
		if r.unasked.Swap(false) && !r.refuses {
			again.Reset(pause)
		}
		for due := false; !due; {
			select {
			case <-ctx.Done():
				return nil
			case <-r.changed:
				due, pause = true, firstPause
			case <-again.C:
				due, pause = true, min(2*pause, r.config.Lease/3)
			case <-renew.C:
				due = true
			case <-look.C:
				due = !r.refuses && r.lost()
			}
		}
	}
}

// firstPause is how soon an engine is asked again that could not be asked, as one that is still
// loading its model. Each further pause is twice as long, up to that of the renewals.
const firstPause = 500 * time.Millisecond

// lookEvery is how often the registry, as it was read last, is looked at for losses.
const lookEvery = 250 * time.Millisecond

// lost reports whether the registry has none of our pods any more, as that of a Redis that has
// come back empty. No request finds a pod until they are registered again.
func (r *Registrar) lost() bool {
	reg := r.config.Index.Cached()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.pods {
		if registered(reg, name) != nil {
			return false
		}
	}
	return len(r.pods) > 0
}

func (r *Registrar) report(source int, pods []Found) {
	found := make(map[string]Found, len(pods))
	for _, f := range pods {
		found[f.Pod.Name] = f
	}
	r.mu.Lock()
	r.found[source] = found
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *Registrar) failed(err error) {
	r.config.Observer.Failed(err)
}

// pass registers all that is found and retires what has ended.
func (r *Registrar) pass(ctx context.Context) {
	r.mu.Lock()
	want := map[string]Found{}
	ends := map[string]bool{}
	for i, found := range slices.Backward(r.found) {
		for name, f := range found {
			want[name], ends[name] = f, r.config.Sources[i].Ends()
		}
	}
	gone := map[string]string{} // lives of the pods that have ended
	for name, p := range r.pods {
		if _, ok := want[name]; !ok {
			if p.ends {
				gone[name] = p.found.Life
			}
			delete(r.pods, name)
		}
	}
	maps.DeleteFunc(r.told, func(name, _ string) bool { _, ok := want[name]; return !ok })
	r.mu.Unlock()

	names := slices.Sorted(maps.Keys(want))
	n := len(names)
	if n > r.config.MaxPods && !r.crowded {
		r.failed(fmt.Errorf("discover: %d pods are found, the limit is %d; the last ones are left out", n, r.config.MaxPods))
	}
	r.crowded = n > r.config.MaxPods
	names = names[:min(n, r.config.MaxPods)]
	reg, err := r.registry(ctx)
	if err != nil && !r.away {
		r.failed(fmt.Errorf("discover: %w", err))
	}
	r.away = err != nil
	var faults registering
	var g errgroup.Group
	g.SetLimit(r.config.Parallel)
	for name, life := range gone {
		// Another replica may have registered the next of this name already.
		if p := registered(reg, name); p != nil && p.Labels[LifeLabel] != life {
			continue
		}
		g.Go(func() error { r.retire(ctx, name); return nil })
	}
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { faults.add(r.register(ctx, want[name], ends[name], reg)); return nil })
	}
	_ = g.Wait() // they return none

	// That the index is away has been told.
	if r.refuses = faults.n > 0 && !r.away; r.refuses {
		r.failed(faults.err())
	}
}

// registering is what came of the registrations of one pass: an index that refuses them
// refuses those of thousands of pods. It is safe for concurrent use.
type registering struct {
	mu    sync.Mutex // protects all below
	n     int
	first error
}

func (g *registering) add(err error) {
	if err == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n++; g.n == 1 {
		g.first = err
	}
}

func (g *registering) err() error {
	if g.n == 1 {
		return g.first
	}
	return fmt.Errorf("%w (and so for %d other pods)", g.first, g.n-1)
}

// registry is the one that stands, or else the last one known.
func (r *Registrar) registry(ctx context.Context) (*store.Registry, error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	reg, err := r.config.Index.Registry(ctx)
	if err != nil {
		return r.config.Index.Cached(), err
	}
	return reg, nil
}

// once reports a pod's fault, when it is another than the last.
func (r *Registrar) once(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	last := r.told[name]
	if text == "" {
		delete(r.told, name)
	} else {
		r.told[name] = text
	}
	r.mu.Unlock()
	if text != "" && text != last {
		r.failed(fmt.Errorf("discover: the pod %s: %w", name, err))
	}
}

// call bounds a call to the index.
func (r *Registrar) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.config.Lease/3)
}

func (r *Registrar) retire(ctx context.Context, name string) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	known, err := r.config.Index.Retire(ctx, name)
	if err != nil {
		r.failed(fmt.Errorf("discover: retiring %s: %w", name, err)) // its lease ends it
		return
	}
	if known {
		r.config.Observer.Retired(name)
	}
}

// register registers or renews one pod. It returns what the index says against it.
func (r *Registrar) register(ctx context.Context, f Found, ends bool, reg *store.Registry) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	name := f.Pod.Name
	r.mu.Lock()
	was, known := r.pods[name]
	r.mu.Unlock()
	p := pod{found: f, ends: ends}
	last := registered(reg, name)
	if known && same(&was.found, &f) && was.asked {
		p = was
	} else {
		ok, err := r.complete(ctx, &p, last)
		r.once(name, err)
		if !p.asked {
			r.unasked.Store(true)
		}
		if !ok {
			return nil
		}
	}

	// Another life: what the last one held is gone, once for all replicas.
	if f.Life != "" && last != nil {
		if life := last.Labels[LifeLabel]; life != "" && life != f.Life {
			if _, err := r.config.Index.Retire(ctx, name); err != nil {
				return fmt.Errorf("discover: ending the last life of %s: %w", name, err)
			}
		}
	}
	created, err := r.config.Index.Register(ctx, p.reg)
	if err != nil {
		if ctx.Err() == nil || errors.Is(err, store.ErrUnavailable) {
			return fmt.Errorf("discover: registering %s: %w", name, err)
		}
		return nil
	}
	r.mu.Lock()
	r.pods[name] = p
	r.mu.Unlock()
	if created {
		r.config.Observer.Registered(p.reg)
	}
	return nil
}

// same reports whether two findings are of one pod in one life.
func same(a, b *Found) bool {
	return a.Life == b.Life && reflect.DeepEqual(a.Pod, b.Pod)
}

// complete makes the registration of a pod: what was found, else what its engine says,
// else the template's. When the engine cannot be asked, what another replica has
// registered of this life stands. ok is false when it cannot be registered.
func (r *Registrar) complete(ctx context.Context, p *pod, last *store.Pod) (ok bool, err error) {
	p.reg = p.found.Pod
	p.reg.Labels = maps.Clone(p.reg.Labels)
	if r.config.Asker != nil {
		if err = r.config.Asker.Ask(ctx, &p.reg); err != nil && last != nil && last.Labels[LifeLabel] == p.found.Life {
			p.reg = *last
			p.reg.Labels = maps.Clone(last.Labels)
		}
	}
	p.asked = err == nil
	r.config.Template.fill(&p.reg)
	if p.found.Life != "" {
		if p.reg.Labels == nil {
			p.reg.Labels = map[string]string{}
		}
		p.reg.Labels[LifeLabel] = p.found.Life
	}
	p.reg.Lease = store.Seconds(r.config.Lease)
	if p.reg.Model == "" {
		if err == nil {
			err = errors.New("nothing says which model it serves: name it as model= (pods, pods-dns) or for all of them (pods-model), or let the engine be asked (pods-ask)")
		}
		return false, err
	}
	if invalid := p.reg.Validate(); invalid != nil {
		return false, invalid
	}
	return true, err
}

// registered finds a pod's registration.
func registered(reg *store.Registry, name string) *store.Pod {
	if i, ok := reg.PodIndex(name); ok {
		return &reg.Pods[i]
	}
	return nil
}
