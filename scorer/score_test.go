package scorer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// errUnknownModel is of the tokenizers here.
var errUnknownModel = errors.New("unknown model")

var chain8 = []blockkey.Key{11, 12, 13, 14, 15, 16, 17, 18}

// TestWorkedExample is the worked example of Dynamo's indexer: blocks with the
// workers {1,2,3}, {1,2}, {1}.
func TestWorkedExample(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "1", 0, store.GPU, chain8[:3]...)
	x.add("m", "2", 0, store.GPU, chain8[:2]...)
	x.add("m", "3", 0, store.GPU, chain8[:1]...)
	s := newScorer(t, scorer.Config{Index: x})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8[:3])})
	if got, want := scores(r), (map[string]float64{"1": 3, "2": 2, "3": 1}); !maps.Equal(got, want) {
		t.Errorf("scores %v, want %v", got, want)
	}
	if r.Best != "1" {
		t.Errorf("best %q, want 1", r.Best)
	}
}

func TestEarlyExit(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "a", 0, store.GPU, chain8...)
	x.add("m", "b", 0, store.GPU, chain8[:2]...)
	s := newScorer(t, scorer.Config{Index: x})
	for range 20 { // the index cuts its runs at random
		r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8), EarlyExit: true})
		if got, want := scores(r), (map[string]float64{"a": 3, "b": 2}); !maps.Equal(got, want) {
			t.Fatalf("scores %v, want %v: the walk ends with the first block that only a holds", got, want)
		}
	}
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8), EarlyExit: true, Pods: []string{"a"}})
	if got, want := scores(r), (map[string]float64{"a": 1}); !maps.Equal(got, want) {
		t.Errorf("scores %v, want %v: one candidate is decided at once", got, want)
	}
}

// A long chain that no pod goes on with is not read to its end.
func TestStopsReading(t *testing.T) {
	x := newPlainIndex(t)
	keys := make([]blockkey.Key, 1000)
	for i := range keys {
		keys[i] = blockkey.Key(i + 1)
	}
	x.add("m", "a", 0, store.GPU, keys[:10]...)
	x.add("m", "b", 0, store.GPU, keys...)
	s := newScorer(t, scorer.Config{Index: x})
	score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Pods: []string{"a"}})
	if x.read > 500 {
		t.Errorf("read %d of 1,000 blocks for a candidate that holds 10", x.read)
	}
}

func TestCanceled(t *testing.T) {
	x := newPlainIndex(t)
	x.stall = time.Minute
	s := newScorer(t, scorer.Config{Index: x, Budget: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := s.Score(ctx, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8)}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestStrategies(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "head", 0, store.GPU, chain8[:3]...)
	x.add("m", "gap", 0, store.GPU, chain8[0], chain8[2], chain8[3], chain8[4])
	x.add("m", "tail", 0, store.GPU, chain8[7])
	x.add("m", "cold", 0, store.CPU, chain8[:4]...)
	x.add("m", "cold", 0, store.GPU, chain8[1])
	x.add("m", "ranks", 0, store.GPU, chain8[0])
	x.add("m", "ranks", 3, store.GPU, chain8[:2]...)
	x.add("other", "head", 0, store.GPU, chain8...)
	x.add("m", "ended", 0, store.GPU, chain8...)
	x.end("ended", 0, store.GPU)
	s := newScorer(t, scorer.Config{Index: x})

	for _, tc := range []struct {
		strategy scorer.Strategy
		pods     []string
		want     map[string]float64
		order    []string
	}{
		{scorer.LongestPrefix, nil,
			map[string]float64{"head": 3, "gap": 1, "cold": 3.4, "ranks": 2},
			[]string{"cold", "head", "ranks", "gap"}},
		{scorer.Coverage, nil,
			map[string]float64{"head": 3, "gap": 4, "tail": 1, "cold": 3.4, "ranks": 2},
			[]string{"gap", "cold", "head", "ranks", "tail"}},
		{scorer.HighestBlock, nil,
			map[string]float64{"head": 3, "gap": 5, "tail": 8, "cold": 4, "ranks": 2},
			[]string{"tail", "gap", "cold", "head", "ranks"}},
		{scorer.LongestPrefix, []string{"tail", "head", "nowhere", "head"},
			map[string]float64{"head": 3, "tail": 0, "nowhere": 0},
			[]string{"head", "nowhere", "tail"}},
		{scorer.LongestPrefix, []string{},
			map[string]float64{}, nil},
	} {
		t.Run(fmt.Sprint(tc.strategy, tc.pods), func(t *testing.T) {
			r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8), Strategy: tc.strategy, Pods: tc.pods})
			if got := scores(r); !maps.Equal(got, tc.want) {
				t.Errorf("scores %v, want %v", got, tc.want)
			}
			var order []string
			for _, p := range r.Pods {
				order = append(order, p.Pod)
			}
			if !slices.Equal(order, tc.order) {
				t.Errorf("order %v, want %v", order, tc.order)
			}
		})
	}

	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8)})
	cold := r.Pods[0]
	if want := (scorer.PodScore{Pod: "cold", Score: 3.4, Blocks: 4, Tokens: 256, Reusable: 256,
		Tiers: []scorer.TierBlocks{{Tier: "gpu", Blocks: 1}, {Tier: "cpu", Blocks: 3}},
		Ranks: []scorer.RankBlocks{{Rank: 0, Blocks: 4}}}); fmt.Sprint(cold) != fmt.Sprint(want) {
		t.Errorf("cold is %+v, want %+v", cold, want)
	}
	if ranks := r.Pods[2]; ranks.Blocks != 2 || fmt.Sprint(ranks.Ranks) != "[{0 1} {3 2}]" {
		t.Errorf("the best of several ranks counts: %+v", ranks)
	}
}

