package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
)

// A prompt that comes again goes where it went before, and headers say what was thought to be
// cached and what was.
func TestRoutesByPrompt(t *testing.T) {
	_, addresses := startSims(t, 4, wire.Config{})
	f := newFleet(t, gateway.Config{}, addresses...)
	for _, x := range []struct{ path, body string }{
		{"/v1/chat/completions", chat(100, "")},
		{"/v1/completions", fmt.Sprintf(`{"prompt":%q,"model":%q}`, strings.Repeat("text ", 100), model)},
		{"/v1/completions", fmt.Sprintf(`{"prompt":[%s1],"model":%q}`, strings.Repeat("77,", 400), model)},
		{"/v1/completions", fmt.Sprintf(`{"prompt":["short",%q],"model":%q}`, strings.Repeat("longer ", 81), model)},
	} {
		first := f.post(x.path, x.body)
		one := f.last()
		f.idle()
		again := f.post(x.path, x.body)
		two := f.last()
		if first.status != 200 || again.status != 200 {
			t.Fatalf("%s: %d %s, %d %s", x.path, first.status, first.body, again.status, again.body)
		}
		if one.Pod != two.Pod || again.header.Get("X-Kvatlas-Pod") != two.Pod || two.Why != "eta" || two.Attempts != 1 {
			t.Errorf("%s: %+v then %+v", x.path, one, two)
		}
		predicted, delivered := number(again.header, "X-Kvatlas-Predicted-Tokens"), number(again.header, "X-Kvatlas-Delivered-Tokens")
		if number(first.header, "X-Kvatlas-Delivered-Tokens") != 0 || predicted < 384 || predicted != delivered || two.Delivered != delivered || two.Predicted != predicted {
			t.Errorf("%s: %d predicted, %d delivered, %+v", x.path, predicted, delivered, two)
		}
		f.idle()
	}
	truth := f.router.Outcomes()
	if sum := slices.IndexFunc(truth, func(o routeOutcome) bool { return o.Delivered > 0 }); sum < 0 {
		t.Errorf("the router has not been told what was delivered: %+v", truth)
	}
}

// A stream is passed on as the engine sends it, without the usage that the client did not ask for.
// Its trailer says what that usage said.
func TestUsageOfStreams(t *testing.T) {
	_, addresses := startSims(t, 1, wire.Config{})
	f := newFleet(t, gateway.Config{}, addresses...)
	left := newFleet(t, gateway.Config{LeaveUsage: true}, addresses...)
	const stream = `,"stream":true`
	for _, x := range []struct {
		what, body       string
		f                *fleet
		usage, delivered bool
	}{
		{"not asked for", chat(100, stream), f, false, true},
		{"asked for", chat(100, stream+`,"stream_options":{"include_usage":true}`), f, true, true},
		{"refused", chat(100, stream+`,"stream_options":{"include_usage":false}`), f, false, false},
		{"other options", chat(100, stream+`,"stream_options":{"continuous_usage_stats":false}`), f, false, true},
		{"no options", chat(100, stream+`,"stream_options":{}`), f, false, true},
		{"null", chat(100, stream+`,"stream_options":null`), f, false, true},
		{"left alone", chat(100, stream), left, false, false},
	} {
		r := x.f.post("/v1/chat/completions", x.body)
		s := x.f.last()
		x.f.idle()
		got := events(r.body)
		if r.status != 200 || len(got) < 6 || got[len(got)-1] != "[DONE]" || !s.Stream || s.Cut {
			t.Fatalf("%s: %d %v %+v", x.what, r.status, got, s)
		}
		if strings.Contains(r.body, `"usage":{`) != x.usage {
			t.Errorf("%s: %v", x.what, got)
		}
		// A stream that has come whole with its first bytes has it in the header.
		if n := max(number(r.trailer, "X-Kvatlas-Delivered-Tokens"), number(r.header, "X-Kvatlas-Delivered-Tokens")); (n >= 0) != x.delivered || n != s.Delivered {
			t.Errorf("%s: %d tokens delivered, %+v", x.what, n, s)
		}
	}
}

