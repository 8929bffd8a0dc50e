package lmcache_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
)

func TestChunkKey(t *testing.T) {
	mask := blockkey.WireKey(blockkey.SchemeLMCache, 0)
	for text, want := range map[string]blockkey.Key{
		"0":                 0,
		"b8a960cfcc69e7a5":  0xb8a960cfcc69e7a5,
		"-6ac50906de809457": 0x953af6f9217f6ba9,
		"8b81dbad38c4b07b71e4def300d2cc1cf7e45ae1ee2ec983e0f92070d955e2dc": 0x8b81dbad38c4b07b,
		"00112233445566778899aabbccddeeff":                                 0x0011223344556677,
	} {
		h := must.Get(lmcache.ParseHash(text))(t)
		if got := h.ChunkKey() ^ mask; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if mask == 0 {
		t.Error("the scheme is not in the key")
	}
}
