package scorer_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/chunks"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
)

// profile is one by which nothing but tokens, chunk size and tail go into a hash.
func profile(chunk int, tail bool) lmcache.Profile {
	return lmcache.Profile{Config: lmcache.Config{Version: lmcache.V031, ChunkSize: chunk, Tail: tail}}
}

func reader(t must.TB, mode lmcache.Mode, profiles ...lmcache.Profile) *chunks.Source {
	r := must.Get(lmcache.NewReader("m", mode, profiles...))(t)
	return &chunks.Source{Readers: map[string]*lmcache.Reader{"m": r}}
}

func chunkKeys(t must.TB, p lmcache.Profile, tokens []uint32) []blockkey.Key {
	h := must.Get(lmcache.New(p.Config))(t)
	var keys []blockkey.Key
	for _, hash := range h.Append(nil, tokens) {
		keys = append(keys, hash.ChunkKey())
	}
	return keys
}

// rank is a (pod, rank) that is scored, unit what holds chunks for one: itself, or an
// instance of cache workers.
type rank struct {
	pod  string
	rank int
}

// worker is one of an instance.
type worker struct {
	pod  string // the registration's name
	part *store.PartOf
}

// cache is what one thing that has chunks or blocks holds: by tier, which pieces.
type cache map[store.Tier]map[int]bool

// joinWorld is a drawn state of the world.
type joinWorld struct {
	size     int // block size
	tokens   []uint32
	profiles []lmcache.Profile
	ranks    []rank
	// instances are lists of workers. A worker's chunks are by profile.
	instances [][]worker
	native    map[rank]cache
	direct    []map[rank]cache   // chunks that a rank holds itself, by profile
	shares    []map[string]cache // those of workers
}

