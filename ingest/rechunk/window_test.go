package rechunk

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// TestWindows has blocks of window groups in window tiers, and the engine's windows among what
// it can reuse. It does so for the owner that has seen them and the next one alike.
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
				if got := r.c.form.Reuse(); got != c.reuse {
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

// TestCaseNothingKept has a group shown by an event of which no block was kept. What full
// attention holds by then stays, and nothing is credited for which there is no state.
func TestCaseNothingKept(t *testing.T) {
	tokens := count(0, 128)
	full := func(from, to int) event.Event {
		e := in("GPU", 0, storedOf(tokens[:to*16], 16, from))
		e.Spec = "full_attention"
		return e
	}
	for spec, want := range map[string]store.Reuse{"mamba": {Block: 16, Window: 16}, "sliding_window": {Block: 16, Window: 48}} {
		kept := func(from, to int, hashes ...event.Hash) event.Event {
			e := full(from, to)
			e.Group, e.Spec, e.Hashes = 1, spec, hashes
			if spec == "sliding_window" {
				e.SlidingWindow = 40
			}
			return e
		}
		r := play(t, Config{BlockSize: 16})
		held := func() (n, window int) {
			for k := range r.sink.held {
				if k.tier.IsWindow() {
					window++
				} else {
					n++
				}
			}
			return n, window
		}
		r.do(&event.Batch{Events: []event.Event{full(0, 4), kept(0, 4)}})
		if n, window := held(); n != 4 || window != 0 || r.c.form.Reuse() != want {
			t.Errorf("%s: %d and %d blocks are held, and %+v can be reused, want 4 and 0, and %+v", spec, n, window, r.c.form.Reuse(), want)
		}
		r.c = mustNew(t, Config{BlockSize: 16}) // the next owner knows it too
		r.do(&event.Batch{Events: []event.Event{full(4, 8), kept(4, 8, prompt(tokens, 16)[6])}})
		if n, window := held(); n != 8 || window != 1 {
			t.Errorf("%s: %d and %d blocks are held, want 8 and 1", spec, n, window)
		}
	}
	// Without a kind nothing is known of such a group.
	r := play(t, Config{BlockSize: 16})
	untold := full(0, 4)
	untold.Group, untold.Spec, untold.Hashes = 1, "", nil
	r.do(&event.Batch{Events: []event.Event{full(0, 4), untold}})
	if len(r.sink.held) != 4 || r.c.form.Bit(0) == 0 || r.c.form.Bit(1) != 0 {
		t.Errorf("%d blocks are held, the groups' bits are %d and %d", len(r.sink.held), r.c.form.Bit(0), r.c.form.Bit(1))
	}
}

// TestCaseCopiesOnHybridModels tells what a request has found beside a window from what is
// computed again since the window's blocks are gone.
func TestCaseCopiesOnHybridModels(t *testing.T) {
	tokens := count(0, 17*16)
	hashes := prompt(tokens, 16)
	told := func(events ...event.Event) (both []event.Event) { // each for both groups
		for _, e := range events {
			f := in("GPU", 0, e)
			w := in("GPU", 1, e)
			w.Spec, w.SlidingWindow = "sliding_window", 40 // a hit needs 3 blocks
			both = append(both, f, w)
		}
		return both
	}
	all := storedOf(tokens[:256], 16, 0)
	next := storedOf(tokens, 16, 16)
	other := storedOf(count(1000, 64), 16, 0)
	otherNext := storedOf(count(1000, 80), 16, 4)
	shown := slices.Clip(append(told(other, other), told(otherNext)...)) // a report for certain
	lost := func(from, to int) event.Event { return in("GPU", 1, removed(hashes[from:to]...)) }
	for what, c := range map[string]struct {
		before, again []event.Event
		full, window  int // blocks of the prompt that are held after one removal of the full group's last and the window's first
	}{
		"found, and it goes on":                  {[]event.Event{lost(0, 12)}, append(told(all), told(next)...), 16, 5},
		"found where reports are known":          {append(shown, lost(0, 12)), told(all), 15, 4},
		"computed, the window's last is gone":    {[]event.Event{lost(15, 16)}, told(all), 16, 16},
		"computed where reports are known":       {append(shown, lost(15, 16)), told(all), 16, 16},
		"either, of a prompt that ends with it":  {[]event.Event{lost(0, 13)}, told(all), 16, 15},
		"either, where reports are known":        {append(shown, lost(0, 13)), told(all), 15, 3},
		"either, and then a report was":          {[]event.Event{lost(0, 13)}, append(told(all), shown...), 15, 15},
		"either, then a request goes on with it": {append(shown, lost(0, 13)), append(told(all), in("GPU", 0, removed(hashes[15])), told(next)[0], in("GPU", 0, removed(hashes[16]))), 15, 3},
		"of one group alone":                     {append(shown, lost(0, 12)), told(all)[:1], 16, 4},
	} {
		t.Run(what, func(t *testing.T) {
			r := play(t, Config{BlockSize: 16})
			do := func(events ...event.Event) {
				t.Helper()
				r.do(&event.Batch{Events: events})
				r.c = mustNew(t, Config{BlockSize: 16}) // the next owner judges alike
			}
			do(told(all)...)
			do(c.before...)
			do(c.again...)
			do(in("GPU", 0, removed(hashes[15])), lost(0, 1))
			want := map[store.Tier]int{store.GPU: c.full, store.GPU.Window(): c.window}
			for _, k := range native(len(tokens), 16) {
				for tier := range want {
					if r.sink.held[credit{tier, k}] {
						want[tier]--
					}
				}
			}
			if want[store.GPU] != 0 || want[store.GPU.Window()] != 0 {
				t.Errorf("held are %d blocks, want %d, and %d of the window's, want %d",
					c.full-want[store.GPU], c.full, c.window-want[store.GPU.Window()], c.window)
			}
		})
	}
}
