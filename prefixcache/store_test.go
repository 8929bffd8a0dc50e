package prefixcache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/kvatlas/kvatlas/internal/must"
)

func newStore(t testing.TB, kind string, cfg Config) Store {
	t.Helper()
	s := must.Get(New(kind, cfg))(t)
	return s
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		kind string
		cfg  Config
		want string // in the error
	}{
		{KindLRU, Config{}, ""},
		{KindTrie, Config{}, ""},
		{KindLRU, Config{MaxBytes: minMaxBytes}, ""},
		{"", Config{}, `kind ""`},
		{"LRU", Config{}, `kind "LRU"`},
		{KindLRU, Config{MaxBytes: -1}, "MaxBytes is -1"},
		{KindTrie, Config{MaxBytes: 65535}, "MaxBytes is 65535"},
	} {
		s, err := New(c.kind, c.cfg)
		if c.want == "" {
			if err != nil || s == nil {
				t.Errorf("New(%q, %+v): %v", c.kind, c.cfg, err)
			} else if st := s.Stats(); st.MaxBytes == 0 {
				t.Errorf("New(%q, %+v): %+v", c.kind, c.cfg, st)
			}
			continue
		}
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%q, %+v): error %v, want %q", c.kind, c.cfg, err, c.want)
		}
	}
}

func TestPutRefuses(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		s := newStore(t, kind, Config{MaxBytes: minMaxBytes})
		long := strings.Repeat("x", minMaxBytes)
		n := uint64(0)
		for _, c := range []struct {
			text   string
			tokens []uint32
			ends   []int
			err    error
			want   string
		}{
			{"abc", []uint32{1, 2}, []int{3}, ErrInvalid, "2 tokens with 1 ends"},
			{"abc", []uint32{1}, nil, ErrInvalid, "1 tokens with 0 ends"},
			{"abc", []uint32{1}, []int{4}, ErrInvalid, "token 0 ends at 4 in a text of 3 bytes"},
			{"abc", []uint32{1, 2}, []int{1, -1}, ErrInvalid, "token 1 ends at -1"},
			{"", []uint32{1}, []int{1}, ErrInvalid, "token 0 ends at 1 in a text of 0 bytes"},
			{"abc", []uint32{1, 2, 3}, []int{1, 3, 2}, ErrInvalid, "token 2 ends at 2, before 3"},
			{"abc", []uint32{1, 2, 3}, []int{2, 0, 1}, ErrInvalid, "token 2 ends at 1, before 2"},
			{"é!", []uint32{1, 2}, []int{1, 2}, ErrInvalid, "token 0 ends at 1, inside a character"},
			{"a\x00b", []uint32{1}, []int{1}, ErrInvalid, "NUL byte at offset 1"},
			{"ab\xffc", []uint32{1}, []int{1}, ErrInvalid, "invalid UTF-8 at offset 2"},
			{"é\xe4\xb8", []uint32{1}, []int{2}, ErrInvalid, "invalid UTF-8 at offset 2"},
			{"\xed\xa0\x80", []uint32{1}, []int{3}, ErrInvalid, "invalid UTF-8 at offset 0"},
			{"abc", nil, nil, ErrInvalid, "no tokens for a text of 3 bytes"},
			{long, slices.Repeat([]uint32{1}, len(long)), slices.Repeat([]int{len(long)}, len(long)), ErrTooLarge, "of 65536"},
		} {
			err := s.Put("m", c.text, c.tokens, c.ends)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Put(%.20q): error %v, want %q", c.text, err, c.want)
			}
			n++
			if m := s.Find(nil, "m", c.text); m.Bytes != 0 || m.Whole || m.Tokens != nil {
				t.Errorf("Find(%.20q) after a refusal: %v", c.text, m)
			}
		}
		if st := s.Stats(); st.Refused != n || st.Entries != 0 || st.Bytes != 0 {
			t.Errorf("%+v after %d refusals", st, n)
		}
	})
}

