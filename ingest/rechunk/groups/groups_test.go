package groups

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

const gpu, cpu = 1 << store.GPU, 1 << store.CPU

// of is a Stored of two blocks of a group.
func of(group, size int, spec string, window int) event.Event {
	return event.Event{
		Kind: event.Stored, Group: group, HasGroup: true, Spec: spec, SlidingWindow: window,
		BlockSize: size, Hashes: []event.Hash{1, 2}, Tokens: make([]uint32, 2*size),
	}
}

// inCPU is an event in the host's memory.
func inCPU(e event.Event) event.Event {
	e.Medium = "CPU"
	return e
}

func batch(events ...event.Event) *event.Batch { return &event.Batch{Events: events} }

// TestSurvey plays messages, and says after each which tiers hold too much, and in the end what
// is known. What is known is the same for one that reads it from the map.
func TestSurvey(t *testing.T) {
	full, window, states := of(0, 16, "full_attention", 0), of(1, 16, "sliding_window", 40), of(2, 16, "mamba", 0)
	untold := of(0, 16, "", 0)
	untold.HasGroup = false
	for what, c := range map[string]struct {
		messages []*event.Batch
		void     []uint8
		reuse    store.Reuse
		layers   int
		needed   [2]uint32 // on the GPU and in the host's memory
	}{
		"one group that tells nothing of itself": {[]*event.Batch{batch(untold), batch(untold)}, []uint8{0, 0}, store.Reuse{Block: 16}, 1, [2]uint32{1, 0}},
		"all groups in one message":              {[]*event.Batch{batch(full, window, states)}, []uint8{0}, store.Reuse{Block: 16, Window: 48}, 1, [2]uint32{7, 0}},
		"a group that comes later":               {[]*event.Batch{batch(full, inCPU(full)), batch(window), batch(window)}, []uint8{0, gpu | cpu, 0}, store.Reuse{Block: 16, Window: 48}, 1, [2]uint32{3, 1}},
		"a tier that comes later":                {[]*event.Batch{batch(full, window), batch(inCPU(window)), batch(inCPU(full))}, []uint8{0, 0, cpu}, store.Reuse{Block: 16, Window: 48}, 1, [2]uint32{3, 3}},
		"another kind":                           {[]*event.Batch{batch(full), batch(of(0, 16, "sliding_window", 40))}, []uint8{0, gpu}, store.Reuse{Block: 16, Window: 48}, 1, [2]uint32{1, 0}},
		"a wider window":                         {[]*event.Batch{batch(window), batch(of(1, 16, "sliding_window", 100))}, []uint8{0, gpu}, store.Reuse{Block: 16, Window: 112}, 1, [2]uint32{1, 0}},
		"a window beyond any prompt":             {[]*event.Batch{batch(full, of(1, 16, "sliding_window", math.MaxInt32))}, []uint8{0}, store.Reuse{Block: 16, Window: store.MaxWindow}, 1, [2]uint32{3, 0}},
		"blocks of two sizes":                    {[]*event.Batch{batch(full, of(1, 24, "full", 0))}, []uint8{0}, store.Reuse{Block: 48}, 2, [2]uint32{3, 0}},
		"a kind that says nothing":               {[]*event.Batch{batch(of(3, 16, "cross_attention", 0))}, []uint8{0}, store.Reuse{}, 0, [2]uint32{}},
		"a group that cannot be":                 {[]*event.Batch{batch(of(256, 16, "full", 0)), batch(of(0, MaxBlock+1, "full", 0))}, []uint8{0, 0}, store.Reuse{}, 0, [2]uint32{}},
		"the widest window":                      {[]*event.Batch{batch(of(0, 16, event.SpecWidest, 64)), batch(of(1, 32, event.SpecWidest, 4096)), batch(of(0, 16, event.SpecWidest, 64))}, []uint8{0, gpu, 0}, store.Reuse{Block: 32}, 1, [2]uint32{1, 0}},
		"the engine begins anew":                 {[]*event.Batch{batch(of(0, 16, event.SpecWidest, 64)), batch(event.Event{Kind: event.Cleared, Spec: event.SpecWidest})}, []uint8{0, gpu}, store.Reuse{}, 0, [2]uint32{}},
	} {
		t.Run(what, func(t *testing.T) {
			var s Shown
			for i, m := range c.messages {
				if void := s.Survey(m, nil); void != c.void[i] {
					t.Errorf("message %d ends tiers %b, want %b", i, void, c.void[i])
				}
			}
			var read Shown
			if rest, ok := read.Decode(append(s.Append(nil), "rest"...)); !ok || string(rest) != "rest" {
				t.Fatalf("what is written cannot be read: %q is left", rest)
			}
			s.Changed = false
			for who, s := range map[string]*Shown{"who has seen it": &s, "who has read it": &read} {
				if got := s.Reuse(); got != c.reuse || s.Layers() != c.layers {
					t.Errorf("%s: %+v can be reused, in %d layers, want %+v in %d", who, got, s.Layers(), c.reuse, c.layers)
				}
				if got := [2]uint32{s.Needed(store.GPU), s.Needed(store.CPU)}; got != c.needed {
					t.Errorf("%s: groups %b are needed, want %b", who, got, c.needed)
				}
			}
			if !reflect.DeepEqual(s, read) {
				t.Errorf("%+v is read as %+v", s, read)
			}
		})
	}
}