// A block in several tiers counts the one with the highest weight, which need
// not be the fastest.
func TestWeights(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "p", 0, store.GPU, chain8[:2]...)
	x.add("m", "p", 0, store.Disk, chain8[:2]...)
	x.add("m", "p", 0, store.Shared, chain8[:3]...)
	s := newScorer(t, scorer.Config{Index: x, Weights: &scorer.Weights{store.GPU: 0.1, store.Disk: 2, store.Shared: 0}})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8)})
	p := r.Pods[0]
	if p.Score != 4 || p.Blocks != 3 || fmt.Sprint(p.Tiers) != "[{disk 2} {shared 1}]" {
		t.Errorf("got %+v, want score 4 of 2 disk blocks and 1 shared one of weight 0", p)
	}
	for _, w := range []scorer.Weights{{-1}, {math.NaN()}, {0, math.Inf(1)}} {
		if _, err := scorer.New(scorer.Config{Index: x, Weights: &w}); err == nil {
			t.Errorf("weights %v were accepted", w)
		}
	}
}

// Nothing held in a tier that weighs 0 makes a best pod.
func TestBestNeedsAScore(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "p", 0, store.Shared, chain8...)
	s := newScorer(t, scorer.Config{Index: x, Weights: &scorer.Weights{1, 1, 1, 0}})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8)})
	if r.Best != "" || len(r.Pods) != 1 || r.Pods[0].Blocks != 8 {
		t.Errorf("got best %q of %+v", r.Best, r.Pods)
	}
}