func TestRefusedTooLargeKeepsTheRest(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		s := newStore(t, kind, Config{MaxBytes: minMaxBytes})
		must.OK(t, s.Put("m", "small", []uint32{1}, []int{5}))
		long := strings.Repeat("small ", minMaxBytes/6)
		tokens, ends := split(long, 1)
		if err := s.Put("m", long, tokens, ends); !errors.Is(err, ErrTooLarge) {
			t.Fatalf("error %v", err)
		}
		if m := s.Find(nil, "m", "small"); !m.Whole {
			t.Error("what was there is gone")
		}
	})
}

// TestExamples has the cases by name that the model test finds by chance.
// Chunks are of 16 bytes.
func TestExamples(t *testing.T) {
	const c16 = "0123456789abcdef"
	type put struct {
		text   string
		tokens []uint32
		ends   []int
	}
	type want struct {
		text           string
		lru, trie      []uint32
		lruAt, trieAt  int
		lruAll, triAll bool
	}
	family := "👩\u200d👩\u200d👧\u200d👦" // 25 bytes
	for _, c := range []struct {
		name string
		puts []put
		want []want
	}{
		{"special tokens around", []put{{c16 + "tail", []uint32{100, 1, 2, 102}, []int{0, 16, 20, 0}}}, []want{
			{c16 + "tail", []uint32{100, 1, 2, 102}, []uint32{100, 1, 2, 102}, 20, 20, true, true},
			{c16 + "tail and more", []uint32{100, 1}, []uint32{100, 1, 2}, 16, 20, false, false},
			{c16 + "tai", []uint32{100, 1}, []uint32{100, 1}, 16, 19, false, false},
			{"0123", nil, []uint32{100}, 0, 4, false, false},
			{"x", nil, nil, 0, 0, false, false},
			{"", nil, nil, 0, 0, false, false},
		}},
		{"a text of whole chunks", []put{{c16, []uint32{100, 1, 102}, []int{0, 16, 0}}}, []want{
			{c16, []uint32{100, 1, 102}, []uint32{100, 1, 102}, 16, 16, true, true},
			{c16 + "!", []uint32{100, 1}, []uint32{100, 1}, 16, 16, false, false},
		}},
		{"the empty text", []put{{"", []uint32{100, 102}, []int{0, 0}}}, []want{
			{"", []uint32{100, 102}, []uint32{100, 102}, 0, 0, true, true},
			{"a", nil, nil, 0, 0, false, false},
		}},
		{"no offsets: whole or nothing", []put{{c16 + "x", []uint32{1, 2}, []int{0, 0}}}, []want{
			{c16 + "x", []uint32{1, 2}, []uint32{1, 2}, 17, 17, true, true},
			{c16 + "y", nil, nil, 16, 16, false, false},
		}},
		{"tokens of one character across a chunk's edge", []put{{"0123456789abcde👍!", []uint32{1, 2, 3, 4}, []int{15, 19, 19, 20}}}, []want{
			{"0123456789abcde👎!", []uint32{1}, []uint32{1}, 16, 18, false, false},
			{"0123456789abcde👍?", []uint32{1}, []uint32{1, 2, 3}, 16, 19, false, false},
			{"0123456789abcde\xf0", []uint32{1}, []uint32{1}, 16, 16, false, false},
		}},
		{"joined emoji", []put{{family + family, []uint32{1, 2, 3, 4, 5}, []int{7, 25, 25, 32, 50}}}, []want{
			{family + "👩\u200d👧", []uint32{1, 2, 3, 4}, []uint32{1, 2, 3, 4}, 32, 35, false, false},
			{family + family, []uint32{1, 2, 3, 4, 5}, []uint32{1, 2, 3, 4, 5}, 50, 50, true, true},
		}},
		{"combining marks", []put{{"cafe\u0301", []uint32{1, 2}, []int{3, 6}}}, []want{
			{"cafe", nil, []uint32{1}, 0, 4, false, false},
			{"cafe\u0302", nil, []uint32{1}, 0, 5, false, false},
		}},
		{"what follows changes the tokens before", []put{
			{"0123456789foo ba", []uint32{1, 2, 3}, []int{10, 13, 16}},                 // ... [foo][ ba]
			{"0123456789foo bar!", []uint32{1, 2, 4, 5}, []int{10, 13, 17, 18}},        // ... [foo][ bar][!]
			{"0123456789foo baz!", []uint32{1, 2, 3, 6, 5}, []int{10, 13, 16, 17, 18}}, // ... [foo][ ba][z][!]
		}, []want{
			{"0123456789foo ba", []uint32{1, 2, 3}, []uint32{1, 2, 3}, 16, 16, true, true},
			{"0123456789foo bar!", []uint32{1, 2, 4, 5}, []uint32{1, 2, 4, 5}, 18, 18, true, true},
			{"0123456789foo baz!", []uint32{1, 2, 3, 6, 5}, []uint32{1, 2, 3, 6, 5}, 18, 18, true, true},
			{"0123456789foo bar?", []uint32{1, 2, 3}, []uint32{1, 2, 4}, 16, 17, false, false},
			{"0123456789foo b", nil, []uint32{1, 2}, 0, 15, false, false},
		}},
		{"the same, the longer one first", []put{
			{"0123456789foo bar!", []uint32{1, 2, 4, 5}, []int{10, 13, 17, 18}},
			{"0123456789foo ba", []uint32{1, 2, 3}, []int{10, 13, 16}},
		}, []want{
			{"0123456789foo ba", []uint32{1, 2, 3}, []uint32{1, 2, 3}, 16, 16, true, true},
			{"0123456789foo bar!", []uint32{1, 2, 4, 5}, []uint32{1, 2, 4, 5}, 18, 18, true, true},
			{"0123456789foo bax", []uint32{1, 2}, []uint32{1, 2}, 16, 16, false, false},
		}},
		{"tokens meet again after one that differs", []put{
			{c16 + c16 + c16 + "x", []uint32{1, 2, 3, 4}, []int{1, 3, 30, 49}},
			{c16 + c16 + c16 + "y", []uint32{1, 3, 5}, []int{1, 30, 49}},
		}, []want{
			{c16 + c16 + c16 + "x", []uint32{1, 2, 3, 4}, []uint32{1, 2, 3, 4}, 49, 49, true, true},
			{c16 + c16 + c16 + "y", []uint32{1, 3, 5}, []uint32{1, 3, 5}, 49, 49, true, true},
			{c16 + c16 + c16 + "z", []uint32{1, 2, 3}, []uint32{1, 2, 3}, 48, 48, false, false},
		}},
		{"the tokens of a text change", []put{
			{c16 + "x", []uint32{1, 2}, []int{16, 17}},
			{c16 + "x", []uint32{1, 3}, []int{16, 17}},
		}, []want{{c16 + "x", []uint32{1, 3}, []uint32{1, 3}, 17, 17, true, true}}},
	} {
		each(t, func(t *testing.T, kind string) {
			s, _ := small(t, kind, 1<<20)
			for _, p := range c.puts {
				if err := s.Put("m", p.text, p.tokens, p.ends); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
			}
			for _, w := range c.want {
				got := s.Find(nil, "m", w.text)
				tokens, at, all := w.lru, w.lruAt, w.lruAll
				if kind == KindTrie {
					tokens, at, all = w.trie, w.trieAt, w.triAll
				}
				if !slices.Equal(got.Tokens, tokens) || got.Bytes != at || got.Whole != all {
					t.Errorf("%s: Find(%q) = %+v, want %v, %d bytes, whole %v", c.name, w.text, got, tokens, at, all)
				}
				if got := s.Find(nil, "m2", w.text); got.Bytes != 0 || got.Whole {
					t.Errorf("%s: found in another scope: %v", c.name, got)
				}
			}
		})
	}
}

