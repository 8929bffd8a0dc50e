package scorer_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
)

const crowdBlock = 4 // tokens

// crowd is a chain whose blocks many hold, and in which holders come, go and come back. It is an
// index that has this chain alone, and cuts its runs at random.
type crowd struct {
	pods         []store.Pod
	holders      map[store.HolderID]store.Holder // also of lives that have ended: of pods that are not there
	blocks       [][]store.HolderID
	unregistered bool // pods that are not registered count
	limited      bool // an engine that holds nothing has limits
	rng          *rand.Rand
}

// holdersOf are what a rank of a crowd may hold a block in.
var holdersOf = []store.Tier{store.GPU, store.CPU, store.Disk, store.Shared, store.GPU.Window(), store.Disk.Window(), store.Predicted}

// drawCrowd draws a crowd. One that is plain can be put into an index.
func drawCrowd(t *rapid.T, plain bool) *crowd {
	c := &crowd{holders: map[store.HolderID]store.Holder{}, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 7))}
	most := 8
	if rapid.IntRange(0, 4).Draw(t, "large") == 0 {
		most = 300
	}
	pods := rapid.IntRange(1, most).Draw(t, "pods")
	kinds := rapid.IntRange(1, len(holdersOf)).Draw(t, "kinds")
	twice := 1
	if !plain {
		twice = rapid.IntRange(1, 3).Draw(t, "holders of one tier")
	}
	var ids []store.HolderID
	for p := range pods {
		pod := store.Pod{Name: fmt.Sprintf("10.0.0.%d:8000", p), Model: "m"}
		ended := false
		if !plain {
			switch c.rng.IntN(10) {
			case 0:
				pod.Model = "" // only a value names it
			case 1:
				pod.PartOf = &store.PartOf{Pod: "10.0.0.0:8000", Worker: p, Workers: pods}
			case 2:
				ended = true
			}
		}
		if !ended {
			c.pods = append(c.pods, pod)
		}
		for rank := range 1 + c.rng.IntN(4) {
			for _, tier := range holdersOf[:kinds] {
				for range c.rng.IntN(twice + 1) {
					id := store.HolderID(len(ids) + 1)
					ids = append(ids, id)
					c.holders[id] = store.Holder{ID: id, Pod: pod.Name, Rank: rank, Tier: tier}
				}
			}
		}
	}
	c.unregistered = rapid.Bool().Draw(t, "unregistered")
	if !plain && rapid.IntRange(0, 3).Draw(t, "limited") == 0 {
		c.limited = true
		c.pods = append(c.pods, store.Pod{Name: "limited", Model: "m", BlockSize: 4 * crowdBlock})
		c.holders[1<<20] = store.Holder{ID: 1 << 20, Pod: "limited", Tier: store.GPU}
	}
	c.drawBlocks(t, ids)
	return c
}

// drawBlocks draws the holders of each block: nearly those of the block before, others, those of any earlier
// one again, one alone, or none.
func (c *crowd) drawBlocks(t *rapid.T, ids []store.HolderID) {
	now := map[store.HolderID]bool{}
	for _, id := range ids {
		now[id] = c.rng.IntN(4) > 0
	}
	calm := rapid.IntRange(1, 12).Draw(t, "calm")
	for range rapid.IntRange(0, 40).Draw(t, "blocks") {
		switch what := c.rng.IntN(calm + 5); {
		case len(ids) == 0:
		case what == 0 && len(c.blocks) > 0: // as an earlier block
			again := c.blocks[c.rng.IntN(len(c.blocks))]
			clear(now)
			for _, id := range again {
				now[id] = true
			}
		case what == 1: // none, or one alone
			if clear(now); c.rng.IntN(3) > 0 {
				now[ids[c.rng.IntN(len(ids))]] = true
			}
		case what == 2: // others
			for _, id := range ids {
				now[id] = c.rng.IntN(2) == 0
			}
		case what == 3: // some have gone
			for id := range now {
				now[id] = now[id] && c.rng.IntN(5) > 0
			}
		case what < 6: // some come or go
			for range 1 + c.rng.IntN(4) {
				id := ids[c.rng.IntN(len(ids))]
				now[id] = !now[id]
			}
		}
		var held []store.HolderID
		for _, id := range ids {
			if now[id] {
				held = append(held, id)
			}
		}
		c.blocks = append(c.blocks, held)
	}
}

