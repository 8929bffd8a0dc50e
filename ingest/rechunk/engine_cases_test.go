package rechunk

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// batch is one message.
func batch(events ...event.Event) *event.Batch { return &event.Batch{Events: events} }

// in sets where an event is about.
func in(medium string, group int, e event.Event) event.Event {
	e.Medium, e.Group, e.HasGroup, e.Spec = medium, group, true, "full_attention"
	return e
}

// bare is a Stored of hashes alone, as vLLM's offloading sends it.
func bare(medium string, size int, hashes ...event.Hash) event.Event {
	return event.Event{Kind: event.Stored, Medium: medium, BlockSize: size, Hashes: hashes}
}

// TestCaseOffloadEventsWithoutTokens: hashes without tokens stand for themselves, in
// any order and number, known or not, and take nothing from what is held.
func TestCaseOffloadEventsWithoutTokens(t *testing.T) {
	tokens := count(1, 128)
	h := prompt(tokens, 16)
	backwards := slices.Clone(h[:4])
	slices.Reverse(backwards)
	for what, c := range map[string]struct {
		events []event.Event
		cpu    int // index blocks of 16
		skip   uint64
	}{
		"a batch of keys":        {[]event.Event{bare("CPU", 16, h[:4]...)}, 4, 0},
		"block size 0":           {[]event.Event{bare("CPU", 0, h[:4]...)}, 4, 0},
		"backwards":              {[]event.Event{bare("CPU", 16, backwards...)}, 4, 0},
		"one a key":              {[]event.Event{bare("CPU", 0, h[0]), bare("CPU", 0, h[1])}, 2, 0},
		"keys of two prompts":    {[]event.Event{bare("CPU", 16, h[5], h[0], h[3])}, 3, 0},
		"unknown ones between":   {[]event.Event{bare("CPU", 16, 77, h[0], 78, h[1])}, 2, 2},
		"one twice":              {[]event.Event{bare("CPU", 16, h[0], h[0])}, 1, 0},
		"told again":             {[]event.Event{bare("CPU", 16, h[:2]...), bare("CPU", 16, h[:2]...), in("CPU", 0, removed(h[0]))}, 2, 0},
		"in the GPU's own tier":  {[]event.Event{bare("GPU", 16, h[2], h[1])}, 0, 0},
		"with a parent":          {[]event.Event{with(bare("CPU", 16, h[3], h[2]), func(e *event.Event) { e.HasParent, e.Parent = true, 99 })}, 2, 0},
		"an adapter's number":    {[]event.Event{with(bare("CPU", 16, h[3], h[2]), func(e *event.Event) { e.LoRAID = 1 })}, 2, 0},
		"larger blocks, by last": {[]event.Event{bare("CPU", 64, h[3], h[7])}, 2, 0},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, Config{BlockSize: 16})
			r.do(storedOf(tokens, 16, 0))
			r.takeOver()
			r.do(c.events...)
			r.want(store.GPU, 8)
			r.want(store.CPU, c.cpu)
			if s := r.c.Stats(); s.Conflicts != 0 || s.Skipped[Ambiguous] != 0 || s.Skipped[NoTokens] != c.skip {
				t.Errorf("counted %+v", s)
			}
			// Evicted from the GPU, the host has what it had.
			r.do(removed(h...))
			r.want(store.CPU, c.cpu)
		})
	}
}

// TestCaseSelfDescribingOffloadWithSalt: a store behind the GPU of a known hash is the
// known block, however little it says of what went into the hash.
func TestCaseSelfDescribingOffloadWithSalt(t *testing.T) {
	tokens := count(1, 64)
	image := func(e *event.Event) {
		e.Extra = make([]event.Extra, len(e.Hashes))
		e.Extra[0].Objects = []event.Object{{ID: "image", Hash: 7, Offset: 9}}
	}
	for what, full := range map[string]func(*event.Event){
		"plain":               func(*event.Event) {},
		"salt":                func(e *event.Event) { e.Salt = "tenant-a" },
		"adapter":             func(e *event.Event) { e.LoRA = "sql" },
		"adapter and salt":    func(e *event.Event) { e.LoRA, e.Salt = "sql", "tenant-a" },
		"image or embeddings": image,
	} {
		for _, size := range []int{8, 16, 64} { // of the index
			for _, named := range []bool{false, true} { // the adapter, as vLLM does
				t.Run(what, func(t *testing.T) {
					r := newRig(t, Config{BlockSize: size})
					apply := func(events ...event.Event) { // the model keeps no objects
						t.Helper()
						r.seq++
						must.OK(t, r.c.Apply(t.Context(), batch(events...), r.read))
						r.write0()
						r.takeOver()
					}
					e := with(storedOf(tokens, 16, 0), full)
					apply(e)
					r.want(store.GPU, 64/size)
					held := map[credit]bool{}
					for k := range r.sink.held {
						held[credit{store.CPU, k.key}] = true
					}
					less := e
					less.Salt, less.Extra, less.Medium = "", nil, "CPU"
					if !named {
						less.LoRA = ""
					}
					apply(less)
					r.want(store.GPU, 64/size)
					for k := range held {
						if !r.sink.held[k] {
							t.Fatalf("%v is not held in the host's memory", k.key)
						}
					}
					apply(less, in("CPU", 0, removed(e.Hashes...)))
					r.want(store.CPU, 64/size) // told twice, removed once
					apply(removed(e.Hashes...))
					r.want(store.GPU, 0)
					r.want(store.CPU, 64/size)
					apply(e) // and back on the GPU
					r.want(store.GPU, 64/size)
					if s := r.c.Stats(); s.Conflicts != 0 {
						t.Errorf("%d conflicts", s.Conflicts)
					}
				})
			}
		}
	}
	t.Run("the other way round", func(t *testing.T) {
		// Nothing tells that the host's blocks have a salt. That the GPU's have takes the
		// credit that was wrong, and no one gets any by it.
		r := newRig(t, Config{BlockSize: 16})
		less := storedOf(tokens, 16, 0)
		less.Medium = "CPU"
		r.do(less)
		salted := storedOf(tokens, 16, 0)
		salted.Salt = "tenant-a"
		r.do(salted)
		r.want(store.GPU, 0)
		r.want(store.CPU, 0)
	})
}

