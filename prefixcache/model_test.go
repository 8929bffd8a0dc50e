package prefixcache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
)

// model is the naive reference: all texts ever put, in order.
type model struct {
	lru   *LRU // nil: to the byte, as Trie
	texts []tokenized
}

// tokenized is a text with its tokens.
type tokenized struct {
	scope, text string
	tokens      []uint32
	ends        []int
}

// upTo returns the leading tokens that end within the first n bytes.
func (x *tokenized) upTo(n int) []uint32 {
	body := 0
	for i, e := range x.ends {
		if e > 0 {
			body = i + 1
		}
	}
	top := 0
	for i, e := range x.ends[:body] {
		top = max(top, e)
		if top > n {
			return x.tokens[:i]
		}
	}
	return x.tokens[:body]
}

func commonBytes(a, b string) int {
	n := 0
	for n+64 < min(len(a), len(b)) && a[n:n+64] == b[n:n+64] {
		n += 64 // only to be quick with long ones
	}
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// find answers as a store must from which nothing has been evicted: with the
// first text put among those that share the longest prefix.
func (m *model) find(scope, text string) Match {
	longest := 0
	for _, x := range slices.Backward(m.texts) {
		if x.scope != scope {
			continue
		}
		if x.text == text {
			return Match{Tokens: x.tokens, Bytes: len(text), Whole: true}
		}
		longest = max(longest, m.cut(commonBytes(x.text, text)))
	}
	if longest == 0 {
		return Match{}
	}
	for _, x := range m.texts {
		if x.scope == scope && m.cut(commonBytes(x.text, text)) == longest {
			return Match{Tokens: x.upTo(longest), Bytes: longest}
		}
	}
	panic("unreachable")
}

func (m *model) cut(n int) int {
	if m.lru == nil {
		return n
	}
	at := 0
	for at+m.lru.chunkAt(at) <= n {
		at += m.lru.chunkAt(at)
	}
	return at
}

// possible reports whether a store that has dropped things may answer so.
func (m *model) possible(scope, text string, got Match) bool {
	if got.Whole {
		return slices.Equal(got.Tokens, m.find(scope, text).Tokens) && got.Bytes == len(text)
	}
	if got.Bytes == 0 {
		return len(got.Tokens) == 0
	}
	for _, x := range m.texts {
		if x.scope == scope && commonBytes(x.text, text) >= got.Bytes && slices.Equal(x.upTo(got.Bytes), got.Tokens) {
			return true
		}
	}
	return false
}

// pieces has what is awkward at a cut: characters of two to four bytes,
// combining marks, emoji joined and with variation selectors, a special token.
var pieces = []string{
	"a", "b", "ab", " ", "  ", "\n", "é", "e\u0301", "a\u0328\u0301", "中", "文字", "👍", " 👍🏽", "👩\u200d👩\u200d👧\u200d👦",
	"❤\ufe0f", "\u200d", "ᄒ\u1161\u11ab", "<|im_end|>", "\U0010ffff", "\ufffd",
}

// genText draws a text, often one that goes on from a prefix of an earlier one.
func genText(t *rapid.T, earlier []string, most int) string {
	var b strings.Builder
	if len(earlier) > 0 && rapid.IntRange(0, 3).Draw(t, "fresh") > 0 {
		from := []rune(rapid.SampledFrom(earlier).Draw(t, "from"))
		b.WriteString(string(from[:rapid.IntRange(0, len(from)).Draw(t, "cut")]))
	}
	for range rapid.IntRange(0, most).Draw(t, "pieces") {
		b.WriteString(rapid.SampledFrom(pieces).Draw(t, "piece"))
	}
	return b.String()
}

// genTokens draws a tokenization of text. It has tokens of one to many
// characters, several that share a span, and special tokens around and now and
// then between. It has text that no token covers, and tokenizers that do not say
// where tokens end. There are few ids, so that different tokenizations often
// agree for a while.
func genTokens(t *rapid.T, text string) (tokens []uint32, ends []int) {
	add := func(end int) {
		tokens = append(tokens, uint32(rapid.IntRange(0, 2).Draw(t, "id")))
		ends = append(ends, end)
	}
	special := func(most int) {
		for range rapid.IntRange(0, most).Draw(t, "special") {
			add(0)
		}
	}
	special(2)
	at := rapid.IntRange(-8, 1).Draw(t, "start")
	runes := []rune(text)
	end := len(string(runes[:min(max(at, 0), len(runes))]))
	runes = runes[min(max(at, 0), len(runes)):]
	long := rapid.SampledFrom([]int{1, 4, 4, 4, 40, 400}).Draw(t, "long")
	for len(runes) > 0 {
		n := min(rapid.IntRange(1, long).Draw(t, "runes"), len(runes))
		end += len(string(runes[:n]))
		runes = runes[n:]
		if len(runes) == 0 && rapid.IntRange(0, 3).Draw(t, "uncovered") == 0 {
			break
		}
		if rapid.IntRange(0, 30).Draw(t, "between") == 0 {
			add(0)
		}
		for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 4}).Draw(t, "sharing") {
			add(end)
		}
	}
	special(2)
	if text != "" && len(tokens) == 0 {
		add(0)
	}
	if rapid.IntRange(0, 30).Draw(t, "no ends") == 0 {
		clear(ends)
	}
	return tokens, ends
}