func (c *crowd) Cached() *store.Registry {
	return store.NewRegistry(1, nil, nil, map[string]store.ModelInfo{"m": c.model()}, time.Time{})
}

func (c *crowd) model() store.ModelInfo {
	return store.ModelInfo{Name: "m", BlockSize: crowdBlock, Scheme: store.SchemeNative, Unregistered: c.unregistered}
}

// Lookup reports the chain, whatever the keys are, in runs that end anywhere. Queries take turns.
func (c *crowd) Lookup(_ context.Context, queries ...*store.Query) error {
	var holders []store.Holder
	for _, h := range c.holders {
		holders = append(holders, h)
	}
	reg := store.NewRegistry(1, slices.Clone(c.pods), holders, map[string]store.ModelInfo{"m": c.model()}, time.Time{})
	at := map[*store.Query]int{}
	var open []*store.Query
	for _, q := range queries {
		q.Fold.Begin(reg)
		if len(q.Keys) > 0 {
			open = append(open, q)
		}
	}
	var ids []store.HolderID
	for len(open) > 0 {
		k := c.rng.IntN(len(open))
		q := open[k]
		i, n := at[q], 1
		for i+n < len(q.Keys) && slices.Equal(c.blocks[i+n], c.blocks[i]) && c.rng.IntN(4) > 0 {
			n++
		}
		ids = append(ids[:0], c.blocks[i]...)
		more := q.Fold.Run(n, ids)
		clear(ids) // good during the call alone
		if at[q] += n; !more || at[q] == len(q.Keys) {
			open = slices.Delete(open, k, k+1)
		}
	}
	return nil
}

// AppendQueries implements scorer.Chunks: a cache beside the engines holds what they hold.
func (c *crowd) AppendQueries(dst []store.Query, _ string, _ []uint32, covered int) []store.Query {
	return append(dst, store.Query{Keys: make([]blockkey.Key, min(covered/crowdBlock, len(c.blocks))), Span: crowdBlock})
}

// hasWorkers reports whether a pod is a cache worker, which counts in chunks for another one.
func (c *crowd) hasWorkers() bool {
	return slices.ContainsFunc(c.pods, func(p store.Pod) bool { return p.PartOf != nil })
}

// counted is what counts of a rank.
type counted struct {
	held      scorer.TierCounts
	predicted int32
	highest   int32
}

// counts reports whether a pod is one to choose from.
func (c *crowd) counts(pod string, req *scorer.Request) bool {
	for i := range c.pods {
		if p := &c.pods[i]; p.Name == pod && p.PartOf == nil {
			if req.Pods != nil {
				return slices.Contains(req.Pods, pod)
			}
			return p.Model != "" || c.unregistered
		}
	}
	return false
}