// split tokenizes text into tokens of one to eight characters, in a way that
// depends on seed. Their ids are of the size of a large vocabulary.
func split(text string, seed uint64) (tokens []uint32, ends []int) {
	r := rand.New(rand.NewPCG(seed, 0))
	left := 1 + r.IntN(8)
	for i := range text {
		if left == 0 {
			tokens, ends = append(tokens, r.Uint32N(128000)), append(ends, i)
			left = 1 + r.IntN(8)
		}
		left--
	}
	return append(tokens, r.Uint32N(128000)), append(ends, len(text))
}

// words makes n bytes of text that depend on seed.
func words(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	const letters = "etaoinshrdlucmfw"
	b := make([]byte, 0, n+16)
	for len(b) < n {
		bits := r.Uint64()
		for range 2 + bits%8 {
			b = append(b, letters[bits>>60])
			bits <<= 4
		}
		b = append(b, ' ')
	}
	return string(b[:n])
}

func TestLongTexts(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		s := newStore(t, kind, Config{MaxBytes: 8 << 20})
		base := words(100_000, 1)
		for i, cut := range []int{100_000, 70_000, 99_999, 4096, 4097, 8192, 1} {
			text := base[:cut] + strings.Repeat("é", i) + words(3000*i, uint64(i))
			tokens, ends := split(text, uint64(i)) // each its own tokenization
			must.OK(t, s.Put("m", text, tokens, ends))
		}
		for i, cut := range []int{100_000, 70_000, 99_999, 4096, 4097, 8192, 1} {
			text := base[:cut] + strings.Repeat("é", i) + words(3000*i, uint64(i))
			want, _ := split(text, uint64(i))
			if m := s.Find(nil, "m", text); !m.Whole || !slices.Equal(m.Tokens, want) {
				t.Errorf("text %d: whole %v, %d tokens, want %d", i, m.Whole, len(m.Tokens), len(want))
			}
		}
		if err := s.(audited).audit(); err != nil {
			t.Error(err)
		}
	})
}