// audited is a Store that can be asked whether its books are right.
type audited interface {
	Store
	audit() error
}

// each runs f for both kinds of store.
func each(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range []string{KindLRU, KindTrie} {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

// smallChunk is the length of the first chunks of a small store. Those from 8 times as much
// on have twice the length, and so on.
const smallChunk = 16

// small makes a store with small chunks, and a bound below what New allows.
func small(t must.TB, kind string, maxBytes int64) (audited, *model) {
	s := must.Get(New(kind, Config{MaxBytes: max(maxBytes, minMaxBytes)}))(t)
	m := new(model)
	switch s := s.(type) {
	case *LRU:
		s.maxBytes, s.chunkBytes, s.part = maxBytes, smallChunk, 4
		m.lru = s
	case *Trie:
		s.maxBytes, s.maxLabel = maxBytes, 24
	}
	return s.(audited), m
}

// genQuery draws a text to find: a known one, or one that shares a prefix.
func genQuery(t *rapid.T, earlier []string) string {
	q := genText(t, earlier, 4)
	switch rapid.IntRange(0, 5).Draw(t, "query") {
	case 0, 1:
		if len(earlier) > 0 {
			q = rapid.SampledFrom(earlier).Draw(t, "known")
		}
	case 2: // cut at any byte: queries need not be valid
		q = q[:rapid.IntRange(0, len(q)).Draw(t, "bytes")]
	case 3:
		q += rapid.SampledFrom([]string{"\x00", "\xff", "\xf0\x9f", "\x00a"}).Draw(t, "bad")
	}
	return q
}

func TestModel(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		rapid.Check(t, func(t *rapid.T) {
			s, m := small(t, kind, 64<<20)
			var earlier []string
			var whole, partial, miss uint64
			t.Repeat(map[string]func(*rapid.T){
				"put": func(t *rapid.T) {
					x := tokenized{scope: rapid.SampledFrom([]string{"", "m", "m2"}).Draw(t, "scope"), text: genText(t, earlier, 40)}
					x.tokens, x.ends = genTokens(t, x.text)
					tokens, ends := slices.Clone(x.tokens), slices.Clone(x.ends)
					must.OK(t, s.Put(x.scope, x.text, tokens, ends))
					if !slices.Equal(ends, x.ends) {
						t.Fatal("Put changed the ends it was given")
					}
					for i := range tokens { // the caller's to reuse
						tokens[i], ends[i] = 99, 99
					}
					m.texts = append(m.texts, x)
					earlier = append(earlier, x.text)
				},
				"find": func(t *rapid.T) {
					scope := rapid.SampledFrom([]string{"", "m", "m2", "m3"}).Draw(t, "scope")
					q := genQuery(t, earlier)
					got, want := s.Find([]uint32{7, 8}, scope, q), m.find(scope, q)
					if !slices.Equal(got.Tokens[:2], []uint32{7, 8}) {
						t.Fatalf("dst was not appended to: %v", got.Tokens)
					}
					got.Tokens = got.Tokens[2:]
					if got.Bytes != want.Bytes || got.Whole != want.Whole || !slices.Equal(got.Tokens, want.Tokens) {
						t.Fatalf("Find(%q, %q)\n got %v\nwant %v", scope, q, got, want)
					}
					switch {
					case got.Whole:
						whole++
					case len(got.Tokens) > 0:
						partial++
					default:
						miss++
					}
				},
				"": func(t *rapid.T) {
					must.OK(t, s.audit())
					if st := s.Stats(); st.Evicted != 0 || st.Whole != whole || st.Partial != partial || st.Miss != miss {
						t.Fatalf("%+v, want %d whole, %d partial, %d miss", st, whole, partial, miss)
					}
				},
			})
		})
	})
}

