package tokenpool

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// tokenizerDir is where scripts/fetch-tokenizers.sh puts real tokenizers.
var tokenizerDir = filepath.Join("..", ".cache", "tokenizers")

// goldenTokens are the tokens that the reference library gives, as
// testdata/tokens/README.md describes them.
type goldenTokens struct {
	N    int    `json:"n"`
	IDs  string `json:"ids"`
	Ends string `json:"ends"`
}

// check compares tokens with the golden ones.
func (g goldenTokens) check(ids []uint32) error {
	if len(ids) != g.N || digest(ids) != g.IDs {
		return fmt.Errorf("%d tokens with hash %s, want %d with %s", len(ids), digest(ids), g.N, g.IDs)
	}
	return nil
}

// digest is the hash of the goldens.
func digest[T uint32 | int](numbers []T) string {
	data := make([]byte, 0, 4*len(numbers))
	for _, n := range numbers {
		data = binary.LittleEndian.AppendUint32(data, uint32(n))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

type goldenText struct {
	ID   int    `json:"id"`
	Kind string `json:"kind"`
	Text string `json:"text"`
}

type goldenLine struct {
	ID      int          `json:"id"`
	Plain   goldenTokens `json:"plain"`
	Special goldenTokens `json:"special"`
}

// of is the golden for a text with or without special tokens around it.
func (l goldenLine) of(special bool) goldenTokens {
	if special {
		return l.Special
	}
	return l.Plain
}

// readGolden reads a file of JSON lines.
func readGolden[T any](t testing.TB, name string) []T {
	t.Helper()
	return readGoldenOf[T](t, filepath.Join("..", "testdata", "tokens", name))
}

// readGoldenOf reads a file of JSON lines anywhere.
func readGoldenOf[T any](t testing.TB, name string) []T {
	t.Helper()
	f := must.Get(os.Open(name))(t)
	defer func() { _ = f.Close() }()
	z := must.Get(gzip.NewReader(f))(t)
	var out []T
	dec := json.NewDecoder(bufio.NewReader(z))
	for dec.More() {
		var v T
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("%s, line %d: %v", name, len(out)+1, err)
		}
		out = append(out, v)
	}
	return out
}

// realModel is one of the goldens' tokenizers.
type realModel struct {
	Name   string `json:"name"`
	Model  string `json:"model"`
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
}

// realModels returns the goldens' tokenizers, once it has made sure that they
// are there.
func realModels(t testing.TB) []realModel {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real tokenizers, which -short leaves out")
	}
	models := must.Get(verifiedModels())(t)
	return models
}

