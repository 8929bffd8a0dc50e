package tokenpool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestCaseFoldersInTheTokenizerCache asks for models that the hub does not have. Nothing of
// them stays on the disk, also where several ask at once, and a model that is there later is
// fetched as ever.
func TestCaseFoldersInTheTokenizerCache(t *testing.T) {
	h := newFakeHub(t)
	hub := h.client(HubConfig{Attempts: 1})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if _, err := hub.Fetch(t.Context(), fmt.Sprintf("zz/none%d", i%20)); !errors.Is(err, ErrUnknownModel) {
				t.Errorf("got %v, want %v", err, ErrUnknownModel)
			}
		})
	}
	all.Wait()
	entries := must.Get(os.ReadDir(hub.cfg.CacheDir))(t)
	for _, e := range entries {
		left, _ := filepath.Glob(filepath.Join(hub.cfg.CacheDir, e.Name(), "*", "*"))
		t.Errorf("%s is left, with %v", e.Name(), left)
	}
}