// byRank counts block by block and rank by rank what a request finds, and how many leading blocks have a
// holder.
func (c *crowd) byRank(req *scorer.Request, w *scorer.Weights) (of map[rank]counted, reach int32) {
	of = map[rank]counted{}
	candidates := map[string]bool{}
	for _, p := range c.pods {
		candidates[p.Name] = c.counts(p.Name, req)
	}
	prefix := req.Strategy == scorer.LongestPrefix
	var alive map[rank]bool
	gap := false
	for i, ids := range c.blocks {
		best := map[rank]store.Tier{} // Predicted where a prediction is all
		for _, id := range ids {
			h := c.holders[id]
			r := rank{h.Pod, h.Rank}
			if !candidates[h.Pod] || h.Tier.IsWindow() || h.Tier == store.Predicted && !req.Predicted || prefix && i > 0 && !alive[r] {
				continue
			}
			had, has := best[r]
			switch {
			case !has || had == store.Predicted:
				best[r] = h.Tier
			case h.Tier == store.Predicted:
			case w[h.Tier] > w[had] || w[h.Tier] == w[had] && h.Tier < had:
				best[r] = h.Tier
			}
		}
		if gap = gap || len(best) == 0; !gap {
			reach++
		}
		alive = map[rank]bool{}
		for r, tier := range best {
			alive[r] = true
			had := of[r]
			if had.highest = int32(i + 1); tier == store.Predicted {
				had.predicted++
			}
			had.held[tier.Memory()]++
			of[r] = had
		}
		if prefix && (len(alive) == 0 || req.EarlyExit && len(alive) == 1) {
			break
		}
	}
	return of, reach
}

// ranking orders the pods by what their ranks hold.
func (c *crowd) ranking(of map[rank]counted, req *scorer.Request, w *scorer.Weights, room int) []scorer.PodScore {
	byPod := map[string]map[int]counted{}
	for r, n := range of {
		if byPod[r.pod] == nil {
			byPod[r.pod] = map[int]counted{}
		}
		byPod[r.pod][r.rank] = n
	}
	var all []scorer.PodScore
	for pod, ranks := range byPod {
		p := scorer.PodScore{Pod: pod, Score: -1}
		for r := range 4 {
			n, has := ranks[r]
			if !has {
				continue
			}
			blocks := n.held.Total()
			p.Ranks = append(p.Ranks, scorer.RankBlocks{Rank: r, Blocks: blocks})
			sum := 0.0
			var tiers []scorer.TierBlocks
			for tier, k := range n.held {
				if sum += float64(k) * w[tier]; k > 0 {
					tiers = append(tiers, scorer.TierBlocks{Tier: store.Tier(tier).String(), Blocks: int(k)})
				}
			}
			if sum = math.Round(sum*1e6) / 1e6; req.Strategy == scorer.HighestBlock {
				sum = float64(n.highest)
			}
			if sum > p.Score || sum == p.Score && blocks > p.Blocks {
				p.Score, p.Blocks, p.Tokens, p.Tiers, p.Predicted = sum, blocks, blocks*crowdBlock, tiers, int(n.predicted)
			}
		}
		if p.Reusable = -1; req.Strategy == scorer.LongestPrefix {
			p.Reusable = min(p.Tokens, room) / crowdBlock * crowdBlock
		}
		all = append(all, p)
	}
	for i, name := range req.Pods {
		worker := slices.ContainsFunc(c.pods, func(p store.Pod) bool { return p.Name == name && p.PartOf != nil })
		if byPod[name] == nil && !worker && !slices.Contains(req.Pods[:i], name) {
			all = append(all, scorer.PodScore{Pod: name})
		}
	}
	slices.SortFunc(all, func(a, b scorer.PodScore) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Pod, b.Pod))
	})
	return all
}

// drawRequest draws what is asked about a crowd.
func (c *crowd) drawRequest(t *rapid.T) scorer.Request {
	req := scorer.Request{Model: "m", Match: true, Strategy: rapid.SampledFrom(scorer.Strategies()).Draw(t, "strategy")}
	req.EarlyExit = req.Strategy == scorer.LongestPrefix && rapid.IntRange(0, 3).Draw(t, "early exit") == 0
	req.Predicted = rapid.Bool().Draw(t, "predicted")
	req.Explain = rapid.IntRange(0, 7).Draw(t, "explain") == 0
	if rapid.IntRange(0, 2).Draw(t, "is named") == 0 {
		req.Pods = []string{}
		for range rapid.IntRange(0, 12).Draw(t, "named") {
			name := "nobody"
			if k := rapid.IntRange(-1, len(c.pods)-1).Draw(t, "pod"); k >= 0 {
				name = c.pods[k].Name
			}
			if name != "limited" {
				req.Pods = append(req.Pods, name)
			}
		}
	}
	if rapid.Bool().Draw(t, "has top") {
		req.Top = rapid.IntRange(1, 12).Draw(t, "top")
	}
	return req
}

