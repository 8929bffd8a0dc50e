package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// fleet is a view of n pods, p0 to pn, in blocks of 16 tokens.
func fleet(n, tokens int) *View {
	s := DefaultSettings()
	v := &View{Tokens: tokens, BlockSize: 16, Settings: &s, Rand: rand.New(rand.NewPCG(1, 2)), Prefix: 7, HasPrefix: true, Explain: true}
	for i := range n {
		v.Candidates = append(v.Candidates, Candidate{RankRef: store.RankRef{Pod: fmt.Sprint("p", i)}, Added: int64(v.Blocks())})
	}
	return v
}

// cheapest returns the first of the candidates that cost least, -1 if there are none.
func cheapest(v *View, w loads.Weights) int {
	costs := make([]float64, len(v.Candidates))
	for i := range costs {
		costs[i] = v.Total(i, w)
	}
	return loads.Pick(costs, 0, 0)
}

// decide returns the place that a policy takes.
func decide(t *testing.T, policy string, v *View) int {
	t.Helper()
	p := must.Get(ParsePolicy(policy))(t)
	return cheapest(v, p.Weigh(v))
}

// TestLLMDsChoice holds policy llm_d to a table made by scripts/make-llmd-goldens.py.
func TestLLMDsChoice(t *testing.T) {
	data := must.Get(os.ReadFile("testdata/llm_d.json"))(t)
	var cases []struct {
		Weights [3]float64 `json:"weights"`
		Size    int        `json:"block_size"`
		Blocks  int        `json:"blocks"`
		Fleet   []struct {
			Held     int   `json:"held_blocks"`
			Capacity int   `json:"capacity_blocks"`
			Used     int64 `json:"used_blocks"`
			Requests int64 `json:"requests"`
		} `json:"fleet"`
		Scores []float64 `json:"scores"`
		Best   []int     `json:"best"`
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 300 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for n, c := range cases {
		v := fleet(len(c.Fleet), c.Blocks*c.Size)
		v.BlockSize, v.Settings.LLMD = c.Size, LLMD{Prefix: c.Weights[0], KV: c.Weights[1], Queue: c.Weights[2]}
		for i, e := range c.Fleet {
			k := &v.Candidates[i]
			k.Held[store.GPU], k.CapacityBlocks, k.Load = e.Held*c.Size, e.Capacity, loads.Load{Blocks: e.Used, Requests: e.Requests}
		}
		w := llmD(v)
		for i, want := range c.Scores {
			if got := -v.Total(i, w); math.Abs(got-want) > 1e-12 {
				t.Errorf("case %d: endpoint %d scores %v, expected %v", n, i, got, want)
			}
		}
		if i := cheapest(v, w); !slices.Contains(c.Best, i) && math.Abs(c.Scores[i]-c.Scores[c.Best[0]]) > 1e-12 {
			t.Errorf("case %d: endpoint %d was chosen, expected one of %v", n, i, c.Best)
		}
	}
}

func TestRoundRobin(t *testing.T) {
	v := fleet(3, 100)
	for turn := range uint64(7) {
		v.Turn = turn
		if got := decide(t, "round_robin", v); got != int(turn%3) {
			t.Errorf("request %d goes to %d", turn, got)
		}
	}
}

func TestRandomIsEven(t *testing.T) {
	v := fleet(4, 100)
	var n [4]float64
	for range 4000 {
		n[decide(t, "random", v)]++
	}
	chi := 0.0
	for _, got := range n {
		chi += (got - 1000) * (got - 1000) / 1000
	}
	if chi > 25 { // three degrees of freedom: beyond 25 once in 60,000 seeds, and the seed is fixed
		t.Errorf("%v", n)
	}
}

func TestLeast(t *testing.T) {
	v := fleet(3, 100)
	for i, l := range []loads.Load{{Requests: 3, Prefill: 10}, {Requests: 1, Prefill: 5000}, {Requests: 2, Prefill: 10}} {
		v.Candidates[i].Load = l
	}
	for policy, want := range map[string]int{"least_requests": 1, "least_tokens": 2} {
		if got := decide(t, policy, v); got != want {
			t.Errorf("%s takes %d, expected %d", policy, got, want)
		}
	}
}

func TestLongestPrefix(t *testing.T) {
	v := fleet(4, 100)
	v.Candidates[1].Held = [store.NumTiers]int{16, 16, 16, 0}
	v.Candidates[2].Held[store.GPU] = 32
	v.Candidates[3].Held[store.Disk] = 48
	v.Candidates[1].Load.Requests = 400
	if got := decide(t, "longest_prefix", v); got != 3 {
		t.Errorf("it takes %d, expected the one of two that has less to do", got)
	}
}

// TestConsistentHash holds a prompt to its pod, moves only the prompts of a pod that goes,
// and passes over one that is over its bound.
func TestConsistentHash(t *testing.T) {
	v := fleet(8, 100)
	before := map[blockkey.Key]string{}
	var n [8]int
	for k := range blockkey.Key(2000) {
		v.Prefix = k * 0x9e3779b97f4a7c15
		i := decide(t, "consistent_hash", v)
		before[v.Prefix] = v.Candidates[i].Pod
		n[i]++
	}
	if slices.Min(n[:]) < 180 || slices.Max(n[:]) > 320 {
		t.Errorf("2,000 prompts on 8 pods: %v", n)
	}
	v.Candidates = slices.Delete(v.Candidates, 3, 4)
	for k, was := range before {
		v.Prefix = k
		if now := v.Candidates[decide(t, "consistent_hash", v)].Pod; was != "p3" && now != was {
			t.Fatalf("%v moves from %s to %s as p3 goes", k, was, now)
		}
	}
	v.Prefix = 99
	first := decide(t, "consistent_hash", v)
	v.Candidates[first].Load.Requests = 2 // of 7 pods that have 2 together the bound is 1
	if got := decide(t, "consistent_hash", v); got == first {
		t.Error("a pod over its bound is taken")
	}
	for i := range v.Candidates {
		v.Candidates[i].Load.Requests = 2
	}
	if got := decide(t, "consistent_hash", v); got != first {
		t.Error("where all have the same load the first is not taken")
	}
}

func TestCacheAware(t *testing.T) {
	v := fleet(3, 160)
	v.Candidates[0].Held[store.GPU] = 96
	v.Candidates[1].Load = loads.Load{Blocks: 5}
	v.Candidates[0].Load = loads.Load{Blocks: 900, Requests: 32}
	if got := decide(t, "cache_aware", v); got != 0 {
		t.Errorf("in balance, and more than half is held: it takes %d", got)
	}
	v.Candidates[0].Load.Requests = 33
	if got := decide(t, "cache_aware", v); got == 0 {
		t.Error("out of balance by 33 requests: it takes the busiest")
	}
	v.Candidates[0].Load.Requests = 3
	v.Candidates[0].Held[store.GPU] = 80
	if got := decide(t, "cache_aware", v); got != 2 {
		t.Errorf("half is not more than half: it takes %d, not the one with the most room", got)
	}
}

func TestNoHitLRU(t *testing.T) {
	v := fleet(3, 160)
	for i, turn := range []uint64{9, 4, 7} {
		v.Candidates[i].Turn = turn
	}
	if got := decide(t, "no_hit_lru", v); got != 1 {
		t.Errorf("it takes %d for a prompt that no pod holds", got)
	}
	v.Candidates[2].Held[store.CPU] = 16
	if got := decide(t, "no_hit_lru", v); got != 2 {
		t.Errorf("it takes %d for one that a pod holds", got)
	}
}

// steps2 are what makes the first of two cheaper by what is in their caches.
var steps2 = []struct {
	what   string
	change func(a, b *Candidate)
}{
	{"the other was filled more", func(_, b *Candidate) { b.Load.Filled *= 1.2 }},
	{"the other was filled later", func(a, _ *Candidate) { a.Load.FilledAt -= loads.FillHalf.Microseconds() }},
	{"the other is smaller, and nothing runs", func(a, b *Candidate) {
		a.Load.Requests, b.Load.Requests, b.CapacityBlocks = 0, 0, 1500
	}},
	{"the other is filled, though it looks a little faster", func(a, b *Candidate) {
		a.Load.Speed, b.Load.Speed, b.Load.Filled = 100, 105, 70_000
	}},
	{"the other has no room", func(_, b *Candidate) { b.Load.Blocks = 1900 }},
}

// TestSpeeds: what is learnt of pods that are alike differs by chance, and counts as one speed. Of
// pods of two kinds nearly all of the difference counts.
func TestSpeeds(t *testing.T) {
	var (
		samples []int64
		ago     []time.Duration
	)
	speeds := func(learnt ...float64) (out []float64) {
		v := fleet(len(learnt), 100)
		v.Now = time.Hour.Microseconds()
		for i, speed := range learnt {
			if speed > 0 {
				v.Candidates[i].Load = loads.Load{Speed: speed, Samples: samples[i], Learnt: v.Now - ago[i].Microseconds()}
			}
		}
		v.learnSpeeds()
		for i := range v.Candidates {
			out = append(out, v.speedOf(&v.Candidates[i]))
		}
		return out
	}
	samples, ago = []int64{50, 50, 50, 50}, make([]time.Duration, 4)
	if got := speeds(0, 0); got[0] != loads.DefaultSpeed || got[1] != got[0] {
		t.Errorf("nothing is learnt: %v", got)
	}
	alike := speeds(100, 104, 97, 0)
	for _, speed := range alike {
		if speed != alike[0] || speed < 97 || speed > 104 {
			t.Errorf("alike but for chance: %v", alike)
		}
	}
	if got := speeds(100, 100, 300, 300); got[0] > 104 || got[2] < 288 || got[0] >= got[2] {
		t.Errorf("of two kinds: %v", got)
	}
	// One request of an engine that has just begun says little, of either pod. It does not say that
	// it is four times as slow as one that is known, nor that the other is slower than it is.
	samples = []int64{50, 1}
	if got := speeds(400, 100); got[0] < 360 || got[1] < 250 {
		t.Errorf("after one slow request: %v", got)
	}
	// What was so for long counts, and less when it was long ago.
	samples = []int64{50, 50}
	if got := speeds(400, 100); got[1] > 110 {
		t.Errorf("after fifty: %v", got)
	}
	ago[1] = 50 * time.Minute
	if got := speeds(400, 100); got[1] < 200 {
		t.Errorf("after fifty, long ago: %v", got)
	}
}

// TestETA goes through the terms of eta one by one.
func TestETA(t *testing.T) {
	v := fleet(2, 10000)
	if a, b := v.Total(0, eta(v)), v.Total(1, eta(v)); a != b {
		t.Errorf("two pods alike cost %v and %v", a, b)
	}
	steps := []struct {
		what   string
		change func(a, b *Candidate)
	}{
		{"one has half of it cached", func(a, _ *Candidate) { a.Held[store.GPU] = 4992 }},
		{"one has it nearer", func(a, b *Candidate) { a.Held[store.GPU], b.Held[store.Disk] = 4992, 4992 }},
		{"the other has work to do", func(_, b *Candidate) { b.Load.Work = 100_000 }},
		{"one has worked at it for longer", func(a, b *Candidate) {
			a.Load, b.Load = loads.Load{Work: 100_000, Since: 1}, loads.Load{Work: 100_000, Since: 900_000}
		}},
		{"the other is slower", func(a, b *Candidate) { a.Load.Speed, b.Load.Speed = 20, 10 }},
		{"the other has more requests", func(_, b *Candidate) { b.Load.Requests = 3 }},
	}
	for _, step := range steps {
		for _, swap := range []bool{false, true} {
			v := fleet(2, 10000)
			v.Now = 1_000_000
			better, other := &v.Candidates[0], &v.Candidates[1]
			if swap {
				better, other = other, better
			}
			step.change(better, other)
			if got := decide(t, "eta", v); &v.Candidates[got] != better {
				t.Errorf("%s (swapped: %v): it is not taken", step.what, swap)
			}
		}
	}

	// Of two that are alike the one that less was put into lately is taken, for its size. So is the
	// one whose cache running requests need less.
	for _, step := range steps2 {
		v := fleet(2, 10000)
		for i := range v.Candidates {
			v.Candidates[i].CapacityBlocks, v.Candidates[i].Load = 2000, loads.Load{Requests: 2, Blocks: 500, Filled: 50_000, FilledAt: v.Now}
		}
		step.change(&v.Candidates[0], &v.Candidates[1])
		if got := decide(t, "eta", v); got != 0 {
			t.Errorf("%s: it is not taken", step.what)
		}
	}

	// 5,008 tokens behind 4,992, at 100 units a millisecond, beside a wait of 150 ms there and none
	// here. The wait is worth it, and not when beta is 0.
	v = fleet(2, 10000)
	for i := range v.Candidates {
		v.Candidates[i].Load.Speed = 100
	}
	v.Candidates[0].Held[store.GPU], v.Candidates[0].Load.Work = 4992, 15_000
	if got := decide(t, "eta", v); got != 0 {
		t.Error("a hit is not waited for")
	}
	v.Settings.Beta = 0
	if got := decide(t, "eta", v); got != 1 {
		t.Error("with beta 0 the sooner answer is not taken")
	}
	terms := v.Candidates[1].Cost.Terms
	shape := v.Settings.shape()
	if want := shape.Overhead + float64(shape.Units(10000, 0))/100; terms[0].Name != "prefill_ms" || math.Abs(terms[0].Value-want) > 1e-9 {
		t.Errorf("%v, expected %v", terms, want)
	}
}

// TestPreference makes a pod with preferred labels cheaper and one with negative ones dearer.
func TestPreference(t *testing.T) {
	v := fleet(3, 1000)
	v.Candidates[0].Preference, v.Candidates[1].Preference = -1, 1
	for _, policy := range []string{"eta", "dynamo"} {
		if got := decide(t, policy, v); got != 1 {
			t.Errorf("%s takes %d", policy, got)
		}
	}
}

// TestEveryPolicy draws random fleets: each policy gives each candidate a finite cost, takes
// one, and explains base and floor by its terms.
func TestEveryPolicy(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		v := fleet(1+r.IntN(8), r.IntN(5000))
		v.HasPrefix = v.Tokens >= 16
		for i := range v.Candidates {
			c := &v.Candidates[i]
			for tier := range c.Held {
				c.Held[tier] = r.IntN(v.Tokens/8+1) * r.IntN(2)
			}
			c.Load = loads.Load{Work: int64(r.IntN(1e6)), Prefill: int64(r.IntN(1e5)), Blocks: int64(r.IntN(1e5)), Requests: int64(r.IntN(60)), Since: int64(r.IntN(1e6)), Speed: float64(r.IntN(3))}
			c.CapacityBlocks, c.Preference, c.Turn = r.IntN(2)*50_000, float64(r.IntN(3)-1), r.Uint64()
		}
		for _, name := range Policies() {
			p := must.Get(ParsePolicy(name))(t)
			w := p.Weigh(v)
			for i := range v.Candidates {
				if total := v.Total(i, w); math.IsNaN(total) || math.IsInf(total, 0) {
					t.Fatalf("%s: candidate %d of %+v costs %v", name, i, v.Candidates, total)
				}
				if c := v.candidate(i); (&loads.Call{Model: "m", ID: "r", Lease: 1e9, Tokens: v.Tokens, BlockSize: 16, Weights: w, Candidates: []loads.Candidate{c}}).Validate() != nil {
					t.Fatalf("%s: %+v cannot be booked", name, c)
				}
			}
			if i := cheapest(v, w); i < 0 {
				t.Errorf("%s takes nobody of %d", name, len(v.Candidates))
			}
		}
	}
}

