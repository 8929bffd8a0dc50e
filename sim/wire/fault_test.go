package wire_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// talkTo has a pod answer n prompts of a load.
func talkTo(t *testing.T, p *wire.Pod, k *talk, n int) {
	t.Helper()
	for range n {
		tokens, c := k.next(false)
		said, _ := complete(t, p, tokens, c, 1+k.rng.IntN(30))
		if len(c.tokens) == len(tokens) {
			c.tokens = append(c.tokens, said...)
		}
	}
}

// exactly holds what is predicted to what is delivered for n prompts.
// Without whole it may be less, and never more.
func exactly(t *testing.T, f *follower, k *talk, n int, whole bool) {
	t.Helper()
	hits := 0
	for i := range n {
		tokens, c := k.next(false)
		f.wait(0)
		want := f.predict(tokens, "", "")
		_, cached := complete(t, f.pod, tokens, c, 1)
		if got := cached / 16 * 16; got != want && (whole || got < want) {
			t.Fatalf("request %d of %d tokens: %d were to be reused, %d were", i, len(tokens), want, got)
		}
		if want > 0 {
			hits++
		}
	}
	if hits == 0 {
		t.Errorf("none of %d prompts was known", n)
	}
}

// Whatever goes wrong with the stream, as soon as the index has it again it predicts all
// that is delivered. Events that cannot be replayed are missing, and nothing else.
func TestRepair(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.TRTLLM} {
		for _, x := range []struct {
			name  string
			fault wire.Fault
			begun ingest.Reason // the generation that it begins, First for none
		}{
			{"lost", wire.Fault{Kind: wire.Lose, Count: 7}, ingest.First},
			{"lost at the end", wire.Fault{Kind: wire.Lose, Count: 10_000}, ingest.First},
			{"lost for good", wire.Fault{Kind: wire.Lose, Count: 7, Burn: true}, ingest.Lost},
			{"late", wire.Fault{Kind: wire.Delay, For: 20}, ingest.First},
			{"slow", wire.Fault{Kind: wire.Slow, Rate: 50_000}, ingest.First},
			{"restart", wire.Fault{Kind: wire.Restart}, ingest.Restarted},
			{"full", wire.Fault{Kind: wire.Full, Part: .5}, ingest.First},
		} {
			t.Run(kind.String()+" "+x.name, func(t *testing.T) {
				t.Parallel()
				p := start(t, wire.Config{Engine: engine.Config{Kind: kind, Blocks: 400}})
				f := follow(t, p, 16)
				k := newTalk(7)
				talkTo(t, p, k, 30)
				f.wait(0)
				before := f.life().Generation
				must.OK(t, p.Apply(x.fault))
				http.DefaultClient.CloseIdleConnections() // to a process that may have ended
				talkTo(t, p, k, 20)
				if x.fault.Count > 1000 {
					// Nothing that follows shows the loss.
					must.OK(t, p.Apply(wire.Fault{Kind: wire.Lose}))
				}
				began := time.Now()
				if x.begun != ingest.First {
					f.wait(before)
				}
				f.wait(0)
				t.Logf("repaired after %v", time.Since(began).Round(time.Millisecond))
				exactly(t, f, k, 60, !x.fault.Burn)
				f.mu.Lock()
				defer f.mu.Unlock()
				if got := f.began[1:]; x.begun == ingest.First && len(got) > 0 || x.begun != ingest.First && !slices.Contains(got, x.begun) {
					t.Errorf("generations began for %v, want %v", got, x.begun)
				}
			})
		}
	}
}

