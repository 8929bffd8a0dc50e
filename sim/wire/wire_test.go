package wire_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

const model = "sim/model"

// noTime is an engine that takes no time.
var noTime = engine.Timing{Prefill: -1, Decode: -1, Host: -1, Disk: -1}

// start starts a pod. What is not said has its default, and is quick.
func start(t *testing.T, c wire.Config) *wire.Pod {
	t.Helper()
	p := newPod(t, c)
	must.OK(t, p.Start())
	return p
}

func newPod(t *testing.T, c wire.Config) *wire.Pod {
	t.Helper()
	if c.Model == "" {
		c.Model = model
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Events == "" {
		c.Events, c.Replay = redistest.FreeEndpoint(t, max(c.Ranks, 1)), redistest.FreeEndpoint(t, max(c.Ranks, 1))
	}
	if c.Engine.Timing == (engine.Timing{}) {
		c.Engine.Timing = noTime
	}
	if c.Engine.Blocks == 0 {
		c.Engine.Blocks = 2000
	}
	p := must.Get(wire.NewPod(c))(t)
	must.End(t, p.Kill)
	return p
}

// call makes a request of a pod and returns the answer's status and body.
func call(t *testing.T, p *wire.Pod, method, path string, body any) (int, []byte) {
	t.Helper()
	b := must.Get(json.Marshal(body))(t)
	req := must.Get(http.NewRequestWithContext(t.Context(), method, "http://"+p.Address()+path, bytes.NewReader(b)))(t)
	resp, err := http.DefaultClient.Do(req)
	must.OK(t, err)
	defer resp.Body.Close()
	out := must.Get(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, out
}

// fields are an object of JSON.
type fields = map[string]any

// ask is call for a 200 with an object.
func ask(t *testing.T, p *wire.Pod, method, path string, body any) fields {
	t.Helper()
	status, b := call(t, p, method, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, path, status, b)
	}
	var out fields
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, b)
	}
	return out
}

// at walks into JSON.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(fields)
			v = m[p]
		case int:
			list, _ := v.([]any)
			if p >= len(list) {
				return nil
			}
			v = list[p]
		}
	}
	return v
}

// A prompt is answered, and told what of it was cached, as each release tells it.
func TestUsage(t *testing.T) {
	prompt := strings.Repeat("a prompt of some length. ", 8) // 200 bytes
	for _, x := range []struct {
		kind    engine.Kind
		version string
		zero    any // what 0 cached tokens look like
	}{
		{engine.VLLM, "0.33.0", fields{"cached_tokens": 0.}},
		{engine.VLLM, "0.23.0", nil},
		{engine.SGLang, "0.5.23", fields{"cached_tokens": 0.}},
		{engine.SGLang, "0.5.18", nil},
		{engine.TRTLLM, "", fields{"cached_tokens": 0.}},
	} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: x.kind}, Version: x.version})
		body := fields{"model": model, "prompt": prompt, "max_tokens": 5}
		first := ask(t, p, http.MethodPost, "/v1/completions", body)
		if got := at(first, "usage", "prompt_tokens_details"); fmt.Sprint(got) != fmt.Sprint(x.zero) {
			t.Errorf("%v %s: of an empty cache %v", x.kind, x.version, got)
		}
		second := ask(t, p, http.MethodPost, "/v1/completions", body)
		if u := at(second, "usage"); at(u, "prompt_tokens") != 200. || at(u, "completion_tokens") != 5. || at(u, "total_tokens") != 205. ||
			at(u, "prompt_tokens_details", "cached_tokens") != 192. {
			t.Errorf("%v %s: %v", x.kind, x.version, u)
		}
		if a, b := at(first, "choices", 0, "text"), at(second, "choices", 0, "text"); a != b || len(fmt.Sprint(a)) != 5 {
			t.Errorf("%v: %q and %q are said to one prompt", x.kind, a, b)
		}
		if r := at(second, "choices", 0, "finish_reason"); r != "length" {
			t.Errorf("%v: it ended for %v", x.kind, r)
		}
	}
}