// What is not understood reaches the engine as it was sent, and its answer the client.
func TestPassesOnUnchanged(t *testing.T) {
	type seen struct {
		method, uri, body string
		header            http.Header
	}
	got := make(chan seen, 1)
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, string(b), r.Header}
		w.Header().Set("X-Engine", "yes")
		w.Header().Set("X-Kvatlas-Pod", "forged")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "\x00answer")
		w.Header().Set("X-Sum", "42")
	})
	f := newFleet(t, gateway.Config{}, address)
	for _, x := range []struct{ method, path, body string }{
		{"POST", "/v1/audio/transcriptions?a=1;b=%2F", "\x00\x01--boundary"},
		{"GET", "/v1/models/some%2Fmodel", ""},
		{"DELETE", "/v1/responses/resp_1", ""},
		{"POST", "/v1/chat/completions", `{"model": "unknown",  "messages" : [ ], "later": {"field" : 1e5}}`},
		{"POST", "/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}}]}],"tools":[{"a":1.50}],"n":2}`},
		{"POST", "/v1/chat/completions", `no json`},
		{"POST", "/v1/chat/completions", `{"model":"sim/model","messages":[],"stream":true,"stream_options":"x"}`},
		{"POST", "/v1/chat/completions", `{"model":"sim/model","messages":[],"stream":true,"stream_options":5}`},
		{"POST", "/v1/chat/completions", `{"model":"sim/model","messages":[],"stream":true,"stream_options":[{}]}`},
		{"POST", "/v1/completions", `{"model":"sim/model","prompt":"x","stream":true,"stream_options":true}`},
		{"POST", "/v1/responses", `{"model":"sim/model","previous_response_id":"r1","input":"x"}`},
		{"POST", "/v1/embeddings", `{"model":"sim/model","input":["a","bb"],"encoding_format":"base64"}`},
	} {
		r := f.send(x.method, x.path, strings.NewReader(x.body), "X-Kvatlas-Why", "forged", "X-Forwarded-For", "1.2.3.4", "X-Own", "kept", "Connection", "X-Drop", "X-Drop", "1")
		var s seen
		select {
		case s = <-got:
		default:
			t.Fatalf("%s %s did not arrive: %+v", x.method, x.path, r)
		}
		if s.method != x.method || s.uri != x.path || s.body != x.body {
			t.Errorf("%s %s arrived as %s %s with %q", x.method, x.path, s.method, s.uri, s.body)
		}
		if s.header.Get("X-Own") != "kept" || s.header.Get("X-Kvatlas-Why") != "" || s.header.Get("X-Drop") != "" || s.header.Get("X-Forwarded-For") != "1.2.3.4, 127.0.0.1" {
			t.Errorf("%s: headers %v", x.path, s.header)
		}
		if r.status != http.StatusTeapot || r.body != "\x00answer" || r.header.Get("X-Engine") != "yes" || r.header.Get("X-Kvatlas-Pod") != address ||
			r.header.Get("X-Hop") != "" || r.trailer.Get("X-Sum") != "42" {
			t.Errorf("%s: %+v", x.path, r)
		}
		f.idle()
	}
}

// Each part of a stream reaches the client before the engine sends the next, and is not
// touched.
func TestNothingIsBuffered(t *testing.T) {
	read := make(chan struct{})
	address := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 20 {
			if i > 0 {
				<-read
			}
			fmt.Fprintf(w, "data: {\"choices\":[{\"i\":%d}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
	})
	f := newFleet(t, gateway.Config{}, address)
	for _, body := range []string{chat(1, `,"stream":true`), chat(1, `,"stream":true,"stream_options":{"include_usage":true}`)} {
		resp, err := http.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		must.OK(t, err)
		buf := make([]byte, 1024)
		for i := range 20 {
			n, err := resp.Body.Read(buf)
			if want := fmt.Sprintf("data: {\"choices\":[{\"i\":%d}]}\n\n", i); string(buf[:n]) != want || err != nil && err != io.EOF {
				t.Fatalf("%q and %v, want %q", buf[:n], err, want)
			}
			if i < 19 {
				read <- struct{}{}
			}
		}
		if n, err := resp.Body.Read(buf); n != 0 || err != io.EOF {
			t.Fatalf("%d bytes and %v after the end", n, err)
		}
		resp.Body.Close()
		f.idle()
	}
}

