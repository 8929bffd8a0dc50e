package route

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// dynamoCases are what the selector of the crate dynamo-kv-router 1.6.1 said.
type dynamoCases struct {
	Cases   []dynamoCase `json:"cases"`
	Softmax []dynamoCase `json:"softmax_cases"`
}

type dynamoCase struct {
	Name     string `json:"name"`
	Size     int    `json:"block_size"`
	Tokens   int    `json:"isl_tokens"`
	Type     string `json:"worker_type"`
	Track    bool   `json:"track_prefill_tokens"`
	Config   dynamoConfig
	Override *dynamoConfig `json:"router_config_override"`
	Allowed  []int         `json:"allowed_worker_ids"`
	Pinned   *[2]int       `json:"pinned_worker"`
	Shared   [][2]int      `json:"shared_cache_ranges"`
	Wants    struct {
		Preferred map[string]float64 `json:"preferred_taints"`
		Required  []string           `json:"required_taints"`
	} `json:"routing_constraints"`
	Workers []struct {
		ID     int      `json:"worker_id"`
		Taints []string `json:"taints"`
		Ranks  []struct {
			Rank    int      `json:"dp_rank"`
			Cost    *float64 `json:"cost"`
			Overlap *struct {
				Device int `json:"device"`
				Host   int `json:"host_pinned"`
				Disk   int `json:"disk"`
			} `json:"overlap_blocks"`
			Effective float64 `json:"effective_overlap_blocks"`
			Load      *struct {
				Decode   int64 `json:"active_decode_blocks"`
				Added    int64 `json:"additional_active_blocks"`
				Prefill  int64 `json:"active_prefill_tokens"`
				Requests int64 `json:"active_requests"`
			} `json:"load"`
		} `json:"ranks"`
	} `json:"workers"`
	Tied   [][2]int `json:"tied_workers"`
	Counts [][3]int `json:"counts"`
	Draws  int      `json:"draws"`
	Error  string   `json:"error"`
}

type dynamoConfig struct {
	Weight      *float64 `json:"decode_active_request_weight"`
	Disk        *float64 `json:"disk_cache_hit_weight"`
	Host        *float64 `json:"host_cache_hit_weight"`
	Credit      *float64 `json:"overlap_score_credit"`
	Decay       *float64 `json:"overlap_score_credit_decay"`
	Scale       *float64 `json:"prefill_load_scale"`
	Temperature *float64 `json:"router_temperature"`
	Multiplier  *float64 `json:"shared_cache_multiplier"`
	SharedType  string   `json:"shared_cache_type"`
}

func readDynamo(t *testing.T) dynamoCases {
	t.Helper()
	data := must.Get(os.ReadFile("testdata/dynamo_selector.json"))(t)
	var d dynamoCases
	must.OK(t, json.Unmarshal(data, &d))
	return d
}

func over(to *float64, from *float64) {
	if from != nil {
		*to = *from
	}
}

