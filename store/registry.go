package store

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Slot is one (pod, rank) of a registry. Slots are dense small integers, so
// that a fold keeps its state in arrays and names come in only at the end.
type Slot struct {
	// Pod is the pod's index in Registry.Pods.
	Pod int
	// Rank is the data-parallel rank.
	Rank int
}

// Holder is a live (pod, rank, tier) and its id.
type Holder struct {
	ID   HolderID
	Pod  string
	Rank int
	Tier Tier
	// Reuse is what is known of the engine in the rank's generation, the same for all
	// holders of the rank.
	Reuse Reuse
	// Generation is the rank's present one; 0 where Begin has begun none and the index
	// gives none by itself.
	Generation Generation
	// Until is when a holder in tier Predicted ends, by the clock of the index; zero of all
	// others.
	Until time.Time
}

// Registry is an immutable picture of the pods, holders and models of an index
// at one moment. It is safe for concurrent use.
//
// Liveness is part of it. A pod whose lease has run out is not in a registry
// that is loaded afterwards. ValidUntil says when the first lease of this one
// runs out.
type Registry struct {
	// Epoch is the value of the epoch counter that it was loaded at.
	Epoch uint64
	// Pods are the live pods, ascending by name.
	Pods []Pod
	// Slots are the (pod, rank) pairs that hold or may hold blocks, ascending
	// by pod and rank.
	Slots []Slot
	// Models are the models by name.
	Models map[string]ModelInfo
	// ValidUntil is the local time at which the first lease runs out unless it
	// is renewed; zero when no pod has a lease.
	ValidUntil time.Time

	// pages finds a holder by id: page id/pageSize, entry id%pageSize. Ids are
	// never reused, so most of a long history is absent pages.
	pages map[HolderID]*holderPage
	// dense is the same as an array that begins with page first, for ids that
	// are not too far apart. A fold asks for each holder of each run.
	dense []*holderPage
	first HolderID

	// generations is by slot; nil where no rank has one.
	generations []Generation
	// reuse is by slot; nil where nothing is known of any.
	reuse []Reuse
	// largestBlock is that of all slots' engines, in tokens; windows is whether any has them.
	largestBlock int
	windows      bool

	// guests is whether a pod is there that is not registered.
	guests bool
	// engines are the kinds of engine by model, made when the first is asked for.
	engines func() map[string]string

	// predicted are the holders in tier Predicted, by slot; nil where there are none.
	predicted map[int][]Holder

	// plain are the plain names of registrations beside others, by their place in Pods;
	// nil where there are none.
	plain map[int]string

	// readings are what the names of models mean, made when the first is asked for.
	readings func() map[string]Reading

	// workers says what the slots of cache workers count for; nil where there are
	// none. instances is how many they have.
	workers   []Worker
	instances int
}

// FirstLocal is the first of the ids that no index gives to holders. They name
// holders within one Registry only: pods that an index credits by another way than
// an id. Holder knows them, Holders leaves them out.
const FirstLocal HolderID = 0xf0000000

// Everyone stands in the answer to a query of Entries for all pods of the model, in tier
// shared. It means what lies in a store that belongs to none of them. No registry knows it.
const Everyone = ^HolderID(0)

// maxDense is the most pages that dense has, absent ones included.
const maxDense = 4096

const pageSize = 256

// holderPage has slot+1 in the upper bits and the tier in the lower 8 of each
// entry; 0 is no live holder.
type holderPage [pageSize]uint32

// NewRegistry builds a registry. Holders of pods that are not in pods are left
// out. The ranks that cache workers work for have slots, whether they hold anything
// themselves or not. It takes ownership of its arguments.
func NewRegistry(epoch uint64, pods []Pod, holders []Holder, models map[string]ModelInfo, validUntil time.Time) *Registry {
	slices.SortFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	if models == nil {
		models = map[string]ModelInfo{}
	}
	r := &Registry{Epoch: epoch, Pods: pods, Models: models, ValidUntil: validUntil, pages: map[HolderID]*holderPage{}}
	holders = withTargets(pods, holders)
	slices.SortFunc(holders, func(a, b Holder) int {
		if a.Pod != b.Pod {
			return strings.Compare(a.Pod, b.Pod)
		}
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.ID, b.ID))
	})
	p := 0 // holders ascend by pod, as pods do
	for _, h := range holders {
		for p < len(pods) && pods[p].Name < h.Pod {
			p++
		}
		if p == len(pods) || pods[p].Name != h.Pod {
			continue
		}
		s := Slot{Pod: p, Rank: h.Rank}
		if n := len(r.Slots); n == 0 || r.Slots[n-1] != s {
			r.Slots = append(r.Slots, s)
		}
		r.setReuse(h.Reuse)
		r.setGeneration(h.Generation)
		if h.ID == 0 {
			continue // a rank that a cache worker works for
		}
		page := r.pages[h.ID/pageSize]
		if page == nil {
			page = new(holderPage)
			r.pages[h.ID/pageSize] = page
		}
		page[h.ID%pageSize] = uint32(len(r.Slots))<<8 | uint32(h.Tier)
		if h.Tier == Predicted {
			r.predict(h)
		}
	}
	r.readings = sync.OnceValue(func() map[string]Reading { return readNames(pods) })
	r.engines = sync.OnceValue(func() map[string]string { return enginesOf(pods) })
	r.densify()
	r.findBeside()
	r.findWorkers()
	r.findLimits()
	r.guests = slices.ContainsFunc(pods, func(p Pod) bool { return p.Model == "" })
	return r
}

