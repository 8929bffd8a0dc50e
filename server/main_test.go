package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/telemetry"
	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chatTemplate is that of textModel.
const chatTemplate = `{% for m in messages %}{% if m.role == "nobody" %}{{ raise_exception("nobody is no role") }}{% endif %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls[0].function.arguments | tojson if m.tool_calls }}{% endfor %}` +
	`{{ tools | tojson if tools }}{{ "<think>" if enable_thinking }}{{ "<assistant>" if add_generation_prompt }}`

var chats = func() *chat.Renderer {
	r, err := chat.NewRenderer(chat.Files{Template: []byte(chatTemplate)}, chat.Options{Limits: chat.Limits{OutputBytes: 1 << 15}})
	if err != nil {
		panic(err)
	}
	return r
}()

// textModel is the one model that bytewise knows.
const textModel = "text-model"

// tokenizing has channels by the texts of which bytewise is to say that it has begun them.
var tokenizing sync.Map

// bytewise is a tokenizer with a chat template, whose tokens are the text's bytes after a 1. A text
// that begins with "slow" is half done when the budget of a Wait is over. One with "busy" finds the
// queue full, one with "broken" fails.
func bytewise(ctx context.Context, r prompt.Request) (prompt.Result, error) {
	media := false
	if r.Chat != nil {
		rendered, err := chats.Render(*r.Chat)
		if err != nil {
			return prompt.Result{}, fmt.Errorf("tokenpool: model %s: %w", r.Model, err)
		}
		r.Text, r.NoSpecialTokens, media = rendered.Text[:rendered.Sure], !r.AddsSpecialTokens(), len(rendered.Media) > 0
	}
	switch {
	case r.Model != textModel:
		return prompt.Result{}, fmt.Errorf("%w: %s", tokenpool.ErrUnknownModel, r.Model)
	case strings.ContainsRune(r.Text, 0) || !utf8.ValidString(r.Text):
		return prompt.Result{}, fmt.Errorf("%w: NUL byte at offset %d", tokenpool.ErrInvalidText, strings.IndexByte(r.Text, 0))
	case len(r.Text) > 1<<16:
		return prompt.Result{}, fmt.Errorf("%w: %d bytes, the limit is %d", tokenpool.ErrTooLong, len(r.Text), 1<<16)
	case strings.HasPrefix(r.Text, "broken"):
		return prompt.Result{}, fmt.Errorf("%w: onig", tokenpool.ErrTokenizer)
	case strings.HasPrefix(r.Text, "busy") && r.Mode == prompt.Sync:
		return prompt.Result{}, tokenpool.ErrBusy
	case strings.HasPrefix(r.Text, "panic"):
		panic(errors.New(r.Text))
	case strings.HasPrefix(r.Text, "forever"):
		if began, ok := tokenizing.LoadAndDelete(r.Text); ok {
			close(began.(chan struct{}))
		}
		<-ctx.Done()
		return prompt.Result{}, ctx.Err()
	}
	res := prompt.Result{Source: prompt.FromTokenizer, Exact: true, Bytes: len(r.Text)}
	switch {
	case strings.HasPrefix(r.Text, "busy"):
		return prompt.Result{Source: prompt.FromNowhere, Behind: prompt.BehindBusy}, nil
	case strings.HasPrefix(r.Text, "slow") && r.Mode == prompt.Wait:
		res.Bytes, res.Exact, res.Source, res.Behind = len(r.Text)/2, false, prompt.FromPrefixStore, prompt.BehindBudget
	case r.Mode == prompt.Async:
		res.Bytes, res.Exact, res.Source, res.Behind = len(r.Text)/2, false, prompt.FromPrefixStore, prompt.BehindAsync
	}
	if media {
		res.Exact, res.Behind = false, prompt.BehindMedia
	}
	if !r.NoSpecialTokens {
		res.Tokens = append(res.Tokens, 1)
	}
	for _, b := range []byte(r.Text[:res.Bytes]) {
		res.Tokens = append(res.Tokens, uint32(b))
	}
	return res, nil
}

// bytewiseText undoes bytewise.
type bytewiseText struct{}

func (bytewiseText) Text(_ context.Context, model string, ids []uint32, skipSpecial bool) (string, error) {
	if model != textModel {
		return "", fmt.Errorf("%w: %s", tokenpool.ErrUnknownModel, model)
	}
	var b []byte
	for i, id := range ids {
		if id > 255 {
			return "", fmt.Errorf("%w: number %d is %d, the vocabulary has 256", tokenpool.ErrInvalidTokens, i, id)
		}
		if id != 1 || !skipSpecial {
			b = append(b, byte(id))
		}
	}
	return string(b), nil
}

// subject is a server under test and what it wrote.
type subject struct {
	*server.Server
	metrics *telemetry.Metrics
	log     *bytes.Buffer
}

// newServer makes a ready server over index, with index blocks of 4 tokens.
func newServer(t testing.TB, index store.Index, edit ...func(*server.Config)) subject {
	t.Helper()
	metrics := telemetry.NewMetrics()
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 4, Budget: time.Minute, Observer: metrics.Scorer()}))(t)
	log := new(bytes.Buffer)
	cfg := server.Config{
		Scorer: sc, Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), Detokenizer: bytewiseText{}, BlockSize: 4,
		Metrics: metrics, Version: "v1.2.3", Backend: "memory", Log: zerolog.New(zerolog.SyncWriter(log)),
	}
	for _, f := range edit {
		f(&cfg)
	}
	s := must.Get(server.New(cfg))(t)
	s.SetReady(nil)
	return subject{Server: s, metrics: metrics, log: log}
}

// do sends one request to the handler.
func (s subject) do(method, path string, body io.Reader) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(method, path, body))
	return w
}

// post sends a body that must be taken.
func (s subject) post(t testing.TB, path, body string) string {
	t.Helper()
	w := s.do(http.MethodPost, path, strings.NewReader(body))
	if w.Code >= 300 {
		t.Fatalf("POST %s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// openIndex opens an empty index in memory.
func openIndex(t testing.TB) store.Index {
	t.Helper()
	x := must.Get(memory.New(memory.Config{}))(t)
	must.End(t, x.Close)
	return x
}
