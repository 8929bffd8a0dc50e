package bound_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/bound"
)

type key struct{}

// withTimeout is context.WithTimeout or its double.
type withTimeout func(context.Context, time.Duration) (context.Context, context.CancelFunc)

// TestLikeContext holds WithTimeout to context.WithTimeout in all orders of what can happen: each
// of the steps is done or not, before or after something waits.
func TestLikeContext(t *testing.T) {
	type world struct {
		ctx            context.Context
		cancel, parent context.CancelFunc
		child          context.Context
	}
	steps := map[byte]func(*world){
		'c': func(w *world) { w.cancel() },
		'p': func(w *world) { w.parent() },
		't': func(*world) { time.Sleep(time.Second) }, // of the bubble's clock
		'w': func(w *world) { w.ctx.Done() },
		'e': func(w *world) { _ = w.ctx.Err() },
		'k': func(w *world) {
			var cancel context.CancelFunc
			w.child, cancel = context.WithCancel(w.ctx)
			_ = cancel // it ends with w.ctx
		},
	}
	ended := func(ctx context.Context) bool {
		select {
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
	// play returns what is seen after all steps.
	play := func(t *testing.T, with withTimeout, order string) (done, childDone bool, err, child error) {
		parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), key{}, 7))
		defer cancelParent()
		w := &world{parent: cancelParent}
		w.ctx, w.cancel = with(parent, time.Second/2)
		defer w.cancel()
		for _, s := range []byte(order) {
			steps[s](w)
		}
		synctest.Wait()
		err = w.ctx.Err()
		done = ended(w.ctx)
		if w.ctx.Value(key{}) != 7 {
			t.Errorf("%s: no value", order)
		}
		if w.child != nil {
			child, childDone = w.child.Err(), ended(w.child)
		}
		if again := w.ctx.Err(); !errors.Is(again, err) {
			t.Errorf("%s: %v, then %v", order, err, again)
		}
		return done, childDone, err, child
	}
	synctest.Test(t, func(t *testing.T) {
		letters := "cptwek"
		orders := []string{""}
		for from, round := 0, 0; round < 4; round++ {
			upto := len(orders)
			for _, o := range orders[from:upto] {
				for _, l := range letters {
					orders = append(orders, o+string(l))
				}
			}
			from = upto
		}
		for _, o := range orders {
			done, childDone, err, child := play(t, bound.WithTimeout, o)
			wantDone, wantChildDone, wantErr, wantChild := play(t, context.WithTimeout, o)
			// Which of two ends came first is not told by one that nothing had asked by then.
			if (err == nil) != (wantErr == nil) || done != wantDone || (child == nil) != (wantChild == nil) || childDone != wantChildDone {
				t.Errorf("%q: %v %v %v %v, want %v %v %v %v", o, err, done, child, childDone, wantErr, wantDone, wantChild, wantChildDone)
			}
			if o != "" && (o[0] == 'w' || o[0] == 'k' || len(o) == 1) && !errors.Is(err, wantErr) {
				t.Errorf("%q: %v, want %v", o, err, wantErr)
			}
		}
	})
}

// TestNestedEnds has children and grandchildren wait, which costs no goroutine, and end.
func TestNestedEnds(t *testing.T) {
	outer, cancel := bound.WithTimeout(t.Context(), time.Hour)
	inner, cancelInner := bound.WithTimeout(outer, 2*time.Hour)
	defer cancelInner()
	if at, _ := inner.Deadline(); time.Until(at) > time.Hour {
		t.Errorf("the deadline is %v, behind its parent's", at)
	}
	before := runtime.NumGoroutine()
	child, cancelChild := context.WithCancel(inner)
	defer cancelChild()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("a child takes %d goroutines", n-before)
	}
	cancel()
	<-child.Done()
	for _, ctx := range []context.Context{outer, inner, child} {
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("got %v, want %v", ctx.Err(), context.Canceled)
		}
	}
}

func BenchmarkWithTimeout(b *testing.B) {
	parent, cancel := context.WithCancel(b.Context())
	defer cancel()
	for name, with := range map[string]withTimeout{"context": context.WithTimeout, "bound": bound.WithTimeout} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := with(parent, time.Second)
				if ctx.Err() != nil {
					b.Fatal(ctx.Err())
				}
				cancel()
			}
		})
	}
}
