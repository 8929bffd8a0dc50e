package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// recorded is what is read of a record, from any source.
type recorded struct {
	// events are lines: the fields of each in their order, with what they say. Hashes are
	// numbered as they come.
	events []string
	// stored are the tokens of each event of the GPU with tokens, and parents the hash behind
	// which they lie, -1 for none.
	stored  [][]uint32
	parents []int
}

// readRecorded reads a record of one rank.
func readRecorded(t *testing.T, path string) (out recorded) {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer func() { _ = f.Close() }()
	numbers := map[json.Number]int{}
	for reader, seq := record.NewReader(f, path), uint64(0); ; seq++ {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must.OK(t, err)
		var message bytes.Buffer
		must.Get(msgp.UnmarshalAsJSON(&message, e.Message.Payload))(t)
		var batch []json.RawMessage
		var at float64
		var events []json.RawMessage
		must.OK(t, errors.Join(json.Unmarshal(message.Bytes(), &batch), json.Unmarshal(batch[0], &at), json.Unmarshal(batch[1], &events)))
		if len(batch) != 3 || at < 1e9 || string(batch[2]) != "0" || e.Message.Topic != "" || e.Message.Seq != seq {
			t.Fatalf("%s: message %d of topic %q has %d fields, time %v and rank %s", path, e.Message.Seq, e.Message.Topic, len(batch), at, batch[2])
		}
		for _, raw := range events {
			out.add(t, raw, numbers)
		}
	}
}

// add takes in an event as JSON.
func (r *recorded) add(t *testing.T, raw json.RawMessage, numbers map[json.Number]int) {
	t.Helper()
	var e struct {
		Hashes []json.Number `json:"block_hashes"`
		Parent *json.Number  `json:"parent_block_hash"`
		Tokens []uint32      `json:"token_ids"`
		Medium string
	}
	must.OK(t, json.Unmarshal(raw, &e))
	number := func(h json.Number) int {
		n, ok := numbers[h]
		if !ok {
			n = len(numbers)
			numbers[h] = n
		}
		return n
	}
	parent := -1
	if e.Parent != nil {
		parent = number(*e.Parent)
	}
	var line strings.Builder
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	must.Get(d.Token())(t)
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err = errors.Join(err, d.Decode(&value)); err != nil {
			t.Fatal(err)
		}
		said := string(value)
		switch name {
		case "block_hashes":
			said = ""
			for _, h := range e.Hashes {
				said += fmt.Sprint(" ", number(h))
			}
		case "parent_block_hash":
			said = fmt.Sprint(parent)
		}
		fmt.Fprintf(&line, "%s=%s ", name, said)
	}
	r.events = append(r.events, line.String())
	if e.Medium == "GPU" && len(e.Tokens) > 0 {
		r.stored, r.parents = append(r.stored, e.Tokens), append(r.parents, parent)
	}
}

// TestRecordsAlike has a simulated vLLM asked for the prompts of examples/events.jsonl, which a
// real one has published. It reads both records by the same code. The events have the same fields
// with the same values, but for the hashes, which have seeds of their own. A server that both are
// played to scores both alike.
func TestRecordsAlike(t *testing.T) {
	theirs := readRecorded(t, exampleEvents)
	ports := [3]int{redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)}
	startSim(t, "--model=m", "--engine-version=0.32.0", "--block-size=32", "--blocks=28", "--host-blocks=100", "--speed=1000",
		fmt.Sprintf("--port=%d", ports[0]), fmt.Sprintf("--events-port=%d", ports[1]), fmt.Sprintf("--replay-port=%d", ports[2]))
	var prompts [][]uint32
	for i, tokens := range theirs.stored {
		if theirs.parents[i] >= 0 { // the next turn of the prompt before
			tokens = slices.Concat(prompts[len(prompts)-1], tokens)
		}
		prompts = append(prompts, tokens)
		// One token more, which is computed, so that no block is twice.
		post(t, fmt.Sprintf("http://127.0.0.1:%d/v1/completions", ports[0]), map[string]any{"prompt": append(slices.Clone(tokens), 1), "max_tokens": 1}, nil)
	}
	path := filepath.Join(t.TempDir(), "sim.jsonl")
	status, _, stderr := call(t, "", "inspect", "events", fmt.Sprintf("tcp://127.0.0.1:%d", ports[1]), "--replay", fmt.Sprintf("tcp://127.0.0.1:%d", ports[2]),
		"--record", path, fmt.Sprintf("--count=%d", len(theirs.events)), "--timeout=20s")
	if status != cli.ExitOK {
		t.Fatalf("it ends with %d: %s", status, stderr)
	}
	ours := readRecorded(t, path)
	// A real one offloads the blocks of a prompt in no order.
	for _, r := range []*recorded{&theirs, &ours} {
		for i := 0; i < len(r.events); i++ {
			from := i
			for i < len(r.events) && strings.Contains(r.events[i], `medium="CPU"`) {
				i++
			}
			slices.Sort(r.events[from:i])
		}
	}
	if len(theirs.events) < 30 || !slices.Equal(ours.events, theirs.events) {
		for i := range max(len(ours.events), len(theirs.events)) {
			a, b := "-", "-"
			if i < len(ours.events) {
				a = ours.events[i]
			}
			if i < len(theirs.events) {
				b = theirs.events[i]
			}
			if a != b {
				t.Errorf("event %d of %d is\n%.300s\nand a real vLLM's\n%.300s", i, len(theirs.events), a, b)
			}
		}
		t.FailNow()
	}

	var settings []string
	pods := map[string]string{"10.0.0.1:8000": exampleEvents, "10.0.0.2:8000": path}
	endpoints := map[string]string{}
	for pod := range pods {
		endpoints[pod] = redistest.FreeEndpoint(t, 1)
		settings = append(settings, pod+"?model=m&engine=vllm&events="+endpoints[pod])
	}
	r := start(t, "--pods="+strings.Join(settings, ","), "--block-size=32")
	for pod, file := range pods {
		if status, _, stderr := call(t, "", "inspect", "play", file, "--bind", endpoints[pod], "--speed=0"); status != cli.ExitOK {
			t.Fatalf("%s: it ends with %d: %s", file, status, stderr)
		}
	}
	c := r.client()
	for i, tokens := range prompts {
		awaitThat(t, fmt.Sprintf("prompt %d is scored alike", i), r.stderr, func() bool {
			s := must.Get(c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens}))(t)
			return s.Scores["10.0.0.1:8000"] > 0 && s.Scores["10.0.0.1:8000"] == s.Scores["10.0.0.2:8000"]
		})
	}
}
