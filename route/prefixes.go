package route

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/route/demand"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

const (
	// MaxPrefixes is how many prefixes Router.Prefixes returns at most.
	MaxPrefixes = 100
	// maxSketches bounds how many models are counted. The one that was idle for longest makes room.
	maxSketches = 64
	// tellDemand is how often a process tells the others what it has counted of a model.
	tellDemand = 10 * time.Second
)

// demands counts the demand for prefixes by model.
type demands struct {
	process string // by which the others know this one

	mu     sync.Mutex // protects all below
	models map[string]*counter
}

// counter is what there is of a model.
type counter struct {
	*demand.Sketch
	used int64     // when a request was counted last, in microseconds of the Unix epoch
	told time.Time // when it was told last
}

// newDemands names the process by chance: two routers with one seed are two.
func newDemands() demands {
	return demands{process: strconv.FormatUint(rand.Uint64(), 36), models: map[string]*counter{}}
}

// noteDemand counts what a request's prompt begins with.
func (r *Router) noteDemand(model string, d *Decision) {
	if d.Again || d.Score == nil || d.Score.Match == nil || len(d.Score.Match.Keys) == 0 {
		return
	}
	r.demands.mu.Lock()
	defer r.demands.mu.Unlock()
	c := r.demands.models[model]
	if c == nil {
		c = r.demands.add(model)
	}
	if c.Skips() {
		return
	}
	at, held := d.RankRef, d.Cached()
	if d.Prefill != nil {
		at, held = d.Prefill.RankRef, d.Prefill.Cached()
	}
	c.used = r.c.Now().UnixMicro()
	c.Add(d.Score.Match.Keys, at, held/max(1, d.Score.Match.BlockSize), c.used)
}

// add begins to count for a model.
func (s *demands) add(model string) *counter {
	if len(s.models) >= maxSketches {
		oldest := ""
		for name, c := range s.models {
			if oldest == "" || c.used < s.models[oldest].used {
				oldest = name
			}
		}
		delete(s.models, oldest)
	}
	c := &counter{Sketch: demand.New()}
	s.models[model] = c
	return c
}

// counted returns what was counted here of a model, if anything was. With every above 0 it is
// only returned when it was not for so long.
func (r *Router) counted(model string, every time.Duration) (out demand.Counted, ok bool) {
	now := r.c.Now()
	r.demands.mu.Lock()
	defer r.demands.mu.Unlock()
	c := r.demands.models[model]
	if c == nil || every > 0 && now.Sub(c.told) < every {
		return out, false
	}
	if every > 0 {
		c.told = now
	}
	return c.Counted(now.UnixMicro()), true
}

// shareDemand tells the other routers what was counted here, every now and then.
func (r *Router) shareDemand(ctx context.Context, model string) error {
	if r.c.Notes == nil {
		return nil
	}
	c, due := r.counted(model, tellDemand)
	if !due {
		return nil
	}
	b, err := c.Encode()
	if err != nil {
		return err
	}
	return r.c.Notes.PutDemand(ctx, model, r.demands.process, b)
}

// Prefixes are the beginnings of prompts that are asked for most.
type Prefixes struct {
	// Requests is how many requests of the model were counted of late: half of them fade in
	// demand.HalfLife.
	Requests float64
	// BlockSize is the index block size; it may be 0 of an empty list.
	BlockSize int
	// List are the prefixes, those first that are asked for most.
	List []HotPrefix
	// Alone says that what other processes have counted could not be read: the list is of this
	// process alone. Unheld says that the index did not name the holders, and why.
	Alone  bool
	Unheld scorer.Degradation
}

// HotPrefix is a prefix that is asked for, with its holders.
type HotPrefix struct {
	demand.Prefix
	// Holders hold all of it, by pod and rank.
	Holders []Holder
	// Copies is on how many ranks it should be, by how much it is asked for. Lacking are the
	// ranks that should hold it besides the holders, first those that need it most.
	Copies  int
	Lacking []store.RankRef
}