// events returns the data of a stream.
func events(t *testing.T, p *wire.Pod, path string, body fields) (out []fields) {
	t.Helper()
	_, b := call(t, p, http.MethodPost, path, body)
	s := bufio.NewScanner(bytes.NewReader(b))
	done := false
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		switch {
		case s.Text() == "":
			continue
		case !ok || done:
			t.Fatalf("%q in a stream", s.Text())
		case data == "[DONE]":
			done = true
			continue
		}
		var f fields
		if err := json.Unmarshal([]byte(data), &f); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		out = append(out, f)
	}
	if !done {
		t.Fatalf("the stream has no end: %s", b)
	}
	return out
}

// A stream has the text of the whole answer, and usage where it is asked for.
func TestStream(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.TRTLLM} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind}})
		for _, chat := range []bool{false, true} {
			path, body := "/v1/completions", fields{"prompt": strings.Repeat("x", 100), "max_tokens": 9}
			if chat {
				path, body = "/v1/chat/completions", fields{"messages": []fields{{"role": "user", "content": strings.Repeat("y", 100)}}, "max_tokens": 9}
			}
			whole := ask(t, p, http.MethodPost, path, body)
			want := at(whole, "choices", 0, "text")
			if chat {
				want = at(whole, "choices", 0, "message", "content")
			}
			for _, options := range []fields{nil, {"include_usage": false}, {"include_usage": true}, {"include_usage": true, "continuous_usage_stats": true}} {
				body["stream"] = true
				delete(body, "stream_options")
				if options != nil {
					body["stream_options"] = options
				}
				var text string
				var usages int
				all := events(t, p, path, body)
				for _, e := range all {
					part := at(e, "choices", 0, "text")
					if chat {
						part = at(e, "choices", 0, "delta", "content")
					}
					if part != nil {
						text += fmt.Sprint(part)
					}
					if e["usage"] != nil {
						usages++
					}
				}
				if text != want {
					t.Errorf("%v %s: %q is streamed, want %q", kind, path, text, want)
				}
				last := all[len(all)-1]
				switch {
				case options["include_usage"] != true:
					if usages > 0 {
						t.Errorf("%v %s: usage %d times", kind, path, usages)
					}
				case len(last["choices"].([]any)) != 0 || at(last, "usage", "completion_tokens") != 9.,
					options["continuous_usage_stats"] == nil && usages != 1, options["continuous_usage_stats"] != nil && usages != 10:
					t.Errorf("%v %s: usage %d times, at the end %v", kind, path, usages, last)
				}
			}
		}
	}
}

// Prompts are texts, token ids, and lists of them.
func TestPrompts(t *testing.T) {
	p := start(t, wire.Config{LoRAs: []string{"law"}})
	for _, x := range []struct {
		prompt any
		tokens float64
		n      int
	}{{"abc", 3, 1}, {[]int{1, 2, 3, 4}, 4, 1}, {[]string{"ab", "c"}, 3, 2}, {[][]int{{1}, {2, 3}, {4}}, 4, 3}} {
		r := ask(t, p, http.MethodPost, "/v1/completions", fields{"model": "law", "prompt": x.prompt})
		if at(r, "usage", "prompt_tokens") != x.tokens || len(r["choices"].([]any)) != x.n || at(r, "usage", "completion_tokens") != 16.*float64(x.n) {
			t.Errorf("%v: %v", x.prompt, r)
		}
	}
	for _, x := range []struct {
		body   fields
		status int
	}{
		{fields{}, 400}, {fields{"prompt": ""}, 400}, {fields{"prompt": 3}, 400}, {fields{"prompt": []int{-1}}, 400}, {fields{"prompt": []string{}}, 400},
		{fields{"prompt": "a", "max_tokens": 0}, 400}, {fields{"prompt": "a", "max_tokens": 1 << 30}, 400}, {fields{"prompt": "a", "n": 2}, 400},
		{fields{"prompt": strings.Repeat("a", 40_000)}, 400}, {fields{"prompt": "a", "model": "b"}, 404},
		{fields{"prompt": "a", "cache_salt": strings.Repeat("s", 129)}, 400}, {fields{"prompt": "a", "data_parallel_rank": 1}, 400},
		{fields{"prompt": []string{"a", ""}}, 400},
	} {
		status, b := call(t, p, http.MethodPost, "/v1/completions", x.body)
		var e fields
		if err := json.Unmarshal(b, &e); err != nil || status != x.status || at(e, "error", "code") != float64(x.status) || at(e, "error", "message") == "" {
			t.Errorf("%v: %d %s", x.body, status, b)
		}
	}
	if s, err := p.Stats(); err != nil || s[0].Running+s[0].Waiting != 0 {
		t.Errorf("%+v is left, %v", s, err)
	}
}

