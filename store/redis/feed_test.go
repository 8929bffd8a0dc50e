package redis

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

// feedRead is how many entries a feed reads at a time.
const feedRead = 256

// copySink is a copy of the blocks in a map. page is called within Set of many blocks, which only a page has.
type copySink struct {
	mu     sync.Mutex
	blocks map[blockkey.StoreKey][]store.HolderID
	since  map[blockkey.StoreKey]bool
	page   func()
}

func (s *copySink) Anew(uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = map[blockkey.StoreKey]bool{}
}

func (s *copySink) Set(keys []blockkey.StoreKey, holders []store.HolderID) error {
	s.mu.Lock()
	for _, k := range keys {
		s.since[k] = true
		if delete(s.blocks, k); len(holders) > 0 {
			s.blocks[k] = slices.Clone(holders)
		}
	}
	s.mu.Unlock()
	if len(keys) > callKeys {
		s.page()
	}
	return nil
}

func (s *copySink) Whole(parts uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.blocks {
		if parts>>k.Partition()&1 != 0 && !s.since[k] {
			delete(s.blocks, k)
		}
	}
}

// TestPageAheadOfALostLog reads a page that has the effect of entries which have not been read,
// and which a restart then loses. What the page told is told anew.
func TestPageAheadOfALostLog(t *testing.T) {
	for what, n := range map[string]int{"the last page": 3 * defaultPage / 2, "a page between": 3 * defaultPage} {
		t.Run(what, func(t *testing.T) { pageAhead(t, n) })
	}
}

func pageAhead(t *testing.T, n int) {
	s := redistest.Start(t)
	c := Config{URL: s.URL(), Prefix: newPrefix(), NoSweep: true, DialTimeout: patience, Timeout: patience}
	x, y := open(t, c), open(t, c)
	keys := make([]blockkey.Key, n)
	for i := range keys {
		keys[i] = blockkey.Key(uint64(i) * 0x9e3779b97f4a7c15)
	}
	apply(t, x, batchOf("b", store.Add, 1)) // so that its registration is not what is lost
	applyMany(t, x, "a", store.Add, keys)
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	pages := 0
	sink := &copySink{blocks: map[blockkey.StoreKey][]store.HolderID{}}
	sink.page = func() {
		switch pages++; pages {
		case 1: // All that follows waits for the page: the log gets far ahead of its reader.
			for i := range 4 * feedRead {
				check(x.Apply(t.Context(), batchOf("b", []store.OpKind{store.Remove, store.Add}[i%2], 1)))
			}
			check(s.Client().Save(t.Context()).Err())
			for part := range slices.Chunk(keys, store.MaxOpKeys) {
				check(x.Apply(t.Context(), batchOf("b", store.Add, part...)))
			}
		case 2:
			s.Kill()
			s.Run()
		}
	}
	f := must.Get(y.Follow(changelog.Config{Sink: sink, Entries: changelog.DefaultEntries, Verify: -1}))(t)
	eventually.NoError(t, "the restart", func() error {
		if err := f.CatchUp(t.Context()); err != nil {
			return err
		}
		if f.State().Snapshots == 0 {
			return errors.New("no snapshot")
		}
		return nil
	})
	if pages <= n/defaultPage {
		t.Fatalf("%d pages", pages)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if len(sink.blocks) != len(keys)+1 {
		t.Errorf("%d blocks, want %d", len(sink.blocks), len(keys)+1)
	}
	many := map[string]int{}
	for _, ids := range sink.blocks {
		many[fmt.Sprint(ids)]++
	}
	if len(many) > 2 {
		t.Errorf("holders are %v; b's later blocks have been lost", many)
	}
}
