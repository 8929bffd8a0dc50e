package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
)

// serve starts a server for one test and returns a client of it.
func serve(t *testing.T, cfg client.Config, h http.HandlerFunc) *client.Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg.URL = srv.URL
	c := must.Get(client.New(cfg))(t)
	t.Cleanup(c.Close)
	return c
}

func answer(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestConfig(t *testing.T) {
	for _, tc := range []struct{ url, want string }{
		{"", "no URL"},
		{"127.0.0.1:8080?x=1", "before ? and #"},
		{"[::1", "client: Config.URL"},
		{"ftp://h", "no URL"},
		{"http://", "no URL"},
		{"http://h?x=1", "before ? and #"},
		{"http://h\x7f", "client: Config.URL"},
	} {
		if _, err := client.New(client.Config{URL: tc.url}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q", tc.url, err, tc.want)
		}
	}
	if _, err := client.New(client.Config{URL: "http://h", MaxResponseBytes: -1}); err == nil {
		t.Error("a negative limit is accepted")
	}
}

func TestURLWithoutScheme(t *testing.T) {
	s := httptest.NewServer(answer(200, "application/json", `{"pods":[{"name":"a","model":"m"}]}`))
	defer s.Close()
	c := must.Get(client.New(client.Config{URL: strings.TrimPrefix(s.URL, "http://")}))(t)
	defer c.Close()
	if pods, err := c.Pods(t.Context()); err != nil || len(pods) != 1 {
		t.Errorf("got %v, %v", pods, err)
	}
}

func TestRequestBodies(t *testing.T) {
	zero := 0
	for _, tc := range []struct {
		in   any
		want string
	}{
		{client.ScoreRequest{Model: "m"}, `{"model":"m","prompt":""}`},
		{client.ScoreRequest{Model: "m", Prompt: "é\n"}, `{"model":"m","prompt":"é\n"}`},
		{client.ScoreRequest{Model: "m", Prompt: "x", Tokens: []uint32{1, 128000}}, `{"model":"m","tokens_b64":"AQAAAAD0AQA="}`},
		{client.ScoreRequest{Model: "m", Tokens: []uint32{}}, `{"model":"m","tokens_b64":""}`},
		{client.ScoreRequest{Model: "m", BlockKeys: []string{}, Tokens: []uint32{1}}, `{"model":"m","block_keys":[]}`},
		{
			client.ScoreRequest{
				Model: "m", Prompt: "x", Pods: []string{}, Top: 3, Strategy: "coverage", LoRA: "l", CacheSalt: "s",
				Explain: true, Mode: "wait", Wait: 1500 * time.Microsecond, EarlyExit: true, NoSpecialTokens: true,
			},
			`{"model":"m","prompt":"x","pods":[],"top":3,"strategy":"coverage","lora":"l","cache_salt":"s","explain":true,"mode":"wait","wait_ms":2,"early_exit":true,"add_special_tokens":false}`,
		},
		{
			client.ScoreRequest{Model: "m", Chat: &client.Chat{Messages: []byte(`[{"role": "user", "b": 1.0, "a": "<"}]`), Tools: []byte(`[]`), AddGenerationPrompt: new(bool)}},
			`{"model":"m","messages":[{"role":"user","b":1.0,"a":"\u003c"}],"tools":[],"add_generation_prompt":false}`,
		},
		{client.ScoreRequest{Model: "m", Chat: &client.Chat{}, Tokens: []uint32{}}, `{"model":"m","tokens_b64":""}`},
		{
			client.TokenizeRequest{Model: "m", Chat: &client.Chat{Messages: []byte(`[]`), ContinueFinalMessage: true, ChatTemplate: "t", ChatTemplateKwargs: []byte(`{"x":null}`), ReasoningEffort: "low"}},
			`{"model":"m","messages":[],"continue_final_message":true,"chat_template":"t","chat_template_kwargs":{"x":null},"reasoning_effort":"low"}`,
		},
		{client.TokenizeRequest{Model: "m"}, `{"model":"m","prompt":""}`},
		{client.TokenizeRequest{Body: []byte(`{"model":"b","prompt":[1,2]}`)}, `{"model":"b","prompt":[1,2]}`},
		{client.ScoreRequest{Body: []byte(` { "model" : "b", "x": [1.0, {"b":1,"a":"é"}] } `)}, `{"model":"b","x":[1.0,{"b":1,"a":"é"}]}`},
		{client.ScoreRequest{Body: []byte(`{}`)}, `{}`},
		{
			client.ScoreRequest{Model: "m", Mode: "sync", Pods: []string{"p"}, Prompt: "x", Body: []byte(`{"mode":"async","messages":[],"model":"b","z":1,"z":2}`)},
			`{"messages":[],"z":1,"z":2,"model":"m","pods":["p"],"mode":"sync"}`,
		},
		{client.ScoreRequest{Model: "m", Tokens: []uint32{}, Body: []byte(`{"a":1}`)}, `{"model":"m","tokens_b64":""}`},
		{client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: "p", Tokens: []uint32{7}}, `{"op":"add","model":"m","pod":"p","tokens_b64":"BwAAAA=="}`},
		{client.BlocksRequest{Op: client.OpClear, Model: "m", Pod: "p", Rank: &zero, Tier: "cpu"}, `{"op":"clear","model":"m","pod":"p","rank":0,"tier":"cpu"}`},
		{client.BlocksRequest{Op: client.OpRemove, Model: "m", Pod: "p", BlockKeys: []string{"00000000000000ff"}}, `{"op":"remove","model":"m","pod":"p","block_keys":["00000000000000ff"]}`},
	} {
		b, err := json.Marshal(tc.in)
		if err != nil || string(b) != tc.want {
			t.Errorf("got  %s, %v\nwant %s", b, err, tc.want)
		}
	}
}