// A client that leaves is seen by the engine, and its reservation is free.
func TestCancelReachesTheEngine(t *testing.T) {
	for _, x := range []struct {
		what  string
		early bool
	}{{"before the answer", true}, {"in the midst of it", false}} {
		gone, here := make(chan struct{}), make(chan struct{})
		address := fake(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if !x.early {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {}\n\n")
				_ = http.NewResponseController(w).Flush()
			}
			close(here)
			<-r.Context().Done()
			close(gone)
		})
		f := newFleet(t, gateway.Config{}, address)
		ctx, cancel := context.WithCancel(t.Context())
		req := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(chat(50, `,"stream":true`))))(t)
		ended := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				close(begun)
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			ended <- err
		}()
		<-here
		if !x.early {
			<-begun
		}
		if n := f.requests(address); n != 1 {
			t.Errorf("%s: %d requests are booked", x.what, n)
		}
		cancel()
		<-gone
		if err := <-ended; err == nil {
			t.Errorf("%s: the client has an answer", x.what)
		}
		f.idle()
		if s := f.last(); !s.Cut || x.early && s.Status != gateway.StatusGone || !x.early && s.Status != 200 {
			t.Errorf("%s: %+v", x.what, s)
		}
	}
}

// A request without an answer goes to the next pod, as long as nothing of an answer has come.
func TestRepeats(t *testing.T) {
	var bad atomic.Int64
	engines := map[string]http.HandlerFunc{
		"503": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"502": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"cut after the header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"cut in a whole answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
			panic(http.ErrAbortHandler)
		},
	}
	for what, h := range engines {
		t.Run(what, func(t *testing.T) {
			bodies := make(chan string, 4)
			good := fake(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				bodies <- string(b)
				_, _ = io.WriteString(w, `{"usage":{"prompt_tokens_details":{"cached_tokens":7}}}`)
			})
			broken := fake(t, func(w http.ResponseWriter, r *http.Request) { bad.Add(1); h(w, r) })
			f := newFleet(t, gateway.Config{}, good, broken)
			tried := 0
			for i := range 12 {
				before := bad.Load()
				body := strings.Replace(chat(20, ""), "word", fmt.Sprint(i), 1)
				r := f.post("/v1/chat/completions", body)
				if r.status != 200 || r.header.Get("X-Kvatlas-Pod") != good || number(r.header, "X-Kvatlas-Delivered-Tokens") != 7 || <-bodies != body {
					t.Fatalf("%+v", r)
				}
				s := f.last()
				if bad.Load() > before {
					tried++
					if s.Attempts != 2 || !strings.Contains(s.Why, "fallback") || r.header.Get("X-Kvatlas-Attempts") != "2" {
						t.Errorf("%+v", s)
					}
				}
				f.idle()
			}
			if tried == 0 || tried > 3 {
				t.Errorf("the broken engine was tried %d times of 12; after three it is ejected", tried)
			}
		})
	}
}

// What is not understood may have done something: it is sent again only if nothing was sent.
func TestRepeatsNothingThatMayHaveEffects(t *testing.T) {
	var calls atomic.Int64
	cut := func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}
	f := newFleet(t, gateway.Config{}, fake(t, cut), fake(t, cut))
	if r := f.post("/v1/files", "content"); r.status != http.StatusBadGateway || calls.Load() != 1 {
		t.Errorf("%+v after %d calls", r, calls.Load())
	}
	var got atomic.Int64
	good := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if string(b) == "content" {
			got.Add(1)
		}
	})
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	f = newFleet(t, gateway.Config{}, good, strings.TrimPrefix(dead.URL, "http://"))
	for range 6 {
		if r := f.post("/v1/files", "content"); r.status != http.StatusOK {
			t.Errorf("%+v", r)
		}
	}
	if got.Load() != 6 {
		t.Errorf("%d of 6 arrived", got.Load())
	}
}

