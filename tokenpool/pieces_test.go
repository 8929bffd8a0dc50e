package tokenpool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
	"github.com/kvatlas/kvatlas/tokenpool/internal/cut"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// realTokenizer reads a tokenizer.json as the pool does. Those of the goldens are loaded once for
// all tests: each takes seconds with the race detector.
func realTokenizer(t testing.TB, file string) *tokenizer {
	t.Helper()
	realTokenizers.Lock()
	defer realTokenizers.Unlock()
	if tok := realTokenizers.loaded[file]; tok != nil {
		return tok
	}
	data := must.Get(os.ReadFile(file))(t)
	enc := must.Get(newLibrary(data, false))(t)
	tok := &tokenizer{enc: enc, cuts: cut.New(data, false), frame: newFrame(enc)}
	if strings.HasPrefix(file, tokenizerDir) {
		realTokenizers.loaded[file] = tok
	} else {
		t.Cleanup(enc.close) // there may be many
	}
	return tok
}

// realTokenizers are what realTokenizer has loaded, by file.
var realTokenizers = struct {
	sync.Mutex
	loaded map[string]*tokenizer
}{loaded: map[string]*tokenizer{}}

// scraps are what random texts are made of: what lies near a cut, and what
// tokenizers treat in ways of their own.
var scraps = []string{
	"\n", "\n", "\n\n", "\r\n", " ", "  ", "\t", " \n", "\n ", "\u00a0", "\u2028", "\u0085", "\u3000",
	"a", "b", "The", " the", "don't", "'s", "'S", "'re", "I'll", "0", "12", "1234567", "٣", "½",
	".", "!", "!!", "...", "/", "//", "\n/", "-", "_", "__", "\"", "(", "#", "```", "```go\n", "{", "}", ";\n", ":\n", "*\n", "|", "<", "<|", "|>", ">",
	"é", "e\u0301", "\u0301", "\n\u0301", "ñ", "ﬁ", "Å", "ſ", "ß", "İ", "日本", "語", "한국어", "ᄒ", "ᅡ", "ไทย", "हिन्दी", "العربية", "😀", "👩‍👩‍👧", "🇩🇪", "\u200d", "\ufe0f", "\ufeff", "\u200b",
	",", " ,", ", ", "a,b ", "1,2,3 4 ", "é ", "é,", "'s ", "a 's,b", "x\u0301 ", " \u0301", ",\u0301", "0 \n", "a  b",
	"lorem ipsum dolor sit amet, ", "func main() {\n\treturn nil\n}\n", "1. one\n2. two\n", "\n\n\n\n", "          ", "=====\n", "a\nb\nc\n", "X-Y_Z/9\n", "\x01", "\x7f",
	"▁", "Ġ", "Ċ", "</s>", "[SEP]", "[CLS]", "<s>", "<unk>", "<pad>",
}

// randomText makes a text of the tokenizer's own added tokens and of scraps.
func randomText(r *rand.Rand, cuts *cut.Cutter, n int) string {
	own := slices.Sorted(maps.Keys(cuts.Tokens))
	var b strings.Builder
	tokens := r.IntN(12)
	for b.Len() < n {
		switch {
		case len(own) > 0 && r.IntN(12) < tokens:
			b.WriteString(own[r.IntN(len(own))])
		default:
			b.WriteString(scraps[r.IntN(len(scraps))])
		}
	}
	return b.String()
}

// comparePieces tokenizes a text at once and in parts cut at every place where it
// can be, or at some, and compares tokens and ends.
func comparePieces(t *testing.T, name string, tok *tokenizer, text string, every int) (cuts int) {
	t.Helper()
	want, wantEnds := tok.enc.encode(text, false)
	var got, gotEnds = []uint32{}, []int{}
	for from := 0; from < len(text); {
		to := tok.cuts.Next(text, min(from+every, len(text)))
		p := part{from: from, to: to}
		p.space, p.bare = tok.cuts.Bare(text, from)
		ids, ends, err := p.tokenize(tok.enc, text)
		must.OK(t, err)
		got = append(got, ids...)
		for _, e := range ends {
			gotEnds = append(gotEnds, from+e)
		}
		from = to
		cuts++
	}
	if !slices.Equal(got, want) || !slices.Equal(gotEnds, wantEnds) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] && gotEnds[at] == wantEnds[at] {
			at++
		}
		near := 0
		if at > 0 {
			near = wantEnds[at-1]
		}
		t.Fatalf("%s, cut after %d bytes: the tokens differ from number %d on, near byte %d, %q, of\n%q", name, every, at, near, text[near:min(near+40, len(text))], text)
	}
	return cuts
}