func drawWorld(t *rapid.T) *joinWorld {
	w := &joinWorld{size: rapid.IntRange(1, 9).Draw(t, "block size")}
	n := rapid.IntRange(0, 60).Draw(t, "tokens")
	for i := range n {
		w.tokens = append(w.tokens, uint32(i*i))
	}
	for i := range rapid.IntRange(1, 2).Draw(t, "profiles") {
		p := profile(rapid.IntRange(1, 20).Draw(t, fmt.Sprint("chunk", i)), rapid.Bool().Draw(t, fmt.Sprint("tail", i)))
		if i > 0 {
			p.Version = lmcache.V01 // hashes otherwise: equal tokens in chunks would be one chunk
		}
		w.profiles = append(w.profiles, p)
	}
	for p := range rapid.IntRange(1, 3).Draw(t, "pods") {
		for r := range rapid.IntRange(1, 2).Draw(t, "ranks") {
			w.ranks = append(w.ranks, rank{fmt.Sprintf("p%d", p), r})
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "instances") {
		of := rapid.SampledFrom(w.ranks).Draw(t, "of")
		workers := rapid.IntRange(1, 3).Draw(t, "workers")
		var list []worker
		for n := range workers {
			list = append(list, worker{fmt.Sprintf("%s/i%d/lmcache/%d", of.pod, i, n), &store.PartOf{Pod: of.pod, Rank: of.rank, Worker: n, Workers: workers}})
		}
		w.instances = append(w.instances, list)
	}
	// Mostly long stretches, so that chains go on.
	holds := func(pieces int, label string) cache {
		c := cache{}
		for _, tier := range []store.Tier{store.GPU, store.CPU, store.Disk} {
			from := rapid.IntRange(0, max(0, pieces/3)).Draw(t, label+" from")
			to := rapid.IntRange(0, pieces).Draw(t, label+" to")
			hole := rapid.IntRange(0, 2*pieces).Draw(t, label+" hole")
			for i := from; i < to; i++ {
				if i == hole {
					continue
				}
				if c[tier] == nil {
					c[tier] = map[int]bool{}
				}
				c[tier][i] = true
			}
		}
		return c
	}
	w.native = map[rank]cache{}
	for _, r := range w.ranks {
		if rapid.Bool().Draw(t, "native") {
			w.native[r] = holds(n/w.size, "blocks")
		}
	}
	for _, p := range w.profiles {
		chunks := len(chunkKeys(t, p, w.tokens))
		direct, shares := map[rank]cache{}, map[string]cache{}
		for _, r := range w.ranks {
			if rapid.IntRange(0, 3).Draw(t, "direct") == 0 {
				direct[r] = holds(chunks, "chunks")
			}
		}
		for _, list := range w.instances {
			for _, wk := range list {
				shares[wk.pod] = holds(chunks, "share")
			}
		}
		w.direct, w.shares = append(w.direct, direct), append(w.shares, shares)
	}
	return w
}

// plain has the holders of each block and their best tier, found token by token.
func (w *joinWorld) plain(t *rapid.T, weights scorer.Weights) []map[rank]store.Tier {
	better := func(a, b store.Tier) bool { return weights[a] > weights[b] || weights[a] == weights[b] && a < b }
	bestOf := func(c cache, piece int) (best store.Tier, has bool) {
		for tier, pieces := range c {
			if pieces[piece] && (!has || better(tier, best)) {
				best, has = tier, true
			}
		}
		return best, has
	}
	out := make([]map[rank]store.Tier, len(w.tokens)/w.size)
	for b := range out {
		out[b] = map[rank]store.Tier{}
		credit := func(r rank, tier store.Tier) {
			if had, has := out[b][r]; !has || better(tier, had) {
				out[b][r] = tier
			}
		}
		for r, c := range w.native {
			if tier, has := bestOf(c, b); has {
				credit(r, tier)
			}
		}
		for i, p := range w.profiles {
			chunks := len(chunkKeys(t, p, w.tokens))
			// whole reports whether all that a unit consists of have every token.
			whole := func(parts ...cache) (worst store.Tier, all bool) {
				first := true
				for token := b * w.size; token < (b+1)*w.size; token++ {
					chunk := token / p.ChunkSize
					if chunk >= chunks {
						return 0, false
					}
					for _, c := range parts {
						tier, has := bestOf(c, chunk)
						if !has {
							return 0, false
						}
						if first || better(worst, tier) {
							worst, first = tier, false
						}
					}
				}
				return worst, true
			}
			for r, c := range w.direct[i] {
				if tier, all := whole(c); all {
					credit(r, tier)
				}
			}
			for _, list := range w.instances {
				var parts []cache
				for _, wk := range list {
					parts = append(parts, w.shares[i][wk.pod])
				}
				if tier, all := whole(parts...); all {
					credit(rank{list[0].part.Pod, list[0].part.Rank}, tier)
				}
			}
		}
	}
	return out
}

// expect writes the ranking of the plain model as "pod score blocks tiers; ...".
func (w *joinWorld) expect(t *rapid.T, st scorer.Strategy, weights scorer.Weights) string {
	blocks := w.plain(t, weights)
	type result struct {
		score  float64
		blocks int
		tiers  [store.NumTiers]int
		rank   int
	}
	best := map[string]result{}
	for _, r := range w.ranks {
		var res result
		res.rank = r.rank
		last := 0
		for b, held := range blocks {
			tier, has := held[r]
			if !has {
				if st == scorer.LongestPrefix {
					break
				}
				continue
			}
			res.tiers[tier]++
			res.blocks++
			last = b + 1
		}
		if res.blocks == 0 {
			continue
		}
		for tier, n := range res.tiers {
			res.score += float64(n) * weights[tier]
		}
		res.score = math.Round(res.score*1e6) / 1e6
		if st == scorer.HighestBlock {
			res.score = float64(last)
		}
		if had, has := best[r.pod]; !has || res.score > had.score || res.score == had.score && res.blocks > had.blocks {
			best[r.pod] = res
		}
	}
	var lines []string
	for _, pod := range slices.Sorted(maps.Keys(best)) {
		r := best[pod]
		lines = append(lines, fmt.Sprintf("%s %v %d %v", pod, r.score, r.blocks, r.tiers))
	}
	return strings.Join(lines, "; ")
}

func written(r *scorer.Response) string {
	pods := slices.Clone(r.Pods)
	slices.SortFunc(pods, func(a, b scorer.PodScore) int { return cmp.Compare(a.Pod, b.Pod) })
	var lines []string
	for _, p := range pods {
		var tiers [store.NumTiers]int
		for _, t := range p.Tiers {
			tier, _ := store.ParseTier(t.Tier)
			tiers[tier] = t.Blocks
		}
		lines = append(lines, fmt.Sprintf("%s %v %d %v", p.Pod, p.Score, p.Blocks, tiers))
	}
	return strings.Join(lines, "; ")
}

// registrations are the pods, and batches what they hold.
func (w *joinWorld) registrations() []store.Pod {
	var pods []store.Pod
	for _, r := range w.ranks {
		if r.rank == 0 {
			pods = append(pods, store.Pod{Name: r.pod, Model: "m", Ranks: 2})
		}
	}
	for _, list := range w.instances {
		for _, wk := range list {
			pods = append(pods, store.Pod{Name: wk.pod, Model: "m", PartOf: wk.part})
		}
	}
	return pods
}

func (w *joinWorld) each(t *rapid.T, add func(pod string, rank int, tier store.Tier, keys []blockkey.Key)) {
	pick := func(c cache, keys []blockkey.Key, pod string, rank int) {
		for tier, pieces := range c {
			var list []blockkey.Key
			for i := range pieces {
				list = append(list, keys[i])
			}
			if len(list) > 0 {
				add(pod, rank, tier, list)
			}
		}
	}
	chain := blockkey.Chain{BlockSize: w.size, Seed: blockkey.NativeSeed("", "")}
	blocks := chain.Append(nil, w.tokens)
	for r, c := range w.native {
		pick(c, blocks, r.pod, r.rank)
	}
	for i, p := range w.profiles {
		keys := chunkKeys(t, p, w.tokens)
		for r, c := range w.direct[i] {
			pick(c, keys, r.pod, r.rank)
		}
		for pod, c := range w.shares[i] {
			pick(c, keys, pod, 0)
		}
	}
}

// fill puts the world into an index.
func (w *joinWorld) fill(ctx context.Context, t *rapid.T, x store.Index) {
	must.Get(x.EnsureModel(ctx, store.ModelInfo{Name: "m", BlockSize: w.size, Scheme: store.SchemeNative}))(t)
	for _, p := range w.registrations() {
		must.Get(x.Register(ctx, p))(t)
	}
	w.each(t, func(pod string, rank int, tier store.Tier, keys []blockkey.Key) {
		must.OK(t, x.Apply(ctx, store.Batch{Pod: pod, Rank: rank, Model: "m", Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: keys}}}))
	})
}

