package memory

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// registry knows pods, their holders and the models. Lookups read its last
// snapshot and take the lock only when something has changed or a lease has run
// out.
type registry struct {
	cfg   Config
	sets  *sets
	seed  maphash.Seed
	salt  uint64    // the seed of maps of generations
	began time.Time // what times count from, so that a step of the wall clock ends no lease

	snap  atomic.Pointer[store.Registry]
	dirty atomic.Bool // snap is outdated
	// nextEnd is when the first lease may run out, in ns since began; 0 is
	// never. Renewals leave it where it is, so it may be early.
	nextEnd atomic.Int64
	loads   atomic.Uint64
	entries atomic.Int64 // of the maps of all lives
	ended   atomic.Int64 // holders whose blocks have not been swept yet

	mu      sync.Mutex // protects all below, and writing to snap
	pods    map[string]*pod
	sorted  []*pod // the same, by name
	models  map[string]store.ModelInfo
	lives   map[store.Generation]*life
	epoch   uint64
	lastID  store.HolderID
	holders int
	// predictions is how many of them are in tier Predicted.
	predictions int
}

// pod is a live pod.
type pod struct {
	reg   store.Pod
	until int64 // end of the lease in ns since began; 0 means none
	ranks []rank
}

// rank is what a rank of a pod holds blocks as.
type rank struct {
	rank  int
	tiers [store.NumHolderTiers]holder
	// predicted are the holders in tier Predicted, ascending by when they end.
	predicted []prediction
	reuse     store.Reuse
	life      *life // nil means none that Begin has begun
}

// prediction is a holder in tier Predicted, and when it ends, in ms of the Unix epoch.
type prediction struct {
	until int64
	holder
}

// holder is a live holder; id 0 means none.
type holder struct {
	id     store.HolderID
	single uint32 // the set of just this holder, which the holder keeps in use
	lane   uint8  // where its new blocks go; the same in all lives
}

func (g *registry) init(cfg Config, s *sets) {
	g.cfg, g.sets, g.began, g.seed = cfg, s, cfg.Clock(), maphash.MakeSeed()
	g.salt = rand.Uint64()
	g.pods = map[string]*pod{}
	g.lives = map[store.Generation]*life{}
	g.models = map[string]store.ModelInfo{}
	g.snap.Store(store.NewRegistry(0, nil, nil, nil, time.Time{}))
}

func (g *registry) now() int64 { return int64(g.cfg.Clock().Sub(g.began)) }

// current returns a snapshot that is true now.
func (g *registry) current() *store.Registry {
	if end := g.nextEnd.Load(); g.dirty.Load() || end != 0 && g.now() >= end {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.expire()
		return g.snapshot()
	}
	return g.snap.Load()
}

// snapshot brings snap up to date. The caller holds mu.
func (g *registry) snapshot() *store.Registry {
	var until time.Time
	if end := g.nextEnd.Load(); end != 0 {
		until = g.began.Add(time.Duration(end))
	}
	old := g.snap.Load()
	if !g.dirty.Load() {
		if !until.Equal(old.ValidUntil) {
			r := *old
			r.ValidUntil = until
			g.snap.Store(&r)
		}
		return g.snap.Load()
	}
	pods := make([]store.Pod, 0, len(g.sorted))
	holders := make([]store.Holder, 0, g.holders)
	for _, p := range g.sorted {
		pods = append(pods, p.reg)
		for i := range p.ranks {
			r := &p.ranks[i]
			var gen store.Generation
			if r.life != nil {
				gen = r.life.id
			}
			for tier, h := range r.tiers {
				if h.id != 0 {
					holders = append(holders, store.Holder{ID: h.id, Pod: p.reg.Name, Rank: r.rank, Tier: store.Tier(tier), Reuse: r.reuse, Generation: gen})
				}
			}
			for _, h := range r.predicted {
				holders = append(holders, store.Holder{ID: h.id, Pod: p.reg.Name, Rank: r.rank, Tier: store.Predicted, Reuse: r.reuse, Generation: gen, Until: time.UnixMilli(h.until)})
			}
		}
	}
	r := store.NewRegistry(g.epoch, pods, holders, g.models, until)
	g.snap.Store(r)
	g.dirty.Store(false)
	g.loads.Add(1)
	return r
}

// changed says that the registry has changed. The caller holds mu.
func (g *registry) changed() {
	g.epoch++
	g.dirty.Store(true)
}

// expire retires the pods whose leases have run out, and ends the predictions that are
// over. The caller holds mu.
func (g *registry) expire() {
	end := g.nextEnd.Load()
	if end == 0 {
		return
	}
	now := g.now()
	if now < end {
		return
	}
	var gone []*pod
	var next int64
	for _, p := range g.sorted {
		switch {
		case p.until == 0:
		case p.until <= now:
			gone = append(gone, p)
		case next == 0 || p.until < next:
			next = p.until
		}
	}
	for _, p := range gone {
		g.drop(p)
	}
	if until := g.expirePredictions(now); until != 0 && (next == 0 || until < next) {
		next = until
	}
	g.nextEnd.Store(next)
}