// densify fills dense, if it does not become too long.
func (r *Registry) densify() {
	if len(r.pages) == 0 {
		return
	}
	first, last := ^HolderID(0), HolderID(0)
	for n := range r.pages {
		if n < FirstLocal/pageSize {
			first, last = min(first, n), max(last, n)
		}
	}
	if last < first || last-first >= maxDense {
		return
	}
	r.first = first
	r.dense = make([]*holderPage, last-first+1)
	for n, page := range r.pages {
		if n < FirstLocal/pageSize {
			r.dense[n-first] = page
		}
	}
}

// Holder returns the slot and the tier of memory of a holder. Result live is false when the
// id belongs to an ended generation, or to a holder in a window tier.
func (r *Registry) Holder(id HolderID) (slot int, tier Tier, live bool) {
	slot, tier, live = r.AnyHolder(id)
	return slot, tier, live && tier < NumTiers
}

// AnyHolder returns the slot and the tier of a holder, which may be a window tier or
// Predicted. Result live is false when the id belongs to an ended generation.
func (r *Registry) AnyHolder(id HolderID) (slot int, tier Tier, live bool) {
	var page *holderPage
	if n := id/pageSize - r.first; n < HolderID(len(r.dense)) {
		page = r.dense[n]
	} else if r.dense == nil || id >= FirstLocal {
		page = r.pages[id/pageSize]
	}
	if page == nil {
		return 0, 0, false
	}
	e := page[id%pageSize]
	if e == 0 {
		return 0, 0, false
	}
	return int(e>>8) - 1, Tier(e & 0xff), true
}

// IsTold reports whether the id is that of a live holder that events or a write have reported: it is no
// prediction.
func (r *Registry) IsTold(id HolderID) bool {
	_, tier, live := r.AnyHolder(id)
	return live && tier != Predicted
}

// predict notes a holder in tier Predicted of the last slot so far.
func (r *Registry) predict(h Holder) {
	if r.predicted == nil {
		r.predicted = map[int][]Holder{}
	}
	slot := len(r.Slots) - 1
	r.predicted[slot] = append(r.predicted[slot], h)
}

// Predicted returns the live holders in tier Predicted of a rank.
func (r *Registry) Predicted(pod string, rank int) []Holder {
	if len(r.predicted) == 0 {
		return nil
	}
	p, known := r.PodIndex(pod)
	if !known {
		return nil
	}
	slot, known := r.Slot(p, rank)
	if !known {
		return nil
	}
	return r.predicted[slot]
}

// HasGuests reports whether Pods has some that are not registered. They are there only
// because a query, or a value, names them, and have no model.
func (r *Registry) HasGuests() bool { return r.guests }

// EngineOf returns the kind of engine that all live pods of a model have. It is empty where
// they differ, or where one of them does not say.
func (r *Registry) EngineOf(model string) string {
	if r.engines == nil {
		return "" // the zero Registry
	}
	return r.engines()[model]
}

// enginesOf is EngineOf of all models.
func enginesOf(pods []Pod) map[string]string {
	engines := map[string]string{}
	for i := range pods {
		p := &pods[i]
		if p.PartOf != nil {
			continue
		}
		if engine, found := engines[p.Model]; found && engine != p.Engine {
			engines[p.Model] = ""
		} else if !found {
			engines[p.Model] = p.Engine
		}
	}
	return engines
}

// setGeneration notes the generation of the last slot so far.
func (r *Registry) setGeneration(gen Generation) {
	if gen == 0 {
		return
	}
	r.generations = append(r.generations, make([]Generation, len(r.Slots)-len(r.generations))...)
	r.generations[len(r.Slots)-1] = gen
}

// Generation returns the present generation of a slot's rank, 0 where none is known. One
// that has begun shows with the rank's first block.
func (r *Registry) Generation(slot int) Generation {
	if slot < 0 || slot >= len(r.generations) {
		return 0
	}
	return r.generations[slot]
}

// Slot finds the slot of a rank. ok is false for a rank that never held anything.
func (r *Registry) Slot(pod, rank int) (slot int, ok bool) {
	want := Slot{Pod: pod, Rank: rank}
	return slices.BinarySearchFunc(r.Slots, want, func(a, b Slot) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank))
	})
}

// PodIndex finds a pod by name.
func (r *Registry) PodIndex(name string) (int, bool) {
	i := sort.Search(len(r.Pods), func(i int) bool { return r.Pods[i].Name >= name })
	return i, i < len(r.Pods) && r.Pods[i].Name == name
}

// Holders returns the live holders, ascending by pod, rank and tier.
func (r *Registry) Holders() []Holder {
	var out []Holder
	for page, entries := range r.pages {
		if page >= FirstLocal/pageSize {
			continue
		}
		for i, e := range entries {
			if e == 0 {
				continue
			}
			s := r.Slots[e>>8-1]
			h := Holder{ID: page*pageSize + HolderID(i), Pod: r.Pods[s.Pod].Name, Rank: s.Rank, Tier: Tier(e & 0xff)}
			if r.reuse != nil {
				h.Reuse = r.reuse[e>>8-1]
			}
			h.Generation = r.Generation(int(e>>8 - 1))
			if h.Tier == Predicted {
				continue
			}
			out = append(out, h)
		}
	}
	for _, list := range r.predicted {
		out = append(out, list...)
	}
	slices.SortFunc(out, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.ID, b.ID))
	})
	return out
}
