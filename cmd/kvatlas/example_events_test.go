package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

var rewrite = flag.Bool("rewrite", false, "record examples/events.jsonl anew")

const (
	exampleEvents = "../../examples/events.jsonl"
	maxExample    = 50 << 10
)

// The prompts of the record. The first is the one of README.md.
var (
	examplePrompt = strings.Repeat("The quick brown fox. ", 40)
	exampleTurn   = examplePrompt + strings.Repeat("And the dog? It sleeps. ", 30)
	exampleOther  = strings.Repeat("A cache forgets what it held for longest. ", 40)
)

// recordExample records what vLLM 0.33 publishes while it works on the prompts: its own
// publisher, hashes of its own algorithm, and kvatlas inspect events in front of it.
func recordExample(t *testing.T, tokensOf func(text string) []uint32) {
	t.Helper()
	const size = 16
	events, replay := redistest.FreePort(t), redistest.FreePort(t)
	p := enginetest.Start(t, enginetest.Options{
		Release: enginetest.Release{Engine: "vllm", Version: "0.33.0"}, Endpoint: fmt.Sprintf("tcp://*:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay),
	})
	hashes := func(text string) (ids []uint32, out []uint64) {
		ids = tokensOf(text)
		ids = ids[:len(ids)/size*size]
		chain := blockkey.NewVLLMChain(blockkey.VLLMSHA256, "0", size)
		for _, d := range chain.Append(nil, ids) {
			out = append(out, d.VLLMWire())
		}
		return ids, out
	}
	stored := func(ids []uint32, list []uint64, parent any, medium string) enginetest.Event {
		return enginetest.Event{"type": "BlockStored", "block_hashes": list, "parent_block_hash": parent, "token_ids": ids, "block_size": size, "lora_id": nil, "medium": medium}
	}
	ids, list := hashes(examplePrompt)
	next, all := hashes(exampleTurn)
	other, others := hashes(exampleOther)
	n := len(list)
	if !slices.Equal(next[:len(ids)], ids) {
		t.Fatal("the next turn does not begin with the tokens of the prompt")
	}
	p.Publish(1, stored(ids, list, nil, "GPU"))
	p.Publish(2, stored(other, others, nil, "GPU"))
	p.Publish(3, stored(next[n*size:], all[n:], list[n-1], "GPU"))
	p.Publish(4, stored(other[:8*size], others[:8], nil, "CPU"))
	p.Publish(5, enginetest.Event{"type": "BlockRemoved", "block_hashes": others, "medium": "GPU"})
	p.Flush()
	file := filepath.Join(t.TempDir(), "events.jsonl")
	at := func(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }
	if status, _, stderr := call(t, "", "inspect", "events", at(events), "--replay", at(replay), "--count=5", "--record", file); status != exitOK {
		t.Fatalf("ends with %d\n%s", status, stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exampleEvents, text, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestExampleEvents plays examples/events.jsonl as README.md does, and scores the prompts
// whose blocks are in it.
func TestExampleEvents(t *testing.T) {
	const pod = "10.0.0.1:8000"
	events, replay := freeEndpoint(t), freeEndpoint(t)
	r := start(t, "--tokenizers="+tokenizers(t), "--tokenizer-budget=1m", "--request-timeout=5m", "--write-timeout=6m",
		"--pods="+pod+"?model="+demo.Model+"&events="+events+"&replay="+replay)
	c := r.client()
	if *rewrite {
		recordExample(t, func(text string) []uint32 {
			got, err := c.Tokenize(t.Context(), client.TokenizeRequest{Model: demo.Model, Prompt: text})
			if err != nil {
				t.Fatal(err)
			}
			return got.Tokens
		})
	}
	if i, err := os.Stat(exampleEvents); err != nil || i.Size() > maxExample {
		t.Fatalf("%v, or more than %d bytes", err, maxExample)
	}
	status, _, stderr := call(t, "", "inspect", "play", exampleEvents, "--bind", events, "--replay", replay, "--speed=0")
	if status != exitOK || !strings.Contains(stderr, "# 5 entries of the record are sent\n") ||
		!strings.Contains(stderr, "kvatlas serve --pods 'HOST:PORT?model=MODEL&events="+events+"&replay="+replay+"'\n") {
		t.Fatalf("ends with %d\n%s", status, stderr)
	}
	for _, want := range []struct {
		name, text string
		score      float64
	}{
		{"the prompt", examplePrompt, 3},          // 12 of the engine's blocks
		{"its next turn", exampleTurn, 6},         // 23
		{"what was offloaded", exampleOther, 1.6}, // 2 blocks in the CPU's memory, of those that the GPU has no more
	} {
		awaitThat(t, want.name, r.stderr, func() bool {
			resp, err := c.Score(t.Context(), client.ScoreRequest{Model: demo.Model, Prompt: want.text, Mode: "sync"})
			if err != nil {
				t.Fatal(err)
			}
			return resp.Scores[pod] == want.score
		})
	}
	// Its hashes are vLLM's, with a seed that is found.
	f, err := os.Open(exampleEvents)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var decoder event.Decoder
	var batch event.Batch
	for reader, explained := record.NewReader(f, exampleEvents), 0; ; {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			if explained != 3 {
				t.Errorf("%d events have been explained", explained)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := decoder.Decode(e.Message.Payload, &batch); err != nil || batch.Skipped > 0 {
			t.Fatalf("message %d: %v, %+v", e.Message.Seq, err, batch.Skips)
		}
		for i := range batch.Events {
			if ev := &batch.Events[i]; ev.Kind == event.Stored && !ev.HasParent {
				x, err := event.Explain(ev, []string{"0"}, "")
				if err != nil || x.Tried {
					t.Errorf("message %d: %v, %v", e.Message.Seq, x, err)
				}
				explained++
			}
		}
	}
}
