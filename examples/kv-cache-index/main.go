// Program kv-cache-index uses the index as a library, in one process and without cgo. It
// takes in KV-cache events as engines publish them and ranks pods for a prompt of tokens.
// Then it follows as blocks are evicted and a pod goes.
//
//	go run ./examples/kv-cache-index
//
// A program that reads engines over ZMQ gives ingest.Ingester sources to read in place of
// pushes. One that has texts gives scorer.Config a tokenizer (package tokenpool, which is
// cgo).
package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// pushes are events of two engines, in the JSON form of POST /v1/events.
//
//go:embed pushes.json
var pushes []byte

const model = "meta-llama/Llama-3.1-8B-Instruct"

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer) error {
	index, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer index.Close()
	ingester, err := ingest.New(ingest.Config{Index: index, BlockSize: 16})
	if err != nil {
		return err
	}
	defer ingester.Close()
	ranker, err := scorer.New(scorer.Config{Index: index, BlockSize: 16})
	if err != nil {
		return err
	}
	e := &example{index: index, ingester: ingester, ranker: ranker, w: w}

	for _, name := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
		if _, err := index.Register(ctx, store.Pod{Name: name, Model: model, Engine: "vllm"}); err != nil {
			return err
		}
	}
	if err := e.push(ctx, pushes); err != nil {
		return err
	}
	if err := e.rank(ctx, "both engines have worked on this prompt:"); err != nil {
		return err
	}
	evicted := `{"pod":"10.0.0.1:8000","model":"` + model + `","engine":"vllm","seq":1,"events":[{"type":"BlockRemoved","block_hashes":[102],"medium":"GPU"}]}`
	if err := e.push(ctx, []byte(evicted)); err != nil {
		return err
	}
	if err := e.rank(ctx, "the first has evicted its second block:"); err != nil {
		return err
	}
	if _, err := index.Retire(ctx, "10.0.0.2:8000"); err != nil {
		return err
	}
	return e.rank(ctx, "the second is gone:")
}

// example is an index with what writes and reads it.
type example struct {
	index    *memory.Index
	ingester *ingest.Ingester
	ranker   *scorer.Scorer
	w        io.Writer
}

// push applies pushes of events, one or an array of them.
func (e *example) push(ctx context.Context, body []byte) error {
	var d event.Decoder
	list, err := d.JSONPushes(body)
	if err != nil {
		return err
	}
	for _, p := range list {
		pushed := ingest.Pushed{Pod: p.Pod, Model: p.Model, Engine: p.Engine, Rank: p.Rank, Skipped: p.Skipped}
		if p.HasSeq {
			pushed.Seq = &p.Seq
		}
		for _, b := range p.Batches {
			pushed.Ranks = append(pushed.Ranks, ingest.RankEvents{Rank: b.Rank, Events: b.Events})
		}
		if _, err := e.ingester.Push(ctx, pushed); err != nil {
			return err
		}
	}
	return nil
}

// rank prints what each pod holds of a prompt of 70 tokens.
func (e *example) rank(ctx context.Context, title string) error {
	prompt := make([]uint32, 70)
	for i := range prompt {
		prompt[i] = uint32(i + 1)
	}
	r, err := e.ranker.Score(ctx, scorer.Request{Model: model, Input: scorer.Tokens(prompt)})
	if err != nil {
		return err
	}
	fmt.Fprintln(e.w, title)
	for _, p := range r.Pods {
		fmt.Fprintf(e.w, "  %s  score %.1f  %d of %d tokens  %v\n", p.Pod, p.Score, p.Tokens, len(prompt), p.Tiers)
	}
	fmt.Fprintf(e.w, "  best: %s\n", r.Best)
	return nil
}