// moreTokenizers is a folder of further tokenizers to try cuts on; see
// docs/tokenization.md.
var moreTokenizers = os.Getenv("KVATLAS_TEST_TOKENIZERS")

// TestCutsAreExact compares random texts tokenized at once and in parts.
func TestCutsAreExact(t *testing.T) {
	files := map[string]string{}
	for _, m := range realModels(t) {
		files[m.Model] = m.path()
	}
	if moreTokenizers != "" {
		more, err := filepath.Glob(filepath.Join(moreTokenizers, "*", "*", tokenfile.TokenizerFile))
		if err != nil || len(more) == 0 {
			t.Fatalf("no tokenizers in %s: %v", moreTokenizers, err)
		}
		for _, f := range more {
			files[f] = f
		}
	}
	rounds := cutRounds(t)
	for name, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			t.Parallel()
			tok := realTokenizer(t, file)
			r := rand.New(rand.NewPCG(7, uint64(len(name))))
			cuts := 0
			for range rounds {
				text := randomText(r, tok.cuts, 1+r.IntN(120))
				tok.cuts.WordsAfter = r.IntN(2) * r.IntN(30)
				cuts += comparePieces(t, name, tok, text, 1+r.IntN(3)*r.IntN(20))
			}
			if cuts < rounds*2 {
				t.Errorf("%d parts of %d texts", cuts, rounds)
			}
		})
	}
}