// verifiedModels reads the manifest and the tokenizers' files, once for all tests.
var verifiedModels = sync.OnceValues(func() ([]realModel, error) {
	data, err := os.ReadFile(filepath.Join("..", "testdata", "tokens", "manifest.json"))
	if err != nil {
		return nil, err
	}
	var manifest struct {
		Texts      int         `json:"texts"`
		Tokenizers []realModel `json:"tokenizers"`
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, err
	}
	if len(manifest.Tokenizers) < 3 || manifest.Texts < 2000 {
		return nil, fmt.Errorf("the manifest names %d tokenizers and %d texts", len(manifest.Tokenizers), manifest.Texts)
	}
	for _, m := range manifest.Tokenizers {
		content, err := os.ReadFile(m.path())
		if err != nil {
			return nil, fmt.Errorf("%w\nThe tests need real tokenizers: `make test` prepares them (scripts/fetch-tokenizers.sh does only that); -short leaves these tests out", err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != m.SHA256 {
			return nil, fmt.Errorf("%s is not the tokenizer.json that the goldens were made with: `make test` prepares the right one", m.Model)
		}
	}
	return manifest.Tokenizers, nil
})

// path is where its tokenizer.json is.
func (m realModel) path() string {
	return filepath.Join(tokenizerDir, filepath.FromSlash(m.Model), tokenfile.TokenizerFile)
}

// realPool returns a pool over the real tokenizers, to be closed by the caller.
func realPool(t testing.TB, cfg Config) *Pool {
	t.Helper()
	dir := must.Get(NewDirectory(tokenizerDir))(t)
	cfg.Origin = dir
	p := must.Get(New(cfg))(t)
	return p
}

// TestGoldenEnds compares tokens and offsets straight from the tokenizer.
func TestGoldenEnds(t *testing.T) {
	models := realModels(t)
	texts := readGolden[goldenText](t, "texts.jsonl.gz")
	for _, m := range models {
		t.Run(m.Name, func(t *testing.T) {
			lines := readGolden[goldenLine](t, m.Name+".jsonl.gz")
			e := realTokenizer(t, m.path()).enc
			for i, text := range texts {
				for _, special := range []bool{false, true} {
					g := lines[i].of(special)
					ids, ends, err := tokenize(e, text.Text, special)
					if err == nil {
						err = g.check(ids)
					}
					if err != nil {
						t.Errorf("text %d (%s), special %v: %v", text.ID, text.Kind, special, err)
					} else if digest(ends) != g.Ends {
						t.Errorf("text %d (%s), special %v: the ends are others", text.ID, text.Kind, special)
					}
				}
			}
		})
	}
}

// TestGolden asks for every text, with and without special tokens, cold and hot, with each
// prefix store. It asks one model in all three modes, and the others, which a mode does not
// know apart, in one.
func TestGolden(t *testing.T) {
	models := realModels(t)
	texts := readGolden[goldenText](t, "texts.jsonl.gz")
	lines := map[string][]goldenLine{}
	for _, m := range models {
		lines[m.Name] = readGolden[goldenLine](t, m.Name+".jsonl.gz")
		if len(lines[m.Name]) != len(texts) {
			t.Fatalf("%s: %d lines for %d texts", m.Name, len(lines[m.Name]), len(texts))
		}
	}
	for _, s := range stores()[1:] {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			g := goldenRun{texts: texts, store: s.open(t)}
			g.pool = realPool(t, Config{Queue: 2 * len(texts), Store: g.store, Observer: Observer{
				StoreRefused: func(model string, err error) { t.Errorf("%s: refused by the store: %v", model, err) },
			}})
			defer func() { _ = g.pool.Close() }()
			for n, m := range models {
				for _, mode := range []prompt.Mode{prompt.Wait, prompt.Async, prompt.Sync} {
					if n > 0 && mode != prompt.Wait {
						continue
					}
					t.Run(m.Name+"/"+modeNames[mode], func(t *testing.T) {
						g.store.Purge()
						g.run(t, m.Model, mode, false, lines[m.Name])
						g.run(t, m.Model, mode, true, lines[m.Name])
					})
				}
			}
		})
	}
}

var modeNames = map[prompt.Mode]string{prompt.Wait: "wait", prompt.Async: "async", prompt.Sync: "sync"}

type goldenRun struct {
	texts []goldenText
	store prefixcache.Store
	pool  *Pool
}

// run asks for all texts once. If hot, all of them have been asked for before.
func (g goldenRun) run(t *testing.T, model string, mode prompt.Mode, hot bool, lines []goldenLine) {
	fromStore, blank := 0, 0
	for i, text := range g.texts {
		for _, special := range []bool{false, true} {
			// A long budget: how fast the machine is, is not the question.
			res, err := g.pool.Tokens(t.Context(), prompt.Request{
				Model: model, Text: text.Text, NoSpecialTokens: !special, Mode: mode, Budget: 5 * time.Minute,
			})
			golden := lines[i].of(special)
			isBlank := golden.N == 0 && text.Text != "" // never stored
			if isBlank {
				blank++
			}
			switch {
			case err != nil:
			case mode == prompt.Async && !res.Exact && (!hot || isBlank):
				// What a text begins with may be more tokens than the text:
				// "<|" and "<|eot_id|>".
				if res.Bytes > len(text.Text) || len(res.Tokens) > res.Bytes+1 || res.Behind != prompt.BehindAsync {
					err = fmt.Errorf("%d tokens of %d bytes, behind %q", len(res.Tokens), res.Bytes, res.Behind)
				}
			case !res.Exact || res.Bytes != len(text.Text) || res.Behind != "":
				err = fmt.Errorf("exact %v, %d of %d bytes, behind %q", res.Exact, res.Bytes, len(text.Text), res.Behind)
			default:
				err = golden.check(res.Tokens)
			}
			if err != nil {
				t.Errorf("hot %v, text %d (%s), special %v: %v", hot, text.ID, text.Kind, special, err)
			}
			if res.Source == prompt.FromPrefixStore && res.Exact {
				fromStore++
			}
		}
	}
	// Until all is done that goes on behind.
	g.pool.settle()
	if want := 2*len(g.texts) - blank; hot && fromStore != want {
		t.Errorf("%d answers from the store, want %d", fromStore, want)
	}
}
