package route_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// frozen are loads that do not answer while hang is set, as those in a Redis that is stopped.
type frozen struct {
	loads.Store
	hang  atomic.Bool
	tries atomic.Int64
}

func (f *frozen) Loads(ctx context.Context, model string) (loads.Picture, error) {
	f.tries.Add(1)
	if f.hang.Load() {
		<-ctx.Done()
		return loads.Picture{}, errors.Join(loads.ErrUnavailable, ctx.Err())
	}
	return f.Store.Loads(ctx, model)
}

// newFrozenWorld is a world in real time, which is virtual in a bubble, with two pods.
func newFrozenWorld(t *testing.T, told func(error)) (*world, *frozen) {
	f := &frozen{}
	w := newWorld(t, func(c *route.Config) {
		f.Store, c.Loads, c.Now = c.Loads, f, time.Now
		c.Away = func(_ string, err error) { told(err) }
	})
	w.loads = f.Store
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	return w, f
}

// TestCaseLoadsThatDoNotAnswer has requests of one model come while the loads do not answer:
// all wait for one try, none for those of requests before it.
func TestCaseLoadsThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newFrozenWorld(t, func(error) {})
		f.hang.Store(true)
		begin := time.Now()
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				q := reserving(ask(prompt(1, 100)))
				d, err := w.Route(t.Context(), q)
				if err != nil || !d.Local || d.Reservation != "" {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		wg.Wait()
		if took, tries := time.Since(begin), f.tries.Load(); took > route.PictureWait() || tries != 1 {
			t.Errorf("40 requests took %v and made %d tries, one takes %v", took, tries, route.PictureWait())
		}
		f.hang.Store(false)
		q := reserving(ask(prompt(1, 100)))
		if d := w.route(q); d.Local || d.Reservation == "" {
			t.Errorf("the loads answer again: %+v", d)
		}
	})
}

// TestCaseCallerOfAPictureLeaves has the request that reads the loads end before they have
// answered. That is no fault of theirs, and the requests that wait for them read them anew.
func TestCaseCallerOfAPictureLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []error
		w, f := newFrozenWorld(t, func(err error) { told = append(told, err) })
		f.hang.Store(true)
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = w.Route(first, ask(prompt(1, 100))) })
		synctest.Wait() // it reads
		wg.Go(func() {
			q := reserving(ask(prompt(1, 100)))
			if d := must.Get(w.Route(t.Context(), q))(t); d.Local || d.Reservation == "" {
				t.Errorf("%+v", d)
			}
		})
		synctest.Wait() // it waits
		f.hang.Store(false)
		leave()
		wg.Wait()
		if tries := f.tries.Load(); tries != 2 || len(told) > 0 {
			t.Errorf("%d tries; told %v", tries, told)
		}
	})
}
