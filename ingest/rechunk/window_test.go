package rechunk

import (
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// TestWindows has blocks of window groups in window tiers, and the engine's windows among
// what it can reuse, for the owner that has seen them and the next one alike.
func TestWindows(t *testing.T) {
	tokens := count(0, 128)
	hashes := prompt(tokens, 16)
	full := in("GPU", 0, storedOf(tokens, 16, 0))
	full.Spec = "full_attention"
	window := in("GPU", 1, storedOf(tokens, 16, 0))
	window.Spec, window.SlidingWindow = "sliding_window", 40
	state := in("GPU", 1, storedOf(tokens, 16, 0))
	state.Spec = "mamba"
	// Blocks that have left the window are left out: tokens are of all, hashes of the rest.
	masked := window
	masked.Hashes = hashes[5:]
	for what, c := range map[string]struct {
		second event.Event
		held   int // index blocks of 32 tokens that the window group holds
		reuse  store.Reuse
	}{
		"a window": {window, 4, store.Reuse{Block: 16, Window: 48}},
		"a state":  {state, 4, store.Reuse{Block: 16, Window: 16}},
		"masked":   {masked, 1, store.Reuse{Block: 16, Window: 48}},
	} {
		t.Run(what, func(t *testing.T) {
			r := play(t, Config{BlockSize: 32})
			do := func(events ...event.Event) { t.Helper(); r.do(&event.Batch{Events: events}) }
			want := func(tier store.Tier, n int) {
				t.Helper()
				have := 0
				for k := range r.sink.held {
					if k.tier == tier {
						have++
					}
				}
				if have != n {
					t.Fatalf("after message %d: %d index blocks in %v, want %d", r.seq, have, tier, n)
				}
			}
			takeOver := func() { r.c = mustNew(t, Config{BlockSize: 32}) }
			do(full, c.second)
			for range 2 {
				want(store.GPU, 4)
				want(store.GPU.Window(), c.held)
				if got := r.c.form.reuse(); got != c.reuse {
					t.Errorf("the engine can reuse %v, want %v", got, c.reuse)
				}
				takeOver()
				do() // the next owner reads the form
			}
			do(in("GPU", 1, removed(hashes[6])))
			want(store.GPU, 4)
			want(store.GPU.Window(), c.held-1)
			do(in("GPU", 0, removed(hashes[7])))
			want(store.GPU, 3)
			takeOver()
			again := c.second
			again.Hashes, again.Tokens, again.Parent, again.HasParent = hashes[6:7], tokens[96:112], hashes[5], true
			do(again)
			want(store.GPU.Window(), c.held)
			do(event.Event{Kind: event.Cleared})
			want(store.GPU, 0)
			want(store.GPU.Window(), 0)
		})
	}
}
