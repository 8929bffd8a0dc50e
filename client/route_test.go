package client_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestRoute(t *testing.T) {
	c := dial(t)
	ctx := t.Context()
	for _, p := range []client.Pod{
		{Name: "a", Model: "letters", Labels: map[string]string{"zone": "1"}},
		{Name: "b/c", Model: "letters", Address: "http://b", Ranks: 2},
	} {
		must.OK(t, c.RegisterPod(ctx, p))
	}
	one := 1
	must.Get(c.Blocks(ctx, client.BlocksRequest{Op: client.OpAdd, Model: "letters", Pod: "b/c", Rank: &one, Tokens: []uint32{'a', 'b', 'c', 'd'}}))(t)
	ask := client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "letters", Prompt: "abcdefgh", Explain: true, Strategy: "coverage", EarlyExit: true}, Reserve: true, ID: "r/1", ExpectedOutputTokens: 8}
	got := must.Get(c.Route(ctx, ask))(t)
	if got.Place != (client.Place{Pod: "b/c", Rank: 1}) || got.Address != "http://b" || got.Policy != "eta" || got.Reservation != "r/1" || got.Again ||
		got.Overlap.Tokens != 4 || got.Overlap.Blocks != 1 || got.Overlap.BestTokens != 4 || got.Overlap.Tiers["gpu"] != 4 || got.Tokens.Total != 8 ||
		len(got.Fallbacks) != 2 || len(got.Costs) != 3 || got.Costs[0].Terms["prefill_ms"] <= 0 || got.Costs[0].Total == nil || got.Costs[0].HeldTokens["gpu"] != 4 {
		t.Errorf("got %+v", got)
	}
	if again, err := c.Route(ctx, ask); err != nil || !again.Again || again.Place != got.Place {
		t.Errorf("got %+v, %v", again, err)
	}
	loads, err := c.Loads(ctx, "letters")
	if err != nil || len(loads["letters"]) != 3 || loads["letters"][2].Place != got.Place || loads["letters"][2].Requests != 1 || loads["letters"][2].PrefillTokens != 4 {
		t.Errorf("got %+v, %v", loads, err)
	}
	cached := 4
	for _, step := range []struct {
		first  bool
		report func() (*client.Report, error)
	}{
		{true, func() (*client.Report, error) { return c.Done(ctx, "letters", "r/1", &cached) }},
		{false, func() (*client.Report, error) { return c.Done(ctx, "letters", "r/1", &cached) }},
		{true, func() (*client.Report, error) { return c.Output(ctx, "letters", "r/1", 3) }},
		{true, func() (*client.Report, error) { return c.End(ctx, "letters", "r/1") }},
	} {
		if rep, err := step.report(); err != nil || !rep.Known || rep.Place != got.Place || rep.First != step.first || rep.PredictedTokens != 4 {
			t.Errorf("got %+v, %v", rep, err)
		}
	}
	if rep, err := c.End(ctx, "letters", "r/1"); err != nil || rep.Known {
		t.Errorf("got %+v, %v", rep, err)
	}
	must.Get(c.Route(ctx, client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "letters", Prompt: "abcdefgh"}, Reserve: true, ID: "r/2"}))(t)
	if rep, err := c.Settle(ctx, "letters", "r/2", cached); err != nil || !rep.Known || !rep.First {
		t.Errorf("got %+v, %v", rep, err)
	}
	usage := 0.5
	if stale, err := c.PushLoad(ctx, got.Pod, client.EngineReport{Rank: got.Rank, Running: 3, Waiting: 2, KVUsage: &usage, KVTokens: 1000}); err != nil || stale != 10*time.Second {
		t.Errorf("%v, %v", stale, err)
	}
	if told, err := c.Loads(ctx, "letters"); err != nil || told["letters"][2].Engine == nil || told["letters"][2].Engine.Waiting != 2 || *told["letters"][2].Engine.KVUsage != 0.5 {
		t.Errorf("%+v, %v", told, err)
	}
	var unknown *client.Error
	if _, err := c.PushLoad(ctx, "no/body", client.EngineReport{}); !errors.As(err, &unknown) || unknown.Status != http.StatusNotFound {
		t.Errorf("%v", err)
	}
	if all, err := c.Loads(ctx, ""); err != nil || all["letters"][2].Requests != 0 {
		t.Errorf("got %+v, %v", all, err)
	}

	hot, err := c.Prefixes(ctx, "letters", 3)
	if m := hot["letters"]; err != nil || len(hot) != 1 || m.Degraded != nil || m.Requests == 0 {
		t.Errorf("got %+v, %v", hot, err)
	}
	for range 3 {
		must.Get(c.Route(ctx, client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "letters", Prompt: strings.Repeat("a", 200)}}))(t)
	}
	hot, err = c.Prefixes(ctx, "", 0)
	if m := hot["letters"]; err != nil || len(m.Prefixes) == 0 || m.Prefixes[0].Requests < 2.9 || len(m.Prefixes[0].Key) != 16 || m.Prefixes[0].Tokens != m.Prefixes[0].Blocks*m.BlockSize || len(m.Prefixes[0].Sent) == 0 {
		t.Errorf("got %+v, %v", hot, err)
	}
	if _, err := c.Prefixes(ctx, "", 101); err == nil {
		t.Error("a limit of 101 was taken")
	}

	for want, r := range map[string]client.RouteRequest{
		"a":   {Labels: map[string]string{"zone": "1"}},
		"b/c": {Pinned: &client.Pin{Pod: "b/c"}, Policy: "least_requests"},
	} {
		r.Model, r.Tokens = "letters", []uint32{7}
		if got, err := c.Route(ctx, r); err != nil || got.Pod != want || got.Reservation != "" {
			t.Errorf("%s: got %+v, %v", want, got, err)
		}
	}
	pair := client.RouteRequest{Role: "pair", PinnedPrefill: &client.Pin{Pod: "a"}, Pinned: &client.Pin{Pod: "b/c"}}
	pair.Model, pair.Tokens, pair.Explain = "letters", []uint32{7}, true
	if got, err := c.Route(ctx, pair); err != nil || got.Pod != "b/c" || got.Prefill == nil || got.Prefill.Pod != "a" || got.LocalPrefill != "" || len(got.Pairs) == 0 || got.Headers["x-prefiller-host-port"] != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	pair.PinnedPrefill = nil
	if got, err := c.Route(ctx, pair); err != nil || got.Prefill != nil || got.LocalPrefill != "short" {
		t.Errorf("got %+v, %v", got, err)
	}
	body := json.RawMessage(`{"model":"letters","prompt":"abcd","max_tokens":5}`)
	if got, err := c.Route(ctx, client.RouteRequest{ScoreRequest: client.ScoreRequest{Body: body}, Prefer: map[string]float64{"zone=1": -9}}); err != nil || got.Pod != "b/c" {
		t.Errorf("got %+v, %v", got, err)
	}
	var refused *client.Error
	if _, err := c.Route(ctx, client.RouteRequest{ScoreRequest: client.ScoreRequest{Model: "none", Tokens: []uint32{1}}}); !errors.As(err, &refused) || refused.Status != http.StatusNotFound || refused.Code != "no_pod" {
		t.Errorf("got %v", err)
	}
	if _, err := c.Route(ctx, client.RouteRequest{ID: "\xff"}); err == nil {
		t.Error("a text that is not UTF-8 was sent")
	}
}

func TestRouting(t *testing.T) {
	c := dial(t)
	set, err := c.SetRouting(t.Context(), "a/b", json.RawMessage(`{"policy":"round_robin"}`))
	if err != nil || !strings.Contains(string(set), `"policy":"round_robin"`) {
		t.Fatalf("got %s, %v", set, err)
	}
	if got, err := c.Routing(t.Context(), "a/b"); err != nil || string(got) != string(set) {
		t.Errorf("got %s, %v", got, err)
	}
	var refused *client.Error
	if _, err := c.SetRouting(t.Context(), "m", json.RawMessage(`{"policy":"nearest"}`)); !errors.As(err, &refused) || refused.Status != http.StatusBadRequest {
		t.Errorf("got %v", err)
	}
}
