package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
)

// FuzzRouteBodies sends any body to what routes, reports and sets. Each is answered in JSON, by
// nothing that an operator would look into, and the loads stay the sum of the reservations.
func FuzzRouteBodies(f *testing.F) {
	index := openIndex(f)
	must.Get(index.Register(f.Context(), store.Pod{Name: "a", Model: "demo", Ranks: 2}))(f)
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 16}))(f)
	kept := loads.NewMemory(nil)
	router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: kept, Seed: 1}))(f)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), Router: router, BlockSize: 16}))(f)
	h := s.Handler()
	paths := []struct{ method, path string }{
		{"POST", "/v1/route"},
		{"POST", "/v1/requests/r/done"},
		{"POST", "/v1/requests/r/output"},
		{"POST", "/v1/requests/r/end"},
		{"PUT", "/v1/models/demo/routing"},
	}
	for i, bodies := range [][]string{
		{
			`{"model":"demo","tokens":[1,2,3],"reserve":true,"request_id":"r"}`,
			`{"model":"demo","prompt":"hello","policy":"dynamo","overrides":{"temperature":1,"busy":{"requests":3}},"explain":true}`,
			`{"model":"demo","tokens":[1],"role":"pair","pinned":{"pod":"a","rank":1},"labels":{"zone":"1"},"prefer":{"zone=1":-2.5},"expected_output_tokens":9}`,
		},
		{`{"model":"demo"}`, `{"model":"demo","cached_tokens":3}`},
		{`{"model":"demo","tokens":7}`},
		{`{"model":"demo"}`, `{}`},
		{`{"policy":"eta","beta":3,"tier_weights":{"cpu":0.5},"lease_s":1}`, `{"speed":1e308}`, `null`, `[]`},
	} {
		for _, b := range bodies {
			f.Add(byte(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, body string) {
		to := paths[int(which)%len(paths)]
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(to.method, to.path, strings.NewReader(body)))
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable || !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %q: %d %s", to.path, body, w.Code, w.Body)
		}
		if d, err := kept.Audit(t.Context(), "demo"); err != nil || len(d) > 0 {
			t.Fatalf("%s %q: %+v, %v", to.path, body, d, err)
		}
	})
}

// TestRouteReadOnly routes as a user of Redis that may only read: all is answered, nothing is
// booked, and the answers say so.
func TestRouteReadOnly(t *testing.T) {
	redisServer := redistest.Start(t)
	must.OK(t, redisServer.Client().ACLSetUser(t.Context(), "reader", "on", ">secret", "~*", "+@read", "+hello", "+client").Err())
	client := goredis.NewClient(&goredis.Options{Addr: redisServer.Addr, Username: "reader", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	kept := must.Get(redis.New(redis.Config{Client: client, Prefix: "kva", Timeout: 10 * time.Second}))(t)
	r := newRouting(t, kept)
	for range 4 {
		w := r.do("POST", "/v1/route", `{"model":"demo","tokens":[`+upTo(32)+`],"reserve":true,"request_id":"r"}`)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"reason":"loads_stale"`) || strings.Contains(w.Body.String(), "reservation") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	for path, body := range map[string]string{"/v1/requests/r/done": `{"model":"demo"}`, "/v1/requests/r/end": `{"model":"demo"}`} {
		if w := r.do("POST", path, body); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "may not change loads") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := r.do("PUT", "/v1/models/demo/routing", `{"policy":"random"}`); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := redisServer.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}
