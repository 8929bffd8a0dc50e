package server_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/server"
)

// needs is the role that each request needs; TestOpenAPI holds the routes to the document, and
// TestRoles this table to the routes.
var needs = map[string]access.Role{
	"GET /": access.None, "GET /healthz": access.None, "GET /readyz": access.None, "GET /openapi.json": access.None,

	"GET /metrics": access.Read, "POST /v1/score": access.Read, "POST /v1/route": access.Read,
	"POST /v1/requests/r/done": access.Read, "POST /v1/requests/r/output": access.Read, "POST /v1/requests/r/end": access.Read,
	"GET /v1/loads": access.Read, "GET /v1/prefixes": access.Read, "GET /v1/models/m/routing": access.Read, "POST /v1/tokenize": access.Read,
	"POST /v1/completions/render": access.Read, "POST /v1/chat/completions/render": access.Read,
	"POST /v1/messages/render": access.Read, "POST /v1/responses/render": access.Read,
	"POST /tokenize": access.Read, "POST /detokenize": access.Read,
	"GET /v1/pods": access.Read, "GET /v1/pods/p": access.Read, "GET /v1/models": access.Read,

	"PUT /v1/models/m/routing": access.Write, "POST /v1/blocks": access.Write, "POST /v1/events": access.Write,
	"POST /v1/pods": access.Write, "DELETE /v1/pods/p": access.Write, "POST /v1/pods/p/load": access.Write, "PUT /v1/models/m": access.Write,

	"GET /v1/ingest/p/0/events": access.Admin, "GET /v1/ingest/p/0/blocks": access.Admin, "GET /v1/dump": access.Admin,
	"POST /v1/restore": access.Admin, "POST /v1/reset": access.Admin, "POST /v1/lmcache/sync": access.Admin,
}

// TestRoles: each request with each credential, and with none, is let in or refused as its role
// says, before its body is looked at.
func TestRoles(t *testing.T) {
	tokens := map[access.Role]string{access.Read: "the token of a reader here", access.Write: "the token of a writer here", access.Admin: "the token of an admin here"}
	var file strings.Builder
	for role, token := range tokens {
		digest := must.Get(access.Digest(token))(t)
		file.WriteString(role.String() + " " + digest + " the-" + role.String() + "\n")
	}
	path := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(path, []byte(file.String()), 0o600))
	creds := must.Get(access.Open(path, nil))(t)
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Access = &access.Guard{Credentials: creds} })
	if got := server.RouteCount(); got != len(needs) {
		t.Fatalf("there are %d routes, and this test knows the roles of %d", got, len(needs))
	}
	for call, need := range needs {
		method, path, _ := strings.Cut(call, " ")
		for role := access.None; role <= access.Admin; role++ {
			r := httptest.NewRequest(method, path, strings.NewReader("no JSON"))
			if role != access.None {
				r.Header.Set("Authorization", "Bearer "+tokens[role])
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			switch {
			case role >= need:
				if w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden {
					t.Errorf("%s as %s: %d %s", call, role, w.Code, w.Body)
				}
			case role == access.None:
				refused(t, w, http.StatusUnauthorized, "unauthorized")
				if w.Header().Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: no WWW-Authenticate", call)
				}
			default:
				if e := refused(t, w, http.StatusForbidden, "forbidden"); !strings.Contains(e.Error.Message, "needs role "+need.String()) {
					t.Errorf("%s as %s: %s", call, role, e.Error.Message)
				}
			}
		}
		// HEAD is GET.
		if method == http.MethodGet && need > access.None {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodHead, path, nil))
			if w.Code != http.StatusUnauthorized {
				t.Errorf("HEAD %s: %d", path, w.Code)
			}
		}
	}
	// Other words for a path are no way around: they are other paths.
	for _, call := range []string{
		"GET //v1/dump", "GET /v1//dump", "GET /v1/./dump", "GET /v1/x/../dump", "GET /v1/dump/", "GET /V1/DUMP", "GET /v1/%64ump", "GET /v1/dump%00",
		"GET /v1/dump;x=1", "POST /v1/dump", "TRACE /v1/dump", "CONNECT /v1/dump", "GET /healthz/../v1/dump", "GET /healthz%2f..%2fv1%2fdump",
	} {
		method, path, _ := strings.Cut(call, " ")
		r := httptest.NewRequest(method, "/", nil)
		r.URL.Path, r.URL.RawPath = path, path
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed && w.Code != http.StatusUnauthorized {
			t.Errorf("%s: %d %.100s", call, w.Code, w.Body)
		}
	}
}

// TestRateLimit: a caller beyond its share gets 429 and when to ask again; health is answered.
func TestRateLimit(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) {
		c.Access = &access.Guard{Anonymous: access.Admin, Limiter: access.NewLimiter(1)}
	})
	codes := map[int]int{}
	for range 20 {
		w := s.do("GET", "/v1/pods", nil)
		codes[w.Code]++
		if w.Code == http.StatusTooManyRequests {
			refused(t, w, http.StatusTooManyRequests, "rate_limited")
			if w.Header().Get("Retry-After") != "1" {
				t.Errorf("Retry-After is %q", w.Header().Get("Retry-After"))
			}
		}
		if w := s.do("GET", "/healthz", nil); w.Code != 200 {
			t.Fatalf("health: %d", w.Code)
		}
	}
	if codes[200] == 0 || codes[429] == 0 || codes[200]+codes[429] != 20 {
		t.Errorf("got %v", codes)
	}
}