// Holder is a rank that holds a prefix.
type Holder struct {
	store.RankRef
	// Tier is the slowest that part of it is in.
	Tier store.Tier
}

// Prefixes returns the prefixes of a model that requests were routed with most of late, up to
// most of them. It counts all routers as far as each has reported, which other processes did up
// to 12 s ago.
func (r *Router) Prefixes(ctx context.Context, model string, most int) (Prefixes, error) {
	var out Prefixes
	told, err := r.gatherDemand(ctx, model)
	if err != nil {
		out.Alone = true
	}
	reg := r.c.Pods.Cached()
	list, requests := demand.Merge(told, r.c.Now().UnixMicro(), min(most, MaxPrefixes))
	out.Requests = requests
	out.BlockSize = reg.Models[model].BlockSize
	var places []store.RankRef
	for i := range reg.Pods {
		if p := &reg.Pods[i]; p.Model == model && p.PartOf == nil && p.Role != "decode" {
			for rank := range max(1, p.Ranks) {
				places = append(places, store.RankRef{Pod: p.Name, Rank: rank})
			}
		}
	}
	for i := range list {
		h := HotPrefix{Prefix: list[i], Copies: list[i].Copies(max(1, len(places)))}
		if out.Unheld == "" {
			if h.Holders, err = r.holders(ctx, model, &list[i], &out); err != nil {
				return Prefixes{}, err
			}
		}
		if out.Unheld == "" {
			var held []store.RankRef
			for _, x := range h.Holders {
				held = append(held, x.RankRef)
			}
			h.Lacking = h.Prefix.Lacking(places, held)
		}
		out.List = append(out.List, h)
	}
	return out, nil
}

// gatherDemand returns what was counted here and by other processes. With an error it is what was
// counted here.
func (r *Router) gatherDemand(ctx context.Context, model string) (out []demand.Counted, err error) {
	if own, ok := r.counted(model, 0); ok {
		out = append(out, own)
	}
	if r.c.Notes == nil {
		return out, nil
	}
	all, err := r.c.Notes.Demand(ctx, model)
	for process, b := range all {
		if process == r.demands.process {
			continue
		}
		c, wrong := demand.Decode(b)
		if wrong != nil { // of a later version
			err = errors.Join(err, wrong)
			continue
		}
		out = append(out, c)
	}
	return out, err
}

// holders returns the holders of all blocks of a prefix that are counted, and writes into all what the
// index told besides.
func (r *Router) holders(ctx context.Context, model string, p *demand.Prefix, all *Prefixes) (out []Holder, err error) {
	resp, err := r.c.Scorer.Score(ctx, scorer.Request{
		Model: model, Input: scorer.BlockKeys(p.Chain), Strategy: scorer.LongestPrefix, Match: true, Predicted: true,
	})
	if err != nil {
		return nil, err
	}
	all.BlockSize = resp.BlockSize
	m := resp.Match
	if m == nil || m.Registry == nil || resp.Degraded == scorer.IndexUnavailable || resp.Degraded == scorer.IndexTimeout {
		if all.Unheld = resp.Degraded; all.Unheld == "" {
			all.Unheld = scorer.IndexUnavailable
		}
		return nil, nil
	}
	for i := range m.Registry.Pods {
		if m.Registry.Pods[i].Model != model || m.Registry.Pods[i].PartOf != nil {
			continue
		}
		for rank := range max(1, m.Registry.Pods[i].Ranks) {
			slot, ok := m.Registry.Slot(i, rank)
			if !ok || slot >= len(m.Held) || m.Held[slot].Total() < len(p.Chain) {
				continue
			}
			h := Holder{RankRef: store.RankRef{Pod: m.Registry.Pods[i].Name, Rank: rank}}
			for tier, n := range m.Held[slot] {
				if n > 0 {
					h.Tier = store.Tier(tier)
				}
			}
			out = append(out, h)
		}
	}
	return out, nil
}