// view is the case as a View. costs are the selector's own, NaN where it has none.
func (c *dynamoCase) view() (v *View, costs []float64) {
	s := DefaultSettings()
	s.Policy, s.Dynamo.TrackPrefillTokens = "dynamo", c.Track
	configs := []*dynamoConfig{&c.Config}
	if c.Override != nil {
		configs = append(configs, c.Override)
	}
	for _, k := range configs {
		over(&s.Dynamo.DecodeActiveRequestWeight, k.Weight)
		over(&s.Dynamo.DiskCacheHitWeight, k.Disk)
		over(&s.Dynamo.HostCacheHitWeight, k.Host)
		over(&s.Dynamo.OverlapScoreCredit, k.Credit)
		over(&s.Dynamo.OverlapScoreCreditDecay, k.Decay)
		over(&s.Dynamo.PrefillLoadScale, k.Scale)
		if k.SharedType == "hicache" {
			s.Dynamo.SharedCacheMultiplier = 0.5
		}
		over(&s.Dynamo.SharedCacheMultiplier, k.Multiplier)
		over(&s.Temperature, k.Temperature)
	}
	v = &View{Tokens: c.Tokens, BlockSize: c.Size, Settings: &s, Rand: rand.New(rand.NewPCG(1, 2))}
	for _, w := range c.Workers {
		if c.Allowed != nil && !slices.Contains(c.Allowed, w.ID) || slices.ContainsFunc(c.Wants.Required, func(t string) bool { return !slices.Contains(w.Taints, t) }) {
			continue
		}
		for _, r := range w.Ranks {
			if c.Pinned != nil && *c.Pinned != [2]int{w.ID, r.Rank} {
				continue
			}
			k := Candidate{RankRef: store.RankRef{Pod: string(rune('0' + w.ID)), Rank: r.Rank}, Decode: c.Type == "decode"}
			if r.Overlap != nil {
				k.Held[store.GPU], k.Held[store.CPU], k.Held[store.Disk] = r.Overlap.Device*c.Size, r.Overlap.Host*c.Size, r.Overlap.Disk*c.Size
			} else {
				k.Held[store.GPU] = int(math.Round(r.Effective * float64(c.Size)))
			}
			device := k.Held[store.GPU] / c.Size
			for _, span := range c.Shared {
				k.Held[store.Shared] += max(0, span[1]-max(span[0], device)) * c.Size
			}
			if r.Load != nil {
				k.Load = loads.Load{Prefill: r.Load.Prefill, Blocks: r.Load.Decode, Requests: r.Load.Requests}
				k.Added = r.Load.Added
			}
			for _, t := range w.Taints {
				k.Preference += c.Wants.Preferred[t]
			}
			v.Candidates = append(v.Candidates, k)
			cost := math.NaN()
			// A load that is not known at all does not occur here. There Dynamo takes the
			// prompt's own length even if more is cached.
			if r.Cost != nil && (r.Load != nil || r.Effective*float64(c.Size) <= float64(c.Tokens)) {
				cost = *r.Cost
			}
			costs = append(costs, cost)
		}
	}
	return v, costs
}

// TestDynamosCost holds the cost of policy dynamo to the selector of the crate itself, and
// its choice to the candidates that the crate calls tied.
func TestDynamosCost(t *testing.T) {
	compared, chosen := 0, 0
	for _, c := range readDynamo(t).Cases {
		v, costs := c.view()
		if c.Error != "" {
			continue // no rank is eligible: there is nothing to weigh
		}
		w := dynamo(v)
		for i, want := range costs {
			if math.IsNaN(want) {
				continue
			}
			compared++
			if got := v.Total(i, w); math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
				t.Errorf("%s: %v costs %v, expected %v", c.Name, v.Candidates[i].RankRef, got, want)
			}
		}
		if i := cheapest(v, w); i >= 0 && c.Tied != nil {
			chosen++
			at := v.Candidates[i].RankRef
			if !slices.Contains(c.Tied, [2]int{int(at.Pod[0] - '0'), at.Rank}) {
				t.Errorf("%s: %v was chosen, expected one of %v", c.Name, at, c.Tied)
			}
		}
	}
	if compared < 1390 || chosen < 290 {
		t.Errorf("only %d costs and %d choices were compared", compared, chosen)
	}
}

// TestDynamosSoftmax draws by temperature as often as the crate did, and compares the
// counts of both by chi-square with the distribution of two samples.
func TestDynamosSoftmax(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range readDynamo(t).Softmax {
		v, _ := c.view()
		w := dynamo(v)
		costs := make([]float64, len(v.Candidates))
		for i := range costs {
			costs[i] = v.Total(i, w)
		}
		got := map[[2]int]float64{}
		for range c.Draws {
			at := v.Candidates[loads.Pick(costs, v.Settings.Temperature, r.Float64())].RankRef
			got[[2]int{int(at.Pod[0] - '0'), at.Rank}]++
		}
		chi, free := 0.0, -1.0
		for _, n := range c.Counts {
			a, b := got[[2]int{n[0], n[1]}], float64(n[2])
			if a+b < 10 {
				continue
			}
			chi += (a - b) * (a - b) / (a + b)
			free++
		}
		// Mean and deviation of chi-square are free and sqrt(2 free).
		if chi > free+6*math.Sqrt(2*max(1, free)) {
			t.Errorf("%s: drew %v, the crate %v: chi-square %.1f with %v degrees of freedom", c.Name, got, c.Counts, chi, free)
		}
	}
}
