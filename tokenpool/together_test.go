package tokenpool

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// crowd has four goroutines do the work of a text.
func crowd(work func(leave func() bool)) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { work(func() bool { return false }) })
	}
	wg.Wait()
}

// longText is of lines that are all different.
func longText(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "the %d inns in 12 an\n", i)
	}
	return b.String()
}

// watched is an encoder that counts how many texts are in it at a time. It holds up long
// ones until a second one is there, if it is to meet.
type watched struct {
	encoder
	inside, most atomic.Int64
	meet         bool
	met          chan struct{} // closed once
	once         sync.Once
}

func (w *watched) encode(text string, special bool) ([]uint32, []int) {
	n := w.inside.Add(1)
	defer w.inside.Add(-1)
	for {
		if m := w.most.Load(); n <= m || w.most.CompareAndSwap(m, n) {
			break
		}
	}
	if n > 1 {
		w.once.Do(func() { close(w.met) })
	}
	if w.meet && len(text) > pieceBytes {
		select {
		case <-w.met:
		case <-time.After(time.Minute): // most says so
		}
	}
	return w.encoder.encode(text, special)
}

// TestTogether has idle workers help with a long text: two work on it at once, and as many
// as there are workers at most. The tokens are those of one.
func TestTogether(t *testing.T) {
	text := longText(300 << 10)
	var want []uint32
	for _, workers := range []int{1, 2, 3} {
		f := newFakes(t)
		f.models["m"] = string(smallBPE(t))
		w := &watched{meet: workers > 1, met: make(chan struct{})}
		p := must.Get(newPool(Config{Origin: f, Workers: workers}, func(data []byte, split bool) (encoder, error) {
			e, err := newLibrary(data, split)
			w.encoder = e
			return w, err
		}))(t)
		res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Sync})
		if err != nil || !res.Exact {
			t.Fatal(err)
		}
		_ = p.Close()
		if workers == 1 {
			want = res.Tokens
		}
		if !slices.Equal(res.Tokens, want) {
			t.Errorf("%d workers give other tokens", workers)
		}
		if most := w.most.Load(); most > int64(workers) || workers > 1 && most < 2 {
			t.Errorf("%d at a time, with %d workers", most, workers)
		}
		if n := p.n.helping.Load(); n != 0 {
			t.Errorf("%d still help", n)
		}
	}
}

// TestHelpersLeave has helpers leave when texts come for their workers, and none come where
// all workers are in work.
func TestHelpersLeave(t *testing.T) {
	p := &Pool{cfg: Config{Workers: 3}}
	p.n.running.Store(1)
	var there, left atomic.Int64
	busy := make(chan struct{})
	p.together(func(leave func() bool) {
		if leave() {
			t.Error("a helper leaves an idle worker's place")
		}
		if there.Add(1) == 3 {
			p.n.running.Store(3)
			close(busy)
		}
		<-busy
		if leave() {
			left.Add(1)
		}
	})
	if there.Load() != 3 || left.Load() != 2 || p.n.helping.Load() != 0 {
		t.Errorf("%d goroutines, %d left, %d still help", there.Load(), left.Load(), p.n.helping.Load())
	}
	p.together(func(func() bool) { there.Add(1) })
	if n := there.Load() - 3; n != 1 {
		t.Errorf("%d goroutines where no worker is idle", n)
	}
}
