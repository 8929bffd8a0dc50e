package feed

import (
	"cmp"
	"context"
	"slices"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// Prefix is how much of a chain one worker of an instance holds, from its first chunk.
type Prefix struct {
	// Instance and Worker are LMCache's, and Pod is the pod that it works for.
	Instance string
	Pod      string
	Worker   int
	// Workers is how many the instance has.
	Workers int
	// Chunks is how many chunks of the chain it holds, all from the first on, and Tier
	// where the last of them is.
	Chunks int
	Tier   store.Tier
	// Peer is where its peers fetch chunks, "" is nowhere.
	Peer string
}

// Prefixes asks the index which workers hold the beginning of a chain of chunks, longest
// first, then by instance and worker.
func Prefixes(ctx context.Context, index store.Index, model string, keys []blockkey.Key) ([]Prefix, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var f prefixes
	if err := index.Lookup(ctx, &store.Query{Model: blockkey.ModelOf(model), Keys: keys, Fold: &f}); err != nil {
		return nil, err
	}
	var out []Prefix
	for slot, n := range f.have {
		pod := &f.registry.Pods[f.registry.Slots[slot].Pod]
		if n == 0 || pod.PartOf == nil || pod.Labels[LabelInstance] == "" {
			continue
		}
		out = append(out, Prefix{
			Instance: pod.Labels[LabelInstance], Pod: pod.PartOf.Pod, Worker: pod.PartOf.Worker, Workers: pod.PartOf.Workers,
			Chunks: n, Tier: f.tier[slot], Peer: pod.Labels[LabelPeer],
		})
	}
	slices.SortFunc(out, func(a, b Prefix) int {
		return cmp.Or(cmp.Compare(b.Chunks, a.Chunks), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Worker, b.Worker))
	})
	return out, nil
}

// Whole makes one Prefix of those of an instance's workers: what all of them hold. An
// instance of which a worker holds nothing is left out.
func Whole(list []Prefix) []Prefix {
	var out []Prefix
	at := map[share]int{}
	count := map[share]int{}
	type part struct {
		share
		worker int
	}
	seen := map[part]bool{}
	for _, p := range list {
		in := share{p.Instance, p.Pod}
		id := part{in, p.Worker}
		if seen[id] { // of another target: the same memory
			continue
		}
		seen[id] = true
		count[in]++
		if i, ok := at[in]; !ok {
			at[in] = len(out)
			out = append(out, p)
		} else if out[i].Workers = max(out[i].Workers, p.Workers); p.Chunks < out[i].Chunks {
			out[i].Chunks, out[i].Tier = p.Chunks, p.Tier
		}
	}
	out = slices.DeleteFunc(out, func(p Prefix) bool { return count[share{p.Instance, p.Pod}] < p.Workers })
	slices.SortStableFunc(out, func(a, b Prefix) int { return cmp.Compare(b.Chunks, a.Chunks) })
	return out
}

// share is what an instance has for one pod: instances of others may have the same id.
type share struct{ instance, pod string }

// prefixes is the store.Folder of Prefixes.
type prefixes struct {
	registry *store.Registry
	have     []int // by slot
	tier     []store.Tier
	at       int
}

// Begin implements store.Folder.
func (f *prefixes) Begin(r *store.Registry) {
	f.registry = r
	f.have = make([]int, len(r.Slots))
	f.tier = make([]store.Tier, len(r.Slots))
}

// Run implements store.Folder.
func (f *prefixes) Run(n int, holders []store.HolderID) (more bool) {
	for _, id := range holders {
		slot, tier, live := f.registry.Holder(id)
		if !live {
			continue
		}
		switch f.have[slot] {
		case f.at:
			f.have[slot], f.tier[slot] = f.at+n, tier
			more = true
		case f.at + n:
			f.tier[slot] = min(f.tier[slot], tier)
		}
	}
	f.at += n
	return more
}