// check holds an answer against what was counted block by block.
func (c *crowd) check(t *rapid.T, req *scorer.Request, got *scorer.Response, w *scorer.Weights, room int) {
	t.Helper()
	of, reach := c.byRank(req, w)
	if got.Degraded != "" {
		t.Fatalf("degraded: %s", got.Degraded)
	}
	if m := got.Match; len(m.Keys) != len(c.blocks) || m.Reach != reach {
		t.Fatalf("%+v: reach %d of %d blocks, want %d of %d", req, m.Reach, len(m.Keys), reach, len(c.blocks))
	}
	found := 0
	for slot, at := range got.Match.Registry.Slots {
		r := rank{got.Match.Registry.Pods[at.Pod].Name, at.Rank}
		want, has := of[r]
		if has {
			found++
		}
		now := counted{held: got.Match.Held[slot], highest: got.Match.Highest[slot]}
		if req.Predicted {
			now.predicted = got.Match.Predicted[slot]
		}
		if now != want {
			t.Fatalf("%+v: %v holds %+v, want %+v", req, r, now, want)
		}
	}
	if found != len(of) {
		t.Fatalf("%d ranks that hold something have no slot", len(of)-found)
	}
	all := c.ranking(of, req, w, room)
	best := slices.IndexFunc(all, func(p scorer.PodScore) bool { return p.Pod == got.Best })
	switch {
	case len(all) == 0 || all[0].Score == 0:
		if got.Best != "" {
			t.Fatalf("%+v: the best is %s, and none scores", req, got.Best)
		}
	case best < 0 || all[best].Score != all[0].Score:
		t.Fatalf("%+v: the best is %q of %+v", req, got.Best, all)
	}
	n := len(all)
	if req.Top > 0 {
		n = min(n, req.Top)
	}
	want := slices.Clone(all[:n])
	if best >= n {
		want[n-1] = all[best]
	}
	if len(got.Pods) != n || got.LeftOut != len(all)-n || n > 0 && !reflect.DeepEqual(got.Pods, want) {
		t.Fatalf("%+v: %d left out of %+v\nwant %+v", req, got.LeftOut, got.Pods, want)
	}
}

// crowdWeights are some that make other tiers the best.
var crowdWeights = []scorer.Weights{scorer.DefaultWeights(), {1, 0.3, 0.8, 0.3}, {1, 1, 1, 1}, {0, 0.5, 1, 2}, {1, 0, 0, 0}}

// TestCrowd counts what many holders hold of a chain, which come, go and come back. It counts also
// by what engines and a cache beside them hold, and asks several things at once. A scorer's memory
// is used again for other chains, fleets and ways to count.
func TestCrowd(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom(crowdWeights).Draw(t, "weights")
		x := &crowds{}
		s := must.Get(scorer.New(scorer.Config{Index: x, Chunks: x, Weights: &w, BlockSize: crowdBlock, Budget: scorer.Unbounded}))(t)
		for range rapid.IntRange(1, 3).Draw(t, "crowds") {
			x.crowd = drawCrowd(t, false)
			tokens := firstTokens(len(x.blocks)*crowdBlock + rapid.IntRange(0, crowdBlock-1).Draw(t, "rest"))
			keys := blockKeys(crowdBlock, tokens)
			reqs := make([]scorer.Request, rapid.IntRange(1, 4).Draw(t, "requests"))
			rooms := make([]int, len(reqs))
			for i := range reqs {
				reqs[i] = x.drawRequest(t)
				reqs[i].Input, rooms[i] = scorer.BlockKeys(keys), math.MaxInt
				if !x.hasWorkers() && rapid.IntRange(0, 2).Draw(t, "with chunks") == 0 {
					reqs[i].Input, rooms[i] = scorer.Tokens(tokens), max(len(tokens)-1, 0)
				}
			}
			got := must.Get(s.ScoreAll(ctx, reqs))(t)
			for i := range reqs {
				x.check(t, &reqs[i], got[i], &w, rooms[i])
			}
		}
	})
}

