package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

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

// TestExampleEvents plays examples/events.jsonl as README.md does, and scores the prompts
// whose blocks are in it.
func TestExampleEvents(t *testing.T) {
	const pod = "10.0.0.1:8000"
	events, replay := redistest.FreeEndpoint(t, 1), redistest.FreeEndpoint(t, 1)
	r := start(t, "--tokenizers="+tokenizers(t), "--tokenizer-budget=1m", "--request-timeout=5m",
		"--pods="+pod+"?model="+demo.Model+"&events="+events+"&replay="+replay)
	c := r.client()
	if i, err := os.Stat(exampleEvents); err != nil || i.Size() > maxExample {
		t.Fatalf("%v, or more than %d bytes", err, maxExample)
	}
	status, _, stderr := call(t, "", "inspect", "play", exampleEvents, "--bind", events, "--replay", replay, "--speed=0")
	if status != cli.ExitOK || !strings.Contains(stderr, "# 8 entries of the record are sent\n") ||
		!strings.Contains(stderr, "kvatlas serve --pods 'HOST:PORT?model=MODEL&events="+events+"&replay="+replay+"'\n") {
		t.Fatalf("ends with %d\n%s", status, stderr)
	}
	for _, want := range []struct {
		name, text string
		score      float64
	}{
		// vLLM's own cached_tokens for a request at the record's end: 192, 384 and 384.
		{"the prompt", examplePrompt, 3},
		{"its next turn", exampleTurn, 6},
		{"what was evicted in part", exampleOther, 5.6}, // 2 of its 6 blocks are in the CPU's memory alone
	} {
		awaitThat(t, want.name, r.stderr, func() bool {
			resp := must.Get(c.Score(t.Context(), client.ScoreRequest{Model: demo.Model, Prompt: want.text, Mode: "sync"}))(t)
			return resp.Scores[pod] == want.score
		})
	}
	// Its hashes are vLLM's, with a seed that is found.
	f := must.Get(os.Open(exampleEvents))(t)
	defer func() { _ = f.Close() }()
	var decoder event.Decoder
	var batch event.Batch
	for reader, explained := record.NewReader(f, exampleEvents), 0; ; {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			if explained != 3 { // a prompt's first event tells; the CPU's have no tokens
				t.Errorf("%d events have been explained", explained)
			}
			return
		}
		must.OK(t, err)
		if err := decoder.Decode(e.Message.Payload, &batch); err != nil || batch.Skipped > 0 {
			t.Fatalf("message %d: %v, %+v", e.Message.Seq, err, batch.Skips)
		}
		for i := range batch.Events {
			if ev := &batch.Events[i]; ev.Kind == event.Stored && !ev.HasParent && len(ev.Tokens) > 0 {
				x, err := event.Explain(ev, []string{"0"}, "")
				if err != nil || x.Tried {
					t.Errorf("message %d: %v, %v", e.Message.Seq, x, err)
				}
				explained++
			}
		}
	}
}