// TestAgainstPlainModel compares every strategy with what counting on the
// fingers gives, on random holdings.
func TestAgainstPlainModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := newPlainIndex(t)
		n := rapid.IntRange(0, 12).Draw(rt, "blocks")
		keys := make([]blockkey.Key, n)
		for i := range keys {
			keys[i] = blockkey.Key(1000 + i)
		}
		type at struct {
			pod  string
			rank int
		}
		held := map[at]map[int][]store.Tier{}
		for range rapid.IntRange(0, 30).Draw(rt, "adds") {
			a := at{rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "pod"), rapid.IntRange(0, 2).Draw(rt, "rank")}
			tier := store.Tier(rapid.IntRange(0, store.NumTiers-1).Draw(rt, "tier"))
			from := rapid.IntRange(0, n).Draw(rt, "from")
			to := rapid.IntRange(from, n).Draw(rt, "to")
			x.add("m", a.pod, a.rank, tier, keys[from:to]...)
			if held[a] == nil {
				held[a] = map[int][]store.Tier{}
			}
			for i := from; i < to; i++ {
				held[a][i] = append(held[a][i], tier)
			}
		}
		strategy := rapid.SampledFrom(scorer.Strategies()).Draw(rt, "strategy")
		var pods []string
		if rapid.Bool().Draw(rt, "filter") {
			pods = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 0, 5, rapid.ID[string]).Draw(rt, "pods")
			if pods == nil {
				pods = []string{}
			}
		}
		explain := rapid.Bool().Draw(rt, "explain")

		w := scorer.DefaultWeights()
		want := map[string]float64{}
		for _, p := range pods {
			want[p] = 0
		}
		for a, blocks := range held {
			if pods != nil && !slices.Contains(pods, a.pod) {
				continue
			}
			var sum float64
			counted, highest := 0, 0
			for i := range n {
				tiers := blocks[i]
				if len(tiers) == 0 {
					if strategy == scorer.LongestPrefix {
						break
					}
					continue
				}
				best := 0.0
				for _, tier := range tiers {
					best = max(best, w[tier])
				}
				sum += best
				counted++
				highest = i + 1
			}
			if counted == 0 {
				continue
			}
			if strategy == scorer.HighestBlock {
				sum = float64(highest)
			}
			want[a.pod] = max(want[a.pod], math.Round(sum*1e6)/1e6)
		}

		s := newScorer(t, scorer.Config{Index: x})
		r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Strategy: strategy, Pods: pods, Explain: explain})
		if got := scores(r); !maps.Equal(got, want) {
			rt.Fatalf("%s: got %v, want %v", strategy, got, want)
		}
		if !slices.IsSortedFunc(r.Pods, func(a, b scorer.PodScore) int {
			if a.Score != b.Score {
				return int(math.Copysign(1, b.Score-a.Score))
			}
			return strings.Compare(a.Pod, b.Pod)
		}) {
			rt.Fatalf("not in ranking order: %+v", r.Pods)
		}
		if explain {
			if len(r.Explanation.Blocks) != n {
				rt.Fatalf("explains %d of %d blocks", len(r.Explanation.Blocks), n)
			}
			for i, b := range r.Explanation.Blocks {
				named := map[string]bool{}
				for _, h := range b.Holders {
					named[fmt.Sprint(h)] = true
				}
				count := 0
				for a, blocks := range held {
					for _, tier := range slices.Compact(slices.Sorted(slices.Values(blocks[i]))) {
						count++
						if h := (scorer.BlockHolder{Pod: a.pod, Rank: a.rank, Tier: tier.String()}); !named[fmt.Sprint(h)] {
							rt.Fatalf("block %d: %v is missing in %v", i, h, b.Holders)
						}
					}
				}
				if b.Key != keys[i] || count != len(b.Holders) {
					rt.Fatalf("block %d explained as %+v, want %d holders", i, b, count)
				}
			}
		}
	})
}