// drop removes a pod. The caller holds mu.
func (g *registry) drop(p *pod) {
	for i := range p.ranks {
		g.endRank(&p.ranks[i])
	}
	delete(g.pods, p.reg.Name)
	if i, ok := g.place(p.reg.Name); ok {
		g.sorted = slices.Delete(g.sorted, i, i+1)
	}
	g.changed()
}

// endRanks ends the ranks that the pod's registration does not have. The caller holds mu.
func (g *registry) endRanks(p *pod) {
	p.ranks = slices.DeleteFunc(p.ranks, func(r rank) bool {
		if p.reg.CheckRank(r.rank) == nil {
			return false
		}
		g.endRank(&r)
		return true
	})
}

// endRank ends the holders and the life of a rank. The caller holds mu.
func (g *registry) endRank(r *rank) {
	for tier := range r.tiers {
		g.end(&r.tiers[tier])
	}
	g.endPredictions(r, func(prediction) bool { return true })
	g.endLife(r)
	r.reuse = store.Reuse{}
}

// end ends the life of a holder, if it is one. The caller holds mu.
func (g *registry) end(h *holder) {
	if h.id == 0 {
		return
	}
	g.sets.count(h.single, -1)
	*h = holder{}
	g.holders--
	g.ended.Add(1)
	g.changed()
}

// place returns where a name is or belongs in sorted.
func (g *registry) place(name string) (int, bool) {
	return slices.BinarySearchFunc(g.sorted, name, func(p *pod, name string) int { return strings.Compare(p.reg.Name, name) })
}

// register registers or renews a pod.
func (g *registry) register(reg store.Pod) (created bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expire()
	p := g.pods[reg.Name]
	if p != nil && p.reg.Model != reg.Model {
		g.drop(p)
		p = nil
	}
	if created = p == nil; created {
		if p, err = g.add(clonePod(reg)); err != nil {
			return false, err
		}
	} else if !reflect.DeepEqual(p.reg, reg) {
		p.reg = clonePod(reg)
		g.endRanks(p)
		g.changed()
	}
	p.until = 0
	if reg.Lease > 0 {
		p.until = g.now() + int64(reg.Lease)
	}
	g.lease(p.until)
	return created, nil
}

// lease takes note of a lease's new end. The caller holds mu.
//
// nextEnd only ever comes nearer here; expire moves it away. But when no lease
// is left, it goes at once.
func (g *registry) lease(until int64) {
	next := g.nextEnd.Load()
	switch {
	case until != 0 && (next == 0 || until < next):
		g.nextEnd.Store(until)
	case until == 0 && next != 0 && g.predictions == 0 && !slices.ContainsFunc(g.sorted, func(p *pod) bool { return p.until != 0 }):
		g.nextEnd.Store(0)
	default:
		return
	}
	if !g.dirty.Load() {
		g.snapshot() // just its ValidUntil
	}
}

// add adds a pod that is not there. The caller holds mu.
func (g *registry) add(reg store.Pod) (*pod, error) {
	if len(g.pods) >= g.cfg.MaxPods {
		return nil, fmt.Errorf("%w: %d pods, no room for %s", store.ErrFull, len(g.pods), reg.Name)
	}
	p := &pod{reg: reg}
	g.pods[reg.Name] = p
	i, _ := g.place(reg.Name)
	g.sorted = slices.Insert(g.sorted, i, p)
	g.changed()
	return p, nil
}

// retire removes a pod.
func (g *registry) retire(name string) (known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expire()
	p := g.pods[name]
	if p == nil {
		return false
	}
	g.drop(p)
	g.lease(0)
	return true
}

// ensure returns the settings of a model, want's if there are none.
func (g *registry) ensure(want store.ModelInfo) (store.ModelInfo, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	have, ok := g.models[want.Name]
	switch {
	case ok && have.SameKeys(&want):
		return have, nil
	case ok:
		return have, fmt.Errorf("%w: %s has blocks of %d tokens, scheme %s; not %d, %s",
			store.ErrModelConflict, have.Name, have.BlockSize, have.Scheme, want.BlockSize, want.Scheme)
	case len(g.models) >= g.cfg.MaxModels:
		return store.ModelInfo{}, fmt.Errorf("%w: %d models, no room for %s", store.ErrFull, len(g.models), want.Name)
	}
	// The old map belongs to snapshots.
	g.models = maps.Clone(g.models)
	want.Name, want.Scheme = strings.Clone(want.Name), strings.Clone(want.Scheme)
	g.models[want.Name] = want
	g.changed()
	return want, nil
}

// meant are the holders that an op is about.
type meant struct {
	n  int
	of [store.NumHolderTiers + store.MaxPredicted]holder
}

// enter makes sure that the pod of a batch is registered, and notes what the batch says
// of its engine.
func (g *registry) enter(b *store.Batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, err := g.podOf(b)
	if err != nil || p == nil || b.Told() == (store.Reuse{}) {
		return err
	}
	if err := p.reg.CheckRank(b.Rank); err != nil {
		if len(b.Ops) == 0 {
			return nil // of an engine that the pod does not have
		}
		return err // one of them adds, which is refused: so is what is said with it
	}
	if r := p.rank(b.Rank, true); r.reuse != b.Reuse {
		r.reuse = b.Reuse
		g.changed()
	}
	return nil
}