// An engine that freezes is found out by its health, and requests that wait there go on to
// another. When it answers again it gets requests again.
func TestFrozenEngine(t *testing.T) {
	pods, addresses := startSims(t, 2, wire.Config{})
	admitted := make(chan string, 8)
	f := newFleet(t, gateway.Config{Probe: 20 * time.Millisecond, Observer: gateway.Observer{Admitted: func(pod string) { admitted <- pod }}}, addresses...)
	must.OK(t, pods[1].Apply(wire.Fault{Kind: wire.Freeze}))
	moved := 0
	for i := range 8 {
		r := f.post("/v1/chat/completions", strings.Replace(chat(10, `,"stream":true`), "word", fmt.Sprint(i), 1))
		if r.status != 200 || r.header.Get("X-Kvatlas-Pod") != addresses[0] || !strings.Contains(r.body, "[DONE]") {
			t.Fatalf("%+v", r)
		}
		if s := f.last(); s.Attempts > 1 {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no request was at the frozen engine")
	}
	must.OK(t, pods[1].Apply(wire.Fault{Kind: wire.Thaw}))
	if pod := <-admitted; pod != addresses[1] {
		t.Errorf("%s is admitted", pod)
	}
	eventually.True(t, "answer of the engine that is back", func() bool {
		return f.post("/v1/chat/completions", chat(10, "")).header.Get("X-Kvatlas-Pod") == addresses[1] || f.post("/v1/chat/completions", chat(200, "")).header.Get("X-Kvatlas-Pod") == addresses[1]
	})
}

// Each clock gives an engine up that takes longer, and says so.
func TestTimeouts(t *testing.T) {
	release := make(chan struct{})
	stop := func() { <-release }
	for _, x := range []struct {
		what   string
		c      gateway.Config
		h      http.HandlerFunc
		status int
		cut    bool
	}{
		{"header", gateway.Config{Header: 30 * time.Millisecond}, func(http.ResponseWriter, *http.Request) { stop() }, 504, false},
		{"first token", gateway.Config{FirstToken: 30 * time.Millisecond}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			stop()
		}, 504, false},
		{"idle", gateway.Config{Idle: 30 * time.Millisecond}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
			stop()
		}, 200, true},
	} {
		f := newFleet(t, x.c, fake(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); x.h(w, r) }))
		resp, err := http.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(1, `,"stream":true`)))
		must.OK(t, err)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		s := f.last()
		if resp.StatusCode != x.status || (err != nil) != x.cut || s.Cut != x.cut || s.Status != x.status {
			t.Errorf("%s: status %d, %q, %v, %+v", x.what, resp.StatusCode, b, err, s)
		}
		if x.status == 504 && !strings.Contains(string(b), `"engine_timeout"`) {
			t.Errorf("%s: %s", x.what, b)
		}
		f.idle()
	}
	close(release)
}

// What a request may take is bounded, and the answer says so in OpenAI's form.
func TestLimits(t *testing.T) {
	release, here := make(chan struct{}), make(chan struct{}, 16)
	address := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		here <- struct{}{}
		<-release
	})
	f := newFleet(t, gateway.Config{MaxBody: 4096, MaxBuffered: 6000, MaxRequests: 2}, address)
	code := func(r reply) string {
		var e struct{ Error struct{ Code string } }
		if err := json.Unmarshal([]byte(r.body), &e); err != nil {
			t.Errorf("%v in %q", err, r.body)
		}
		return e.Error.Code
	}
	for _, body := range []io.Reader{strings.NewReader(chat(1000, "")), io.MultiReader(strings.NewReader(chat(1000, "")))} { // with its length and without
		if r := f.send("POST", "/v1/chat/completions", body); r.status != 413 || code(r) != "body_too_large" {
			t.Errorf("%+v", r)
		}
	}
	done := make(chan reply, 2)
	go func() { done <- f.post("/v1/chat/completions", chat(700, "")) }()
	<-here
	if r := f.post("/v1/chat/completions", chat(700, "")); r.status != 503 || code(r) != "overloaded" || r.header.Get("Retry-After") == "" {
		t.Errorf("bodies beyond what may be kept: %+v", r)
	}
	go func() { done <- f.post("/v1/chat/completions", chat(1, "")) }()
	<-here
	if r := f.post("/v1/chat/completions", chat(1, "")); r.status != 503 || code(r) != "overloaded" {
		t.Errorf("a third request: %+v", r)
	}
	close(release)
	<-done
	<-done
	f.idle()
	if s := f.g.Stats(); s.Requests != 0 || s.Buffered != 0 {
		t.Errorf("%+v is left", s)
	}
}

