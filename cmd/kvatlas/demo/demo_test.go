package demo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPodsHoldPrefixes(t *testing.T) {
	system, _, _ := strings.Cut(conversation, endOfTurn)
	for i, p := range pods() {
		if !strings.HasPrefix(p.text, system+endOfTurn) {
			t.Errorf("%s does not begin with the system prompt", p.name)
		}
		if whole := strings.HasPrefix(conversation, p.text); whole != (i > 0) {
			t.Errorf("%s holds a prefix of the conversation: %v", p.name, whole)
		}
	}
	// The model is to answer next.
	if !strings.HasSuffix(conversation, endOfTurn+"<|start_header_id|>assistant<|end_header_id|>\n\n") {
		t.Error("the conversation does not end where an answer begins")
	}
	if strings.Contains(conversation, "<|begin_of_text|>") {
		t.Error("the tokenizer adds the first special token")
	}
}

// fake is a server that answers tokenization as told.
func fake(t *testing.T, tokenize http.HandlerFunc) Config {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/tokenize" {
			tokenize(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"version":"v","backend":"memory","tokens":{"exact":true}}`)
	}))
	t.Cleanup(srv.Close)
	c := must.Get(client.New(client.Config{URL: srv.URL}))(t)
	t.Cleanup(c.Close)
	return Config{Client: c, URL: srv.URL, Out: io.Discard}
}

func TestNoTokenizer(t *testing.T) {
	cfg := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"code":"unknown_model","message":"m","param":"model"}}`)
	})
	files, err := Run(t.Context(), cfg)
	if files != "" || err == nil || !strings.Contains(err.Error(), "scripts/fetch-tokenizers.sh") {
		t.Errorf("got %q, %v", files, err)
	}
}

// answers is a transport that has the answer to each path.
type answers func(path string) string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(a(r.URL.Path))), Request: r,
	}, nil
}

// Until the tokenizer is there the server is asked for scores alone, since it would log an error of
// a tokenization. The demo says once that it waits, if that takes long.
func TestTokenizerThatLoads(t *testing.T) {
	for took, notes := range map[time.Duration]int{time.Second: 0, time.Minute: 1, 2 * loadPatience: 1} {
		synctest.Test(t, func(t *testing.T) {
			start, early := time.Now(), false
			loaded := func() bool { return time.Since(start) >= took }
			transport := answers(func(path string) string {
				switch path {
				case "/v1/score":
					return fmt.Sprintf(`{"tokens":{"exact":%v}}`, loaded())
				case "/v1/tokenize":
					early = early || !loaded()
					return `{"tokens":[1],"count":1,"exact":false,"source":"none"}`
				}
				return `{}`
			})
			c := must.Get(client.New(client.Config{URL: "http://a", HTTP: &http.Client{Transport: transport}}))(t)
			var out strings.Builder
			_, err := Run(t.Context(), Config{Client: c, Out: &out})
			if n := strings.Count(out.String(), "still loading"); err == nil || n != notes || early != (took > loadPatience) {
				t.Errorf("a load of %v: %v, tokens before %v, noted %d times:\n%s", took, err, early, n, &out)
			}
		})
	}
}

// A server that gives up on a slow load is asked again, and no other error is.
func TestSlowTokenizer(t *testing.T) {
	var calls atomic.Int64
	cfg := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusGatewayTimeout)
			_, _ = io.WriteString(w, `{"error":{"code":"timeout","message":"m","param":null}}`)
			return
		}
		_, _ = io.WriteString(w, `{"tokens":[1],"count":1,"exact":false,"source":"none"}`)
	})
	_, err := Run(t.Context(), cfg)
	if calls.Load() != 3 || err == nil || !strings.Contains(err.Error(), "not exact") {
		t.Errorf("after %d calls: %v", calls.Load(), err)
	}
}
