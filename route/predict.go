package route

import (
	"context"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// Predict says how long what a router has sent to a pod counts as held there. Of a pod that
// tells what it holds that bridges the time until it does; of others it is all that is known.
type Predict struct {
	// BridgeS is how long it counts on pods that tell, in seconds; 0 is not at all.
	BridgeS float64 `json:"bridge_s"`
	// Approximate says that pods without an endpoint of events do not tell. A pod may say so
	// of itself.
	Approximate bool `json:"approximate"`
	// TTLS is how long it counts on pods that do not tell, in seconds; 0 is not at all.
	TTLS float64 `json:"ttl_s"`
	// MaxBlocks is how many blocks may be predicted of a rank. With 0 they are as many as its
	// cache has room for or, where that is not known, defaultPredicted.
	MaxBlocks int64 `json:"max_blocks"`
	// Prune is the share of MaxBlocks that goes, oldest first, when there would be more.
	Prune float64 `json:"prune"`
}

// DefaultPredict are the settings of a model without its own.
func DefaultPredict() Predict { return Predict{TTLS: 120, Prune: 0.2} }

// defaultPredicted is how many blocks may be predicted of a rank whose room is not known: a million tokens in
// blocks of 64.
const defaultPredicted = 1 << 14

// ttl is how long predictions hold on a pod; 0 is that there are none.
func (p *Predict) ttl(pod *store.Pod) time.Duration {
	s := p.BridgeS
	if pod.Approximate || p.Approximate && pod.Events == "" {
		s = p.TTLS
	}
	return time.Duration(s * float64(time.Second))
}

// most is how many blocks may be predicted of a rank.
func (p *Predict) most(c *Candidate) int64 {
	switch {
	case p.MaxBlocks > 0:
		return p.MaxBlocks
	case c.CapacityBlocks > 0:
		return int64(c.CapacityBlocks)
	}
	return defaultPredicted
}

// predict writes that a place will hold the prompt that is booked there. What fails of it is
// no fault of the decision's.
func (r *Router) predict(ctx context.Context, v *View, match *scorer.Match, model string, c *Candidate, d *Decision) {
	if r.c.Index == nil || r.c.Notes == nil || d.Reservation == "" || d.Again || len(match.Keys) == 0 {
		return
	}
	pod, ok := match.Registry.PodIndex(c.Pod)
	if !ok {
		return
	}
	s := &v.Settings.Predict
	ttl, most := s.ttl(&match.Registry.Pods[pod]), s.most(c)
	told := (c.Cached() - c.Predicted) / match.BlockSize // at the beginning of the prompt
	keys := match.Keys[min(told, len(match.Keys)):]
	keys = keys[:min(int64(len(keys)), most)]
	if ttl < time.Millisecond || len(keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, predictWait)
	defer cancel()
	slice, err := r.c.Notes.Slice(ctx, notes.Slice{
		Model: model, RankRef: c.RankRef, Blocks: int64(len(keys)), TTL: max(ttl, minPrediction), Max: most, Keep: int64(float64(most) * (1 - s.Prune)),
	})
	if err == nil {
		b := store.Batch{Pod: c.Pod, Rank: c.Rank, Model: model}
		for _, until := range slice.Over {
			b.Ops = append(b.Ops, store.Op{Kind: store.Clear, Tier: store.Predicted, Until: until})
		}
		for part := range slices.Chunk(keys, store.MaxOpKeys) {
			b.Ops = append(b.Ops, store.Op{Kind: store.Add, Tier: store.Predicted, Until: slice.Until, Keys: part})
		}
		err = r.c.Index.Apply(ctx, b)
	}
	n := len(keys)
	if err != nil {
		n = 0
	}
	d.Predicts += n
	if told := r.c.Predicted; told != nil {
		told(n, err)
	}
}

// minPrediction is the shortest time that a prediction holds.
const minPrediction = 100 * time.Millisecond
