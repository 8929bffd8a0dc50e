package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store/memory"
)

// taker keeps what was pushed last.
type taker struct{ last ingest.Pushed }

func (p *taker) Push(_ context.Context, in ingest.Pushed) (ingest.PushResult, error) {
	p.last = in
	res := ingest.PushResult{Skipped: in.Skipped}
	for _, r := range in.Ranks {
		res.Applied += len(r.Events)
		one := ingest.RankResult{Rank: r.Rank, Applied: len(r.Events), Began: ingest.Lost}
		one.Blocks[rechunk.NoParent] = 2
		res.Ranks = append(res.Ranks, one)
	}
	return res, nil
}

func TestPushEvents(t *testing.T) {
	index := must.Get(memory.New(memory.Config{}))(t)
	defer index.Close()
	sc := must.Get(scorer.New(scorer.Config{Index: index}))(t)
	var took taker
	api := must.Get(server.New(server.Config{Scorer: sc, Index: index, Events: &took}))(t)
	srv := httptest.NewServer(api.Handler())
	defer srv.Close()
	c := must.Get(client.New(client.Config{URL: srv.URL}))(t)
	defer c.Close()

	parent, seq := uint64(1<<64-1), uint64(1<<53-2)
	got, err := c.PushEvents(t.Context(), client.EventsRequest{
		Pod: "p", Model: "m", Rank: 3, Engine: "vllm", Seq: &seq,
		Events: []client.Event{
			{Type: client.EventStored, BlockHashes: []uint64{1<<53 + 1, 1 << 63}, ParentBlockHash: &parent, TokenIDs: []uint32{1, 2, 3, 1<<32 - 1},
				BlockSize: 2, Medium: "CPU", LoRAName: "l", CacheSalt: "s", Group: 1},
			{Raw: json.RawMessage(`["BlockRemoved",["ff"]]`)},
			{Type: client.EventCleared},
			{Type: "BlockMoved"},
		},
	})
	want := client.EventsReport{Applied: 3, Skipped: 1,
		Ranks: []client.EventsRank{{Rank: 3, Applied: 3, Began: "lost", SkippedBlocks: map[string]int{"no_parent": 2}}}, Skips: []client.EventSkip{{Event: 3, Reason: "unknown_kind", Field: "type"}}}
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Fatalf("%+v %v, want %+v", got, err, want)
	}
	events := []event.Event{
		{Kind: event.Stored, Hashes: []event.Hash{1<<53 + 1, 1 << 63}, Parent: 1<<64 - 1, HasParent: true, Tokens: []uint32{1, 2, 3, 1<<32 - 1},
			BlockSize: 2, Medium: "CPU", LoRA: "l", Salt: "s", Group: 1, HasGroup: true},
		{Kind: event.Removed, Hashes: []event.Hash{255}, Positional: true},
		{Kind: event.Cleared},
	}
	if p := took.last; p.Pod != "p" || p.Model != "m" || p.Rank != 3 || p.Engine != "vllm" || *p.Seq != seq || len(p.Ranks) != 1 || !reflect.DeepEqual(p.Ranks[0].Events, events) {
		t.Errorf("\n got %+v\nwant %+v", p.Ranks, events)
	}
	if _, err := c.PushEvents(t.Context(), client.EventsRequest{Pod: "p", Model: "m"}); err != nil {
		t.Error(err)
	}
	var refused *client.Error
	if _, err := c.PushEvents(t.Context(), client.EventsRequest{Model: "m"}); !errors.As(err, &refused) || refused.Param != "pod" {
		t.Error(err)
	}
	if _, err := c.PushEvents(t.Context(), client.EventsRequest{Pod: "\xff", Model: "m"}); err == nil || errors.As(err, new(*client.Error)) {
		t.Error("text that is no UTF-8 is sent")
	}
}
