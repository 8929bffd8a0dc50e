package rechunk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// Copies is what a Stored means that names a block which is held already. It is another
// copy of the block, of whose end the engine will tell as well, or the same again.
type Copies uint8

// The meanings.
const (
	// InferCopies goes by the engine and by what its stream shows: Chunker.tells.
	InferCopies Copies = iota
	// AllCopies counts each: for engines that never report.
	AllCopies
	// NoCopies takes every repetition for a report: for engines that remove a hash
	// only with its last copy.
	NoCopies
)

// copiesWords are the texts of Copies.
var copiesWords = [...]string{InferCopies: "infer", AllCopies: "all", NoCopies: "none"}

// String is the word of it.
func (c Copies) String() string {
	if int(c) < len(copiesWords) {
		return copiesWords[c]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (c Copies) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads infer, all or none.
func (c *Copies) UnmarshalText(text []byte) error {
	i := slices.Index(copiesWords[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is not one of %s", text, strings.Join(copiesWords[:], ", "))
	}
	*c = Copies(i)
	return nil
}

// engine is the kind of an engine, as far as copies go.
type engine uint8

const (
	unknownEngine engine = iota
	vllm
	// unique is an engine that has a block once in a tier: SGLang's and TensorRT-LLM's
	// radix trees.
	unique
)

// engineOf returns the kind of an engine's name.
func engineOf(name string) engine {
	switch strings.ToLower(name) {
	case "vllm":
		return vllm
	case "sglang", "trtllm", "tensorrt-llm", "tensorrt_llm":
		return unique
	}
	return unknownEngine
}

// Tell says of which kind the engine is, as Config.Engine does. An empty name says
// nothing.
func (c *Chunker) Tell(name string) {
	if name != "" {
		c.config.Engine = name
	}
}

// telling is what a Stored says of blocks that its group holds already in its tier.
type telling uint8

const (
	copied   telling = iota // there is another copy of each
	doubtful                // that, or what a request has found
	repeated                // the same again
)

// tells returns what the first of events says, a Stored, and how many of them say the same
// of one stretch: each of another group.
//
// vLLM reports two physical blocks of one content by two events, and each one's end. For requests that ask
// for it (kv_cache_report_mode "full", 0.26 and later) it does more. It also reports what a request has
// found in its cache as if it were new. It never takes that back. There is an event for each group that
// begins at the root, directly before what it computes behind that. An event of what its lookup would not
// find is not one of these.
//
// What vLLM announces as computed begins at the root only where its lookup has found
// nothing. So an event of what it could reuse is a report, with two exceptions. The last
// token is always computed, so a prompt that ends with the event can have been. And a
// prompt whose first chunk was less than a block can be another request's meanwhile.
//
// So an event of what can be reused is of doubtful copies: the blocks are there, and how
// often is open. Such copies count until the stream shows a report. That is an event of
// what the cache holds for certain, up to a prompt that ends with it. A request must go
// on directly behind it.
//
// Where the engine may hold blocks that were never told, nothing shows that it could not
// reuse an event's.
func (c *Chunker) tells(events []event.Event) (telling, int) {
	first := &events[0]
	switch {
	case c.config.Copies == NoCopies, c.config.Copies == InferCopies && (c.form.engine == unique || first.Spec == event.SpecWidest):
		return repeated, 1
	case c.config.Copies == AllCopies || !c.canReport(first):
		return copied, 1
	}
	n, seen := 0, uint32(0) // groups that could reuse it
	reusable, sure := true, len(first.Hashes) > 1
	for n < len(events) {
		e := &events[n]
		if n > 0 && (!c.canReport(e) || !slices.Equal(e.Tokens, first.Tokens)) || seen&c.form.Bit(c.form.Of(e)) != 0 {
			break
		}
		n++
		if !c.form.Counts(e) {
			continue
		}
		seen |= c.form.Bit(c.form.Of(e))
		at := c.form.ReusedFrom(e)
		can, _ := c.holds(e, e.Hashes[at:])
		_, does := c.holds(e, e.Hashes[max(at-1, 0):])
		reusable, sure = reusable && can, sure && does
	}
	whole := seen == c.form.Needed(store.GPU)
	if whole && sure && !c.form.reports && goesOn(events[:n], events[n:]) {
		c.form.reports, c.form.dirty = true, true
	}
	if whole && (reusable || c.form.unseen) {
		return doubtful, n
	}
	return copied, n
}

// canReport reports whether an event has the form of a report.
func (c *Chunker) canReport(e *event.Event) bool {
	return e.Kind == event.Stored && isGPU(e, c.config.Media) && !e.HasParent && !e.Positional &&
		len(e.Hashes) > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
}

// isGPU reports whether an event is of the GPU.
func isGPU(e *event.Event, media *event.Media) bool {
	tier, known := media.TierOf(e)
	return known && tier == store.GPU
}

// noteSeen notes that all that the GPU holds is known.
func (c *Chunker) noteSeen() {
	if c.form.unseen {
		c.form.unseen, c.form.dirty = false, true
	}
}

// holds reports whether an event's group can hold blocks in its tier, as far as the stream
// has told, and whether it does for certain.
func (c *Chunker) holds(e *event.Event, hashes []event.Hash) (can, does bool) {
	tier, _ := c.tierOf(e)
	does = true
	for _, h := range hashes {
		b := c.get(inLayer(c.form.Layer(e), h))
		if b == nil {
			return false, false
		}
		s := b.find(tier, c.form.Of(e))
		if s == nil {
			return false, false
		}
		does = does && s.certain() > 0
	}
	return true, does
}

// NoteUnseen says that the engine can hold blocks that the Chunker does not hear of. Its
// stream has begun before the generation, or a part of it cannot be read. What a report and
// what copies are is less certain then, until the engine clears its cache.
func (c *Chunker) NoteUnseen() {
	if !c.form.unseen {
		c.form.unseen, c.form.dirty = true, true
	}
}

// goesOn reports whether a request goes on directly behind what told says.
func goesOn(told, events []event.Event) bool {
	i := slices.IndexFunc(events, func(e event.Event) bool { return e.Kind != event.Removed })
	return i >= 0 && events[i].Kind == event.Stored && events[i].HasParent &&
		slices.ContainsFunc(told, func(e event.Event) bool { return e.Hashes[len(e.Hashes)-1] == events[i].Parent })
}
