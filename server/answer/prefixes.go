package answer

import (
	"math"

	"github.com/kvatlas/kvatlas/route"
)

// ModelPrefixes are the prefixes of a model that are asked for most, of GET /v1/prefixes.
type ModelPrefixes struct {
	Requests  float64         `json:"requests"`
	BlockSize int             `json:"block_size"`
	Prefixes  []*prefixAnswer `json:"prefixes"`
	Degraded  *degraded       `json:"degraded,omitempty"`
}

// prefixAnswer is one of them. Its holders are left out where the index did not answer.
type prefixAnswer struct {
	Key        string         `json:"key"`
	Blocks     int            `json:"blocks"`
	Tokens     int            `json:"tokens"`
	Requests   float64        `json:"requests"`
	Share      float64        `json:"share"`
	Missed     float64        `json:"missed"`
	Sent       []sentAnswer   `json:"sent"`
	HeldBy     []holderAnswer `json:"held_by,omitzero"`
	Copies     int            `json:"copies"`
	ShouldHold []Place        `json:"should_hold,omitzero"`
}

type sentAnswer struct {
	Place
	Requests float64 `json:"requests"`
}

type holderAnswer struct {
	Place
	Tier string `json:"tier"`
}

// reasonAlone is why prefixes are degraded when other servers' counts cannot be read.
const reasonAlone = "counts_unavailable"

// Prefixes is the answer for a model.
func Prefixes(all *route.Prefixes) *ModelPrefixes {
	out := &ModelPrefixes{Requests: tenths(all.Requests), BlockSize: all.BlockSize, Prefixes: []*prefixAnswer{}}
	switch {
	case all.Unheld != "":
		out.Degraded = &degraded{string(all.Unheld)}
	case all.Alone:
		out.Degraded = &degraded{reasonAlone}
	}
	for i := range all.List {
		p := &all.List[i]
		a := &prefixAnswer{
			Key: p.Key.String(), Blocks: p.Blocks, Tokens: p.Blocks * all.BlockSize, Requests: tenths(p.Requests),
			Share: math.Round(p.Share*1000) / 1000, Missed: tenths(p.Missed), Sent: []sentAnswer{}, Copies: p.Copies,
		}
		for _, s := range p.Sent {
			a.Sent = append(a.Sent, sentAnswer{PlaceOf(s.RankRef), tenths(s.Requests)})
		}
		if all.Unheld == "" {
			a.HeldBy, a.ShouldHold = []holderAnswer{}, placesOf(p.Lacking)
			for _, h := range p.Holders {
				a.HeldBy = append(a.HeldBy, holderAnswer{PlaceOf(h.RankRef), h.Tier.String()})
			}
		}
		out.Prefixes = append(out.Prefixes, a)
	}
	return out
}

// tenths keeps one decimal of a count that fades.
func tenths(x float64) float64 { return math.Round(x*10) / 10 }
