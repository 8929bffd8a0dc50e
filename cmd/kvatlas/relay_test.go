package main

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// TestRelay asks two replicas on one Redis for what an engine has sent. The one that reads it returns the
// messages, each returns the blocks, and both together are the whole. They are on the admin listener alone.
func TestRelay(t *testing.T) {
	redis := redistest.Start(t)
	e := newTestEngine(t)
	const pod = "a//b" // a name that routers like to change
	args := []string{"--redis=" + redis.URL(), "--block-size=16", "--admin-listen=127.0.0.1:0", "--ingest-relay-messages=8"}
	first := start(t, args...)
	s := &served{url: first.url, log: first.stderr, c: first.client()}
	must.OK(t, s.c.RegisterPod(t.Context(), client.Pod{Name: pod, Model: "m", Events: e.events, Replay: e.replay}))
	prompt := tokens(160)
	e.store(prompt[:96])
	s.best(t, prompt, map[string]float64{pod: 6})
	second := start(t, args...)

	admin := func(r *running) *client.Client {
		c := must.Get(client.New(client.Config{URL: r.admin}))(t)
		t.Cleanup(c.Close)
		return c
	}
	clients := []*client.Client{admin(first), admin(second)}
	code := func(err error) string {
		if e := (*client.Error)(nil); errors.As(err, &e) {
			return e.Code
		}
		return ""
	}
	// The replica that reads the rank answers; which one that is may not be settled yet.
	var got *client.Recent
	var err error
	var by int
	awaitThat(t, "one of them reads", first.stderr, func() bool {
		for i, c := range clients {
			got, err = c.RecentEvents(t.Context(), client.RecentRequest{Pod: pod})
			if err == nil && len(got.Messages) > 0 {
				by = i
				return true
			}
			if err != nil && code(err) != "rank_not_read" {
				t.Fatal(err)
			}
		}
		return false
	})
	if _, err := clients[1-by].RecentEvents(t.Context(), client.RecentRequest{Pod: pod}); code(err) != "rank_not_read" {
		t.Errorf("of who does not read: %v", err)
	}
	var stored struct {
		Type   string   `json:"type"`
		Hashes []uint64 `json:"block_hashes"`
		Tokens []uint32 `json:"token_ids"`
	}
	if len(got.Messages) != 1 || len(got.Messages[0].Events) != 1 || json.Unmarshal(got.Messages[0].Events[0], &stored) != nil || stored.Type != "BlockStored" ||
		len(stored.Hashes) != 6 || !slices.Equal(stored.Tokens, prompt[:96]) || got.Messages[0].Time == 0 || *got.First != 0 || *got.Last != 0 || got.Next != nil {
		t.Fatalf("got %+v", got)
	}

	// The event is one that a server takes, and it says the same there.
	copied := start(t, "--block-size=16")
	c := copied.client()
	must.Get(c.PushEvents(t.Context(), client.EventsRequest{Pod: "copy", Model: "m", Events: []client.Event{{Raw: got.Messages[0].Events[0]}}}))(t)
	score := func(c *client.Client, r client.ScoreRequest, want float64) {
		t.Helper()
		r.Model = "m"
		if resp, err := c.Score(t.Context(), r); err != nil || len(resp.Scores) != 1 || resp.Scores[resp.Best] != want {
			t.Errorf("got %+v, %v, want %v", resp, err, want)
		}
	}
	score(c, client.ScoreRequest{Tokens: prompt}, 6)

	// The blocks are the same from both, and those of the prompt.
	explained := must.Get(s.c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: prompt[:96], Explain: true}))(t)
	want := slices.Sorted(slices.Values(explained.Explain.BlockKeys))
	for i, c := range clients {
		var keys []string
		pages := 0
		for cursor := ""; pages == 0 || cursor != ""; pages++ {
			h := must.Get(c.HeldBlocks(t.Context(), pod, 0, cursor, 2))(t)
			if h.Seq != 1 || h.Generation == 0 {
				t.Errorf("the page of %d is of %d, %d", i, h.Generation, h.Seq)
			}
			keys = append(keys, h.BlockKeys["gpu"]...)
			cursor = h.Next
		}
		slices.Sort(keys)
		if keys = slices.Compact(keys); !slices.Equal(keys, want) {
			t.Errorf("%d gives %v in %d pages, want %v", i, keys, pages, want)
		}
	}

	// More than are kept.
	for range 12 {
		e.store(prompt[:16])
	}
	at := func(n uint64) *uint64 { return &n }
	awaitThat(t, "the last message", first.stderr, func() bool {
		got, err = clients[by].RecentEvents(t.Context(), client.RecentRequest{Pod: pod, From: at(12)})
		return err == nil
	})
	if *got.First != 5 || *got.Last != 12 || len(got.Messages) != 1 {
		t.Errorf("got %+v", got)
	}
	for want, r := range map[string]client.RecentRequest{
		"range_too_new": {Pod: pod, From: at(13)}, "range_too_old": {Pod: pod, From: at(4)}, "invalid_range": {Pod: pod, From: at(7), To: at(6)},
	} {
		if _, err := clients[by].RecentEvents(t.Context(), r); code(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if got, err := clients[by].RecentEvents(t.Context(), client.RecentRequest{Pod: pod, From: at(6), To: at(8)}); err != nil || len(got.Messages) != 3 || got.Messages[2].Seq != 8 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, r := range []*running{first, second} {
		if _, err := r.client().RecentEvents(t.Context(), client.RecentRequest{Pod: pod}); code(err) != "not_found" {
			t.Errorf("the API's listener says %v", err)
		}
	}
}
