package gateway_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/must"
)

// configOf is that of a gateway all of whose requests are one caller's.
func configOf(caller access.Caller) gateway.Config {
	return gateway.Config{
		Salt:   func(_ context.Context, asked string) string { return caller.CacheSalt(asked) },
		Scoped: func(_ context.Context, name string) string { return caller.Scoped(name) },
	}
}

// TestSaltOfAClient: what a client with a salt sends reaches the engine under it, in every API that has a
// place for one. It does not matter what the client wrote there. The rest is refused.
func TestSaltOfAClient(t *testing.T) {
	type got struct{ path, body string }
	seen := make(chan got, 1)
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen <- got{r.URL.Path, string(b)}
		_, _ = io.WriteString(w, `{}`)
	})
	for _, tenant := range []string{"tenant", ""} {
		f := newFleet(t, configOf(access.Caller{Salt: tenant}), address)
		for name, c := range map[string]struct {
			path, body string
			status     int
			salt       string // that the engine gets from a tenant; of a refusal what it says
			headers    []string
		}{
			"chat":                {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"}{"}]}`, 200, "tenant", nil},
			"stream":              {"/v1/chat/completions", `{"model":"sim/model","stream":true,"messages":[{"role":"user","content":"x"}], "n":1 } `, 200, "tenant", nil},
			"completion":          {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 200, "tenant", nil},
			"messages":            {"/v1/messages", `{"model":"sim/model","messages":[{"role":"user","content":"x"}]}`, 200, "tenant", nil},
			"responses":           {"/v1/responses", `{"model":"sim/model","input":"x"}`, 200, "tenant", nil},
			"own salt":            {"/v1/completions", `{"cache_salt":"mine","model":"sim/model","prompt":"x"}`, 200, saltOf("mine"), nil},
			"own salt, null":      {"/v1/completions", `{"cache_salt" : null ,"model":"sim/model","prompt":"x"}`, 200, "tenant", nil},
			"own salt, escaped":   {"/v1/completions", `{"cache\u005fsalt":"mine","model":"sim/model","prompt":"x"}`, 200, saltOf("mine"), nil},
			"own salt, quoted":    {"/v1/completions", `{"cache_salt":"a\",\"cache_salt\":\"b","model":"sim/model","prompt":"x"}`, 200, saltOf(`a","cache_salt":"b`), nil},
			"own salt, a list":    {"/v1/completions", `{"cache_salt":["mine"],"model":"sim/model","prompt":"x"}`, 200, saltOf("mine"), nil},
			"own salt, a path":    {"/v1/completions", `{"cache_salt":"a/b@c\\d\u0000","model":"sim/model","prompt":"x"}`, 200, saltOf("a/b@c\\d\x00"), nil},
			"own salt, long":      {"/v1/completions", `{"cache_salt":"` + strings.Repeat("x", 200) + `","model":"sim/model","prompt":"x"}`, 200, saltOf(strings.Repeat("x", 200)), nil},
			"salt within":         {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"x","cache_salt":"y"}]}`, 200, "tenant", nil},
			"empty object":        {"/v1/completions", ` { } `, 200, "tenant", nil},
			"two salts":           {"/v1/completions", `{"cache_salt":"a","cache_salt":"b","model":"sim/model","prompt":"x"}`, 400, "", nil},
			"two, one escaped":    {"/v1/completions", `{"cache_salt":"a","model":"sim/model","prompt":"x","cache_sal\u0074":"b"}`, 400, "", nil},
			"empty salt":          {"/v1/completions", `{"cache_salt":"","model":"sim/model","prompt":"x"}`, 400, "", nil},
			"no list":             {"/v1/completions", `{"cache_salt":[],"model":"sim/model","prompt":"x"}`, 400, "", nil},
			"two objects":         {"/v1/completions", `{"model":"sim/model","prompt":"x"}{"model":"sim/model","prompt":"x"}`, 400, "", nil},
			"lax JSON":            {"/v1/completions", `{"model":"sim/model","prompt":"x",}`, 400, "", nil},
			"not a number":        {"/v1/completions", `{"model":"sim/model","prompt":"x","temperature":NaN}`, 400, "", nil},
			"an array":            {"/v1/completions", `[{"model":"sim/model","prompt":"x"}]`, 400, "", nil},
			"no JSON":             {"/v1/completions", `prompt=x`, 400, "", nil},
			"packed":              {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "", []string{"Content-Encoding", "gzip"}},
			"embeddings":          {"/v1/embeddings", `{"model":"sim/model","input":"x"}`, 403, "", nil},
			"unknown":             {"/inference/v1/generate", `{"token_ids":[1]}`, 403, "", nil},
			"other words":         {"/v1//completions", `{"model":"sim/model","prompt":"x"}`, 403, "", nil},
			"a response before":   {"/v1/responses", `{"model":"sim/model","input":"x","previous_response_id":"resp_1"}`, 403, "leave out previous_response_id: ", nil},
			"before, escaped":     {"/v1/responses", `{"model":"sim/model","input":"x","previous_response\u005fid":"resp_1"}`, 403, "leave out previous_response_id: ", nil},
			"before, twice":       {"/v1/responses", `{"previous_response_id":null,"model":"sim/model","input":"x","previous_response_id":"resp_1"}`, 403, "leave out previous_response_id: ", nil},
			"before, null":        {"/v1/responses", `{"model":"sim/model","input":"x","previous_response_id":null}`, 200, "tenant", nil},
			"a conversation":      {"/v1/responses", `{"model":"sim/model","input":"x","conversation":"conv_1"}`, 403, "leave out conversation: ", nil},
			"an extra key":        {"/v1/completions", `{"model":"sim/model","prompt":"x","extra_key":"more"}`, 403, "leave out extra_key: ", nil},
			"extra key, a list":   {"/v1/completions", `{"model":"sim/model","prompt":"x","extra_key":["more"]}`, 403, "leave out extra_key: ", nil},
			"extra key, a chat":   {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"x"}],"extra_key":"more"}`, 403, "leave out extra_key: ", nil},
			"extra key, within":   {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"x","extra_key":"more"}]}`, 200, "tenant", nil},
			"blocks of an engine": {"/v1/completions", `{"model":"sim/model","prompt":"x","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1]}}`, 403, "leave out kv_transfer_params: ", nil},
			"blocks, in xargs":    {"/v1/completions", `{"model":"sim/model","prompt":"x","vllm_xargs":{"kv_transfer_params":"x"}}`, 403, "leave out kv_transfer_params: ", nil},
			"other xargs":         {"/v1/completions", `{"model":"sim/model","prompt":"x","vllm_xargs":{"a":1}}`, 200, "tenant", nil},
			"a room":              {"/v1/completions", `{"model":"sim/model","prompt":"x","bootstrap_room":1}`, 403, "leave out bootstrap_room: ", nil},
			"an engine's session": {"/v1/completions", `{"model":"sim/model","prompt":"x","session_params":{"id":"s"}}`, 403, "leave out session_params: ", nil},
			"an id in the body":   {"/v1/completions", `{"model":"sim/model","prompt":"x","request_id":"r"}`, 403, "leave out request_id: ", nil},
			"SGLang's id":         {"/v1/completions", `{"model":"sim/model","prompt":"x","rid":"r"}`, 403, "leave out rid: ", nil},
			"a prefiller":         {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "leave out x-prefiller-host-port: ", []string{"X-Prefiller-Host-Port", "10.0.0.1:80"}},
			"an older prefiller":  {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "leave out x-prefiller-url: ", []string{"x-prefiller-url", "http://10.0.0.1:80"}},
			"a source":            {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "leave out x-kv-cache-source-host-port: ", []string{"X-Kv-Cache-Source-Host-Port", "10.0.0.1:80"}},
			"a source, renamed":   {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "leave out x-llm-d-kv-cache-source-host-port: ", []string{"X-LLM-D-KV-Cache-Source-Host-Port", "10.0.0.1:80"}},
			"encoders":            {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"x"}]}`, 403, "leave out x-encoder-hosts-ports: ", []string{"X-Encoder-Hosts-Ports", "10.0.0.1:80,10.0.0.2:80"}},
			"a rank's address":    {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "leave out x-data-parallel-host-port: ", []string{"X-Data-Parallel-Host-Port", "10.0.0.1:80"}},
			"a rank":              {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 200, "tenant", []string{"X-Data-Parallel-Rank", "0"}},
			"slash behind":        {"/v1/completions/", `{"model":"sim/model","prompt":"x"}`, 403, "", nil},
		} {
			r := f.post(c.path, c.body, c.headers...)
			f.last()
			if tenant == "" { // its requests pass as they are
				if c.headers == nil && r.status != 200 {
					t.Errorf("%s without a salt: %d %s", name, r.status, r.body)
				}
				if r.status == 200 {
					if g := <-seen; !strings.Contains(c.body, `"stream":true`) && g.body != c.body {
						t.Errorf("%s without a salt: the engine gets %s", name, g.body)
					}
				}
				continue
			}
			if r.status != c.status {
				t.Errorf("%s: %d %s, want %d", name, r.status, r.body, c.status)
			}
			if r.status != 200 {
				if !strings.Contains(r.body, c.salt) {
					t.Errorf("%s: %s, want it to say %q", name, r.body, c.salt)
				}
				if len(seen) != 0 {
					t.Errorf("%s: refused, and the engine has had %v", name, <-seen)
				}
				continue
			}
			g := <-seen
			var fields map[string]any
			if err := json.Unmarshal([]byte(g.body), &fields); err != nil || fields["cache_salt"] != c.salt || strings.Count(g.body, c.salt) != 1 || !vllmTakes(c.salt) {
				t.Errorf("%s: the engine gets %s, %v", name, g.body, err)
			}
			var asked map[string]any
			must.OK(t, json.Unmarshal([]byte(c.body), &asked))
			for k, v := range asked {
				if b, a := compact(t, v), compact(t, fields[k]); k != "cache_salt" && a != b {
					t.Errorf("%s: %s becomes %s", name, b, a)
				}
			}
		}
	}
}

// saltOf is what an engine gets where the client with the salt tenant asks for one.
func saltOf(asked string) string {
	h := hmac.New(sha256.New, []byte("tenant"))
	h.Write([]byte(asked))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// vllmTakes is vLLM's rule for a cache_salt (validate_cache_salt, 0.33).
func vllmTakes(salt string) bool {
	return salt != "" && utf8.RuneCountInString(salt) <= 128 && !strings.ContainsAny(salt, "@/\\\x00")
}

// TestSaltOfAReader: of what engines answer without a salt, a client that has one is told what
// reports no requests.
func TestSaltOfAReader(t *testing.T) {
	seen := make(chan string, 1)
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Method + " " + r.RequestURI
		_, _ = io.WriteString(w, `{}`)
	})
	for _, tenant := range []string{"tenant", ""} {
		f := newFleet(t, configOf(access.Caller{Salt: tenant}), address)
		for asked, status := range map[string]int{
			"GET /version": 200, "HEAD /version": 200, "GET /ping": 200, "GET /v1/models": 200, "HEAD /v1/models": 200, "GET /v1/models/sim/model": 200, "GET /version?x=1": 200,
			"GET /metrics": 403, "HEAD /metrics": 403, "GET /flush_cache": 403, "GET /server_info": 403, "GET /get_server_info": 403, "GET /v1/responses/resp_1": 403,
			"GET /load": 403, "GET /": 403, "GET /docs": 403, "GET /v1/completions": 403, "GET /is_sleeping": 403, "GET //version": 403, "GET /version/": 403, "GET /VERSION": 403,
			"GET /v1/models/": 403, "GET /v1/models/../../metrics": 403, "GET /v1/models/%2e%2e/%2e%2e/metrics": 403, "GET /v1/models/..%2f..%2fmetrics": 403,
			"GET /v1/models/%252e%252e/metrics": 403, `GET /v1/models/..%5c..%5cmetrics`: 403, "GET /v1/models/a//b": 403, "GET /v1/models/..;/..;/metrics": 403,
			"OPTIONS /version": 403, "DELETE /v1/models/m": 403, "PUT /version": 403, "POST /flush_cache": 403, "POST /v1/responses/resp_1/cancel": 403, "POST /version": 403,
		} {
			method, page, _ := strings.Cut(asked, " ")
			r := f.send(method, page, nil)
			f.last()
			if tenant == "" {
				status = 200
			}
			if r.status != status {
				t.Errorf("%q asks %s: %d %s, want %d", tenant, asked, r.status, r.body, status)
			}
			if r.status == 200 {
				<-seen
			} else if len(seen) != 0 {
				t.Errorf("%s: refused, and the engine has had %s", asked, <-seen)
			}
		}
		if r := f.send(http.MethodGet, "/health", nil); r.status != 200 {
			t.Errorf("/health: %d", r.status)
		}
	}
}

// TestSaltOfNames: two clients with salts give a request and a session one name. An engine and
// the router hear two names; each client sees the one that it gave.
func TestSaltOfNames(t *testing.T) {
	type names struct{ request, session []string }
	seen := make(chan names, 1)
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- names{r.Header["X-Request-Id"], r.Header["X-Session-Id"]}
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id")) // vLLM's --enable-request-id-headers
		_, _ = io.WriteString(w, `{}`)
	})
	var caller access.Caller
	f := newFleet(t, gateway.Config{
		Salt:   func(_ context.Context, asked string) string { return caller.CacheSalt(asked) },
		Scoped: func(_ context.Context, name string) string { return caller.Scoped(name) },
	}, address)
	const body = `{"model":"sim/model","prompt":"a prompt of a session"}`
	from := map[string]string{}
	for _, c := range []struct {
		salt string
		kept bool // the session goes on
	}{{"one", false}, {"two", false}, {"one", true}, {"", false}, {"two", true}, {"", true}} {
		caller = access.Caller{Salt: c.salt}
		r := f.post("/v1/completions", body, "X-Request-Id", "same", "X-Session-Id", "same")
		s := f.last()
		f.idle()
		got := <-seen
		if r.status != 200 || s.RequestID != "same" || r.header.Get("X-Request-Id") != "same" {
			t.Errorf("%q: %d, the log has %q, the client gets %q", c.salt, r.status, s.RequestID, r.header.Get("X-Request-Id"))
		}
		if (s.Why == "session") != c.kept {
			t.Errorf("%q was sent by %q, want the session: %v", c.salt, s.Why, c.kept)
		}
		if len(got.request) != 1 || len(got.session) != 1 || (c.salt == "") != (got.request[0] == "same") || (c.salt == "") != (got.session[0] == "same") {
			t.Errorf("%q: the engine gets %q", c.salt, got)
			continue
		}
		if other, known := from[got.request[0]]; known && other != c.salt {
			t.Errorf("the engine knows requests of %q and %q by one name", c.salt, other)
		}
		from[got.request[0]] = c.salt
	}
	// Without names there are none.
	caller = access.Caller{Salt: "one"}
	if r := f.post("/v1/completions", body); r.status != 200 || r.header.Get("X-Request-Id") != "" {
		t.Errorf("%d %v", r.status, r.header)
	}
	if got := <-seen; got.request != nil || got.session != nil {
		t.Errorf("%q", got)
	}
}

func compact(t *testing.T, v any) string {
	t.Helper()
	return string(must.Get(json.Marshal(v))(t))
}

// TestSaltSeparates: two tenants with one prompt do not meet each other in the index.
func TestSaltSeparates(t *testing.T) {
	address := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{}`)
	})
	tenant := ""
	f := newFleet(t, gateway.Config{Salt: func(_ context.Context, asked string) string { return tenant + asked }, Scoped: func(_ context.Context, name string) string { return tenant + name }}, address)
	body := `{"model":"sim/model","prompt":"` + strings.Repeat("a prompt of one tenant ", 20) + `"}`
	for _, c := range []struct {
		tenant string
		held   bool
	}{{"one", false}, {"one", true}, {"two", false}, {"two", true}, {"", false}, {"one", true}} {
		tenant = c.tenant
		if r := f.post("/v1/completions", body); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		if s := f.last(); s.Predicted > 0 != c.held {
			t.Errorf("%q: %d tokens are thought to be cached, want any: %v", c.tenant, s.Predicted, c.held)
		}
		f.idle()
	}
}