// TestBodies refuses what is no body.
func TestBodies(t *testing.T) {
	for _, body := range []string{``, `[]`, `7`, `{`, `{"a":}`, `{"a":1} {}`, `{"a":1}x`, `{"a" 1}`} {
		for _, r := range []any{client.ScoreRequest{Body: []byte(body)}, client.ScoreRequest{Model: "m", Body: []byte(body)}, client.TokenizeRequest{Body: []byte(body)}} {
			if b, err := json.Marshal(r); !errors.Is(err, client.ErrBody) {
				t.Errorf("%q: %s, %v", body, b, err)
			}
		}
	}
}

// JSON would carry a text that is not UTF-8 changed, and so score another one.
func TestTextsMustBeUTF8(t *testing.T) {
	const bad = "ab\xffc"
	for _, in := range []any{
		client.ScoreRequest{Model: bad},
		client.ScoreRequest{Prompt: bad},
		client.ScoreRequest{LoRA: bad},
		client.ScoreRequest{CacheSalt: bad},
		client.ScoreRequest{Pods: []string{"a", bad}},
		client.BlocksRequest{Model: bad},
		client.BlocksRequest{Pod: bad},
		client.TokenizeRequest{Prompt: bad},
		client.TokenizeRequest{Chat: &client.Chat{ReasoningEffort: bad}},
		client.ScoreRequest{Chat: &client.Chat{ChatTemplate: bad}},
	} {
		if b, err := json.Marshal(in); !errors.Is(err, client.ErrNotUTF8) || !strings.Contains(err.Error(), "at byte 2") {
			t.Errorf("%+v: got %s, %v", in, b, err)
		}
	}
	c := serve(t, client.Config{}, answer(500, "text/plain", ""))
	_, err := c.ScorePrompts(t.Context(), client.ScoreRequest{}, []string{"", bad})
	if !errors.Is(err, client.ErrNotUTF8) || !strings.Contains(err.Error(), "prompts[1]") {
		t.Errorf("got %v", err)
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    client.Error
	}{
		{
			"the API's", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Request-Id", "r1")
				w.Header().Set("Retry-After", "2")
				answer(503, "application/json", `{"error":{"code":"overloaded","message":"too many","param":null}}`)(w, nil)
			},
			client.Error{Status: 503, Code: "overloaded", Message: "too many", RequestID: "r1", RetryAfter: 2 * time.Second},
		},
		{
			"with a parameter", answer(400, "application/json", `{"error":{"code":"invalid_request","message":"is empty","param":"model"}}`),
			client.Error{Status: 400, Code: "invalid_request", Message: "is empty", Param: "model"},
		},
		{"a proxy's", answer(502, "text/html", "<h1>Bad\n   Gateway</h1>"), client.Error{Status: 502, Message: "<h1>Bad Gateway</h1>"}},
		{"an empty one", answer(504, "text/plain", ""), client.Error{Status: 504, Message: "Gateway Timeout"}},
		{"a long one", answer(500, "text/plain", strings.Repeat("é", 150)), client.Error{Status: 500, Message: strings.Repeat("é", 100) + "..."}},
		{"one for a terminal", answer(500, "text/plain", "\x1b[2Jx\xff"), client.Error{Status: 500, Message: "\uFFFD[2Jx\uFFFD"}},
		{"a redirect", answer(302, "text/plain", "elsewhere"), client.Error{Status: 302, Message: "elsewhere"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := serve(t, client.Config{}, tc.handler)
			_, err := c.Score(t.Context(), client.ScoreRequest{Model: "m"})
			var e *client.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if *e != tc.want {
				t.Errorf("got  %+v\nwant %+v", *e, tc.want)
			}
			if e.Temporary() != (e.Status == 502 || e.Status == 503 || e.Status == 504) {
				t.Errorf("%d: temporary is %v", e.Status, e.Temporary())
			}
		})
	}
}

