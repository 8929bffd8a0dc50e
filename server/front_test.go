package server_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store/memory"
)

// TestFrontPage is HTML to a browser and text to others, and names every route and its role.
func TestFrontPage(t *testing.T) {
	index := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = index.Close() })
	s := newServer(t, index)
	for accept, want := range map[string]string{
		"text/html,application/xhtml+xml,*/*;q=0.8": "text/html; charset=utf-8",
		"*/*":              "text/plain; charset=utf-8",
		"":                 "text/plain; charset=utf-8",
		"application/json": "text/plain; charset=utf-8",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		page := w.Body.String()
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != want || w.Header().Get("Vary") != "Accept" || !strings.Contains(page, "This is kvatlas") || !strings.Contains(page, "v1.2.3") {
			t.Fatalf("%q: %d %v\n%s", accept, w.Code, w.Header(), page)
		}
		routes := 0
		for line := range strings.Lines(page) {
			fields := strings.Fields(strings.NewReplacer("<", " <", ">", "> ").Replace(line))
			fields = slices.DeleteFunc(fields, func(f string) bool { return f[0] == '<' })
			if len(fields) != 3 || fields[1][0] != '/' || fields[0] != strings.ToUpper(fields[0]) {
				continue
			}
			routes++
			pattern := strings.NewReplacer("{id}", "r", "{model}", "m", "{name}", "p", "{pod}", "p", "{rank}", "0").Replace(fields[1])
			if role, known := needs[fields[0]+" "+pattern]; !known || role.String() != fields[2] {
				t.Errorf("%q: %q, its role is %v", accept, line, role)
			}
		}
		if routes != len(needs) {
			t.Errorf("%q: lists %d routes, there are %d", accept, routes, len(needs))
		}
		for _, path := range []string{"openapi.json", "readyz", "v1/pods", "v1/models", "metrics"} {
			if w := s.do(http.MethodGet, "/"+path, nil); !strings.Contains(page, "/"+path) || w.Code != http.StatusOK {
				t.Errorf("%q: /%s: %d", accept, path, w.Code)
			}
		}
	}
	if w := s.do(http.MethodPost, "/", nil); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST /: %d %v", w.Code, w.Header())
	}
}
