package tokenpool

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// smallBPE is a tokenizer.json of byte-level BPE with few merges.
func smallBPE(t *testing.T) []byte {
	t.Helper()
	vocab := map[string]int{}
	for c := range 256 {
		r := rune(c)
		switch {
		case c <= ' ':
			r = rune(0x100 + c)
		case c >= 0x7f && c <= 0xa0:
			r = rune(0x100 + 33 + c - 0x7f)
		case c == 0xad:
			r = 0x143
		}
		vocab[string(r)] = c
	}
	merges := []string{}
	for i, pair := range []string{"t h", "th e", "Ġ the", "i n", "a n", "1 2"} {
		left, right, _ := strings.Cut(pair, " ")
		vocab[left+right] = 256 + i
		merges = append(merges, pair)
	}
	type m = map[string]any
	data := must.Get(json.Marshal(m{
		"version": "1.0", "truncation": nil, "padding": nil,
		"added_tokens": []any{m{"id": 300, "content": "<|end|>", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false}},
		"normalizer":   nil,
		"pre_tokenizer": m{"type": "Sequence", "pretokenizers": []any{
			m{"type": "Split", "behavior": "Isolated", "invert": false, "pattern": m{"Regex": tokenfile.SplitLlama3}},
			m{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
		}},
		"post_processor": nil, "decoder": m{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
		"model": m{"type": "BPE", "dropout": nil, "unk_token": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges},
	}))(t)
	return data
}

// fastPool is a pool of one model with a tokenizer that is small. read makes its reference.
func fastPool(t *testing.T, every int, read func([]byte, bool) (encoder, error)) (p *Pool, proven, differed chan error) {
	t.Helper()
	return keepingPool(t, "", every, read)
}

// keepingPool is a fastPool that keeps proofs in a folder.
func keepingPool(t *testing.T, dir string, every int, read func([]byte, bool) (encoder, error)) (p *Pool, proven, differed chan error) {
	t.Helper()
	return poolOf(t, string(smallBPE(t)), dir, every, read)
}

// poolOf is a keepingPool of a model with this tokenizer.json.
func poolOf(t *testing.T, tokenizer, dir string, every int, read func([]byte, bool) (encoder, error)) (p *Pool, proven, differed chan error) {
	t.Helper()
	f := newFakes(t)
	f.models["m"] = tokenizer
	proven, differed = make(chan error, 8), make(chan error, 8)
	p = must.Get(newPool(Config{
		Origin: f, Fast: true, CheckEvery: every, ProofDir: dir,
		Observer: Observer{
			Proven:       func(_ string, err error) { proven <- err },
			Differed:     func(_ string, err error) { differed <- err },
			ProofNotKept: func(_ string, err error) { t.Error(err) },
		},
	}, read))(t)
	t.Cleanup(func() { _ = p.Close() })
	return p, proven, differed
}

func (p *Pool) tokensOf(t *testing.T, text string) []uint32 {
	t.Helper()
	res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Sync})
	if err != nil || !res.Exact {
		t.Fatalf("%v, exact %v", err, res.Exact)
	}
	return res.Tokens
}

func receive(t *testing.T, from chan error) error {
	t.Helper()
	select {
	case err := <-from:
		return err
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		return nil
	}
}

// TestFastIsProven tokenizes with the reference until the proof, and fast from then on.
func TestFastIsProven(t *testing.T) {
	p, proven, differed := fastPool(t, 1, newLibrary)
	want := p.tokensOf(t, "the inn<|end|> 12")
	must.OK(t, receive(t, proven))
	before := p.Stats().Fast
	if got := p.tokensOf(t, "the inn<|end|> 12"); !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	if after := p.Stats().Fast; after == before {
		t.Error("the fast encoder was not used")
	}
	_ = p.Close() // the check of the text ends before
	if s := p.Stats(); s.Checked != 1 || s.Differences != 0 || len(differed) > 0 {
		t.Errorf("%d texts checked, %d differences", s.Checked, s.Differences)
	}
}

// TestFastCharacters is TestFastIsProven with SentencePiece's BPE of real models, cut down.
func TestFastCharacters(t *testing.T) {
	for name, text := range map[string]string{"llama2": "the inn</s> 12 \u00e9 \u2581x", "gemma3": "the inn\n\n<eos> 12 \u00e9 \u2581x"} {
		family := autoFamilies(t)[name]
		p, proven, differed := poolOf(t, string(family.AppendJSON(nil)), "", 1, newLibrary)
		want := p.tokensOf(t, text)
		must.OK(t, receive(t, proven))
		before := p.Stats().Fast
		if got := p.tokensOf(t, text); !slices.Equal(got, want) {
			t.Errorf("%s: tokens %v, want %v", name, got, want)
		}
		if p.Stats().Fast == before {
			t.Errorf("%s: the fast encoder was not used", name)
		}
		if m := p.Models(); len(m) != 1 || m[0].MemoryBytes < 1<<20 {
			t.Errorf("%s: models %+v", name, m)
		}
		_ = p.Close() // the check of the text ends before
		if s := p.Stats(); s.Checked != 1 || s.Differences != 0 || len(differed) > 0 {
			t.Errorf("%s: %d texts checked, %d differences", name, s.Checked, s.Differences)
		}
	}
}