// A prompt of which no token is known has no length in the answer, and none in the log.
func TestUnknownLength(t *testing.T) {
	_, addresses := startSims(t, 1, wire.Config{})
	f := newFleet(t, gateway.Config{}, addresses...)
	for text, known := range map[string]bool{unread: false, "a text": true} {
		r := f.post("/v1/completions", `{"model":"sim/model","prompt":"`+text+`"}`)
		s := f.last()
		if _, has := r.header["X-Kvatlas-Prompt-Tokens"]; r.status != 200 || has != known || s.Prompt >= 0 != known {
			t.Errorf("%q: %d %v, %+v", text, r.status, r.header, s)
		}
		if why := r.header.Get("X-Kvatlas-Why"); strings.Contains(why, "; tokenization_budget") == known {
			t.Errorf("%q: %s", text, why)
		}
	}
}

// Where no router, tokenizer or index helps, requests go on.
func TestFallsOpen(t *testing.T) {
	_, addresses := startSims(t, 2, wire.Config{})
	f := newFleet(t, gateway.Config{Router: broken{}}, addresses...)
	pods := map[string]bool{}
	for range 6 {
		r := f.post("/v1/chat/completions", chat(10, ""))
		if r.status != 200 || r.header.Get("X-Kvatlas-Why") != "fewest" {
			t.Fatalf("%+v", r)
		}
		pods[r.header.Get("X-Kvatlas-Pod")] = true
	}
	none := newFleet(t, gateway.Config{})
	if r := none.post("/v1/chat/completions", chat(10, "")); r.status != 503 || !strings.Contains(r.body, `"no_pod"`) {
		t.Errorf("without pods: %+v", r)
	}
	if r := none.send("GET", "/health", nil); r.status != 503 {
		t.Errorf("health without pods: %d", r.status)
	}
	if r := f.send("GET", "/health", nil); r.status != 200 {
		t.Errorf("health: %d", r.status)
	}
	f.g.Drain()
	if r := f.send("GET", "/health", nil); r.status != 503 {
		t.Errorf("health while draining: %d", r.status)
	}
}

// Models of pods that differ are one list, in the engines' own words.
func TestListsModels(t *testing.T) {
	_, one := startSims(t, 2, wire.Config{LoRAs: []string{"law"}})
	card := func(id string) string { return fmt.Sprintf(`{"id":%q,"object":"model","own":1.50}`, id) }
	other := fake(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[%s,%s]}`, card("other"), card(r.Header.Get("Authorization")))
	})
	f := newFleet(t, gateway.Config{}, one...)
	if r := f.send("GET", "/v1/models", nil); r.status != 200 || r.header.Get("X-Kvatlas-Pod") == "" || !strings.Contains(r.body, `"law"`) {
		t.Errorf("%+v", r)
	}
	f.register(store.Pod{Name: other, Model: "other"})
	r := reply{}
	eventually.True(t, "list with the models of both", func() bool {
		r = f.send("GET", "/v1/models", nil, "Authorization", "key")
		return strings.Contains(r.body, `"other"`)
	})
	var list struct{ Data []struct{ ID string } }
	must.OK(t, json.Unmarshal([]byte(r.body), &list))
	var ids []string
	for _, c := range list.Data {
		ids = append(ids, c.ID)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"key", "law", "other", model}) || !strings.Contains(r.body, `"own":1.50`) {
		t.Errorf("%s", r.body)
	}
}
