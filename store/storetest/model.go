package storetest

import (
	"maps"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Model is what an index is meant to be, as a plain map: slow, unbounded, and
// plain enough to be believed. It does not validate its arguments. It is not
// safe for concurrent use.
type Model struct {
	now time.Duration // since the model began
	// began is when that was by the clock of the index, for predictions.
	began time.Time
	pods  map[string]*modelPod
	// Duplicates counts batches that were skipped.
	Duplicates uint64

	applied func(store.Batch) // receives each batch that was not skipped, if not nil
}

type modelPod struct {
	reg    store.Pod
	until  time.Duration // end of the lease; 0 means none
	blocks map[blockkey.StoreKey]map[place]bool
	lives  map[int]*store.Life // by rank
	reuse  map[int]store.Reuse // by rank
	ends   map[place]bool      // the predictions that there are
	maps   map[store.Generation]map[store.MapKey]string
}

type place struct {
	rank  int
	tier  store.Tier
	until int64 // ms of a prediction's end, else 0
}

func placeOf(rank int, op store.Op) place {
	at := place{rank: rank, tier: op.Tier}
	if op.Tier == store.Predicted {
		at.until = op.Until.UnixMilli()
	}
	return at
}

// NewModel returns an empty model.
func NewModel() *Model { return &Model{pods: map[string]*modelPod{}} }

// Advance lets time pass; pods whose lease has run out by then are gone with
// their blocks.
func (m *Model) Advance(d time.Duration) {
	m.now += d
	maps.DeleteFunc(m.pods, func(_ string, p *modelPod) bool { return p.until != 0 && p.until <= m.now })
	for _, p := range m.pods {
		p.drop(func(x place, _ bool) bool { return m.isOver(x) })
	}
}

// isOver reports whether a place is that of a prediction that has ended.
func (m *Model) isOver(x place) bool {
	return x.until != 0 && time.UnixMilli(x.until).Sub(m.began) <= m.now
}

// drop ends what is held in the places that match.
func (p *modelPod) drop(matches func(place, bool) bool) {
	for _, at := range p.blocks {
		maps.DeleteFunc(at, matches)
	}
	maps.DeleteFunc(p.ends, matches)
}

// beginPrediction begins a prediction of a rank; of too many those that end first go.
func (p *modelPod) beginPrediction(x place) {
	for !p.ends[x] {
		var first place
		n := 0
		for y := range p.ends {
			if y.rank != x.rank {
				continue
			}
			if n++; first.until == 0 || y.until < first.until {
				first = y
			}
		}
		if n < store.MaxPredicted {
			p.ends[x] = true
			return
		}
		p.drop(func(y place, _ bool) bool { return y == first })
	}
}

// Register registers or renews a pod.
func (m *Model) Register(p store.Pod) (created bool) {
	old := m.pods[p.Name]
	if old == nil || old.reg.Model != p.Model {
		old = &modelPod{blocks: map[blockkey.StoreKey]map[place]bool{}, lives: map[int]*store.Life{}, reuse: map[int]store.Reuse{}, ends: map[place]bool{}, maps: map[store.Generation]map[store.MapKey]string{}}
		m.pods[p.Name] = old
	}
	created = old.reg.Name == ""
	old.reg, old.until = p, 0
	maps.DeleteFunc(old.lives, func(rank int, _ *store.Life) bool { return p.CheckRank(rank) != nil })
	maps.DeleteFunc(old.reuse, func(rank int, _ store.Reuse) bool { return p.CheckRank(rank) != nil })
	old.drop(func(x place, _ bool) bool { return p.CheckRank(x.rank) != nil })
	if p.Lease > 0 {
		old.until = m.now + time.Duration(p.Lease)
	}
	return created
}

// Retire removes a pod.
func (m *Model) Retire(pod string) (known bool) {
	_, known = m.pods[pod]
	delete(m.pods, pod)
	return known
}

// Begin begins a generation. Which number it gets is the index's business: the
// model is told.
func (m *Model) Begin(pod string, rank int, fence uint64, gen store.Generation) error {
	if err := m.mayBegin(pod, rank, fence); err != nil {
		return err
	}
	p := m.pods[pod]
	p.clear(rank, store.Op{Kind: store.Clear, Tier: store.AllTiers})
	p.lives[rank] = &store.Life{Generation: gen, Fence: fence}
	delete(p.reuse, rank)
	return nil
}

// mayBegin tells what Begin would return.
func (m *Model) mayBegin(pod string, rank int, fence uint64) error {
	p := m.pods[pod]
	if p == nil {
		return store.ErrUnknownPod
	}
	if p.reg.CheckRank(rank) != nil {
		return store.ErrNoRank
	}
	if l := p.lives[rank]; l != nil && l.Fence > fence {
		return store.ErrFenced
	}
	return nil
}

// HasRank reports whether blocks may be added for a rank.
func (m *Model) HasRank(pod string, rank int) bool {
	p := m.pods[pod]
	return p == nil || p.reg.CheckRank(rank) == nil
}

// life finds a generation that has not ended; nil when there is none.
func (m *Model) life(gen store.Generation) *store.Life {
	for _, p := range m.pods {
		for _, l := range p.lives {
			if l.Generation == gen {
				return l
			}
		}
	}
	return nil
}

// TakeOver raises the fence of a generation.
func (m *Model) TakeOver(gen store.Generation, fence uint64) (watermark uint64, err error) {
	l := m.life(gen)
	if l == nil {
		return 0, store.ErrEnded
	}
	if l.Fence > fence {
		return 0, store.ErrFenced
	}
	l.Fence = fence
	return l.Seq, nil
}

// ReadMap returns the values of entries; nil and ErrEnded when the generation is
// over.
func (m *Model) ReadMap(gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	if m.life(gen) == nil {
		return nil, store.ErrEnded
	}
	out := make([][]byte, len(keys))
	for _, p := range m.pods {
		for i, k := range keys {
			if v, ok := p.maps[gen][k]; ok {
				out[i] = []byte(v)
			}
		}
	}
	return out, nil
}

// Life returns the present generation of a rank.
func (m *Model) Life(pod string, rank int) store.Life {
	if p := m.pods[pod]; p != nil && p.lives[rank] != nil {
		return *p.lives[rank]
	}
	return store.Life{}
}

// Apply makes the changes of the batches. What guards refuse is left out, and is
// a *store.RefusedError.
func (m *Model) Apply(batches ...store.Batch) error {
	refused := map[store.Generation]error{}
	for _, round := range store.Rounds(batches) {
		begun := map[store.Generation]bool{}
		for _, b := range round {
			if g := b.Guard; g != nil {
				var l *store.Life
				if p := m.pods[b.Pod]; p != nil {
					l = p.lives[b.Rank]
				}
				switch {
				case refused[g.Generation] != nil:
					continue
				case l == nil || l.Generation != g.Generation:
					refused[g.Generation] = store.ErrEnded
					continue
				case l.Fence > g.Fence:
					refused[g.Generation] = store.ErrFenced
					continue
				case l.Seq >= g.Seq && !begun[g.Generation]:
					m.Duplicates++
					continue
				}
				begun[g.Generation] = true
				l.Fence, l.Seq = g.Fence, g.Seq
			}
			m.apply(b)
			if m.applied != nil {
				m.applied(b)
			}
		}
	}
	if len(refused) > 0 {
		return &store.RefusedError{Generations: refused}
	}
	return nil
}

func (m *Model) apply(b store.Batch) {
	if m.pods[b.Pod] == nil {
		if !b.Enrols() {
			return
		}
		m.Register(store.Pod{Name: b.Pod, Model: b.Model})
	}
	p := m.pods[b.Pod]
	if told := b.Told(); told != (store.Reuse{}) && p.reg.CheckRank(b.Rank) == nil {
		p.reuse[b.Rank] = told
	}
	for _, op := range b.Map {
		entries := p.maps[b.Guard.Generation]
		if entries == nil {
			entries = map[store.MapKey]string{}
			p.maps[b.Guard.Generation] = entries
		}
		if op.Value == nil {
			delete(entries, op.MapKey)
		} else {
			entries[op.MapKey] = string(op.Value)
		}
	}
	for _, op := range b.Ops {
		if x := placeOf(b.Rank, op); op.Kind == store.Add && op.Tier == store.Predicted {
			if m.isOver(x) {
				continue
			}
			p.beginPrediction(x)
		}
		for _, k := range op.Keys {
			sk := k.In(blockkey.ModelOf(b.Model))
			switch {
			case op.Kind == store.Remove:
				maps.DeleteFunc(p.blocks[sk], hits(b.Rank, op))
			case p.blocks[sk] == nil:
				p.blocks[sk] = map[place]bool{placeOf(b.Rank, op): true}
			default:
				p.blocks[sk][placeOf(b.Rank, op)] = true
			}
		}
		if op.Kind == store.Clear {
			p.clear(b.Rank, op)
		}
	}
}

// hits tells which places an op that takes away is about.
func hits(rank int, op store.Op) func(place, bool) bool {
	return func(x place, _ bool) bool {
		switch {
		case !op.AllRanks && x.rank != rank:
			return false
		case op.Tier == store.Predicted:
			return x == placeOf(rank, op)
		case x.tier == store.Predicted && op.Tier == store.GPU:
			return true
		}
		return op.Tier == store.AllTiers || x.tier == op.Tier || op.Kind == store.Clear && x.tier.Memory() == op.Tier
	}
}

func (p *modelPod) clear(rank int, op store.Op) {
	p.drop(hits(rank, op))
}

// Reuse returns what is known of the engine of a rank.
func (m *Model) Reuse(pod string, rank int) store.Reuse {
	if p := m.pods[pod]; p != nil {
		return p.reuse[rank]
	}
	return store.Reuse{}
}

// Pods returns the live pods, ascending by name.
func (m *Model) Pods() []store.Pod {
	var out []store.Pod
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		out = append(out, m.pods[name].reg)
	}
	return out
}

// Lookup returns the holders of the blocks of a chain.
func (m *Model) Lookup(mask blockkey.Model, keys []blockkey.Key) Answer {
	out := make(Answer, len(keys))
	names := slices.Sorted(maps.Keys(m.pods))
	for i, k := range keys {
		for _, name := range names {
			for x := range m.pods[name].blocks[k.In(mask)] {
				out[i] = append(out[i], At{name, x.rank, x.tier, x.until})
			}
		}
		slices.SortFunc(out[i], compareAt)
	}
	return out
}
