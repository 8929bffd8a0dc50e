package demo

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

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
		_, _ = io.WriteString(w, `{"version":"v","backend":"memory"}`)
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
