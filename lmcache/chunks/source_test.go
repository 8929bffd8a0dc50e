package chunks_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/chunks"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

var _ scorer.Chunks = (*chunks.Source)(nil)

func numbers(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func reader(t testing.TB, profiles ...lmcache.Profile) *lmcache.Reader {
	t.Helper()
	r := must.Get(lmcache.NewReader("m", lmcache.AutoEntries, profiles...))(t)
	return r
}

var (
	strung = lmcache.Profile{Config: lmcache.Config{Version: lmcache.V031, ChunkSize: 8}}
	forked = lmcache.Profile{Config: lmcache.Config{Version: lmcache.VFork, ChunkSize: 8}} // hashes like strung
	shared = lmcache.Profile{Config: lmcache.Config{Version: lmcache.V046, MP: true, ChunkSize: 16}, Remote: lmcache.RemoteRESP, WorldSizes: []int{2}}
)

// said is what queries ask for.
func said(queries []store.Query) string {
	var out []string
	for _, q := range queries {
		e, ok := q.Beside.(*lmcache.EntryNames)
		if !ok {
			out = append(out, fmt.Sprintf("%d keys of %d", len(q.Keys), q.Span))
			continue
		}
		out = append(out, fmt.Sprintf("form %d: %d names, %d a chunk of %d", e.Kind, len(e.Names), e.Parts, q.Span))
		if len(q.Keys) > 0 {
			out = append(out, "and keys")
		}
	}
	return strings.Join(out, "; ")
}

func TestQueries(t *testing.T) {
	s := &chunks.Source{
		Readers: map[string]*lmcache.Reader{"all": reader(t, strung, forked, shared), "one": reader(t, strung)},
		Learn: func(model string, tokens []uint32) *lmcache.Reader {
			if model == "learnt" && len(tokens) >= 8 {
				return reader(t, shared)
			}
			return nil
		},
	}
	for _, c := range []struct {
		model           string
		tokens, covered int
		want            string
	}{
		{"all", 50, 48, "6 keys of 8; form 1: 6 names, 1 a chunk of 8; form 2: 6 names, 1 a chunk of 8; 3 keys of 16; form 3: 6 names, 2 a chunk of 16"},
		{"one", 50, 48, "6 keys of 8; form 1: 6 names, 1 a chunk of 8"},
		// A chunk that no block has a token of is not asked for, one that begins in a block is.
		{"one", 50, 33, "5 keys of 8; form 1: 5 names, 1 a chunk of 8"},
		{"one", 50, 32, "4 keys of 8; form 1: 4 names, 1 a chunk of 8"},
		// The fork hashes what fills no chunk.
		{"all", 15, 12, "1 keys of 8; form 1: 1 names, 1 a chunk of 8; 2 keys of 8; form 2: 2 names, 1 a chunk of 8"},
		{"one", 7, 4, ""},
		{"all", 50, 0, ""},
		{"learnt", 50, 48, "3 keys of 16; form 3: 6 names, 2 a chunk of 16"},
		{"learnt", 7, 4, ""},
		{"unknown", 50, 48, ""},
	} {
		if got := said(s.AppendQueries(nil, c.model, numbers(c.tokens), c.covered)); got != c.want {
			t.Errorf("%s, %d tokens, %d covered: %s, want %s", c.model, c.tokens, c.covered, got, c.want)
		}
	}
	if got := (&chunks.Source{}).AppendQueries(nil, "all", numbers(50), 48); got != nil {
		t.Errorf("a source that knows nothing asks %s", said(got))
	}
}

// What an earlier call has left in the memory of dst shows in no query, and what stands
// before its end is kept.
func TestMemoryIsUsedAgain(t *testing.T) {
	s := &chunks.Source{Readers: map[string]*lmcache.Reader{"a": reader(t, strung, forked, shared), "b": reader(t, shared), "c": reader(t, strung)}}
	var dst []store.Query
	for i, model := range strings.Split("abcacbbaabccba", "") {
		n := 20 + 7*i%40
		want := s.AppendQueries(nil, model, numbers(n), n)
		dst = s.AppendQueries(dst[:0], model, numbers(n), n)
		if !reflect.DeepEqual(dst, want) {
			t.Fatalf("call %d, model %s: %s, want %s", i, model, said(dst), said(want))
		}
	}
	lead := append(make([]store.Query, 0, 9), store.Query{Span: 77})
	if got := s.AppendQueries(lead, "c", numbers(20), 20); len(got) != 3 || got[0].Span != 77 {
		t.Errorf("%s", said(got))
	}
}

// Asking for chunk keys allocates no more than hashing, once there is room.
func TestAllocations(t *testing.T) {
	r := must.Get(lmcache.NewReader("m", lmcache.NoEntries, strung))(t)
	s := &chunks.Source{Readers: map[string]*lmcache.Reader{"m": r}}
	tokens := numbers(64)
	room, hashes := s.AppendQueries(nil, "m", tokens, 64), make([]lmcache.Hash, 0, 8)
	// The least of many, since a pool forgets now and then: at random under the race detector.
	least := func(f func()) float64 {
		n := testing.AllocsPerRun(1, f)
		for range 50 {
			n = min(n, testing.AllocsPerRun(1, f))
		}
		return n
	}
	hashing := least(func() { hashes = r.Groups()[0].Hasher.Append(hashes[:0], tokens) })
	if n := least(func() { room = s.AppendQueries(room[:0], "m", tokens, 64) }); n > hashing {
		t.Errorf("%v allocations, %v of them hashing", n, hashing)
	}
}