// A cache salt is refused where the engine's release refuses it.
func TestSalts(t *testing.T) {
	old := wire.Config{Version: "0.31.0"}
	sglang := wire.Config{Engine: engine.Config{Kind: engine.SGLang}}
	for _, x := range []struct {
		engine wire.Config
		salt   any
		status int
	}{
		{wire.Config{}, nil, 200}, {wire.Config{}, "tenant-_7", 200}, {wire.Config{}, strings.Repeat("\u00e4", 128), 200},
		{wire.Config{}, strings.Repeat("s", 129), 400}, {wire.Config{}, "", 400}, {wire.Config{}, "a@b", 400}, {wire.Config{}, "a/b", 400}, {wire.Config{}, `a\b`, 400}, {wire.Config{}, "a\x00", 400},
		{old, "a@b", 200}, {old, strings.Repeat("s", 129), 200}, {old, "", 400},
		{sglang, "a@b", 200}, {sglang, "", 200},
	} {
		p := start(t, x.engine)
		status, b := call(t, p, http.MethodPost, "/v1/completions", fields{"prompt": "a", "cache_salt": x.salt})
		if status != x.status || status == 400 && !strings.Contains(string(b), "cache_salt") {
			t.Errorf("%v %s, salt %q: %d %s", x.engine.Engine.Kind, x.engine.Version, x.salt, status, b)
		}
	}
}

// What goes before one pod's cache apart goes apart: adapters, salts and ranks.
func TestApart(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.TRTLLM} {
		p := start(t, wire.Config{Engine: engine.Config{Kind: kind}, LoRAs: []string{"law"}, Ranks: 2, Events: "", Replay: ""})
		base := fields{"prompt": strings.Repeat("z", 170), "data_parallel_rank": 0}
		for _, more := range []fields{{}, {"model": "law"}, {"cache_salt": "s"}, {"data_parallel_rank": 1}} {
			body := fields{}
			for _, f := range []fields{base, more} {
				for k, v := range f {
					body[k] = v
				}
			}
			for _, want := range []float64{0, 160} {
				r := ask(t, p, http.MethodPost, "/v1/completions", body)
				if got := at(r, "usage", "prompt_tokens_details", "cached_tokens"); got != want {
					t.Errorf("%v %v: %v are cached, want %v", kind, more, got, want)
				}
			}
		}
	}
}

// A client that goes away, an engine that dies: nothing is left of the request.
func TestGone(t *testing.T) {
	p := start(t, wire.Config{Engine: engine.Config{Timing: engine.Timing{Prefill: 1, Decode: 10}}})
	begin := func(ctx context.Context) *bufio.Reader {
		b, _ := json.Marshal(fields{"prompt": "abc", "max_tokens": 1000, "stream": true}) // it is JSON
		req := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.Address()+"/v1/completions", bytes.NewReader(b)))(t)
		resp, err := http.DefaultClient.Do(req)
		must.OK(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		r := bufio.NewReader(resp.Body)
		if _, err := r.ReadString('\n'); err != nil { // the first token
			t.Fatal(err)
		}
		return r
	}
	ctx, cancel := context.WithCancel(t.Context())
	begin(ctx)
	cancel()
	eventually.True(t, "end of the request", func() bool { s, err := p.Stats(); return err == nil && s[0].Running+s[0].Waiting == 0 })

	r := begin(t.Context())
	must.OK(t, p.Kill())
	if _, err := io.ReadAll(r); err == nil {
		t.Error("the stream of an engine that was killed has an end")
	}
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Address()); err == nil {
		t.Error("a pod that was killed listens")
	}
	if _, err := p.Stats(); err == nil {
		t.Error("a dead pod has something to do")
	}
}