// TestCaseGroupsOfTwoBlockSizes: a block is held when each group of full attention has
// it, whatever their block sizes and whichever was announced first.
func TestCaseGroupsOfTwoBlockSizes(t *testing.T) {
	tokens := count(0, 128)
	small := prompt(tokens, 16)
	large := []event.Hash{small[3], small[7]} // named by their last small block
	g0 := event.Event{Kind: event.Stored, BlockSize: 64, Hashes: large, Tokens: tokens}
	g1 := storedOf(tokens, 16, 0)
	for what, order := range map[string][]event.Event{
		"the large first": {in("GPU", 0, g0), in("GPU", 1, g1)},
		"the small first": {in("GPU", 1, g1), in("GPU", 0, g0)},
	} {
		for _, size := range []int{16, 32, 64, 128} {
			t.Run(what, func(t *testing.T) {
				all := 128 / size
				begin := func(events ...event.Event) *rig {
					r := newRig(t, Config{BlockSize: size})
					r.do(events...)
					r.takeOver()
					return r
				}
				r := begin(order...)
				r.want(store.GPU, all)
				r.do(in("GPU", 1, removed(small[3]))) // group 1 has lost tokens 48 to 63
				r.want(store.GPU, all-1)
				r.do(in("GPU", 1, with(storedOf(tokens[:64], 16, 3), func(*event.Event) {})))
				r.want(store.GPU, all)

				r = begin(order...)
				r.do(in("GPU", 0, removed(large[0]))) // group 0 has lost tokens 0 to 63
				r.want(store.GPU, all-max(1, 64/size))

				// Told in two messages: nothing is held that one of them lacks.
				r = begin(order[0])
				r.do(order[1])
				r.want(store.GPU, 0)
				r.do(order...)
				r.want(store.GPU, all)

				// The host's memory has the blocks of one group and of none of the other.
				r = begin(order...)
				r.do(in("CPU", 1, bare("CPU", 0, small...)))
				r.want(store.CPU, all)
				r.do(in("CPU", 0, bare("CPU", 0, large[0])))
				r.want(store.CPU, 0)
				r.do(in("CPU", 1, bare("CPU", 0, small...)), in("CPU", 0, bare("CPU", 0, large...)))
				r.want(store.CPU, all)
			})
		}
	}
	t.Run("a tail of the large one first", func(t *testing.T) {
		// vLLM announces the tail of a short prompt as a block of the small size.
		r := newRig(t, Config{BlockSize: 16})
		r.do(in("GPU", 0, storedOf(tokens[:16], 16, 0)), in("GPU", 1, storedOf(tokens[:16], 16, 0)))
		r.want(store.GPU, 1)
		r.do(in("GPU", 0, g0), in("GPU", 1, g1))
		r.want(store.GPU, 8)
		r.do(in("GPU", 1, removed(small[3])))
		r.want(store.GPU, 7)
	})
}

// TestSpecOfAGroup: the kind of a group that one event tells is that of its events that
// do not.
func TestSpecOfAGroup(t *testing.T) {
	tokens := count(0, 64)
	h := prompt(tokens, 16)
	window := storedOf(tokens, 16, 0)
	window.HasGroup, window.Spec, window.SlidingWindow = true, "sliding_window", 128
	r := newRig(t, Config{BlockSize: 16})
	apply := func(events ...event.Event) {
		t.Helper()
		r.seq++
		must.OK(t, r.c.Apply(t.Context(), batch(events...), r.read))
		r.write0()
		r.takeOver()
	}
	apply(window, in("GPU", 1, storedOf(tokens, 16, 0)))
	r.want(store.GPU, 4)
	// A placeholder of the window's group says nothing of a prefix.
	apply(with(bare("CPU", 0, h...), func(e *event.Event) { e.HasGroup = true }))
	r.want(store.CPU, 0)
	// One of the other group does, and so does one that is of no group (LMCache).
	apply(with(bare("CPU", 0, h[:2]...), func(e *event.Event) { e.Group, e.HasGroup = 1, true }))
	r.want(store.CPU, 2)
	apply(bare("CPU", 0, h...))
	r.want(store.CPU, 4)
	// What was taken for full attention and is not has no credit.
	r = newRig(t, Config{BlockSize: 16})
	plain := storedOf(tokens, 16, 0)
	apply(plain)
	r.want(store.GPU, 4)
	apply(window)
	r.want(store.GPU, 0)
}

// A tree of pages is flushed with what it has on the host. It tells it by the same word as a pool
// of blocks, whose offloaded blocks stay. What is on a disk stays in either.
func TestClearOfWhatIsBehindTheGPU(t *testing.T) {
	tokens := count(0, 64)
	for engine, left := range map[string]int{"vllm": 4, "": 4, "sglang": 0, "trtllm": 0} {
		r := newRig(t, Config{BlockSize: 16, Engine: engine})
		for _, medium := range []string{"GPU", "CPU", "DISK"} {
			r.do(in(medium, 0, storedOf(tokens, 16, 0)))
		}
		r.want(store.CPU, 4)
		r.do(event.Event{Kind: event.Cleared})
		r.want(store.GPU, 0)
		r.want(store.CPU, left)
		r.want(store.Disk, 4)
	}
}
