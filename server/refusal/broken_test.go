package refusal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// TestBrokenTokenizerFile: a client is told which file is broken and what to do, and not to
// come again soon.
func TestBrokenTokenizerFile(t *testing.T) {
	root := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(root, "m"), 0o755))
	must.OK(t, os.WriteFile(filepath.Join(root, "m", "tokenizer.json"), []byte("version https://git-lfs.github.com/spec/v1\n"), 0o644))
	origin := must.Get(tokenpool.NewDirectory(root))(t)
	pool := must.Get(tokenpool.New(tokenpool.Config{Origin: origin}))(t)
	defer func() { _ = pool.Close() }()
	_, err := pool.Tokens(t.Context(), prompt.Request{Model: "m", Text: "a", Mode: prompt.Sync})
	e := Of(fmt.Errorf("scorer: %w", err))
	if e.Status != 422 || e.Code != "tokenizer_broken" || e.Param != "model" || e.Retry != 0 ||
		!strings.Contains(e.Message, "tokenizer.json is a pointer of Git LFS") || !strings.Contains(e.Message, "git lfs pull") {
		t.Errorf("%+v", e)
	}
}
