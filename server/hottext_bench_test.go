package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// BenchmarkScoreHotText scores texts of a megabyte that the prefix store knows, without the
// connection. They are code, which is this project's own, and prose. It needs the tokenizers of
// `make models`.
func BenchmarkScoreHotText(b *testing.B) {
	const size, model = 1<<20 - 1, "Qwen/Qwen3-8B"
	var code strings.Builder
	for _, f := range must.Get(filepath.Glob("../*/*.go"))(b) {
		code.Write(must.Get(os.ReadFile(f))(b))
	}
	prose := strings.Repeat("The scheduler asks which replica holds the longest prefix of a prompt, and sends it there.\n", size/90)
	for _, kind := range []string{prefixcache.KindLRU, prefixcache.KindTrie} {
		for name, text := range map[string]string{"code": code.String(), "prose": prose} {
			text = strings.ToValidUTF8(text[:size], "")
			b.Run(kind+"/"+name, func(b *testing.B) {
				dir := must.Get(tokenpool.NewDirectory("../.cache/tokenizers"))(b)
				prefixes := must.Get(prefixcache.New(kind, prefixcache.Config{}))(b)
				pool := must.Get(tokenpool.New(tokenpool.Config{Origin: dir, Store: prefixes}))(b)
				must.End(b, pool.Close)
				for res := (prompt.Result{}); res.Source != prompt.FromPrefixStore; {
					res = must.Get(pool.Tokens(b.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync}))(b)
				}
				index := openIndex(b)
				sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: pool, Budget: time.Second}))(b)
				h := must.Get(server.New(server.Config{Scorer: sc, Index: index}))(b).Handler()
				body := string(must.Get(json.Marshal(map[string]any{"model": model, "prompt": text}))(b))
				w := &nowhere{header: http.Header{}}
				in := strings.NewReader(body)
				r := httptest.NewRequest(http.MethodPost, "/v1/score", in)
				r.Header.Set("Content-Type", "application/json")
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				before := cputime.Process()
				for b.Loop() {
					in.Reset(body)
					clear(w.header)
					w.status = 0
					if h.ServeHTTP(w, r); w.status != http.StatusOK {
						b.Fatal(w.status)
					}
				}
				reportCPU(b, before)
			})
		}
	}
}
