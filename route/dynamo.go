package route

import (
	"math"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// Dynamo are the factors of Dynamo's cost, by its own names.
type Dynamo struct {
	OverlapScoreCredit        float64 `json:"overlap_score_credit"`
	OverlapScoreCreditDecay   float64 `json:"overlap_score_credit_decay"`
	PrefillLoadScale          float64 `json:"prefill_load_scale"`
	HostCacheHitWeight        float64 `json:"host_cache_hit_weight"`
	DiskCacheHitWeight        float64 `json:"disk_cache_hit_weight"`
	SharedCacheMultiplier     float64 `json:"shared_cache_multiplier"`
	DecodeActiveRequestWeight float64 `json:"decode_active_request_weight"`
	// TrackPrefillTokens says whether tokens that wait for prefill count.
	TrackPrefillTokens bool `json:"track_prefill_tokens"`
}

// DefaultDynamo are Dynamo's own defaults.
var DefaultDynamo = Dynamo{
	OverlapScoreCredit: 1, PrefillLoadScale: 1, HostCacheHitWeight: 0.75, DiskCacheHitWeight: 0.25, TrackPrefillTokens: true,
}

// dynamo is the default cost of Dynamo's KV router:
//
//	raw    = (active prefill tokens + prompt tokens) / block size; 0 if prefill is not tracked
//	decay  = 1 / (1 + credit decay x ((active prefill - the least of all) / block size) / max(1, prompt blocks))
//	credit = overlap credit x decay x device blocks + 0.75 x host + 0.25 x disk + multiplier x shared
//	cost   = prefill scale x max(0, raw - credit) + decode blocks + request weight x requests
//
// A decode worker whose prefill is not tracked, and whose overlap credit is not 0, costs
// max(0, decode blocks - credit) + request weight x requests. Preferred labels multiply the
// cost by exp(-tanh(sum of weights)).
//
// In a pair the prefill costs the first part without the load of decoding, and the decode that
// load alone.
func dynamo(v *View) loads.Weights {
	d, size := &v.Settings.Dynamo, float64(v.BlockSize)
	least := int64(math.MaxInt64)
	for i := range v.Candidates {
		least = min(least, v.Candidates[i].Load.Prefill)
	}
	decodes := !d.TrackPrefillTokens && d.OverlapScoreCredit != 0 && len(v.Candidates) > 0 && v.Candidates[0].Decode
	if v.Part == DecodePart {
		for i := range v.Candidates {
			v.set(i, 0, 0)
		}
		return loads.Weights{Blocks: 1, Requests: d.DecodeActiveRequestWeight}
	}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		decay, prompt := 1.0, 0.0
		if d.TrackPrefillTokens {
			ahead := float64(c.Load.Prefill-least) / size
			decay = 1 / (1 + d.OverlapScoreCreditDecay*ahead/max(1, float64(v.Blocks())))
			prompt = max(float64(v.Tokens), d.effective(c)) / size
		}
		credit := (d.OverlapScoreCredit*decay*float64(c.Held[store.GPU]) + d.HostCacheHitWeight*float64(c.Held[store.CPU]) +
			d.DiskCacheHitWeight*float64(c.Held[store.Disk]) + d.SharedCacheMultiplier*float64(c.Held[store.Shared])) / size
		if decodes {
			v.set(i, 0, -credit, Term{"overlap_credit_blocks", -credit})
			continue
		}
		v.set(i, 0, d.PrefillLoadScale*(prompt-credit), Term{"prompt_blocks", d.PrefillLoadScale * prompt}, Term{"overlap_credit_blocks", -d.PrefillLoadScale * credit})
	}
	if decodes {
		return loads.Weights{Decode: 1, Requests: d.DecodeActiveRequestWeight}
	}
	w := loads.Weights{Blocks: 1, Requests: d.DecodeActiveRequestWeight}
	if v.Part == PrefillPart {
		w = loads.Weights{}
	}
	if d.TrackPrefillTokens {
		w.Prefill = d.PrefillLoadScale / size
	}
	return w
}

// effective returns how many tokens of the prompt count as cached, by the weights of their
// tiers. Dynamo takes it for the length of a prompt that is shorter.
func (d *Dynamo) effective(c *Candidate) float64 {
	return math.Round(float64(c.Held[store.GPU]) + d.HostCacheHitWeight*float64(c.Held[store.CPU]) + d.DiskCacheHitWeight*float64(c.Held[store.Disk]))
}

// factor turns the preference for a candidate's labels into a factor of its cost, as Dynamo
// does with taints.
func (c *Candidate) factor() float64 {
	if c.Preference == 0 {
		return 1
	}
	return math.Exp(-math.Tanh(c.Preference))
}