func TestTokensAndBlockSize(t *testing.T) {
	x := newPlainIndex(t)
	tokens := make([]uint32, 200)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	x.models["m"] = store.ModelInfo{Name: "m", BlockSize: 16, Scheme: store.SchemeNative}
	keys := blockkey.AppendNative(nil, tokens, 16, blockkey.NativeSeed("", ""))
	x.add("m", "p", 0, store.GPU, keys...)
	lora := blockkey.AppendNative(nil, tokens, 16, blockkey.NativeSeed("ad", "salt"))
	x.add("m", "q", 0, store.GPU, lora...)
	s := newScorer(t, scorer.Config{Index: x})

	r := score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens)})
	if r.Blocks != 12 || r.BlockSize != 16 || r.Tokens != 200 || r.Source != scorer.SourceTokens || !r.Exact || r.Pods[0].Tokens != 192 {
		t.Errorf("the model's own block size counts: %+v", r)
	}
	if got := scores(r); !maps.Equal(got, map[string]float64{"p": 12}) {
		t.Errorf("got %v", got)
	}
	if x.lookups != 2 {
		t.Errorf("%d lookups, want 2: the first brings the block size and reads nothing", x.lookups)
	}
	r = score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(tokens), LoRA: "ad", Salt: "salt"})
	if got := scores(r); !maps.Equal(got, map[string]float64{"q": 12}) {
		t.Errorf("LoRA and salt: got %v", got)
	}
	r = score(t, s, scorer.Request{Model: "unknown", Input: scorer.Tokens(tokens)})
	if len(r.Pods) != 0 || r.Best != "" || r.Blocks != 3 || r.BlockSize != 64 {
		t.Errorf("an unknown model scores nothing, by the default size: %+v", r)
	}
	for _, short := range [][]uint32{nil, tokens[:15]} {
		r = score(t, s, scorer.Request{Model: "m", Input: scorer.Tokens(short), Pods: []string{"p"}})
		if r.Blocks != 0 || r.Best != "" || !maps.Equal(scores(r), map[string]float64{"p": 0}) {
			t.Errorf("%d tokens: %+v", len(short), r)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := newScorer(t, scorer.Config{Index: newPlainIndex(t)})
	for name, r := range map[string]scorer.Request{
		"no model":           {Input: scorer.Tokens(nil)},
		"strategy":           {Model: "m", Strategy: "best_effort"},
		"keys with LoRA":     {Model: "m", Input: scorer.BlockKeys(chain8), LoRA: "x"},
		"keys with salt":     {Model: "m", Input: scorer.BlockKeys(chain8), Salt: "x"},
		"early exit":         {Model: "m", Strategy: scorer.Coverage, EarlyExit: true},
		"pod without a name": {Model: "m", Pods: []string{"a", ""}},
	} {
		if _, err := s.Score(t.Context(), r); !errors.Is(err, scorer.ErrRequest) {
			t.Errorf("%s: %v, want ErrRequest", name, err)
		}
	}
	if _, err := s.Score(t.Context(), scorer.Request{Model: "m", Input: scorer.Prompt("x")}); !errors.Is(err, scorer.ErrNoTokenizer) {
		t.Errorf("a text without tokenizer: %v", err)
	}
	_, err := s.ScoreAll(t.Context(), []scorer.Request{{Model: "m"}, {Model: "m"}, {}})
	var in *scorer.InputError
	if !errors.As(err, &in) || in.Index != 2 {
		t.Errorf("got %v, want the third request named", err)
	}
	if _, err := scorer.New(scorer.Config{}); err == nil {
		t.Error("a Scorer without index was made")
	}
}

// What a fault of the index cuts off is missing, what came before it stays.
func TestDegraded(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "p", 0, store.GPU, chain8...)
	x.fail, x.failAt = fmt.Errorf("%w: gone", store.ErrUnavailable), 5
	var seen error
	s := newScorer(t, scorer.Config{Index: x, Budget: time.Second,
		Observer: scorer.Observer{IndexFailed: func(err error) { seen = err }}})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8)})
	if r.Degraded != scorer.IndexUnavailable || r.Pods[0].Blocks != 5 || !errors.Is(seen, store.ErrUnavailable) {
		t.Errorf("got %q, %+v, observer %v", r.Degraded, r.Pods, seen)
	}
	x.fail = nil
	x.stall = time.Minute
	r = score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8), Pods: []string{"p"}})
	if r.Degraded != scorer.IndexTimeout || !maps.Equal(scores(r), map[string]float64{"p": 0}) {
		t.Errorf("got %q, %+v", r.Degraded, r.Pods)
	}
	x.stall = 0
	if r = score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8)}); r.Degraded != "" {
		t.Errorf("still %q", r.Degraded)
	}
}