func TestAnswersOfStrangers(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"a page":      answer(200, "text/html", "<html>"),
		"broken JSON": answer(200, "application/json", `{"scores":`),
		"wrong types": answer(200, "application/json", `{"scores":[]}`),
		"empty":       answer(200, "application/json", ""),
	} {
		c := serve(t, client.Config{}, h)
		if _, err := c.Score(t.Context(), client.ScoreRequest{Model: "m"}); !errors.Is(err, client.ErrBadResponse) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLargeResponses(t *testing.T) {
	const limit = 1000
	body := func(n int) string { return `{"best":"` + strings.Repeat("x", n-len(`{"best":""}`)) + `"}` }
	for _, tc := range []struct {
		size    int
		chunked bool
		ok      bool
	}{{limit, false, true}, {limit, true, true}, {limit + 1, false, false}, {limit + 1, true, false}} {
		c := serve(t, client.Config{MaxResponseBytes: limit}, func(w http.ResponseWriter, r *http.Request) {
			if tc.chunked {
				w.Header().Set("Content-Type", "application/json")
				w.(http.Flusher).Flush()
			}
			answer(200, "application/json", body(tc.size))(w, r)
		})
		_, err := c.Score(t.Context(), client.ScoreRequest{Model: "m"})
		if tc.ok != (err == nil) || !tc.ok && !errors.Is(err, client.ErrResponseTooLarge) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestTimeoutAndCancel(t *testing.T) {
	release := make(chan struct{})
	hang := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
	c := serve(t, client.Config{Timeout: 20 * time.Millisecond}, hang)
	t.Cleanup(func() { close(release) })
	_, err := c.Score(t.Context(), client.ScoreRequest{Model: "m"})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Errorf("got %v", err)
	}

	c = serve(t, client.Config{Timeout: -1}, hang)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := c.Score(ctx, client.ScoreRequest{Model: "m"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	url := "http://" + l.Addr().String()
	_ = l.Close()
	c := must.Get(client.New(client.Config{URL: url}))(t)
	defer c.Close()
	var op *net.OpError
	if err := c.Ready(t.Context()); !errors.As(err, &op) {
		t.Errorf("got %v", err)
	}
}

// Connections are used again, after refusals too: many calls at once need no
// more of them than run at a time.
func TestConnectionsAreReused(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/x/v1/score" {
			answer(200, "application/json; charset=utf-8", `{"scores":{"a":1},"best":"a"}`)(w, r)
			return
		}
		answer(404, "application/json", `{"error":{"code":"not_found","message":"m"}}`)(w, r)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	c := must.Get(client.New(client.Config{URL: srv.URL + "/x/"}))(t)
	defer c.Close()
	const workers = 8
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range 50 {
				resp, err := c.Score(t.Context(), client.ScoreRequest{Model: "m"})
				if err != nil || resp.Best != "a" {
					t.Errorf("got %+v, %v", resp, err)
				}
				if err := c.DeletePod(t.Context(), "p"); err == nil {
					t.Error("no error")
				}
			}
		})
	}
	wg.Wait()
	if n := opened.Load(); n > 4*workers {
		t.Errorf("%d connections for %d callers", n, workers)
	}
}

func TestPathsAreEscaped(t *testing.T) {
	var got []string
	c := serve(t, client.Config{UserAgent: "me/1"}, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.RequestURI+" "+r.UserAgent())
		answer(200, "application/json", `{"name":"n"}`)(w, r)
	})
	for _, name := range []string{"10.0.0.1:8000", "a/b c?#%"} {
		if _, err := c.Pod(t.Context(), name); err != nil {
			t.Error(err)
		}
		if err := c.DeletePod(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	want := "[GET /v1/pods/10.0.0.1:8000 me/1 DELETE /v1/pods/10.0.0.1:8000 me/1 GET /v1/pods/a%2Fb%20c%3F%23%25 me/1 DELETE /v1/pods/a%2Fb%20c%3F%23%25 me/1]"
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
}

func TestRawAnswer(t *testing.T) {
	const body = `{ "scores" : {"b":1, "a":1.50} }`
	c := serve(t, client.Config{}, answer(200, "application/json", body+"\n"))
	var raw json.RawMessage
	if err := c.Call(t.Context(), http.MethodPost, "/v1/score", client.ScoreRequest{Model: "m"}, &raw); err != nil || string(raw) != body {
		t.Errorf("got %s, %v", raw, err)
	}
}

func TestRanking(t *testing.T) {
	r := client.ScoreResponse{Scores: map[string]float64{"c": 1, "a": 1, "b": 2.5, "d": 0}}
	if got := fmt.Sprint(r.Ranking()); got != "[b a c d]" {
		t.Error(got)
	}
}