// crowds is an index that another crowd can be put into.
type crowds struct{ *crowd }

// checkIn puts a crowd into an index, and asks that one.
func (c *crowd) checkIn(ctx context.Context, t *rapid.T, x store.Index) {
	must.Get(x.EnsureModel(ctx, store.ModelInfo{Name: "m", BlockSize: crowdBlock, Scheme: store.SchemeNative}))(t)
	for _, p := range c.pods {
		must.Get(x.Register(ctx, p))(t)
	}
	lora := rapid.SampledFrom([]string{"", "adapter"}).Draw(t, "adapter")
	tokens := firstTokens(len(c.blocks)*crowdBlock + rapid.IntRange(0, crowdBlock-1).Draw(t, "rest"))
	chain := blockkey.Chain{BlockSize: crowdBlock, Seed: blockkey.NativeSeed(lora, "")}
	keys := chain.Append(nil, tokens)
	batches := make([]store.Batch, len(c.holders))
	for id, h := range c.holders {
		op := store.Op{Kind: store.Add, Tier: h.Tier}
		if h.Tier == store.Predicted {
			op.Until = time.Now().Add(time.Hour)
		}
		for i, ids := range c.blocks {
			if _, holds := slices.BinarySearch(ids, id); holds {
				op.Keys = append(op.Keys, keys[i])
			}
		}
		batches[id-1] = store.Batch{Pod: h.Pod, Rank: h.Rank, Model: "m"}
		if len(op.Keys) > 0 {
			batches[id-1].Ops = []store.Op{op}
		}
	}
	for part := range slices.Chunk(slices.DeleteFunc(batches, func(b store.Batch) bool { return b.Ops == nil }), 32) {
		must.OK(t, x.Apply(ctx, part...))
	}
	w := rapid.SampledFrom(crowdWeights).Draw(t, "weights")
	s := must.Get(scorer.New(scorer.Config{Index: x, Weights: &w, Budget: scorer.Unbounded}))(t)
	reqs := make([]scorer.Request, rapid.IntRange(1, 6).Draw(t, "requests"))
	for i := range reqs {
		reqs[i] = c.drawRequest(t)
		reqs[i].Input, reqs[i].LoRA = scorer.Tokens(tokens), lora
	}
	got := must.Get(s.ScoreAll(ctx, reqs))(t)
	for i := range reqs {
		c.check(t, &reqs[i], got[i], &w, max(len(tokens)-1, 0))
	}
	// Blocks of one adapter do not match another's.
	other := must.Get(s.Score(ctx, scorer.Request{Model: "m", Input: scorer.Tokens(tokens), LoRA: "other"}))(t)
	if len(other.Pods) > 0 {
		t.Fatalf("another adapter's blocks are held by %+v", other.Pods)
	}
}

func TestCrowdMemory(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		x := must.Get(memory.New(memory.Config{}))(t)
		defer x.Close()
		drawCrowd(t, true).checkIn(ctx, t, x)
	})
}

func TestCrowdRedis(t *testing.T) {
	ctx := t.Context()
	url := redistest.Start(t).URL()
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		windows := []int{rapid.IntRange(1, 8).Draw(t, "window"), rapid.IntRange(1, 40).Draw(t, "windows")}
		x := must.Get(redis.Open(redis.Config{
			URL: url, Prefix: fmt.Sprintf("crowd%d", n.Add(1)), NoSweep: true, Windows: windows,
			DialTimeout: 20 * time.Second, Timeout: 20 * time.Second, // of a loaded machine
		}))(t)
		defer x.Close()
		drawCrowd(t, true).checkIn(ctx, t, x)
	})
}
