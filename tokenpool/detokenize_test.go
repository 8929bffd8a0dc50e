package tokenpool

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

func TestText(t *testing.T) {
	f := newFakes(t, "a", "never")
	p := f.pool(Config{MaxTokenizers: 1})
	for _, c := range []struct {
		ids  []uint32
		skip bool
		want string
	}{
		{[]uint32{1, 1072, 1105, 2}, true, "Hi"},
		{[]uint32{1, 1072, 1105, 2}, false, "\x01Hi\x02"},
		{nil, true, ""},
	} {
		if got, err := p.Text(t.Context(), "a", c.ids, c.skip); err != nil || got != c.want {
			t.Errorf("%v: %q, %v, want %q", c.ids, got, err, c.want)
		}
	}
	if n := f.fetches.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	for _, ids := range [][]uint32{{1072, 2000}, {1<<32 - 1}, {1072, 1000, 1105}, {1000}} {
		if got, err := p.Text(t.Context(), "a", ids, false); !errors.Is(err, ErrInvalidTokens) {
			t.Errorf("%v: %q, %v", ids, got, err)
		}
	}
	if _, err := p.Text(t.Context(), "nope", []uint32{1}, false); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("no such model: %v", err)
	}
	f.slow = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.Text(ctx, "never", []uint32{1}, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the time is over: %v", err)
	}
	_ = p.Close()
	if _, err := p.Text(t.Context(), "a", []uint32{1}, false); !errors.Is(err, ErrClosed) {
		t.Errorf("the pool is closed: %v", err)
	}
}

// TestRealText gives the texts of the goldens back, where the tokenizer keeps all
// of a text.
func TestRealText(t *testing.T) {
	p := realPool(t, Config{})
	defer func() { _ = p.Close() }()
	for _, m := range realModels(t) {
		if filepath.Base(m.Model) == "bert-base-uncased" {
			got, err := p.Text(t.Context(), m.Model, []uint32{101, 7592, 1010, 2088, 102}, true)
			if err != nil || strings.ReplaceAll(got, " ", "") != "hello,world" {
				t.Errorf("%s: %q, %v", m.Model, got, err)
			}
			continue
		}
		for _, text := range []string{"Hello, wörld\n\n  日本語 👩‍👩‍👧", "<|im_start|>user\n", "a\tb  ", "\u2028 é"} {
			res := must.Get(p.Tokens(t.Context(), prompt.Request{Model: m.Model, Text: text, NoSpecialTokens: true, Mode: prompt.Sync}))(t)
			got, err := p.Text(t.Context(), m.Model, res.Tokens, false)
			if err != nil || got != text {
				t.Errorf("%s: %q, %v, want %q", m.Model, got, err, text)
			}
		}
		// The token of a NUL byte, in the vocabulary as "Ā".
		if nul := slices.Index([]string{"meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen3-8B"}, m.Model); nul >= 0 {
			if got, err := p.Text(t.Context(), m.Model, []uint32{64, 188, 65}, false); !errors.Is(err, ErrInvalidTokens) {
				t.Errorf("%s: %q, %v for a text with NUL", m.Model, got, err)
			}
		}
	}
}