// TestText runs texts through a tokenizer that makes a token of every byte.
func TestText(t *testing.T) {
	x := newPlainIndex(t)
	var mu sync.Mutex // protects asked
	var asked prompt.Request
	answer := prompt.Result{}
	tok := scorer.TokenizerFunc(func(_ context.Context, r prompt.Request) (prompt.Result, error) {
		mu.Lock()
		asked = r
		mu.Unlock()
		if r.Model == "gone" {
			return prompt.Result{}, fmt.Errorf("%w: %q", errUnknownModel, r.Model)
		}
		res := answer
		for _, b := range []byte(r.Text) {
			res.Tokens = append(res.Tokens, uint32(b))
		}
		return res, nil
	})
	s := newScorer(t, scorer.Config{Index: x, Tokenizer: tok, BlockSize: 4})
	x.add("m", "p", 0, store.GPU, blockkey.AppendNative(nil, []uint32{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}, 4, blockkey.NativeSeed("", ""))...)

	answer = prompt.Result{Source: prompt.FromTokenizer, Exact: true}
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.Prompt("abcdefghi"), Mode: prompt.Sync, Wait: 3 * time.Second, NoSpecialTokens: true})
	if r.Best != "p" || r.Pods[0].Blocks != 2 || r.Source != "tokenizer" || !r.Exact || r.Degraded != "" {
		t.Errorf("got %+v", r)
	}
	if !reflect.DeepEqual(asked, prompt.Request{Model: "m", Text: "abcdefghi", NoSpecialTokens: true, Mode: prompt.Sync, Budget: 3 * time.Second}) {
		t.Errorf("asked for %+v", asked)
	}
	for behind, want := range map[prompt.Behind]scorer.Degradation{
		prompt.BehindBudget: scorer.TokenizationBudget,
		prompt.BehindBusy:   scorer.TokenizationBusy,
		prompt.BehindAsync:  scorer.TokenizationBudget,
	} {
		answer = prompt.Result{Source: prompt.FromPrefixStore, Behind: behind}
		r = score(t, s, scorer.Request{Model: "m", Input: scorer.Prompt("abcde")})
		if r.Exact || r.Degraded != want || r.Source != "prefix_store" || r.Pods[0].Blocks != 1 {
			t.Errorf("%s: %+v", behind, r)
		}
	}
	if _, err := s.Score(t.Context(), scorer.Request{Model: "gone", Input: scorer.Prompt("x")}); !errors.Is(err, errUnknownModel) {
		t.Errorf("got %v", err)
	}

	answer = prompt.Result{Exact: true}
	before := x.lookups
	rs := must.Get(s.ScoreAll(t.Context(), []scorer.Request{
		{Model: "m", Input: scorer.Prompt("abcdefgh")},
		{Model: "m", Input: scorer.Prompt("")},
		{Model: "m", Input: scorer.Prompt("abcdxxxx")},
	}))(t)
	if x.lookups-before != 2 || rs[0].Pods[0].Blocks != 2 || len(rs[1].Pods) != 0 || rs[2].Pods[0].Blocks != 1 {
		t.Errorf("three prompts in %d lookups, want 2, of which one brings the registry: %+v %+v %+v", x.lookups-before, rs[0], rs[1], rs[2])
	}
	_, err := s.ScoreAll(t.Context(), []scorer.Request{{Model: "m", Input: scorer.Prompt("a")}, {Model: "gone", Input: scorer.Prompt("b")}})
	var in *scorer.InputError
	if !errors.As(err, &in) || in.Index != 1 || !errors.Is(err, errUnknownModel) {
		t.Errorf("got %v", err)
	}
}

// TestFirstRefusal: of several prompts that are refused the first in order is told, also when
// another is refused before it.
func TestFirstRefusal(t *testing.T) {
	second := make(chan struct{})
	s := newScorer(t, scorer.Config{Index: newPlainIndex(t), Tokenizer: scorer.TokenizerFunc(func(_ context.Context, r prompt.Request) (prompt.Result, error) {
		if r.Text == "second" {
			close(second)
		} else {
			<-second
		}
		return prompt.Result{}, errors.New(r.Text)
	})})
	_, err := s.ScoreAll(t.Context(), []scorer.Request{{Model: "m", Input: scorer.Prompt("first")}, {Model: "m", Input: scorer.Prompt("second")}})
	var in *scorer.InputError
	if !errors.As(err, &in) || in.Index != 0 || in.Err.Error() != "first" {
		t.Errorf("got %v", err)
	}
}