// TestEvents says of events what the groups make of them.
func TestEvents(t *testing.T) {
	var s Shown
	s.Survey(batch(of(0, 16, "sliding_window", 40), of(1, 16, "full_attention", 0), of(2, 32, "mla", 0), of(3, 16, "cross_attention", 0)), nil)
	plain := event.Event{Kind: event.Removed}
	for what, c := range map[string]struct {
		e              event.Event
		group, layer   uint8
		tier           store.Tier
		counts, prefix bool
	}{
		"a window":                {of(0, 16, "sliding_window", 40), 0, 0, store.GPU.Window(), true, false},
		"a window in the host":    {inCPU(of(0, 16, "sliding_window", 40)), 0, 0, store.CPU.Window(), true, false},
		"full attention":          {of(1, 16, "", 0), 1, 0, store.GPU, true, true},
		"larger blocks":           {of(2, 32, "mla", 0), 2, 1, store.GPU, true, true},
		"another kind":            {of(3, 16, "", 0), 3, 0, store.GPU.Window(), false, false},
		"no group is told":        {plain, 1, 0, store.GPU, true, true},
		"a group not shown":       {of(9, 16, "", 0), 9, 0, store.GPU, false, false},
		"one not shown of a kind": {of(9, 16, "full", 0), 9, 0, store.GPU, true, true},
	} {
		tier, known := s.TierOf(&c.e, nil)
		if s.Of(&c.e) != c.group || s.Layer(&c.e) != c.layer || tier != c.tier || !known || s.Counts(&c.e) != c.counts || s.Prefix(&c.e) != c.prefix {
			t.Errorf("%s: group %d, layer %d, tier %v (%v), counts %v, prefix %v", what, s.Of(&c.e), s.Layer(&c.e), tier, known, s.Counts(&c.e), s.Prefix(&c.e))
		}
	}
	window := of(0, 16, "", 0)
	window.Hashes = make([]event.Hash, 9)
	if from := s.ReusedFrom(&window); from != 6 {
		t.Errorf("a hit that ends with the last of 9 blocks needs those from %d on, want 6", from)
	}
}

// TestBounds shows more groups and block sizes than are told apart.
func TestBounds(t *testing.T) {
	var s Shown
	for id := range 256 {
		s.Survey(batch(of(id, id+1, "full", 0)), nil)
	}
	if len(s.groups) > maxGroups || s.Layers() > MaxLayers {
		t.Errorf("%d groups and %d layers are kept", len(s.groups), s.Layers())
	}
	if s.Bit(maxCounted) != 0 || s.Needed(store.GPU)>>maxCounted != 1 {
		t.Errorf("the group beyond what is counted has bit %b, and %b are needed", s.Bit(maxCounted), s.Needed(store.GPU))
	}
}

// TestReuseOfManySizes has groups whose blocks end together nowhere within the largest block
// that the registry takes, nor within 64 bits.
func TestReuseOfManySizes(t *testing.T) {
	var s Shown
	for id, size := range []int{8191, 8179, 8171, 8167, 8161, 16} {
		s.Survey(batch(of(id, size, "full", 0)), nil)
	}
	if r := s.Reuse(); r != (store.Reuse{}) {
		t.Errorf("%+v can be reused", r)
	}
}

// FuzzDecode reads what may be damaged: what is taken for right is written as it was read.
func FuzzDecode(f *testing.F) {
	var s Shown
	s.Survey(batch(of(0, 16, "full_attention", 0), of(1, 24, "full", 0), of(2, 16, "sliding_window", 40)), nil)
	f.Add(s.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, v []byte) {
		var one, two Shown
		rest, ok := one.Decode(v)
		if !ok {
			return
		}
		if len(one.groups) > maxGroups || one.Layers() > MaxLayers {
			t.Fatalf("%x has %d groups and %d layers", v, len(one.groups), one.Layers())
		}
		if more, ok := two.Decode(append(one.Append(nil), rest...)); !ok || !bytes.Equal(more, rest) {
			t.Fatalf("%x is not written as it was read", v)
		}
		one.Survey(batch(of(0, 16, "full", 0)), nil)
		one.Reuse()
	})
}