// TestSpaceCutsAreExact is TestCutsAreExact for SentencePiece's BPE, in each form in which
// files have it, by the library and by the fast tokenizer. Texts that grow have the same
// tokens in a store of pieces, where a text may begin with what is a piece of another one.
func TestSpaceCutsAreExact(t *testing.T) {
	const bars = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	meta := func(scheme string, split bool) [2]string {
		return [2]string{`null`, fmt.Sprintf(`{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%v}`, scheme, split)}
	}
	for name, stages := range map[string][2]string{
		"legacy": {`{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + bars + `]}`, `null`},
		"Gemma":  {bars, `null`},
		"first":  meta("first", false), "always": meta("always", false), "never": meta("never", false), "split": meta("always", true),
	} {
		for _, family := range []string{"llama2", "gemma3"} {
			t.Run(family+", "+name, func(t *testing.T) {
				file := slices.Clone(autoFamilies(t)[family])
				file.Set("normalizer", json.RawMessage(stages[0]))
				file.Set("pre_tokenizer", json.RawMessage(stages[1]))
				data := file.AppendJSON(nil)
				tables := must.Get(bpe.Read(data))(t)
				fast := must.Get(bpe.New(tables))(t)
				library := must.Get(newLibrary(data, false))(t)
				defer library.close()
				both := &proven{encoder: library, texts: new(atomic.Uint64)}
				both.fast.Store(fast)
				r := rand.New(rand.NewPCG(5, uint64(len(name))))
				for _, enc := range []encoder{library, both} {
					tok := &tokenizer{enc: enc, cuts: cut.New(data, false), frame: frame{known: true}}
					if cutSpaces(tok.cuts, fast); !tok.cuts.Any() {
						t.Fatal("no cuts before spaces")
					}
					parts, spaced := 0, 0
					for range cutRounds(t) / 10 {
						text := randomText(r, tok.cuts, 1+r.IntN(120))
						for range r.IntN(6) {
							text += []string{"a b", "x 1\n2 y z", " the", "f f f", "\nq a"}[r.IntN(5)] + randomText(r, tok.cuts, r.IntN(10))
						}
						tok.cuts.WordsAfter = r.IntN(2) * r.IntN(30)
						every := 1 + r.IntN(3)*r.IntN(20)
						parts += comparePieces(t, name, tok, text, every)
						if at := tok.cuts.Next(text, min(every, len(text))); at < len(text) && text[at] == ' ' {
							spaced++
						}
					}
					if spaced < cutRounds(t)/100 {
						t.Errorf("%d cuts before spaces in %d parts", spaced, parts)
					}
					tok.cuts.WordsAfter = 0
					store, line := newPieces(1<<20), strings.Repeat(" word", pieceBytes/5)
					for _, text := range []string{line + " a b", "x" + strings.Repeat(line, 4), line + line + line + "\nc d", "y" + strings.Repeat(line, 4)} {
						want, wantEnds := library.encode(text, false)
						ids, ends, fresh, err := store.tokenize(tok, text, false, crowd)
						if err != nil || !slices.Equal(ids, want) || !slices.Equal(ends, wantEnds) {
							t.Fatalf("%v: %d tokens, want %d, of %.20q", err, len(ids), len(want), text)
						}
						if text[0] == 'y' && fresh > len(ids)*3/4 {
							t.Errorf("%d of %d tokens were made, though the middle is known", fresh, len(ids))
						}
					}
				}
			})
		}
	}
}

// cutRounds is how many texts each tokenizer gets.
func cutRounds(t *testing.T) int {
	n := must.Get(strconv.Atoi(cmp.Or(os.Getenv("KVATLAS_TEST_CUTS"), "1000")))(t)
	return n
}

// TestPieces tokenizes texts that grow, in a pool that knows pieces of them. They
// get the tokens and ends that the tokenizer gives for the whole, and take no more
// work than what is new.
func TestPieces(t *testing.T) {
	for _, m := range realModels(t) {
		t.Run(filepath.Base(m.Model), func(t *testing.T) {
			t.Parallel()
			tok := realTokenizer(t, m.path())
			r := rand.New(rand.NewPCG(1, 2))
			store := newPieces(1 << 20)
			for range 30 {
				text, known := "", 0
				for turn := range 12 {
					text += randomText(r, tok.cuts, 200+r.IntN(1500))
					special := turn%2 == 0
					want, wantEnds := tok.enc.encode(text, special)
					ids, ends, fresh, err := store.tokenize(tok, text, special, crowd)
					if err != nil || !slices.Equal(ids, want) || !slices.Equal(ends, wantEnds) {
						t.Fatalf("turn %d, special %v: %d tokens, %v; want %d of\n%q", turn, special, len(ids), err, len(want), text)
					}
					// All but the last piece are known by the next turn.
					if most := len(ids) - known + 400; tok.cuts.Lines && turn > 0 && fresh > most {
						t.Errorf("turn %d: %d of %d tokens made, %d were known", turn, fresh, len(ids), known)
					}
					known = len(ids)
					again, _, fresh, err := store.tokenize(tok, text, special, crowd)
					if err != nil || !slices.Equal(again, want) || tok.cuts.Lines && turn > 2 && fresh > len(ids)/2 {
						t.Fatalf("turn %d again: %d tokens, %d of them made, %v", turn, len(again), fresh, err)
					}
				}
			}
			if size := store.size(); size > 1<<20 || size < 1<<18 {
				t.Errorf("%d bytes kept", size)
			}
		})
	}
}

// TestFrame finds what real tokenizers put around a text.
func TestFrame(t *testing.T) {
	for _, m := range realModels(t) {
		tok := realTokenizer(t, m.path())
		want := map[string][2][]uint32{
			"meta-llama/Meta-Llama-3-8B-Instruct": {{128000}, {}},
			"Qwen/Qwen3-8B":                       {{}, {}},
			"google-bert/bert-base-uncased":       {{101}, {102}},
		}[m.Model]
		if f := tok.frame; !f.known || !slices.Equal(f.before, want[0]) || !slices.Equal(f.behind, want[1]) {
			t.Errorf("%s: %+v, want %v", m.Model, f, want)
		}
	}
	if f := newFrame(silent{}); f.known {
		t.Errorf("a tokenizer that gives nothing: %+v", f)
	}
}

// lineSplit is a tokenizer.json that is cut at line feeds.
var lineSplit = fmt.Sprintf(`{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
	{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": %q}}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}}`, tokenfile.SplitLlama3)

// TestPieceStore holds the store to its bound and to what it takes.
func TestPieceStore(t *testing.T) {
	s := newPieces(64 << 10)
	words := &tokenizer{enc: byteEncoder{}, cuts: cut.New([]byte(lineSplit), false), frame: frame{known: true}}
	line := strings.Repeat("x", pieceBytes-1) + "\n"
	text := strings.Repeat("a"+line, 4)
	// Equal pieces are one; the last is always made.
	for i, want := range []int{2 * (len(line) + 1), len(line) + 1} {
		ids, _, fresh, err := s.tokenize(words, text, false, crowd)
		if err != nil || len(ids) != len(text) || fresh != want {
			t.Errorf("run %d: %d tokens, %d made, %v; want %d and %d", i, len(ids), fresh, err, len(text), want)
		}
	}
	other := &tokenizer{enc: byteEncoder{}, cuts: words.cuts, frame: words.frame, sum: 1}
	if _, _, fresh, _ := s.tokenize(other, text, false, crowd); fresh == len(line)+1 {
		t.Error("another tokenizer finds the pieces of the first")
	}
	for i := range 1000 {
		if _, _, _, err := s.tokenize(words, strings.Repeat(strconv.Itoa(i)+line, 3), false, crowd); err != nil {
			t.Fatal(err)
		}
		if s.size() > 64<<10 {
			t.Fatalf("%d bytes after %d texts", s.size(), i)
		}
	}
	var sum int64
	for i := range s.shards {
		for _, p := range s.shards[i].lru.Values() {
			sum += p.cost()
		}
	}
	if sum != s.size() || sum == 0 {
		t.Errorf("%d bytes counted, %d there", s.size(), sum)
	}
	if p := pack([]uint32{1, 2}, []int{5, 4}); p != nil {
		t.Error("ends that go back are kept")
	}
	if p := pack([]uint32{1}, []int{1 << 16}); p != nil {
		t.Error("a token of 64 KiB is kept")
	}
	failing := &tokenizer{enc: silent{}, cuts: words.cuts, frame: words.frame}
	if _, _, _, err := s.tokenize(failing, strings.Repeat("b"+line, 3), false, crowd); !errors.Is(err, ErrTokenizer) {
		t.Errorf("a tokenizer that fails: %v", err)
	}
	var none *pieces
	if ids, _, fresh, err := none.tokenize(words, text, false, crowd); err != nil || fresh != len(ids) || none.size() != 0 {
		t.Errorf("no store: %d of %d made, %v", fresh, len(ids), err)
	}
}

// byteEncoder makes a token of each byte.
type byteEncoder struct{ encoder }

func (byteEncoder) check(string) error { return nil }

func (byteEncoder) encode(text string, _ bool) (ids []uint32, ends []int) {
	for i := range len(text) {
		ids, ends = append(ids, uint32(text[i])), append(ends, i+1)
	}
	return ids, ends
}

// silent fails on every text, as the library does.
type silent struct{ encoder }

func (silent) check(string) error { return nil }

func (silent) encode(string, bool) ([]uint32, []int) { return nil, nil }

// synthetic are small tokenizers of kinds that the real ones are not: by their
// names, pre-tokenizer, normalizer and model.
var synthetic = map[string][3]string{
	"sentencepiece, a dummy prefix at the first piece": {
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}`, `null`,
		`{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["▁",-2],["▁a",-3],["a",-3.5],["b",-3],["▁The",-4],["\n",-3],["1",-4],["▁1",-5],["ab",-4],["<",-6],["|",-6],[">",-6]]}`,
	},
	"sentencepiece, a dummy prefix everywhere": {
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false}`, `null`,
		`{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["▁",-2],["▁a",-3],["a",-3.5],["b▁a",-3],["▁The",-4],["\n",-3],["\na",-2]]}`,
	},
	"as Llama 2: the prefix is a normalizer": {
		`null`, `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`,
		`{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"vocab":{"<unk>":0,"▁":1,"a":2,"▁a":3,"b":4,"\n":5,"\na":6,"T":7,"ab":8},"merges":["▁ a","\n a","a b"]}`,
	},
	"byte-level with merges over spaces": {
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`, `null`,
		`{"type":"BPE","unk_token":"<unk>","vocab":{"<unk>":0,"a":1,"Ġ":2,"b":3,"Ċ":4,"aĠ":5,"aĠb":6,"Ċa":7,"ĊĊ":8,"ĊĊa":9,".":10,".Ċ":11,".Ċa":12,"1":13,"Ċ1":14},"merges":["a Ġ","aĠ b","Ċ Ċ","ĊĊ a","Ċ a",". Ċ",".Ċ a","Ċ 1"]}`,
	},
	"byte-level as GPT-2": {
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, `null`,
		`{"type":"BPE","unk_token":"<unk>","vocab":{"<unk>":0,"a":1,"Ġ":2,"b":3,"Ċ":4,"Ġa":5,"ĊĊ":6,".":7,"1":8,"ĠĊ":9},"merges":["Ġ a","Ċ Ċ","Ġ Ċ"]}`,
	},
	"BERT": {
		`{"type":"BertPreTokenizer"}`, `{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`,
		`{"type":"WordPiece","unk_token":"<unk>","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"<unk>":0,"a":1,"##a":2,"b":3,"##b":4,"the":5,"1":6,".":7}}`,
	},
}

// TestSyntheticCutsAreExact is TestCutsAreExact with them, and with added tokens
// of all kinds beside those at which a text can be cut.
func TestSyntheticCutsAreExact(t *testing.T) {
	const added = `[{"id":0,"content":"<unk>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},
		{"id":100,"content":"<|a|>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},
		{"id":101,"content":"<|right|>","special":true,"normalized":false,"lstrip":false,"rstrip":true,"single_word":false},
		{"id":102,"content":"<|left|>","special":true,"normalized":false,"lstrip":true,"rstrip":false,"single_word":false},
		{"id":103,"content":"word","special":false,"normalized":false,"lstrip":false,"rstrip":false,"single_word":true},
		{"id":104,"content":"<|a|>>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},
		{"id":105,"content":"<|b|>","special":false,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},
		{"id":106,"content":"norm","special":false,"normalized":true,"lstrip":true,"rstrip":true,"single_word":false},
		{"id":107,"content":"[c]","special":true,"normalized":false,"lstrip":false,"rstrip":true,"single_word":false}]`
	for name, s := range synthetic {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := []byte(`{"version":"1.0","added_tokens":` + added + `,"pre_tokenizer":` + s[0] + `,"normalizer":` + s[1] + `,"post_processor":null,"decoder":null,"model":` + s[2] + `}`)
			enc := must.Get(newLibrary(data, false))(t)
			defer enc.close()
			tok := &tokenizer{enc: enc, cuts: cut.New(data, false)}
			if got := slices.Sorted(maps.Keys(tok.cuts.Tokens)); !slices.Equal(got, []string{"<unk>", "<|b|>", "<|right|>", "[c]"}) || tok.cuts.Lines {
				t.Errorf("cuts before %q, lines %v", got, tok.cuts.Lines)
			}
			r := rand.New(rand.NewPCG(3, uint64(len(name))))
			more := []string{"<|a|>", "<|left|>", "word", "norm", "NORM", " word", "a", "b", "a b", "\na", ".\na", " a", "\n1"}
			for range cutRounds(t) {
				text := randomText(r, tok.cuts, r.IntN(40))
				for range r.IntN(8) {
					text += more[r.IntN(len(more))] + randomText(r, tok.cuts, r.IntN(10))
				}
				if text != "" {
					tok.cuts.WordsAfter = r.IntN(2) * r.IntN(30)
					comparePieces(t, name, tok, text, 1+r.IntN(3)*r.IntN(20))
				}
			}
		})
	}
}
