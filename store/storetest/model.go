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
	now  time.Duration // since the model began
	pods map[string]*modelPod
}

type modelPod struct {
	reg    store.Pod
	until  time.Duration // end of the lease; 0 is none
	blocks map[blockkey.StoreKey]map[place]bool
}

type place struct {
	rank int
	tier store.Tier
}

// NewModel returns an empty model.
func NewModel() *Model { return &Model{pods: map[string]*modelPod{}} }

// Advance lets time pass; pods whose lease has run out by then are gone with
// their blocks.
func (m *Model) Advance(d time.Duration) {
	m.now += d
	maps.DeleteFunc(m.pods, func(_ string, p *modelPod) bool { return p.until != 0 && p.until <= m.now })
}

// Register registers or renews a pod.
func (m *Model) Register(p store.Pod) (created bool) {
	old := m.pods[p.Name]
	if old == nil {
		old = &modelPod{blocks: map[blockkey.StoreKey]map[place]bool{}}
		m.pods[p.Name] = old
	}
	created = old.reg.Name == ""
	old.reg, old.until = p, 0
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

// Apply makes the changes of the batches.
func (m *Model) Apply(batches ...store.Batch) {
	for _, b := range batches {
		if m.pods[b.Pod] == nil {
			m.Register(store.Pod{Name: b.Pod, Model: b.Model})
		}
		p := m.pods[b.Pod]
		for _, op := range b.Ops {
			hit := func(x place, _ bool) bool {
				return (op.AllRanks || x.rank == b.Rank) && (op.Tier == store.AllTiers || x.tier == op.Tier)
			}
			for _, k := range op.Keys {
				sk := k.In(store.Mask(b.Model))
				switch {
				case op.Kind == store.Remove:
					maps.DeleteFunc(p.blocks[sk], hit)
				case p.blocks[sk] == nil:
					p.blocks[sk] = map[place]bool{{b.Rank, op.Tier}: true}
				default:
					p.blocks[sk][place{b.Rank, op.Tier}] = true
				}
			}
			if op.Kind == store.Clear {
				for _, at := range p.blocks {
					maps.DeleteFunc(at, hit)
				}
			}
		}
	}
}

// Pods returns the live pods, ascending by name.
func (m *Model) Pods() []store.Pod {
	var out []store.Pod
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		out = append(out, m.pods[name].reg)
	}
	return out
}

// Lookup returns who holds the blocks of a chain.
func (m *Model) Lookup(mask blockkey.Model, keys []blockkey.Key) Answer {
	out := make(Answer, len(keys))
	names := slices.Sorted(maps.Keys(m.pods))
	for i, k := range keys {
		for _, name := range names {
			for x := range m.pods[name].blocks[k.In(mask)] {
				out[i] = append(out[i], At{name, x.rank, x.tier})
			}
		}
		slices.SortFunc(out[i], compareAt)
	}
	return out
}
