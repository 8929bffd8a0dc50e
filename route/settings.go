package route

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// ErrSettings says that settings cannot be used; the message says which and why.
var ErrSettings = errors.New("route: invalid settings")

// Settings say how a model's requests are routed. Its JSON form is the body of
// PUT /v1/models/{model}/routing, and a request may override any field of it.
type Settings struct {
	// Policy is the name of the policy.
	Policy string `json:"policy"`
	// Temperature, if above 0, draws among the candidates by the softmax of their costs.
	Temperature float64 `json:"temperature"`
	// Beta is by how much policy eta weighs prefill higher than waiting.
	Beta float64 `json:"beta"`
	// TierWeights are what a token counts by the tier that holds it, between 0 and 1.
	TierWeights TierWeights `json:"tier_weights"`
	// RequestMS is what policy eta adds for each request that runs, in milliseconds.
	RequestMS float64 `json:"request_ms"`
	// RoomMS, in milliseconds, is what policy eta adds for a rank of which running requests,
	// with this one, take the whole cache. It is how long a request waits for others to end.
	RoomMS float64 `json:"room_ms"`
	// Evict weighs what a prompt pushes out of a cache, of policy eta; 0 takes no notice of it.
	Evict float64 `json:"evict"`
	// Speed is the speed of ranks of which none is learnt, in units of prefill a
	// millisecond: see loads.Shape. Quadratic and OverheadMS are the model's shape.
	Speed      float64 `json:"speed"`
	Quadratic  float64 `json:"quadratic"`
	OverheadMS float64 `json:"overhead_ms"`
	// Bound is how many times the mean number of requests policy consistent_hash gives a
	// candidate at most.
	Bound float64 `json:"bound"`
	// Dynamo and LLMD are the factors of the policies of those names.
	Dynamo Dynamo `json:"dynamo"`
	LLMD   LLMD   `json:"llm_d"`
	// Busy are the loads at which a rank takes no more.
	Busy Busy `json:"busy"`
	// Pair says how two pods are chosen, and Pull what may be fetched from another pod.
	Pair Pair `json:"pair"`
	Pull Pull `json:"pull"`
	// Predict says how long what a router has sent to a pod counts as held there.
	Predict Predict `json:"predict"`
	// Affinity says how sessions are kept together.
	Affinity Affinity `json:"affinity"`
	// LeaseS is how long a reservation lives without a sign of its client, in seconds.
	LeaseS float64 `json:"lease_s"`
}

// lease is LeaseS as a duration.
func (s *Settings) lease() time.Duration { return time.Duration(s.LeaseS * float64(time.Second)) }

// Busy are the loads at which a rank takes no more; 0 is no limit.
type Busy struct {
	Requests      int64 `json:"requests"`
	PrefillTokens int64 `json:"prefill_tokens"`
	// KVFraction is the share of the rank's cache that running requests may take. It has
	// no effect on pods of which the size of the cache is not known.
	KVFraction float64 `json:"kv_fraction"`
	// EngineWaiting and EngineKVUsage are by what the engine itself says: how many requests
	// wait there, and which share of its cache is in use. They have no effect on pods whose
	// engine has not told it lately.
	EngineWaiting int64   `json:"engine_waiting"`
	EngineKVUsage float64 `json:"engine_kv_usage"`
}

// TierWeights are weights by tier.
type TierWeights [store.NumTiers]float64

// MarshalJSON writes the weights by the tiers' names.
func (w TierWeights) MarshalJSON() ([]byte, error) {
	m := map[string]float64{}
	for t, v := range w {
		m[store.Tier(t).String()] = v
	}
	return json.Marshal(m)
}

// UnmarshalJSON reads weights by the tiers' names. A tier that is not named keeps its weight.
func (w *TierWeights) UnmarshalJSON(b []byte) error {
	var m map[string]float64
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for name, v := range m {
		t, err := store.ParseTier(name)
		if err != nil {
			return err
		}
		w[t] = v
	}
	return nil
}

// DefaultSettings returns the settings of a model without its own.
func DefaultSettings() Settings {
	return Settings{
		Policy: DefaultPolicy, TierWeights: TierWeights(scorer.DefaultWeights()),
		Beta: 2, RequestMS: 1, RoomMS: 10_000, Evict: 4, Speed: loads.DefaultSpeed, Quadratic: loads.DefaultShape.Quadratic, OverheadMS: loads.DefaultShape.Overhead,
		Bound: 1.25, Dynamo: DefaultDynamo, LLMD: LLMD{Prefix: 2, KV: 1, Queue: 1}, Pair: DefaultPair(), Pull: DefaultPull(), LeaseS: 120, Predict: DefaultPredict(), Affinity: DefaultAffinity(),
	}
}