func TestEvictsByRecency(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		s := newStore(t, kind, Config{MaxBytes: 1 << 20})
		put := func(i int) {
			text := words(8000, uint64(i))
			tokens, ends := split(text, 1)
			must.OK(t, s.Put("m", text, tokens, ends))
		}
		whole := func(i int) bool { return s.Find(nil, "m", words(8000, uint64(i))).Whole }
		put(0)
		cost := s.Stats().Bytes
		const n = 300 // about three times the bound
		for i := range n {
			put(i)
			if i >= 10 {
				s.Find(nil, "m", words(8000, 3)) // in use all the time
			}
		}
		if !whole(3) {
			t.Error("a text in use was dropped")
		}
		kept, first := 0, n
		for i := n - 1; i >= 0; i-- {
			if i != 3 && whole(i) {
				kept, first = kept+1, i
			}
		}
		if first != n-kept {
			t.Errorf("%d texts are known, the oldest is number %d of %d: not the latest ones", kept, first, n)
		}
		if int64(kept)*cost < s.Stats().MaxBytes*8/10 {
			t.Errorf("only %d texts of %d bytes are known: the rest is of no use", kept, cost)
		}
		if st := s.Stats(); st.Evicted == 0 || st.Bytes > st.MaxBytes || st.Bytes < st.MaxBytes*9/10 {
			t.Errorf("%+v", st)
		}
	})
}

// TestEvictsFromTheEnd says that what is left of a text that is being dropped
// is its beginning, since the rest is of no use without it.
func TestEvictsFromTheEnd(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		s := newStore(t, kind, Config{MaxBytes: 1 << 20})
		text := words(300_000, 1)
		tokens, ends := split(text, 1)
		must.OK(t, s.Put("m", text, tokens, ends))
		const piece = defaultMaxLabel // and the longest chunk of such a text
		for i, left := uint64(2), len(text); left > 0; i++ {
			other := words(5000, i)
			tokens, ends := split(other, 1)
			before := s.Stats().Evicted
			must.OK(t, s.Put("m", other, tokens, ends))
			dropped := int(s.Stats().Evicted - before)
			known := s.Find(nil, "m", text).Bytes
			forgetReads(s)
			if left-known > (dropped+1)*piece {
				t.Fatalf("%d entries were dropped, and the known prefix fell from %d to %d bytes", dropped, left, known)
			}
			left = known
		}
	})
}

