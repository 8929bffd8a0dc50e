package server

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store/memory"
)

// TestQueries asks every GET of /v1 for what it does not have. The refusal names that, and what the
// document says can be asked instead. What is no part of the API lets it pass.
func TestQueries(t *testing.T) {
	index := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { must.OK(t, index.Close()) })
	s := must.Get(New(Config{Scorer: must.Get(scorer.New(scorer.Config{Index: index}))(t), Index: index}))(t)
	s.SetReady(nil)
	ask := func(method, target string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(method, target, nil))
		return w
	}
	for pattern, ops := range readDocument(t).Paths {
		op := ops["get"]
		if op == nil {
			continue
		}
		path := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(pattern, "0")
		if !strings.HasPrefix(pattern, "/v1/") {
			if w := ask(http.MethodGet, path+"?podz=a"); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
			continue
		}
		var known []string
		for _, p := range op.Parameters {
			if p.In == "query" {
				known = append(known, p.Name)
			}
		}
		if !slices.Equal(known, queries[pattern]) {
			t.Errorf("%s: the document has %v, the route takes %v", pattern, known, queries[pattern])
		}
		takes := "none"
		if len(known) > 0 {
			takes = strings.Join(known, ", ")
		}
		for query, want := range map[string]string{
			"podz=a":                      `"code":"unknown_field","message":"there is no parameter \"podz\"`,
			"%22%00":                      `there is no parameter \"\\\"\\x00\": the query takes ` + takes,
			strings.Repeat("x", 70) + "=": `"param":"` + strings.Repeat("x", 64) + `..."`,
			"a=%zz":                       `"code":"invalid_request","message":"the query cannot be read`,
		} {
			w := ask(http.MethodGet, path+"?"+query)
			if body := w.Body.String(); w.Code != http.StatusBadRequest || !strings.Contains(body, want) || strings.HasPrefix(query, "podz") && !strings.Contains(body, ": the query takes "+takes+`","param":"podz"`) {
				t.Errorf("%s?%s: %d %s, want %s", path, query, w.Code, body, want)
			}
		}
		if w := ask(http.MethodHead, path+"?podz=a"); w.Code != http.StatusBadRequest {
			t.Errorf("HEAD %s: %d", path, w.Code)
		}
		for _, p := range known {
			for query, want := range map[string]string{p + "=1&" + p + "=2": " is given twice", p + "=": " is empty"} {
				if w := ask(http.MethodGet, path+"?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), strconv.Quote(p+want)) {
					t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
				}
			}
		}
	}
	if w := ask(http.MethodGet, "/v1/loads?modell=m"); !strings.Contains(w.Body.String(), "(did you mean model?)") {
		t.Error(w.Body)
	}
}
