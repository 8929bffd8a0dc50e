package rechunk

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
)

// history draws messages as engines send them, of prompts that share beginnings,
// in two groups and media. They have copies, reports, evictions from anywhere,
// blocks that come back alone, and clears.
type history struct {
	size    int    // of engine blocks of group 0
	vocab   int    // tokens differ so little that prompts fork anywhere
	base    uint32 // of tokens: where it is high, a run's tokens take several entries
	longest int
	clears  int // of 100 events
	prompts [][]uint32
	seen    []event.Event // Stored events of single blocks
	silent  bool          // no removal from the CPU is told
	single  bool          // one group
	ratio   int           // blocks of group 1 are so many of group 0
}

func drawHistory(t *rapid.T, index int) *history {
	sizes := []int{1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 33, 64}
	h := &history{size: rapid.SampledFrom(sizes).Draw(t, "engine block"), vocab: rapid.IntRange(2, 3).Draw(t, "vocabulary")}
	h.base = rapid.SampledFrom([]uint32{0, 1 << 16, 1 << 31}).Draw(t, "first token")
	h.clears = 3
	h.ratio = rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "ratio")
	h.longest = max(5*index, 3*h.size)
	return h
}

// scopes are a LoRA and a salt each.
var scopes = [][2]string{{"", ""}, {"", ""}, {"a", ""}, {"", "a"}}

// storedIn is storedOf in a scope, which is told with the first block alone.
func storedIn(scope [2]string, tokens []uint32, size, from int) event.Event {
	e := storedOf(tokens, size, from)
	if mask := blockkey.NativeSeed(scope[0], scope[1]); scope != scopes[0] {
		for i := range e.Hashes {
			e.Hashes[i] ^= event.Hash(mask)
		}
		e.Parent ^= event.Hash(mask)
	}
	e.LoRA = scope[0]
	if from == 0 {
		e.Salt = scope[1]
	}
	return e
}

var media = []string{"GPU", "CPU"}

// group sets where an event is about.
func (h *history) where(t *rapid.T, e event.Event) event.Event {
	if rapid.IntRange(0, 4).Draw(t, "tier") == 0 && (e.Kind != event.Removed || !h.silent) {
		e.Medium = media[1]
	}
	e.Spec = "full_attention"
	return e
}

// storedIn is storedIn of blocks of a group. A larger block has the hash of its last small
// one.
func (h *history) storedIn(group int, scope [2]string, tokens []uint32, from int) event.Event {
	e := storedIn(scope, tokens, h.size, 0)
	e.Group, e.BlockSize = group, h.size
	if group == 1 {
		var large []event.Hash
		for i := h.ratio - 1; i < len(e.Hashes); i += h.ratio {
			large = append(large, e.Hashes[i])
		}
		e.Hashes, e.BlockSize = large, h.size*h.ratio
	}
	if from > 0 {
		e.HasParent, e.Parent, e.Salt = true, e.Hashes[from-1], ""
	}
	e.Tokens = e.Tokens[from*e.BlockSize : len(e.Hashes)*e.BlockSize]
	e.Hashes = e.Hashes[from:]
	return e
}

