package wire

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// A flood of requests of a pod that does not go on waits up to a limit. Those beyond it are
// refused at once, and when the others have gone there is room again.
func TestFlood(t *testing.T) {
	p := must.Get(NewPod(Config{Model: "m", Listen: "127.0.0.1:0", Events: redistest.FreeEndpoint(t, 1)}))(t)
	must.OK(t, p.Start())
	defer func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	}()
	l := must.Get(p.current())(t)
	l.clock.freeze()
	handler := l.handler()
	ask := func(ctx context.Context) int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/health", http.NoBody))
		return w.Code
	}
	const more = 500
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	refused := make(chan struct{}, maxOpen+more)
	for range maxOpen + more {
		flood.Go(func() {
			if ask(ctx) == http.StatusServiceUnavailable {
				refused <- struct{}{}
			}
		})
	}
	for range more {
		<-refused
	}
	if n := l.inside.Load(); n != maxOpen {
		t.Errorf("%d requests are inside, want %d", n, maxOpen)
	}
	cancel()
	flood.Wait()
	l.clock.thaw()
	if status := ask(t.Context()); status != http.StatusOK || len(refused) > 0 || l.inside.Load() != 0 {
		t.Errorf("afterwards: %d; %d more were refused, %d are inside", status, len(refused), l.inside.Load())
	}
}
