package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store/memory"
)

// workers is a Syncer that hears the workers 0 and 1 of the instance a/b, and 0 of c, which
// sends no heartbeats.
type workers struct{ asked []string }

func (w *workers) AskSync(instance string, worker int) (heard, asked int) {
	for _, id := range []string{"a/b 0", "a/b 1", "c 0"} {
		if (instance == "" || strings.HasPrefix(id, instance+" ")) && (worker < 0 || strings.HasSuffix(id, fmt.Sprint(" ", worker))) {
			heard++
			if id != "c 0" {
				asked++
				w.asked = append(w.asked, id)
			}
		}
	}
	return heard, asked
}

func TestLMCacheSync(t *testing.T) {
	index := must.Get(memory.New(memory.Config{}))(t)
	defer func() { _ = index.Close() }()
	sc := must.Get(scorer.New(scorer.Config{Index: index}))(t)
	d := readDocument(t)
	for _, tc := range []struct {
		body   string
		status int
		want   string
		asked  string
	}{
		{`{}`, 200, `{"workers":3,"asked":2}`, "[a/b 0 a/b 1]"},
		{`{"instance":"a/b"}`, 200, `{"workers":2,"asked":2}`, "[a/b 0 a/b 1]"},
		{`{"instance":"a/b","worker":1}`, 200, `{"workers":1,"asked":1}`, "[a/b 1]"},
		{`{"worker":0,"instance":"a/b"}`, 200, `{"workers":1,"asked":1}`, "[a/b 0]"},
		{`{"instance":"c"}`, 200, `{"workers":1,"asked":0}`, "[]"},
		{`{"instance":"d"}`, 404, `{"error":{"code":"unknown_worker","message":"this server hears no worker of that instance: another replica may","param":"instance"}}`, "[]"},
		{`{"instance":"c","worker":1}`, 404, `{"error":{"code":"unknown_worker","message":"this server does not hear that worker: another replica may","param":"worker"}}`, "[]"},
		{`{"worker":1}`, 400, `{"error":{"code":"invalid_request","message":"instance is missing: a worker is one of an instance","param":"instance"}}`, "[]"},
		{`{"instance":""}`, 400, "", "[]"},
		{`{"instance":"` + strings.Repeat("x", 5000) + `"}`, 400, `{"error":{"code":"invalid_request","message":"instance has 5000 bytes, the limit is 243","param":"instance"}}`, "[]"},
		{`{"instance":"a\u0001"}`, 400, `{"error":{"code":"invalid_request","message":"instance has the control character U+0001 at byte 1","param":"instance"}}`, "[]"},
		{`{"instance":"a/b","worker":1024}`, 400, "", "[]"},
		{`{"instance":"a/b","worker":-1}`, 400, "", "[]"},
		{`{"instance":"a/b","rank":1}`, 400, "", "[]"},
		{``, 400, "", "[]"},
	} {
		w := &workers{}
		status, got := postSync(t, d, Config{Scorer: sc, Index: index, Syncer: w}, tc.body)
		if status != tc.status || tc.want != "" && got != tc.want || fmt.Sprint(w.asked) != tc.asked {
			t.Errorf("%s: got %d %s, asked %v\nwant %d %s, %s", tc.body, status, got, w.asked, tc.status, tc.want, tc.asked)
		}
	}
	if status, got := postSync(t, d, Config{Scorer: sc, Index: index}, `{}`); status != 501 || !strings.Contains(got, `"no_lmcache"`) {
		t.Errorf("without a controller: %d %s", status, got)
	}
}

// postSync asks a fresh server, and holds its answer to the document.
func postSync(t *testing.T, d *openAPI, c Config, body string) (int, string) {
	t.Helper()
	const path = "/v1/lmcache/sync"
	s := must.Get(New(c))(t)
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	answer, ok := d.Paths[path]["post"].Responses[strconv.Itoa(w.Code)]
	if !ok {
		t.Fatalf("%s: the status %d is not documented", body, w.Code)
	}
	var v any
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%s: %v in %s", body, err, w.Body)
	}
	for _, bad := range d.check(t, answer.Content["application/json"].Schema, v, "answer") {
		t.Errorf("%s: %s\n%s", body, bad, w.Body)
	}
	return w.Code, strings.TrimSpace(w.Body.String())
}
