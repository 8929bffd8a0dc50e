package tokenpool

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
)

// namedStore is a prefix store to test with.
type namedStore struct {
	name string
	open func(testing.TB) prefixcache.Store
}

// stores are all there are, and none.
func stores() []namedStore {
	opener := func(kind string) func(testing.TB) prefixcache.Store {
		return func(t testing.TB) prefixcache.Store {
			t.Helper()
			s := must.Get(prefixcache.New(kind, prefixcache.Config{}))(t)
			return s
		}
	}
	return []namedStore{
		{"none", func(testing.TB) prefixcache.Store { return nil }},
		{prefixcache.KindLRU, opener(prefixcache.KindLRU)},
		{prefixcache.KindTrie, opener(prefixcache.KindTrie)},
	}
}