func TestModelWithEviction(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		var evicted, hits uint64
		rapid.Check(t, func(t *rapid.T) {
			s, m := small(t, kind, int64(rapid.IntRange(3000, 30000).Draw(t, "max")))
			if s, ok := s.(*Trie); ok {
				s.tries = rapid.SampledFrom([]int{0, defaultTries}).Draw(t, "tries")
			}
			var earlier []string
			t.Repeat(map[string]func(*rapid.T){
				"put": func(t *rapid.T) {
					x := tokenized{scope: rapid.SampledFrom([]string{"", "m"}).Draw(t, "scope"), text: genText(t, earlier, 60)}
					x.tokens, x.ends = genTokens(t, x.text)
					if err := s.Put(x.scope, x.text, x.tokens, x.ends); errors.Is(err, ErrTooLarge) {
						return
					} else if err != nil {
						t.Fatal(err)
					}
					m.texts = append(m.texts, x)
					earlier = append(earlier, x.text)
				},
				"just put": func(t *rapid.T) {
					if len(m.texts) == 0 {
						t.Skip()
					}
					// What was put just now is there, whatever had to go. (A text that
					// corrects many tokens of others may be larger than it looks.)
					x := m.texts[len(m.texts)-1]
					must.OK(t, s.Put(x.scope, x.text, x.tokens, x.ends))
					if got := s.Find(nil, x.scope, x.text); !got.Whole && kind == KindTrie {
						t.Fatalf("%q is not known after Put: %v", x.text, got)
					}
				},
				"find": func(t *rapid.T) {
					scope := rapid.SampledFrom([]string{"", "m"}).Draw(t, "scope")
					q := genQuery(t, earlier)
					got := s.Find(nil, scope, q)
					if !m.possible(scope, q, got) {
						t.Fatalf("Find(%q, %q) = %v: no text that was put has these tokens", scope, q, got)
					}
					if got.Bytes > 0 {
						hits++
					}
				},
				"purge": func(t *rapid.T) {
					if rapid.IntRange(0, 9).Draw(t, "sure") == 0 {
						s.Purge()
						if st := s.Stats(); st.Bytes != 0 || st.Entries != 0 {
							t.Fatalf("after Purge: %+v", st)
						}
					}
				},
				"": func(t *rapid.T) {
					must.OK(t, s.audit())
				},
			})
			evicted += s.Stats().Evicted
		})
		if evicted == 0 || hits == 0 {
			t.Fatalf("%d evictions and %d hits: nothing was tested", evicted, hits)
		}
	})
}

// audit recounts what the LRU has in its books. It must not be in use meanwhile.
func (s *LRU) audit() error {
	var bytes, entries int64
	for i := range s.shards {
		sh := &s.shards[i]
		var sum int64
		last := uint64(0)
		for _, k := range sh.lru.Keys() {
			c, _ := sh.lru.Peek(k)
			sum += c.cost()
			if c.tick <= last {
				return fmt.Errorf("shard %d: tick %d is behind %d", i, c.tick, last)
			}
			if last == 0 && sh.oldest.Load() != c.tick {
				return fmt.Errorf("shard %d: oldest is %d, not %d", i, sh.oldest.Load(), c.tick)
			}
			last = c.tick
		}
		if sum != sh.bytes || int64(sh.lru.Len()) != sh.entries.Load() {
			return fmt.Errorf("shard %d: %d bytes and %d entries in the books, %d and %d there", i, sh.bytes, sh.entries.Load(), sum, sh.lru.Len())
		}
		bytes += sum
		entries += int64(sh.lru.Len())
	}
	return s.Stats().agree(entries, bytes)
}

func (st Stats) agree(entries, bytes int64) error {
	if bytes != st.Bytes || entries != st.Entries || st.Bytes > st.MaxBytes {
		return fmt.Errorf("%d bytes and %d entries there: %+v", bytes, entries, st)
	}
	return nil
}

// audit recounts what the Trie has in its books and looks at each node.
func (t *Trie) audit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var bytes, nodes int64
	inList := make(map[*node]bool)
	for v := t.leaves.root.next; v != &t.leaves.root; v = v.next {
		if v.next.prev != v {
			return errors.New("list of leaves is broken")
		}
		inList[v] = true
	}
	leaves := 0
	var visit func(n *node, start, have int) error
	visit = func(n *node, start, have int) error {
		bytes += n.cost()
		nodes++
		have -= int(n.drop)
		if have < 0 {
			return fmt.Errorf("%q takes back %d tokens too many", n.edge(), -have)
		}
		last, e := 0, n.endsFrom(start)
		for range n.tokens {
			end := e.next()
			if end < last || end > start+len(n.edge()) {
				return fmt.Errorf("%q: token ends at %d behind one at %d, node ends at %d", n.edge(), end, last, start+len(n.edge()))
			}
			last = end
		}
		if e.data != "" && n.parent != nil {
			return fmt.Errorf("%q: %d bytes behind the ends", n.edge(), len(e.data))
		}
		have += len(n.tokens)
		kids := n.kids.Load()
		if inList[n] != (kids == nil) {
			return fmt.Errorf("%q: in the list of leaves: %v", n.edge(), inList[n])
		}
		if kids == nil {
			leaves++
			return nil
		}
		for i, k := range *kids {
			if k.node.edge()[0] != k.first || i > 0 && (*kids)[i-1].first >= k.first || k.node.parent != n || len(k.node.edge()) > t.maxLabel {
				return fmt.Errorf("%q: child %d is wrong", n.edge(), i)
			}
			if err := visit(k.node, start+len(n.edge()), have); err != nil {
				return err
			}
		}
		return nil
	}
	for scope, n := range t.scopes {
		if n.data != scope || n.parent != nil {
			return fmt.Errorf("root of %q is wrong", scope)
		}
		bytes += scopeSize
		if err := visit(n, 0, 0); err != nil {
			return err
		}
	}
	if leaves != t.leaves.n || len(inList) != leaves {
		return fmt.Errorf("%d leaves, %d in the list, %d counted", leaves, len(inList), t.leaves.n)
	}
	return t.Stats().agree(nodes, bytes)
}