func (h *history) draw(t *rapid.T) (events []event.Event) {
	for range rapid.IntRange(1, 3).Draw(t, "events") {
		switch k := rapid.IntRange(0, 99).Draw(t, "kind"); {
		case k < h.clears:
			events = append(events, event.Event{Kind: event.Cleared, Medium: rapid.SampledFrom(media).Draw(t, "medium")})
		case k < 45 || len(h.seen) == 0:
			var tokens []uint32
			if len(h.prompts) > 0 && rapid.IntRange(0, 2).Draw(t, "fork") > 0 {
				p := rapid.SampledFrom(h.prompts).Draw(t, "prompt")
				tokens = append(tokens, p[:rapid.IntRange(0, len(p)).Draw(t, "shared")]...)
			}
			for range rapid.IntRange(0, h.longest-min(len(tokens), h.longest)).Draw(t, "new") {
				tokens = append(tokens, h.base+uint32(rapid.IntRange(1, h.vocab).Draw(t, "token")))
			}
			group := 0
			if !h.single && rapid.IntRange(0, 2).Draw(t, "group") == 0 {
				group = 1
			}
			blocks := len(tokens) / h.size
			if group == 1 {
				blocks /= h.ratio
			}
			if blocks == 0 {
				continue
			}
			h.prompts = append(h.prompts, tokens)
			from := rapid.IntRange(0, blocks-1).Draw(t, "from")
			scope := rapid.SampledFrom(scopes).Draw(t, "scope")
			e := h.storedIn(group, scope, tokens, from)
			for i := range e.Hashes {
				one := h.storedIn(group, scope, tokens, from+i)
				one.Hashes = one.Hashes[:1]
				one.Tokens = one.Tokens[:one.BlockSize]
				h.seen = append(h.seen, one)
			}
			events = append(events, h.where(t, e))
			if group == 1 && h.ratio == 1 || !h.single && rapid.Bool().Draw(t, "the other too") {
				o := h.storedIn(1-group, scope, tokens, 0)
				if len(o.Hashes) > 0 {
					events = append(events, h.where(t, o))
				}
			}
		case k < 60: // one block alone, perhaps known by its hash alone
			e := rapid.SampledFrom(h.seen).Draw(t, "block")
			if rapid.IntRange(0, 4).Draw(t, "placeholder") == 0 {
				e.Tokens, e.BlockSize, e.HasParent, e.Parent = nil, 0, false, 0
			}
			events = append(events, h.where(t, e))
		default:
			var gone []event.Hash
			group := h.seen[0].Group
			n := rapid.IntRange(1, 4).Draw(t, "removals")
			at := rapid.IntRange(0, len(h.seen)-1).Draw(t, "first")
			for i := range n { // neighbours, the last first
				if at-i >= 0 && (i == 0 || h.seen[at-i].Group == group) {
					group = h.seen[at-i].Group
					gone = append(gone, h.seen[at-i].Hashes[0])
				}
			}
			e := removed(gone...)
			e.Group = group
			events = append(events, h.where(t, e))
		}
	}
	return events
}

// TestHistories: whatever the engine does, however messages are folded and however often another goes on, the
// index holds what the model says.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index := rapid.SampledFrom([]int{1, 2, 4, 8, 12, 64}).Draw(t, "index block")
		h := drawHistory(t, index)
		h.silent = rapid.Bool().Draw(t, "silent")
		r := newRig(t, Config{
			BlockSize: index, Copies: Copies(rapid.IntRange(0, 2).Draw(t, "copies")), Unremoved: rapid.SampledFrom([]int{0, 1, 2, 5, 20}).Draw(t, "unremoved"),
			Alone: rapid.Bool().Draw(t, "alone"),
		})
		r.c.config.MaxRecords = rapid.SampledFrom([]int{1, 8, 1 << 20}).Draw(t, "records") // below what New allows
		steps := rapid.IntRange(1, 30).Draw(t, "messages")
		for range steps {
			r.apply(h.draw(t)...)
			h.goOn(t, r)
		}
		r.write()
	})
}

// goOn writes perhaps, and perhaps another process takes over.
func (h *history) goOn(t *rapid.T, r *rig) {
	if rapid.IntRange(0, 3).Draw(t, "write") > 0 {
		r.write()
	}
	if rapid.IntRange(0, 3).Draw(t, "take over") == 0 {
		r.takeOver()
	}
}

// TestFolded: messages that are folded make the same map and index as one after the
// other.
func TestFolded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index := rapid.SampledFrom([]int{4, 8}).Draw(t, "index block")
		h := drawHistory(t, index)
		h.clears, h.single = 0, true // how old a record is says how many clears it has seen
		one, all := newRig(t, Config{BlockSize: index}), newRig(t, Config{BlockSize: index})
		for range rapid.IntRange(1, 20).Draw(t, "messages") {
			events := h.draw(t)
			one.do(events...)
			all.apply(events...)
		}
		all.write()
		if d := diff(all.sink.held, one.sink.held); d != "" {
			t.Fatal(d)
		}
		delete(all.sink.kept, markKey)
		delete(one.sink.kept, markKey)
		for _, x := range [2][2]*sink{{all.sink, one.sink}, {one.sink, all.sink}} {
			for k, v := range x[0].kept {
				if x[1].kept[k] != v {
					t.Fatalf("entry %+v is %x and %x", k, v, x[1].kept[k])
				}
			}
		}
	})
}

func ExampleReason() {
	fmt.Println(NoParent, UnnamedLoRA)
	// Output: no_parent unnamed_lora
}
