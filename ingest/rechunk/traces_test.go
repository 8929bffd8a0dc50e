package rechunk

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

var rewrite = flag.Bool("rewrite", false, "write what comes of the traces into testdata/traces")

// TestTraces plays the traces of testdata/traces, which are to be read: a line an
// event, and below it, indented, what it changes in the index. Each goes through the
// model, the map and its invariants besides (rig). A file has these lines:
//
//	blocks 64                     the index block size, once
//	prompt a 0-128 200-264        tokens by ranges; a0 is its first index block
//	stored a 0-2 size=32 [...]    engine blocks 0 and 1 of a; medium=, group=, spec= as events have them
//	removed a 0-2 size=32 [...]
//	cleared [medium=]
//	takeover                      another process goes on, with the map alone
//
// A block that is in several prompts has the name that it has in the first.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/traces/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no traces", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text := must.Get(os.ReadFile(file))(t)
			h := &trace{t: t, prompts: map[string][]uint32{}, names: map[blockkey.Key]string{}}
			var out bytes.Buffer
			for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
				line := s.Text()
				if strings.HasPrefix(line, "  ") {
					continue // what came of it last time
				}
				fmt.Fprintln(&out, line)
				if line == "" || line[0] == '#' {
					continue
				}
				for _, change := range h.play(strings.Fields(line)) {
					fmt.Fprintln(&out, "  "+change)
				}
			}
			switch {
			case bytes.Equal(out.Bytes(), text):
			case *rewrite:
				must.OK(t, os.WriteFile(file, out.Bytes(), 0o644))
			default:
				t.Errorf("%s is otherwise now (-rewrite writes it):\n%s", file, out.Bytes())
			}
		})
	}
}

// trace is a run of a file.
type trace struct {
	t       *testing.T
	r       *rig
	size    int // of index blocks
	prompts map[string][]uint32
	names   map[blockkey.Key]string
	skipped [NumReasons]uint64
}

// play does a line, and returns what it changes.
func (h *trace) play(words []string) []string {
	before := map[credit]bool{}
	if h.r != nil {
		for k := range h.r.sink.held {
			before[k] = true
		}
	}
	switch args := words[1:]; words[0] {
	case "blocks":
		h.size = h.number(args[0])
		h.r = newRig(h.t, Config{BlockSize: h.size})
	case "prompt":
		h.addPrompt(args[0], args[1:])
	case "takeover":
		h.r.takeOver()
		h.skipped = [NumReasons]uint64{}
		h.r.check()
	default:
		h.r.do(h.event(words[0], args))
	}
	return append(h.changes(before), h.skips()...)
}

func (h *trace) number(s string) int {
	n := must.Get(strconv.Atoi(s))(h.t)
	return n
}

// between reads FROM-TO.
func (h *trace) between(s string) (from, to int) {
	a, b, _ := strings.Cut(s, "-")
	return h.number(a), h.number(b)
}

func (h *trace) addPrompt(name string, ranges []string) {
	var tokens []uint32
	for _, s := range ranges {
		from, to := h.between(s)
		tokens = append(tokens, count(from, to-from)...)
	}
	h.prompts[name] = tokens
	for i, key := range blockkey.AppendNative(nil, tokens, h.size, blockkey.NativeSeed("", "")) {
		if _, known := h.names[key]; !known {
			h.names[key] = name + strconv.Itoa(i)
		}
	}
}

func (h *trace) event(kind string, args []string) event.Event {
	var e event.Event
	var positions []string
	for _, arg := range args {
		name, value, set := strings.Cut(arg, "=")
		switch {
		case !set:
			positions = append(positions, arg)
		case name == "size":
			e.BlockSize = h.number(value)
		case name == "medium":
			e.Medium = value
		case name == "group":
			e.Group = h.number(value)
		case name == "spec":
			e.Spec = value
		default:
			h.t.Fatalf("%s is not known", name)
		}
	}
	if kind == "cleared" {
		e.Kind = event.Cleared
		return e
	}
	tokens, size := h.prompts[positions[0]], e.BlockSize
	from, to := h.between(positions[1])
	all := storedOf(tokens[:to*size], size, from)
	switch kind {
	case "stored":
		all.Medium, all.Group, all.Spec = e.Medium, e.Group, e.Spec
		return all
	case "removed":
		e.Kind, e.BlockSize, e.Hashes = event.Removed, 0, all.Hashes
		return e
	}
	h.t.Fatalf("%s is no event", kind)
	return e
}

// changes says which index blocks have come and gone, by tier.
func (h *trace) changes(before map[credit]bool) (out []string) {
	if h.r == nil {
		return nil
	}
	for tier := range store.Tier(store.NumTiers) {
		for _, sign := range []string{"+", "-"} {
			from, in := h.r.sink.held, before
			if sign == "-" {
				from, in = before, h.r.sink.held
			}
			var names []string
			for k := range from {
				if k.tier == tier && !in[k] {
					names = append(names, h.names[k.key])
				}
			}
			if len(names) > 0 {
				slices.Sort(names)
				out = append(out, sign+tier.String()+" "+strings.Join(names, " "))
			}
		}
	}
	return out
}

// skips says how many engine blocks were left out, by reason.
func (h *trace) skips() (out []string) {
	if h.r == nil {
		return nil
	}
	s := h.r.c.Stats()
	for reason, n := range s.Skipped {
		if more := n - h.skipped[reason]; more > 0 {
			out = append(out, fmt.Sprintf("skipped %d: %v", more, Reason(reason)))
		}
	}
	h.skipped = s.Skipped
	return out
}