// TestLongTextHasFewChunks counts the entries of a long text, and asks for beginnings of it: no
// more than a small part of them is not known.
func TestLongTextHasFewChunks(t *testing.T) {
	s := must.Get(NewLRU(Config{}))(t)
	text := words(1<<20, 1)
	tokens, ends := split(text, 1)
	must.OK(t, s.Put("m", text, tokens, ends))
	if n := s.Stats().Entries; n > 500 {
		t.Errorf("%d entries", n)
	}
	for n := 1; n < len(text); n += 1 + n/100 {
		m := s.Find(nil, "m", text[:n]+"\x01")
		want := 0
		for want < len(ends) && ends[want] <= m.Bytes {
			want++
		}
		if m.Bytes > n || m.Bytes <= n-256-n/64 || m.Whole || !slices.Equal(m.Tokens, tokens[:want]) {
			t.Fatalf("of %d bytes %d are known, with %d tokens", n, m.Bytes, len(m.Tokens))
		}
	}
}

// forgetReads takes back the marks of all reads.
func forgetReads(s Store) {
	switch s := s.(type) {
	case *LRU:
		for i := range s.shards {
			for _, c := range s.shards[i].lru.Values() {
				c.ref.Store(false)
			}
		}
	case *Trie:
		var visit func(n *node)
		visit = func(n *node) {
			n.ref.Store(false)
			if kids := n.kids.Load(); kids != nil {
				for _, k := range *kids {
					visit(k.node)
				}
			}
		}
		for _, n := range s.scopes {
			visit(n)
		}
	}
}

