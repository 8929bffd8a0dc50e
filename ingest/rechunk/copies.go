package rechunk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/store"
)

// Copies is what a Stored means that names a block which is held already: another copy
// of it, of whose end the engine will tell as well, or the same again.
type Copies uint8

// The meanings.
const (
	// InferCopies goes by the engine and by what its stream shows: Chunker.tellsAgain.
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
		return fmt.Errorf("%q is none of %s", text, strings.Join(copiesWords[:], ", "))
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

// tellsAgain reports whether a Stored that names what its group holds already in its tier
// is no further copy.
//
// vLLM tells of two physical blocks of one content by two events, and of each one's end.
// For requests that ask for it (kv_cache_report_mode "full", 0.26 and later) it also
// tells of what a request has found in its cache as if it were new, in an event that
// begins at the root, and never takes that back. What a request finds is held: an event
// with a block that is not held is none of these. What vLLM announces as computed begins
// at the root only where its lookup has found nothing, so a prompt that it holds is not
// computed from there, with one exception: of a prompt the last token is always computed,
// so that one of a single block can be. That is a report only in a generation that has
// shown another.
//
// The lookup of a model with windows or states finds nothing where their blocks are gone,
// and then computes what full attention still holds: copies.
func (c *Chunker) tellsAgain(e *event.Event, tier store.Tier, tokens bool) bool {
	switch {
	case c.config.Copies != InferCopies:
		return c.config.Copies == NoCopies
	case c.form.engine == unique || e.Spec == event.SpecWidest:
		return true
	case tier != store.GPU || e.HasParent || !tokens || e.Positional || c.form.hybrid():
		return false
	case len(e.Hashes) == 1 && !c.form.reports:
		return false
	}
	layer, group := c.layer(e), c.groupOf(e)
	for _, h := range e.Hashes {
		if b := c.get(inLayer(layer, h)); b == nil || b.find(tier, group) == nil {
			return false
		}
	}
	if !c.form.reports {
		c.form.reports, c.form.dirty = true, true
	}
	return true
}
