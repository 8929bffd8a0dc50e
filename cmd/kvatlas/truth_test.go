package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/redistest"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// TestLyingIndexIsReadAnew has an engine whose index holds what it has, and what somebody
// has written besides. Requests tell that this is not there; then the rank is read anew, and
// holds what the engine replays.
func TestLyingIndexIsReadAnew(t *testing.T) {
	redis := redistest.Start(t)
	s := serveProcess(t, "--redis="+redis.URL(), "--block-size=16", "--roles=score,ingest")
	pod, err := wire.NewPod(wire.Config{
		Name: "sim", Model: "m", Listen: "127.0.0.1:0", Events: fmt.Sprintf("tcp://127.0.0.1:%d", redistest.FreePort(t)),
		Replay: fmt.Sprintf("tcp://127.0.0.1:%d", redistest.FreePort(t)), Engine: simengine.Config{Kind: simengine.VLLM, BlockSize: 16, Blocks: 1000},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Kill() })
	name := pod.Address()
	c := pod.Config()
	if err := s.c.RegisterPod(t.Context(), client.Pod{Name: name, Model: "m", Engine: "vllm", Events: c.Events, Replay: c.Replay}); err != nil {
		t.Fatal(err)
	}
	right, wrong := make([]int, 320), make([]int, 320)
	for i := range right {
		right[i], wrong[i] = 65+i%26, 97+i%26
	}
	cached := func(tokens []int) int {
		var r struct{ Overlap struct{ Tokens int } }
		if err := s.tell(t, http.MethodPost, "/v1/route", map[string]any{"model": "m", "tokens": tokens}, &r); err != nil {
			t.Fatal(err)
		}
		return r.Overlap.Tokens
	}
	complete := func(tokens []int) {
		resp, err := http.Post("http://"+name+"/v1/completions", "application/json", strings.NewReader(strings.ReplaceAll(fmt.Sprintf(`{"model":"m","max_tokens":1,"prompt":%v}`, tokens), " ", ",")))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	complete(right)
	awaitThat(t, "the engine's blocks are read", s.log, func() bool { return cached(right) == 320 })
	if err := s.tell(t, http.MethodPost, "/v1/blocks", map[string]any{"op": "add", "model": "m", "pod": name, "tokens": wrong}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if got := cached(wrong); got != 320 {
		t.Fatalf("the index says %d tokens", got)
	}
	for range 40 {
		var r struct{ Reservation string }
		if err := s.tell(t, http.MethodPost, "/v1/route", map[string]any{"model": "m", "tokens": wrong, "reserve": true}, &r); err != nil {
			t.Fatal(err)
		}
		for _, report := range []string{"done", "end"} {
			body := map[string]any{"model": "m"}
			if report == "done" {
				body["cached_tokens"] = 0
			}
			if err := s.tell(t, http.MethodPost, "/v1/requests/"+r.Reservation+"/"+report, body, &struct{}{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	awaitThat(t, "what is wrong is gone", s.log, func() bool { return cached(wrong) == 0 })
	complete(append([]int{33}, right...)) // with its next event the reader notices
	awaitThat(t, "what is right is back", s.log, func() bool { return cached(right) == 320 && cached(wrong) == 0 })
}