// lying is a reference that gives other tokens for some texts.
type lying struct {
	encoder
	about func(text string) bool
}

func (l lying) encode(text string, special bool) ([]uint32, []int) {
	ids, ends := l.encoder.encode(text, special)
	if len(ids) > 0 && l.about(text) {
		ids = slices.Clone(ids)
		ids[len(ids)-1]++
	}
	return ids, ends
}

// TestFastThatDiffers has a reference that differs on one text of the proof, or on one that
// comes later. The fast encoder is not used again, and what it has made is not used either.
func TestFastThatDiffers(t *testing.T) {
	for name, about := range map[string]func(string) bool{
		"in the proof": func(text string) bool { return strings.Contains(text, "HTTPServer") },
		"later":        func(text string) bool { return strings.Contains(text, "tell no lies") },
	} {
		t.Run(name, func(t *testing.T) {
			p, proven, differed := fastPool(t, 1, func(data []byte, split bool) (encoder, error) {
				e, err := newLibrary(data, split)
				return lying{e, about}, err
			})
			p.tokensOf(t, "the inn")
			const text = "HTTPServer, tell no lies"
			if name == "later" {
				must.OK(t, receive(t, proven))
				p.tokensOf(t, text)
			}
			var d *bpe.DifferenceError
			if err := receive(t, differed); !errors.As(err, &d) || strings.Contains(err.Error(), "lies") {
				t.Fatalf("differed with %v", err)
			}
			if n := p.Stats().Differences; n != 1 {
				t.Errorf("%d differences", n)
			}
			used := p.Stats().Fast
			got := p.tokensOf(t, text)
			e := must.Get(newLibrary(smallBPE(t), false))(t)
			defer e.close()
			want, _ := lying{e, about}.encode(text, true)
			if !slices.Equal(got, want) {
				t.Errorf("tokens %v, want the reference's %v", got, want)
			}
			p.tokensOf(t, "another text")
			if n := p.Stats().Fast; n != used {
				t.Error("the fast encoder is still used")
			}
			if len(proven) > 0 {
				t.Error("it was proven once more")
			}
		})
	}
}

// TestFastGoldens compares tokens and ends with the goldens, and on the texts of the
// vectors, where these are at hand, with the reference.
func TestFastGoldens(t *testing.T) {
	texts := readGolden[goldenText](t, "texts.jsonl.gz")
	var vectors []string
	if file, err := os.Open("../../shared/vectors/texts.jsonl"); err == nil {
		defer func() { _ = file.Close() }()
		for dec := json.NewDecoder(file); dec.More(); {
			var line struct{ Text string }
			must.OK(t, dec.Decode(&line))
			vectors = append(vectors, line.Text)
		}
	}
	for _, m := range realModels(t) {
		data := must.Get(os.ReadFile(filepath.Join(tokenizerDir, filepath.FromSlash(m.Model), "tokenizer.json")))(t)
		tables, err := bpe.Read(data)
		if m.Name == "bert" {
			if !errors.Is(err, bpe.ErrUnsupported) {
				t.Errorf("BERT is no byte-level BPE, but Read says %v", err)
			}
			continue
		}
		must.OK(t, err)
		fast := must.Get(bpe.New(tables))(t)
		left := 0
		lines := readGolden[goldenLine](t, m.Name+".jsonl.gz")
		for i, text := range texts {
			ids, ends, ok := fast.Encode(text.Text)
			if !ok {
				left++
				continue
			}
			if err := lines[i].Plain.check(ids); err != nil || digest(ends) != lines[i].Plain.Ends {
				t.Errorf("%s, text %d: %v, ends %v", m.Model, text.ID, err, ends)
			}
		}
		e := must.Get(newLibrary(data, false))(t)
		for i, text := range vectors {
			if err := fast.Compare(&proven{encoder: e}, text); err != nil {
				t.Errorf("%s, vector %d: %v", m.Model, i, err)
			}
		}
		e.close()
		t.Logf("%s: %d goldens, of which %d are left to the reference, %d vectors", m.Model, len(texts), left, len(vectors))
		if left > len(texts)/2 {
			t.Error("too many texts are left to the reference")
		}
	}
}