func TestUsage(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "p", 0, store.GPU, chain8[:4]...)
	now := time.Unix(1000, 0)
	u := must.Get(scorer.NewUsage(16*time.Second, 1024))(t)
	s := newScorer(t, scorer.Config{Index: x, Usage: u, Now: func() time.Time { return now }})
	ask := func(keys []blockkey.Key, st scorer.Strategy) []int {
		return score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(keys), Strategy: st}).Frequencies
	}
	for i, step := range []struct {
		after    time.Duration
		keys     []blockkey.Key
		strategy scorer.Strategy
		want     []int
	}{
		{0, chain8, scorer.LongestPrefix, []int{}},                   // never used before
		{time.Second, chain8[:2], scorer.LongestPrefix, []int{1, 1}}, // once
		{time.Second, chain8, scorer.Coverage, []int{2, 2, 1, 1}},    // the tail once; blocks 5 to 8 have no holder
		{0, chain8, scorer.LongestPrefix, []int{3, 3, 2, 2}},         // within the same bucket
		{13 * time.Second, chain8, scorer.LongestPrefix, []int{4, 4, 3, 3}},
		{time.Second, chain8, scorer.LongestPrefix, []int{4, 4, 3, 3}}, // the first use has left the window
		{time.Minute, chain8, scorer.LongestPrefix, []int{}},
	} {
		now = now.Add(step.after)
		if got := ask(step.keys, step.strategy); !slices.Equal(got, step.want) {
			t.Fatalf("step %d: got %v, want %v", i, got, step.want)
		}
	}
	small := must.Get(scorer.NewUsage(time.Minute, 16))(t)
	many := make([]blockkey.Key, 10_000)
	for i := range many {
		many[i] = blockkey.Key(i) << 32
	}
	small.Touch(now, "m", many)
	if got := small.Touch(now, "m", many); len(got) != 0 {
		t.Errorf("room for 16 blocks remembered %d of 10,000 in ring order", len(got))
	}
	for _, bad := range []struct {
		w time.Duration
		n int
	}{{0, 100}, {time.Second, 3}} {
		if _, err := scorer.NewUsage(bad.w, bad.n); err == nil {
			t.Errorf("NewUsage(%v, %d) was accepted", bad.w, bad.n)
		}
	}
}

func TestScoreAllocations(t *testing.T) {
	x := newFixedIndex(2048)
	s := newScorer(t, scorer.Config{Index: x})
	tokens := make([]uint32, 2048*64)
	req := scorer.Request{Model: "m", Input: scorer.Tokens(tokens)}
	allocs := testing.AllocsPerRun(20, func() { score(t, s, req) })
	if allocs > 40 {
		t.Errorf("%v allocations for 2,048 blocks", allocs)
	}
}

// fixedIndex answers that one pod holds everything, in runs of one block.
type fixedIndex struct{ reg *store.Registry }

func newFixedIndex(_ int) fixedIndex {
	return fixedIndex{store.NewRegistry(1, []store.Pod{{Name: "p"}}, []store.Holder{{ID: 7, Pod: "p"}}, nil, time.Time{})}
}

func (x fixedIndex) Cached() *store.Registry { return x.reg }

func (x fixedIndex) Lookup(_ context.Context, qs ...*store.Query) error {
	held := []store.HolderID{7}
	for _, q := range qs {
		q.Fold.Begin(x.reg)
		for range q.Keys {
			if !q.Fold.Run(1, held) {
				break
			}
		}
	}
	return nil
}

func BenchmarkScore(b *testing.B) {
	for _, n := range []int{2048, 16384, 131072} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			s := newScorer(b, scorer.Config{Index: newFixedIndex(n)})
			req := scorer.Request{Model: "m", Input: scorer.Tokens(make([]uint32, n))}
			b.ReportAllocs()
			for b.Loop() {
				must.Get(s.Score(b.Context(), req))(b)
			}
		})
	}
}

// namedPods are n names, each of them twice.
func namedPods(n int) (names []string) {
	for i := range 2 * n {
		names = append(names, fmt.Sprint("pod", i%n))
	}
	return names
}

// TestManyNamedPods asks for as many pods as a request may name: each is reported once.
func TestManyNamedPods(t *testing.T) {
	x := newPlainIndex(t)
	x.add("m", "pod7", 0, store.GPU, chain8...)
	s := newScorer(t, scorer.Config{Index: x})
	r := score(t, s, scorer.Request{Model: "m", Input: scorer.BlockKeys(chain8), Pods: namedPods(10_000)})
	if len(r.Pods) != 10_000 || r.Pods[0].Pod != "pod7" || r.Pods[0].Blocks != 8 || r.Best != "pod7" {
		t.Errorf("%d pods, best %q, first %+v", len(r.Pods), r.Best, r.Pods[0])
	}
	seen := map[string]bool{}
	for i := range r.Pods {
		seen[r.Pods[i].Pod] = true
	}
	if len(seen) != 10_000 {
		t.Errorf("%d names", len(seen))
	}
}