// podOf returns the pod of a batch, nil where it is not there and the batch only takes
// away. The caller holds mu.
func (g *registry) podOf(b *store.Batch) (*pod, error) {
	g.expire()
	p := g.pods[b.Pod]
	if b.Guard != nil {
		if p != nil {
			if r := p.rank(b.Rank, false); r != nil && r.life != nil && r.life.id == b.Guard.Generation {
				return p, nil
			}
		}
		return nil, store.ErrEnded
	}
	if p != nil || !b.Enrols() {
		return p, nil
	}
	return g.add(store.Pod{Name: strings.Clone(b.Pod), Model: strings.Clone(b.Model)})
}

// resolve returns the holders that an op of a batch is about; those of an Add
// are created. A Clear is done with that.
func (g *registry) resolve(b *store.Batch, op *store.Op) (m meant, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, err := g.podOf(b)
	if err != nil || p == nil {
		return m, err
	}
	if op.Kind == store.Clear {
		for i := range p.ranks {
			r := &p.ranks[i]
			if !op.AllRanks && r.rank != b.Rank {
				continue
			}
			for tier := range r.tiers {
				if op.Tier == store.AllTiers || op.Tier == store.Tier(tier).Memory() {
					g.end(&r.tiers[tier])
				}
			}
			g.endPredictions(r, func(h prediction) bool {
				return op.Tier == store.AllTiers || op.Tier == store.GPU || op.Tier == store.Predicted && op.Until.UnixMilli() == h.until
			})
		}
		return m, nil
	}
	if op.Kind == store.Add {
		if err := p.reg.CheckRank(b.Rank); err != nil {
			return m, err
		}
	}
	r := p.rank(b.Rank, op.Kind == store.Add)
	switch {
	case r == nil:
	case op.Kind == store.Add && op.Tier == store.Predicted:
		h, err := g.prediction(r, b, op.Until.UnixMilli())
		if err != nil {
			return m, fmt.Errorf("pod %s rank %d: %w", b.Pod, b.Rank, err)
		}
		if h.id != 0 {
			m.of[0], m.n = h, 1
		}
	case op.Kind == store.Add:
		h := &r.tiers[op.Tier]
		if h.id == 0 {
			if err := g.begin(h, b.Pod, b.Rank, op.Tier); err != nil {
				return m, fmt.Errorf("pod %s rank %d: %w", b.Pod, b.Rank, err)
			}
		}
		m.of[0], m.n = *h, 1
	default:
		for tier, h := range r.tiers {
			if h.id != 0 && (op.Tier == store.AllTiers || int(op.Tier) == tier) {
				m.of[m.n] = h
				m.n++
			}
		}
		if op.Tier == store.AllTiers || op.Tier == store.GPU {
			for _, h := range r.predicted {
				m.of[m.n] = h.holder
				m.n++
			}
		}
	}
	return m, nil
}

// begin begins the life of a holder. The caller holds mu.
func (g *registry) begin(h *holder, pod string, rank int, tier store.Tier) error {
	if g.holders >= g.cfg.MaxHolders || g.lastID == math.MaxUint32 {
		return fmt.Errorf("%w: %d holders, ids up to %d", store.ErrFull, g.holders, g.lastID)
	}
	single, ok := g.sets.single(g.lastID + 1)
	if !ok {
		return fmt.Errorf("%w: no memory for a holder", store.ErrFull)
	}
	g.lastID++
	lane := maphash.String(g.seed, pod) + uint64(rank*store.NumHolderTiers) + uint64(tier)
	*h = holder{id: g.lastID, single: single, lane: uint8(lane % lanes)}
	g.holders++
	g.changed()
	return nil
}

// rank returns a rank of the pod, nil when it is not there and not made.
func (p *pod) rank(n int, create bool) *rank {
	i, ok := slices.BinarySearchFunc(p.ranks, n, func(r rank, n int) int { return r.rank - n })
	if !ok {
		if !create {
			return nil
		}
		p.ranks = slices.Insert(p.ranks, i, rank{rank: n})
	}
	return &p.ranks[i]
}

func clonePod(p store.Pod) store.Pod {
	for _, s := range []*string{&p.Name, &p.Model, &p.Address, &p.Role, &p.Engine, &p.Events, &p.Replay} {
		*s = strings.Clone(*s)
	}
	p.Aliases, p.Adapters = cloneAll(p.Aliases), cloneAll(p.Adapters)
	if p.Labels != nil {
		labels := make(map[string]string, len(p.Labels))
		for k, v := range p.Labels {
			labels[strings.Clone(k)] = strings.Clone(v)
		}
		p.Labels = labels
	}
	if p.PartOf != nil {
		part := *p.PartOf
		part.Pod = strings.Clone(part.Pod)
		p.PartOf = &part
	}
	return p
}

// cloneAll returns a copy of the list and of what its texts are in.
func cloneAll(list []string) []string {
	list = slices.Clone(list)
	for i, s := range list {
		list[i] = strings.Clone(s)
	}
	return list
}