// check compares every strategy with the plain model, and the explanation with it.
func (w *joinWorld) check(ctx context.Context, t *rapid.T, x scorer.Looker) {
	weights := scorer.Weights{store.GPU: 1, store.CPU: 0.8, store.Disk: 0.5, store.Shared: 0.3}
	if rapid.Bool().Draw(t, "turned weights") {
		weights = scorer.Weights{store.GPU: 1, store.CPU: 0.3, store.Disk: 0.8, store.Shared: 0.3}
	}
	s := must.Get(scorer.New(scorer.Config{Index: x, Chunks: reader(t, lmcache.NoEntries, w.profiles...), Weights: &weights, BlockSize: w.size, Budget: 30e9}))(t)
	for _, st := range scorer.Strategies() {
		for _, explain := range []bool{false, true} {
			r, err := s.Score(ctx, scorer.Request{Model: "m", Input: scorer.Tokens(w.tokens), Strategy: st, Explain: explain})
			if err != nil || r.Degraded != "" {
				t.Fatal(err, r)
			}
			if got, want := written(r), w.expect(t, st, weights); got != want {
				t.Fatalf("%s, explain %v:\ngot  %s\nwant %s", st, explain, got, want)
			}
			if explain {
				w.checkExplanation(t, r.Explanation, weights)
			}
		}
	}
}