// A process that is frozen answers nothing until it goes on.
func TestFreeze(t *testing.T) {
	p := start(t, wire.Config{})
	must.OK(t, p.Apply(wire.Fault{Kind: wire.Freeze}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Address()+"/health", http.NoBody))(t)
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Error("a frozen pod is healthy")
	}
	must.OK(t, p.Apply(wire.Fault{Kind: wire.Thaw}))
	if status, _ := call(t, p, http.MethodGet, "/health", nil); status != http.StatusOK {
		t.Errorf("a pod that goes on: %d", status)
	}
	// A second time, with a request under way, and killed in it.
	must.OK(t, p.Apply(wire.Fault{Kind: wire.Freeze}))
	must.OK(t, p.Apply(wire.Fault{Kind: wire.Kill}))
	if err := p.Apply(wire.Fault{Kind: wire.Thaw}); !errors.Is(err, wire.ErrDead) {
		t.Errorf("a dead pod is thawed: %v", err)
	}
	must.OK(t, p.Apply(wire.Fault{Kind: wire.Revive}))
	if status, _ := call(t, p, http.MethodGet, "/health", nil); status != http.StatusOK {
		t.Errorf("a pod that lives again: %d", status)
	}
}

// The control page says what pods do, and has faults happen to them.
func TestControl(t *testing.T) {
	configs := []wire.Config{}
	for _, name := range []string{"sim-0", "sim-1"} {
		configs = append(configs, wire.Config{Name: name, Model: model, Listen: "127.0.0.1:0", Events: redistest.FreeEndpoint(t, 1), Engine: engine.Config{Blocks: 100}})
	}
	f := must.Get(wire.StartFleet(configs))(t)
	defer f.Close()
	s := httptest.NewServer(f.Handler())
	defer s.Close()
	post := func(path, body string) (int, string) {
		req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader(body)))(t)
		resp, err := s.Client().Do(req)
		must.OK(t, err)
		defer resp.Body.Close()
		var b bytes.Buffer
		must.Get(b.ReadFrom(resp.Body))(t)
		return resp.StatusCode, b.String()
	}
	for _, x := range []struct {
		path, body string
		status     int
		alive      []bool
	}{
		{"/pods/sim-0/faults", `{"fault":"kill"}`, 200, []bool{false, true}},
		{"/pods/sim-0/faults", `{"fault":"clear"}`, 409, []bool{false, true}},
		{"/pods/sim-0/faults", `{"fault":"revive"}`, 200, []bool{true, true}},
		{"/pods/*/faults", `{"fault":"clear"}`, 200, []bool{true, true}},
		{"/pods/*/faults", `{"fault":"kill"}`, 200, []bool{false, false}},
		{"/pods/*/faults", `{"fault":"restart"}`, 200, []bool{true, true}},
		{"/pods/sim-2/faults", `{"fault":"kill"}`, 404, []bool{true, true}},
		{"/pods/sim-1/faults", `{"fault":"explode"}`, 400, []bool{true, true}},
		{"/pods/sim-1/faults", `{"fault":"lose","count":-1}`, 400, []bool{true, true}},
		{"/pods/sim-1/faults", `{"fault":"full","part":2}`, 400, []bool{true, true}},
		{"/pods/sim-1/faults", `{"fault":"throttle","factor":1e9}`, 400, []bool{true, true}},
		{"/pods/sim-1/faults", `{"fault":"lose","rank":1}`, 400, []bool{true, true}},
		{"/pods/sim-1/faults", `{"fault":"lose","number":1}`, 400, []bool{true, true}},
	} {
		if status, b := post(x.path, x.body); status != x.status {
			t.Errorf("%s %s: %d %s", x.path, x.body, status, b)
		}
		var alive []bool
		for _, p := range f.State() {
			alive = append(alive, p.Alive)
		}
		if !slices.Equal(alive, x.alive) {
			t.Errorf("after %s %s: alive are %v", x.path, x.body, alive)
		}
	}
	var state struct{ Pods []wire.PodState }
	_, b := post("/pods/sim-1/faults", `{"fault":"full","part":0.5}`)
	if err := json.Unmarshal([]byte(b), &state); err != nil || len(state.Pods) != 2 || state.Pods[1].Ranks[0].UsedBlocks != 50 || state.Pods[0].Ranks[0].TotalBlocks != 99 {
		t.Errorf("%+v, %v", state, err)
	}
}