// TestTrieMerge has the three ways in which a node and its only child meet when
// a sibling is dropped.
func TestTrieMerge(t *testing.T) {
	const head = "0123456789"
	type put struct {
		text   string
		tokens []uint32
		ends   []int
	}
	ones := func(text string) put { // a token a byte
		p := put{text: text}
		for i := range text {
			p.tokens, p.ends = append(p.tokens, uint32(text[i])), append(p.ends, i+1)
		}
		return p
	}
	for _, c := range []struct {
		name  string
		puts  []put // the first one is dropped
		nodes int64 // then, with the root
		query string
		want  []uint32
	}{
		{"the same tokens", []put{ones(head + "abcdef"), ones(head + "Z"), ones(head + "abQ")}, 4, head + "abX", ones(head + "ab").tokens},
		{"takes back a part", []put{ones(head + "abcdef"), ones(head + "Z"), {head + "abQ", append(ones(head+"a").tokens, 7), append(ones(head+"a").ends, 13)}}, 4, head + "abX", ones(head + "a").tokens},
		{"takes back more than there is", []put{ones(head + "abcdef"), ones(head + "Z"), {head + "abQ", []uint32{7, 8}, []int{9, 13}}}, 4, head + "aX", []uint32{7}},
		{"a text ends between", []put{ones(head + "abcdef"), ones(head + "Z"), ones(head + "abQ"), ones(head + "ab")}, 5, head + "abX", ones(head + "ab").tokens},
	} {
		s := must.Get(NewTrie(Config{}))(t)
		for _, p := range c.puts {
			must.OK(t, s.Put("m", p.text, p.tokens, p.ends))
		}
		forgetReads(s)
		s.evict()
		if err := s.audit(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := s.Stats().Entries; n != c.nodes {
			t.Errorf("%s: %d nodes, want %d", c.name, n, c.nodes)
		}
		if m := s.Find(nil, "m", c.puts[0].text); m.Whole {
			t.Errorf("%s: the wrong one was dropped", c.name)
		}
		for _, p := range c.puts[1:] {
			if m := s.Find(nil, "m", p.text); !m.Whole || !slices.Equal(m.Tokens, p.tokens) {
				t.Errorf("%s: Find(%q) = %v, want %v", c.name, p.text, m, p.tokens)
			}
		}
		if m := s.Find(nil, "m", c.query); !slices.Equal(m.Tokens, c.want) {
			t.Errorf("%s: Find(%q) = %v, want %v", c.name, c.query, m, c.want)
		}
	}
}

// TestTrieInsertRefusesAStalePlace plays through what another writer may do
// between a writer's walk and its insert.
func TestTrieInsertRefusesAStalePlace(t *testing.T) {
	put := func(s *Trie, text string) {
		tokens, ends := split(text, 1)
		must.OK(t, s.Put("m", text, tokens, ends))
	}
	for _, c := range []struct {
		name          string
		before, text  string
		between       func(s *Trie)
		insertedAtAll bool
	}{
		{"nothing", "abcdef", "abcxyz", func(*Trie) {}, true},
		{"elsewhere", "abcdef", "abcxyz", func(s *Trie) { put(s, "xyz"); put(s, "ab") }, false}, // "ab" splits
		{"another branch", "abcdef", "abcxyz", func(s *Trie) { put(s, "xyz") }, true},
		{"split at the place", "abcdef", "abcxyz", func(s *Trie) { put(s, "abcq") }, false},
		{"split below", "abcdef", "abcxyz", func(s *Trie) { put(s, "abcdq") }, false},
		{"the same child", "abc", "abcxyz", func(s *Trie) { put(s, "abcx") }, false},
		{"another child", "abc", "abcxyz", func(s *Trie) { put(s, "abcq") }, true},
		{"the same text", "abc", "abcxyz", func(s *Trie) { put(s, "abcxyz") }, false},
		{"dropped", "abcdef", "abcxyz", func(s *Trie) { s.evict(); s.evict() }, false},
		{"dropped and back", "abcdef", "abcxyz", func(s *Trie) {
			for s.evict() {
			}
			put(s, "abcdef")
		}, false},
		{"purged", "abcdef", "abcxyz", (*Trie).Purge, false},
		{"purged and back", "abcdef", "abcxyz", func(s *Trie) { s.Purge(); put(s, "abcdef") }, false},
		{"the scope's first text", "", "abcxyz", func(s *Trie) { put(s, "xyz") }, false},
	} {
		s := must.Get(NewTrie(Config{}))(t)
		if c.before != "" {
			put(s, c.before)
		}
		tokens, ends := split(c.text, 2)
		p := s.walk("m", c.text, tokens, ends, len(tokens))
		r := s.build(&p)
		c.between(s)
		if got := s.insert(&p, &r); got != c.insertedAtAll {
			t.Errorf("%s: inserted: %v", c.name, got)
		}
		if err := s.audit(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		must.OK(t, s.Put("m", c.text, tokens, ends))
		if got := s.Find(nil, "m", c.text); !got.Whole || !slices.Equal(got.Tokens, tokens) {
			t.Errorf("%s: %v, want %v", c.name, got, tokens)
		}
	}
}

// TestHeap holds the books against what the garbage collector counts.
func TestHeap(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	corpus := words(40_000, 1)
	for _, c := range []struct {
		name  string
		bytes int
		fresh bool // texts share nothing; else all share their first half
	}{{"short", 300, true}, {"long", 20_000, true}, {"shared", 2000, false}} {
		each(t, func(t *testing.T, kind string) {
			t.Run(c.name, func(t *testing.T) {
				s := newStore(t, kind, Config{MaxBytes: 4 << 20})
				before := heap()
				for i, left := 0, 8<<20; left > 0; i++ {
					text := fmt.Sprint(i) + corpus[i%1000:][:c.bytes]
					if !c.fresh {
						text = corpus[:c.bytes/2] + text[:c.bytes/2]
					}
					tokens, ends := split(text, 1)
					must.OK(t, s.Put("m", text, tokens, ends))
					left -= len(text) + 4*len(tokens) + 200
				}
				grown := heap() - before
				st := s.Stats()
				t.Logf("heap grew by %d, %d in the books: %.3f; %d entries", grown, st.Bytes, float64(grown)/float64(st.Bytes), st.Entries)
				if st.Evicted == 0 {
					t.Error("nothing was evicted")
				}
				if f := float64(grown) / float64(st.Bytes); f < 0.85 || f > 1.1 {
					t.Errorf("heap grew by %d, %d in the books", grown, st.Bytes)
				}
				s.Purge()
				if left := heap() - before; left > 1<<20 {
					t.Errorf("%d bytes left after Purge", left)
				}
				runtime.KeepAlive(s)
			})
		})
	}
}

func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(chunk{}); n > chunkSize {
		t.Errorf("a chunk takes %d bytes, not %d", n, chunkSize)
	}
	l := must.Get(simplelru.NewLRU[key, *chunk](1<<20, nil))(t)
	const n = 1000
	c := new(chunk)
	for i := range uint64(n) {
		l.Add(key{Lo: i}, c)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range uint64(n) {
		l.RemoveOldest()
		l.Add(key{Lo: n + i}, c)
	}
	runtime.ReadMemStats(&after)
	// The map now and then allocates as well.
	if got := (after.TotalAlloc - before.TotalAlloc) / n; got < elementSize || got > elementSize+mapSlotSize {
		t.Errorf("a new element takes %d bytes, not %d", got, elementSize)
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		s := newStore(t, kind, Config{})
		text := words(50_000, 1)
		tokens, ends := split(text, 1)
		must.OK(t, s.Put("m", text, tokens, ends))
		dst := make([]uint32, 0, len(tokens))
		for _, q := range []string{text, text[:30_000] + "!", text[:100], "other", ""} {
			if n := testing.AllocsPerRun(20, func() { s.Find(dst, "m", q) }); n != 0 {
				t.Errorf("%v allocations for %d bytes", n, len(q))
			}
		}
	})
}

// TestConcurrent has writers, readers and a purger at work on texts that share
// prefixes and disagree about their tokens. Answers must be right at any time,
// the bound kept at any time, and the books right in the end.
func TestConcurrent(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		for _, c := range []struct {
			name     string
			maxBytes int64
			tries    int // of a Trie
		}{{"roomy", 32 << 20, 1}, {"tight", 40_000, defaultTries}} {
			t.Run(c.name, func(t *testing.T) {
				s, m := small(t, kind, c.maxBytes)
				if s, ok := s.(*Trie); ok {
					s.tries = c.tries
				}
				base := words(1200, 1)
				for i := range 40 {
					r := rand.New(rand.NewPCG(uint64(i), 2))
					x := tokenized{scope: fmt.Sprint("m", i%2), text: base[:r.IntN(len(base))] + strings.Repeat("👍", i%3) + words(200, uint64(i/2))}
					x.tokens, x.ends = split(x.text, uint64(i%5))
					x.tokens, x.ends = append(x.tokens, 102), append(x.ends, 0)
					m.texts = append(m.texts, x)
				}
				rounds := 5
				if testing.Short() {
					rounds = 2
				}
				var wg sync.WaitGroup
				var stop, bad atomic.Bool
				for w := range 4 {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(w), 3))
						for range rounds {
							for _, i := range r.Perm(len(m.texts)) {
								x := m.texts[i]
								if err := s.Put(x.scope, x.text, x.tokens, x.ends); err != nil {
									t.Error(err)
									return
								}
							}
							if w == 0 && c.name == "tight" {
								s.Purge()
							}
						}
					})
				}
				var readers sync.WaitGroup
				for w := range 2 {
					readers.Go(func() {
						r := rand.New(rand.NewPCG(uint64(w), 4))
						var dst []uint32
						for !stop.Load() && !bad.Load() {
							x := m.texts[r.IntN(len(m.texts))]
							q := x.text
							if w > 0 {
								q = q[:r.IntN(len(q)+1)] + "?"
							}
							got := s.Find(dst[:0], x.scope, q)
							dst = got.Tokens
							if !m.possible(x.scope, q, got) {
								bad.Store(true)
								t.Errorf("Find of %d bytes: %d bytes, %d tokens, whole %v: no text that was put has these tokens", len(q), got.Bytes, len(got.Tokens), got.Whole)
							}
							if st := s.Stats(); st.Bytes > st.MaxBytes {
								bad.Store(true)
								t.Errorf("bound exceeded: %+v", st)
							}
						}
					})
				}
				wg.Wait()
				stop.Store(true)
				readers.Wait()
				if err := s.audit(); err != nil {
					t.Error(err)
				}
				if c.name == "tight" {
					return
				}
				if st := s.Stats(); st.Evicted != 0 {
					t.Fatalf("not roomy: %+v", st)
				}
				for i, x := range m.texts {
					if got := s.Find(nil, x.scope, x.text); !got.Whole || !slices.Equal(got.Tokens, m.find(x.scope, x.text).Tokens) {
						t.Errorf("text %d is not known after all were put", i)
					}
				}
			})
		}
	})
}
