package snapshot

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/store"
)

// Target is what a reset is of: one of its fields is set.
type Target struct {
	// Model clears every pod that is registered for a model, and forgets the
	// model's settings. The pods stay registered.
	Model string
	// Pod retires a pod.
	Pod string
	// All retires all pods and forgets all models.
	All bool
}

// String names the target: "pod a", "model m" or "all".
func (t Target) String() string {
	switch {
	case t.Pod != "":
		return "pod " + clip([]byte(t.Pod))
	case t.Model != "":
		return "model " + clip([]byte(t.Model))
	}
	return "all"
}

// Resets is what a reset has done.
type Resets struct {
	// Pods is how many pods were cleared or retired, Models how many models were
	// forgotten.
	Pods   int `json:"pods"`
	Models int `json:"models"`
}

// clearsAtOnce is how many pods are cleared in one call.
const clearsAtOnce = 64

// Reset makes an index forget. What it does to a pod is O(1), whatever the pod
// holds. The generations of its holders end, and from the next lookup on nothing
// of them counts. The memory comes back later, in small steps.
//
// A block does not tell its model, so what a model has in the index is what the
// pods hold that are registered for it. So a reset of a model takes from these pods what they hold of other
// models too. It leaves what pods of other models hold of this one.
//
// What is not there is no error: the numbers are 0. A reset that ended with an
// error can be made again.
func Reset(ctx context.Context, x store.Index, t Target) (done Resets, err error) {
	given := 0
	for _, is := range []bool{t.Model != "", t.Pod != "", t.All} {
		if is {
			given++
		}
	}
	if given != 1 {
		return done, fmt.Errorf("%w: a reset is of one model, of one pod or of all", store.ErrInvalid)
	}
	if t.Pod != "" {
		err = retire(ctx, x, t.Pod, &done)
		return done, err
	}
	reg, err := x.Registry(ctx)
	if err != nil {
		return done, err
	}
	var clears []store.Batch
	for i := range reg.Pods {
		p := &reg.Pods[i]
		switch {
		case t.All:
			if err := retire(ctx, x, p.Name, &done); err != nil {
				return done, err
			}
		case p.Model == t.Model:
			clears = append(clears, store.Batch{
				Pod: p.Name, Model: p.Model, Ops: []store.Op{{Kind: store.Clear, Tier: store.AllTiers, AllRanks: true}},
			})
		}
	}
	for part := range slices.Chunk(clears, clearsAtOnce) {
		if err := x.Apply(ctx, part...); err != nil {
			return done, err
		}
		done.Pods += len(part)
	}
	for name := range reg.Models {
		if t.All || name == t.Model {
			known, err := x.Forget(ctx, name)
			if err != nil {
				return done, err
			}
			if known {
				done.Models++
			}
		}
	}
	return done, nil
}

func retire(ctx context.Context, x store.Index, pod string, done *Resets) error {
	known, err := x.Retire(ctx, pod)
	if known {
		done.Pods++
	}
	return err
}
