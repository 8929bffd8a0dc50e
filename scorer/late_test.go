package scorer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/replica"
)

// TestBudgetThatWasSleptThrough asks indexes in memory when the time is over, as after
// the process has not been running: the answer costs no time, and is given whole.
func TestBudgetThatWasSleptThrough(t *testing.T) {
	plain, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	copied, err := replica.New(replica.Config{Index: openRedis(t, redistest.Start(t).URL())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = copied.Close() })
	for name, x := range map[string]store.Index{"memory": plain, "replica": copied} {
		t.Run(name, func(t *testing.T) {
			registerPods(t, x, store.Pod{Name: "a", Model: "m"})
			keys := blockKeys(64, firstTokens(64*5000))
			change(t, x, store.Add, "m", "a", store.GPU, keys...)
			if r, ok := x.(*replica.Replica); ok {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := r.CatchUp(ctx); err != nil {
					t.Fatal(err)
				}
			}
			s := newScorer(t, scorer.Config{Index: x})
			late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
			defer cancel()
			ask := scorer.Request{Model: "m", Input: scorer.BlockKeys(keys)}
			r, err := s.Score(late, ask)
			if err != nil || r.Degraded != "" || len(r.Pods) != 1 || r.Pods[0].Blocks != len(keys) {
				t.Errorf("%+v, %v", r, err)
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := s.Score(gone, ask); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that has gone gets %v", err)
			}
		})
	}
}
