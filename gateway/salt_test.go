package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/gateway"
)

// TestSaltOfAClient: what a client with a salt sends reaches the engine under it, in every API
// that has a place for one and whatever the client wrote there; the rest is refused.
func TestSaltOfAClient(t *testing.T) {
	type got struct{ path, body string }
	seen := make(chan got, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			b, _ := io.ReadAll(r.Body)
			seen <- got{r.URL.Path, string(b)}
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	defer engine.Close()
	for _, tenant := range []string{"tenant", ""} {
		f := newFleet(t, gateway.Config{Salt: func(_ context.Context, asked string) string {
			if tenant == "" {
				return asked
			}
			return strings.TrimSuffix(tenant+"/"+asked, "/")
		}}, strings.TrimPrefix(engine.URL, "http://"))
		for name, c := range map[string]struct {
			path, body string
			status     int
			salt       string // that the engine gets from a tenant
			headers    []string
		}{
			"chat":              {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"}{"}]}`, 200, "tenant", nil},
			"stream":            {"/v1/chat/completions", `{"model":"sim/model","stream":true,"messages":[{"role":"user","content":"x"}], "n":1 } `, 200, "tenant", nil},
			"completion":        {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 200, "tenant", nil},
			"messages":          {"/v1/messages", `{"model":"sim/model","messages":[{"role":"user","content":"x"}]}`, 200, "tenant", nil},
			"responses":         {"/v1/responses", `{"model":"sim/model","input":"x"}`, 200, "tenant", nil},
			"own salt":          {"/v1/completions", `{"cache_salt":"mine","model":"sim/model","prompt":"x"}`, 200, "tenant/mine", nil},
			"own salt, null":    {"/v1/completions", `{"cache_salt" : null ,"model":"sim/model","prompt":"x"}`, 200, "tenant", nil},
			"own salt, escaped": {"/v1/completions", `{"cache\u005fsalt":"mine","model":"sim/model","prompt":"x"}`, 200, "tenant/mine", nil},
			"own salt, quoted":  {"/v1/completions", `{"cache_salt":"a\",\"cache_salt\":\"b","model":"sim/model","prompt":"x"}`, 200, `tenant/a","cache_salt":"b`, nil},
			"own salt, a list":  {"/v1/completions", `{"cache_salt":["mine"],"model":"sim/model","prompt":"x"}`, 200, "tenant/mine", nil},
			"salt within":       {"/v1/chat/completions", `{"model":"sim/model","messages":[{"role":"user","content":"x","cache_salt":"y"}]}`, 200, "tenant", nil},
			"empty object":      {"/v1/completions", ` { } `, 200, "tenant", nil},
			"two salts":         {"/v1/completions", `{"cache_salt":"a","cache_salt":"b","model":"sim/model","prompt":"x"}`, 400, "", nil},
			"two, one escaped":  {"/v1/completions", `{"cache_salt":"a","model":"sim/model","prompt":"x","cache_sal\u0074":"b"}`, 400, "", nil},
			"empty salt":        {"/v1/completions", `{"cache_salt":"","model":"sim/model","prompt":"x"}`, 400, "", nil},
			"no list":           {"/v1/completions", `{"cache_salt":[],"model":"sim/model","prompt":"x"}`, 400, "", nil},
			"two objects":       {"/v1/completions", `{"model":"sim/model","prompt":"x"}{"model":"sim/model","prompt":"x"}`, 400, "", nil},
			"lax JSON":          {"/v1/completions", `{"model":"sim/model","prompt":"x",}`, 400, "", nil},
			"not a number":      {"/v1/completions", `{"model":"sim/model","prompt":"x","temperature":NaN}`, 400, "", nil},
			"an array":          {"/v1/completions", `[{"model":"sim/model","prompt":"x"}]`, 400, "", nil},
			"no JSON":           {"/v1/completions", `prompt=x`, 400, "", nil},
			"packed":            {"/v1/completions", `{"model":"sim/model","prompt":"x"}`, 403, "", []string{"Content-Encoding", "gzip"}},
			"embeddings":        {"/v1/embeddings", `{"model":"sim/model","input":"x"}`, 403, "", nil},
			"unknown":           {"/inference/v1/generate", `{"token_ids":[1]}`, 403, "", nil},
			"other words":       {"/v1//completions", `{"model":"sim/model","prompt":"x"}`, 403, "", nil},
			"slash behind":      {"/v1/completions/", `{"model":"sim/model","prompt":"x"}`, 403, "", nil},
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
				if len(seen) != 0 {
					t.Errorf("%s: refused, and the engine has had %v", name, <-seen)
				}
				continue
			}
			g := <-seen
			var fields map[string]any
			if err := json.Unmarshal([]byte(g.body), &fields); err != nil || fields["cache_salt"] != c.salt || strings.Count(g.body, "tenant") != 1 {
				t.Errorf("%s: the engine gets %s, %v", name, g.body, err)
			}
			var asked map[string]any
			if err := json.Unmarshal([]byte(c.body), &asked); err != nil {
				t.Fatal(err)
			}
			for k, v := range asked {
				if b, a := compact(t, v), compact(t, fields[k]); k != "cache_salt" && a != b {
					t.Errorf("%s: %s becomes %s", name, b, a)
				}
			}
		}
		// What asks an engine for no computation passes.
		if r := f.send(http.MethodGet, "/version", nil); r.status != 200 {
			t.Errorf("GET: %d %s", r.status, r.body)
		} else {
			<-seen
		}
	}
}

func compact(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSaltSeparates: two tenants with one prompt do not meet each other in the index.
func TestSaltSeparates(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{}`)
	}))
	defer engine.Close()
	tenant := ""
	f := newFleet(t, gateway.Config{Salt: func(_ context.Context, asked string) string { return tenant + asked }}, strings.TrimPrefix(engine.URL, "http://"))
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
