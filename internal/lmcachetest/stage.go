package lmcachetest

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
)

// Model is what the engines of a Stage serve.
const Model = "meta-llama/Llama-3.1-8B-Instruct"

// Stage is an index with engines, for what writes to it, and a note of what observers were
// told. Its methods are safe for concurrent use.
type Stage struct {
	Index store.Index

	tb   testing.TB
	mu   sync.Mutex // protects told
	told []string
}

// NewStage is one in memory, until the test ends.
func NewStage(tb testing.TB, pods ...string) *Stage {
	tb.Helper()
	x, err := memory.New(memory.Config{})
	return newStage(tb, x, err, pods)
}

// NewRedisStage is one in a Redis of its own.
func NewRedisStage(tb testing.TB, pods ...string) *Stage {
	tb.Helper()
	x, err := redis.Open(redis.Config{URL: redistest.Start(tb).URL(), Timeout: 20 * time.Second})
	return newStage(tb, x, err, pods)
}

func newStage(tb testing.TB, x store.Index, err error, pods []string) *Stage {
	tb.Helper()
	must.OK(tb, err)
	must.End(tb, x.Close)
	s := &Stage{Index: x, tb: tb}
	for _, p := range pods {
		s.Register(p)
	}
	return s
}

// Register adds an engine.
func (s *Stage) Register(pod string) {
	s.tb.Helper()
	must.Get(s.Index.Register(s.tb.Context(), store.Pod{Name: pod, Model: Model}))(s.tb)
}

// Tell notes what an observer was told.
func (s *Stage) Tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

// Told is what was noted, in order.
func (s *Stage) Told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

// Pod is a registration as the index has it, nil if it has none.
func (s *Stage) Pod(name string) *store.Pod {
	s.tb.Helper()
	reg := must.Get(s.Index.Registry(s.tb.Context()))(s.tb)
	if i, ok := reg.PodIndex(name); ok {
		return &reg.Pods[i]
	}
	return nil
}

// Held says which of the chunks a registration holds: the first letter of its nearest tier
// for each, or a dash.
func (s *Stage) Held(name string, chunks ...lmcache.Hash) string {
	s.tb.Helper()
	out := ""
	for _, h := range chunks {
		f := holder{name: name}
		must.OK(s.tb, s.Index.Lookup(s.tb.Context(), &store.Query{Model: blockkey.ModelOf(Model), Keys: []blockkey.Key{h.ChunkKey()}, Fold: &f}))
		if f.held {
			out += f.tier.String()[:1]
		} else {
			out += "-"
		}
	}
	return out
}

// Until waits until Held is want.
func (s *Stage) Until(want, name string, chunks ...lmcache.Hash) {
	s.tb.Helper()
	eventually.NoError(s.tb, name, func() error {
		if got := s.Held(name, chunks...); got != want {
			return fmt.Errorf("it holds %s, want %s", got, want)
		}
		return nil
	})
}

// WaitFor waits until ok, as eventually.True does.
func WaitFor(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	eventually.True(tb, what, ok)
}

// ReadGolden reads a file of JSON that gzip has packed.
func ReadGolden(tb testing.TB, file string, into any) {
	tb.Helper()
	f := must.Get(os.Open(file))(tb) //nolint:gosec // of the tests' own directory
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(into)
	}
	if err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
}

// holder is the store.Folder that looks whether a registration holds a block.
type holder struct {
	name     string
	registry *store.Registry
	held     bool
	tier     store.Tier // the nearest
}

// Begin implements store.Folder.
func (f *holder) Begin(r *store.Registry) { f.registry = r }

// Run implements store.Folder.
func (f *holder) Run(_ int, ids []store.HolderID) (more bool) {
	for _, id := range ids {
		slot, tier, live := f.registry.Holder(id)
		if live && f.registry.Pods[f.registry.Slots[slot].Pod].Name == f.name && (!f.held || tier < f.tier) {
			f.held, f.tier = true, tier
		}
	}
	return false
}