func TestParsePolicy(t *testing.T) {
	if _, err := ParsePolicy("nearest"); !errors.Is(err, ErrPolicy) {
		t.Errorf("%v", err)
	}
	for _, e := range []Policy{{Name: "eta", Weigh: eta}, {Weigh: eta}, {Name: "nothing"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was registered", e)
				}
			}()
			Register(e)
		}()
	}
}

func TestSettings(t *testing.T) {
	s := DefaultSettings()
	must.OK(t, s.Validate())
	data := must.Get(json.Marshal(s))(t)
	back, err := (&Settings{}).Merge(data)
	if err != nil || fmt.Sprint(back) != fmt.Sprint(s) {
		t.Errorf("%+v, %v, expected %+v", back, err, s)
	}
	got, err := s.Merge([]byte(`{"policy":"dynamo","tier_weights":{"disk":0},"dynamo":{"prefill_load_scale":4},"beta":8}`))
	if err != nil || got.Policy != "dynamo" || got.TierWeights != (TierWeights{1, 0.8, 0, 0.3}) || got.Dynamo.PrefillLoadScale != 4 ||
		got.Dynamo.HostCacheHitWeight != 0.75 || got.Beta != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	if s.TierWeights[store.Disk] != 0.5 || s.Beta != 2 {
		t.Error("the settings merged into have changed")
	}
	for _, bad := range []string{
		`{"policy":"nearest"}`, `{"unknown":1}`, `[]`, `{} {}`, `{"temperature":-1}`, `{"speed":0}`, `{"lease_s":0}`, `{"bound":0.5}`,
		`{"tier_weights":{"tape":1}}`, `{"tier_weights":{"cpu":2}}`, `{"beta":-1}`, `{"dynamo":{"x":1}}`, `{"llm_d":{"queue":-1}}`, `{"busy":{"requests":-1}}`, `{`,
	} {
		if _, err := s.Merge([]byte(bad)); !errors.Is(err, ErrSettings) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
