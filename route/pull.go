package route

import (
	"encoding/json"
	"math"

	"github.com/kvatlas/kvatlas/store"
)

// Pull says what a pod may fetch of a prompt from another one, and how long that takes. It is
// off while BlockBytes or Bandwidth is 0.
type Pull struct {
	// BlockBytes is the size of an index block's KV, of all layers and all tensor-parallel
	// ranks.
	BlockBytes int64 `json:"block_bytes"`
	// Bandwidth is how many bytes a second go from pod to pod, OverheadMS what a fetch takes
	// besides, in milliseconds.
	Bandwidth  float64 `json:"bandwidth"`
	OverheadMS float64 `json:"overhead_ms"`
	// Tiers are those that can be fetched from.
	Tiers Tiers `json:"tiers"`
	// Port is where engines serve what others fetch: rank 0, the others behind it.
	Port int `json:"port"`
}

// DefaultPull are the settings of a model that nobody has set any for: off. The port is that
// of vLLM's tier for it.
func DefaultPull() Pull { return Pull{Tiers: Tiers{store.GPU: true, store.CPU: true}, Port: 5710} }

// isOn reports whether anything can be fetched.
func (p *Pull) isOn() bool { return p.BlockBytes > 0 && p.Bandwidth > 0 }

// ms returns how many milliseconds the fetch of so many tokens takes, 0 while it is off.
func (p *Pull) ms(tokens, blockSize int) float64 {
	if !p.isOn() || tokens <= 0 {
		return 0
	}
	return p.OverheadMS + math.Ceil(float64(tokens)/float64(blockSize))*float64(p.BlockBytes)/p.Bandwidth*1000
}

// Tiers is a set of tiers.
type Tiers [store.NumTiers]bool

// MarshalJSON writes the tiers' names.
func (t Tiers) MarshalJSON() ([]byte, error) {
	names := []string{}
	for tier, in := range t {
		if in {
			names = append(names, store.Tier(tier).String())
		}
	}
	return json.Marshal(names)
}

// UnmarshalJSON reads the tiers' names.
func (t *Tiers) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*t = Tiers{}
	for _, name := range names {
		tier, err := store.ParseTier(name)
		if err != nil {
			return err
		}
		t[tier] = true
	}
	return nil
}