// Merge returns the settings with those fields replaced that the JSON object names. The
// error is ErrSettings.
func (s *Settings) Merge(object []byte) (Settings, error) {
	out := *s
	out.Pair = s.Pair.clone()
	d := json.NewDecoder(bytes.NewReader(object))
	d.DisallowUnknownFields()
	if err := d.Decode(&out); err != nil {
		return Settings{}, fmt.Errorf("%w: %s", ErrSettings, notSettings(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Settings{}, fmt.Errorf("%w: something stands behind the object", ErrSettings)
	}
	if err := out.Validate(); err != nil {
		return Settings{}, err
	}
	return out, nil
}

// notSettings says in JSON's words why an object cannot be read.
func notSettings(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return "expected an object, found " + wrong.Value
		}
		return wrong.Field + " cannot be " + wrong.Value
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// Validate returns ErrSettings, with the field and the reason, when these cannot be used.
func (s *Settings) Validate() error {
	if _, err := ParsePolicy(s.Policy); err != nil {
		return fmt.Errorf("%w: policy: %w", ErrSettings, err)
	}
	for _, f := range []struct {
		name      string
		v         float64
		low, high float64
	}{
		{"temperature", s.Temperature, 0, 1e6},
		{"request_ms", s.RequestMS, 0, 1e9},
		{"room_ms", s.RoomMS, 0, 1e9},
		{"evict", s.Evict, 0, 1e6},
		{"speed", s.Speed, 1e-6, 1e12},
		{"quadratic", s.Quadratic, 0, 1},
		{"overhead_ms", s.OverheadMS, 0, 1e6},
		{"bound", s.Bound, 1, 1e6},
		{"predict.bridge_s", s.Predict.BridgeS, 0, notes.MaxLease.Seconds()},
		{"predict.ttl_s", s.Predict.TTLS, 0, notes.MaxLease.Seconds()},
		{"predict.max_blocks", float64(s.Predict.MaxBlocks), 0, 1 << 30},
		{"predict.prune", s.Predict.Prune, 0, 1},
		{"affinity.ttl_s", s.Affinity.TTLS, 0, notes.MaxLease.Seconds()},
		{"affinity.absolute", float64(s.Affinity.Absolute), 0, 1e9},
		{"affinity.relative", s.Affinity.Relative, 1, 1e6},
		{"lease_s", s.LeaseS, 0.1, loads.MaxLease.Seconds()},
		{"pair.local_tokens", float64(s.Pair.LocalTokens), 0, loads.MaxTokens},
		{"pair.local_share", s.Pair.LocalShare, 0, 1},
		{"pull.block_bytes", float64(s.Pull.BlockBytes), 0, 1e12},
		{"pull.bandwidth", s.Pull.Bandwidth, 0, 1e15},
		{"pull.overhead_ms", s.Pull.OverheadMS, 0, 1e6},
		{"pull.port", float64(s.Pull.Port), 0, math.MaxUint16},
		{"busy.requests", float64(s.Busy.Requests), 0, 1e9},
		{"busy.prefill_tokens", float64(s.Busy.PrefillTokens), 0, 1e12},
		{"busy.kv_fraction", s.Busy.KVFraction, 0, 1e3},
		{"busy.engine_waiting", float64(s.Busy.EngineWaiting), 0, 1e9},
		{"busy.engine_kv_usage", s.Busy.EngineKVUsage, 0, 1},
		{"tier_weights.gpu", s.TierWeights[store.GPU], 0, 1},
		{"tier_weights.cpu", s.TierWeights[store.CPU], 0, 1},
		{"tier_weights.disk", s.TierWeights[store.Disk], 0, 1},
		{"tier_weights.shared", s.TierWeights[store.Shared], 0, 1},
		{"beta", s.Beta, 0, 1e6},
		{"dynamo.overlap_score_credit", s.Dynamo.OverlapScoreCredit, 0, 1e6},
		{"dynamo.overlap_score_credit_decay", s.Dynamo.OverlapScoreCreditDecay, 0, 1e6},
		{"dynamo.prefill_load_scale", s.Dynamo.PrefillLoadScale, 0, 1e6},
		{"dynamo.host_cache_hit_weight", s.Dynamo.HostCacheHitWeight, 0, 1e6},
		{"dynamo.disk_cache_hit_weight", s.Dynamo.DiskCacheHitWeight, 0, 1e6},
		{"dynamo.shared_cache_multiplier", s.Dynamo.SharedCacheMultiplier, 0, 1e6},
		{"dynamo.decode_active_request_weight", s.Dynamo.DecodeActiveRequestWeight, 0, 1e6},
		{"llm_d.prefix_cache", s.LLMD.Prefix, 0, 1e6},
		{"llm_d.kv_cache_utilization", s.LLMD.KV, 0, 1e6},
		{"llm_d.queue", s.LLMD.Queue, 0, 1e6},
	} {
		if math.IsNaN(f.v) || f.v < f.low || f.v > f.high {
			return fmt.Errorf("%w: %s is %v, it can be %v to %v", ErrSettings, f.name, f.v, f.low, f.high)
		}
	}
	return s.Pair.validate()
}

func (s *Settings) shape() loads.Shape {
	return loads.Shape{Quadratic: s.Quadratic, Overhead: s.OverheadMS}
}

// limits turns Busy into the limits of a candidate.
func (s *Settings) limits(c *Candidate) loads.Limits {
	m := loads.Limits{Requests: s.Busy.Requests, Prefill: s.Busy.PrefillTokens}
	if s.Busy.KVFraction > 0 && c.CapacityBlocks > 0 {
		m.Blocks = int64(math.Ceil(s.Busy.KVFraction * float64(c.CapacityBlocks)))
	}
	return m
}

// override returns the settings as a request wants them.
func (s *Settings) override(object []byte) (*Settings, error) {
	if object == nil {
		return s, nil
	}
	out, err := s.Merge(object)
	return &out, err
}
