package scorer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/replica"
)

// TestBudgetThatWasSleptThrough asks indexes in memory when the time is over, as after the
// process has not been running. The answer costs no time, and is given whole.
func TestBudgetThatWasSleptThrough(t *testing.T) {
	plain := must.Get(memory.New(memory.Config{}))(t)
	defer plain.Close()
	copied := must.Get(replica.New(replica.Config{Index: openRedis(t, redistest.Start(t).URL())}))(t)
	t.Cleanup(func() { _ = copied.Close() })
	for name, x := range map[string]store.Index{"memory": plain, "replica": copied} {
		t.Run(name, func(t *testing.T) {
			registerPods(t, x, store.Pod{Name: "a", Model: "m"})
			keys := blockKeys(64, firstTokens(64*5000))
			change(t, x, store.Add, "m", "a", store.GPU, keys...)
			if r, ok := x.(*replica.Replica); ok {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				must.OK(t, r.CatchUp(ctx))
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

// farIndex answers while there is time.
type farIndex struct{}

func (farIndex) Lookup(ctx context.Context, queries ...*store.Query) error {
	for _, q := range queries {
		q.Fold.Begin(farIndex{}.Cached())
	}
	return ctx.Err()
}

func (farIndex) Cached() *store.Registry { return &store.Registry{} }

// A request whose time is over before the index is asked does not blame the index.
func TestLateBeforeTheIndex(t *testing.T) {
	over, end := context.WithTimeout(t.Context(), 0)
	defer end()
	<-over.Done()
	s := must.Get(scorer.New(scorer.Config{
		Index: farIndex{},
		Tokenizer: scorer.TokenizerFunc(func(context.Context, prompt.Request) (prompt.Result, error) {
			return prompt.Result{Behind: prompt.BehindBudget}, nil
		}),
	}))(t)
	for _, in := range []scorer.Input{scorer.Prompt("x"), scorer.Tokens([]uint32{1, 2})} {
		if _, err := s.Score(over, scorer.Request{Model: "m", Input: in}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want %v", err, context.DeadlineExceeded)
		}
	}
}

// deadlines is an index that remembers whether the last lookup had a deadline.
type deadlines struct {
	store.Index
	last bool
}

func (d *deadlines) Lookup(ctx context.Context, queries ...*store.Query) error {
	_, d.last = ctx.Deadline()
	return d.Index.Lookup(ctx, queries...)
}

// TestUnbounded leaves a lookup the deadline of its caller, and gives it none of its own.
func TestUnbounded(t *testing.T) {
	plain := must.Get(memory.New(memory.Config{}))(t)
	defer plain.Close()
	bounded, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	x := &deadlines{Index: plain}
	for _, c := range []struct {
		budget time.Duration
		ctx    context.Context
		want   bool
	}{{0, t.Context(), true}, {scorer.Unbounded, t.Context(), false}, {scorer.Unbounded, bounded, true}} {
		s := newScorer(t, scorer.Config{Index: x, Budget: c.budget})
		if _, err := s.Score(c.ctx, scorer.Request{Model: "m", Input: scorer.Tokens(make([]uint32, 100))}); err != nil || x.last != c.want {
			t.Errorf("with a budget of %v the lookup has a deadline: %v, expected %v; %v", c.budget, x.last, c.want, err)
		}
	}
	if _, err := scorer.New(scorer.Config{Index: x, Budget: -2}); err == nil {
		t.Error("a budget below Unbounded was taken")
	}
}
