package answer

import (
	"math"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/route"
)

// reasonAlone is why prefixes are degraded when other servers' counts cannot be read.
const reasonAlone = "counts_unavailable"

// Prefixes is the answer for a model of GET /v1/prefixes.
func Prefixes(all *route.Prefixes) *client.ModelPrefixes {
	out := &client.ModelPrefixes{Requests: tenths(all.Requests), BlockSize: all.BlockSize, Prefixes: []client.HotPrefix{}}
	switch {
	case all.Unheld != "":
		out.Degraded = &client.Degraded{Reason: string(all.Unheld)}
	case all.Alone:
		out.Degraded = &client.Degraded{Reason: reasonAlone}
	}
	for i := range all.List {
		p := &all.List[i]
		a := client.HotPrefix{
			Key: p.Key.String(), Blocks: p.Blocks, Tokens: p.Blocks * all.BlockSize, Requests: tenths(p.Requests),
			Share: math.Round(p.Share*1000) / 1000, Missed: tenths(p.Missed), Sent: []client.SentTo{}, Copies: p.Copies,
		}
		for _, s := range p.Sent {
			a.Sent = append(a.Sent, client.SentTo{Place: PlaceOf(s.RankRef), Requests: tenths(s.Requests)})
		}
		if all.Unheld == "" {
			a.HeldBy, a.ShouldHold = []client.PrefixHolder{}, placesOf(p.Lacking)
			for _, h := range p.Holders {
				a.HeldBy = append(a.HeldBy, client.PrefixHolder{Place: PlaceOf(h.RankRef), Tier: h.Tier.String()})
			}
		}
		out.Prefixes = append(out.Prefixes, a)
	}
	return out
}

// tenths keeps one decimal of a count that fades.
func tenths(x float64) float64 { return math.Round(x*10) / 10 }