func (w *joinWorld) checkExplanation(t *rapid.T, ex *scorer.Explanation, weights scorer.Weights) {
	blocks := w.plain(t, weights)
	if len(ex.Blocks) != len(blocks) {
		t.Fatalf("%d blocks explained of %d", len(ex.Blocks), len(blocks))
	}
	for b, held := range blocks {
		got := map[rank]store.Tier{}
		for i, h := range ex.Blocks[b].Holders {
			if i > 0 && h == ex.Blocks[b].Holders[i-1] {
				t.Fatalf("block %d names %v twice", b, h)
			}
			tier, _ := store.ParseTier(h.Tier)
			r := rank{h.Pod, h.Rank}
			if had, has := got[r]; !has || weights[tier] > weights[had] || weights[tier] == weights[had] && tier < had {
				got[r] = tier
			}
		}
		if !maps.Equal(got, held) {
			t.Fatalf("block %d: %v, want %v", b, got, held)
		}
	}
}

func TestJoinIsPlainMemory(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		x := must.Get(memory.New(memory.Config{}))(t)
		defer x.Close()
		w := drawWorld(t)
		w.fill(ctx, t, x)
		w.check(ctx, t, x)
	})
}

func TestJoinIsPlainRedis(t *testing.T) {
	ctx := t.Context()
	url := redistest.Start(t).URL()
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		windows := []int{rapid.IntRange(1, 8).Draw(t, "window"), rapid.IntRange(1, 20).Draw(t, "windows")}
		x := must.Get(redis.Open(redis.Config{URL: url, Prefix: fmt.Sprintf("k%d", n.Add(1)), NoSweep: true, Windows: windows}))(t)
		defer x.Close()
		w := drawWorld(t)
		w.fill(ctx, t, x)
		w.check(ctx, t, x)
	})
}

// anyOrder tells folders of runs in any order of the queries, and cuts runs anywhere.
type anyOrder struct {
	*plainIndex
}

func (x anyOrder) Lookup(_ context.Context, queries ...*store.Query) error {
	reg := x.registry()
	begin := x.rng.Perm(len(queries))
	// As store/replica does while it hands over: some begin with their first run.
	late := map[int]bool{}
	for _, i := range begin {
		if late[i] = x.rng.IntN(4) == 0; !late[i] {
			queries[i].Fold.Begin(reg)
		}
	}
	at := make([]int, len(queries))
	over := make([]bool, len(queries))
	for {
		var open []int
		for i, q := range queries {
			if !over[i] && at[i] < len(q.Keys) {
				open = append(open, i)
			}
		}
		if len(open) == 0 {
			break
		}
		i := open[x.rng.IntN(len(open))]
		q := queries[i]
		if late[i] {
			q.Fold.Begin(reg)
			late[i] = false
		}
		ids := x.at(q, at[i])
		n := 1
		for at[i]+n < len(q.Keys) && slices.Equal(x.at(q, at[i]+n), ids) && x.rng.IntN(3) > 0 {
			n++
		}
		at[i] += n
		over[i] = !q.Fold.Run(n, ids)
		clear(ids) // valid only during the call
	}
	for i, q := range queries {
		if late[i] {
			q.Fold.Begin(reg)
		}
	}
	return nil
}

func TestJoinIsPlainInAnyOrder(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(rt *rapid.T) {
		x := newPlainIndex(t)
		x.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		w := drawWorld(rt)
		x.pods = w.registrations()
		x.models["m"] = store.ModelInfo{Name: "m", BlockSize: w.size}
		for _, r := range w.ranks {
			x.holder(r.pod, r.rank, store.GPU)
		}
		w.each(rt, func(pod string, rank int, tier store.Tier, keys []blockkey.Key) { x.add("m", pod, rank, tier, keys...) })
		w.check(ctx, rt, anyOrder{x})
	})
}
