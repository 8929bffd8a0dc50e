package bpe

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

type object = map[string]any

// families are real tokenizers, cut down to some hundred tokens.
func families(t *testing.T) map[string]object {
	t.Helper()
	file := must.Get(os.Open("../../../testdata/autotokenizer/families.json.gz"))(t)
	defer func() { _ = file.Close() }()
	z := must.Get(gzip.NewReader(file))(t)
	var out map[string]object
	must.OK(t, json.NewDecoder(z).Decode(&out))
	return out
}

func toJSON(t *testing.T, v any) []byte {
	t.Helper()
	data := must.Get(json.Marshal(v))(t)
	return data
}

// addMerges adds merges to a tokenizer, and what they make to its vocabulary.
func addMerges(file object, pairs ...[2]string) {
	model := file["model"].(object)
	vocab, merges := model["vocab"].(object), model["merges"].([]any)
	lines := len(merges) > 0
	if lines {
		_, lines = merges[0].(string)
	}
	for _, p := range pairs {
		for _, s := range []string{p[0], p[1], p[0] + p[1]} {
			if _, ok := vocab[s]; !ok {
				vocab[s] = 1000 + len(vocab)
			}
		}
		if lines {
			merges = append(merges, p[0]+" "+p[1])
		} else {
			merges = append(merges, []any{p[0], p[1]})
		}
	}
	model["merges"] = merges
}

// added is an added token with some of its flags set.
func added(content string, set ...string) object {
	a := object{"id": 0, "content": content, "special": true}
	for _, flag := range []string{"single_word", "lstrip", "rstrip", "normalized"} {
		a[flag] = slices.Contains(set, flag)
	}
	return a
}

var (
	barStage     = object{"type": "Replace", "pattern": object{"String": " "}, "content": bar}
	prependStage = object{"type": "Prepend", "prepend": bar}
	splitStage   = object{"type": "Split", "pattern": object{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}
)

func metaspace(scheme string, split bool) object {
	return object{"type": "Metaspace", "replacement": bar, "prepend_scheme": scheme, "split": split}
}

// TestSpaces compares random texts with the reference for every way in which files of
// SentencePiece's BPE write spaces. It has added tokens of every kind, and tokens that
// reach over spaces.
func TestSpaces(t *testing.T) {
	stages := map[string][2]any{
		"legacy":  {object{"type": "Sequence", "normalizers": []any{prependStage, barStage}}, nil},
		"Gemma":   {barStage, splitStage},
		"replace": {object{"type": "Sequence", "normalizers": []any{barStage}}, nil},
		"first":   {nil, metaspace("first", false)},
		"always":  {nil, metaspace("always", false)},
		"never":   {nil, metaspace("never", false)},
		"split":   {nil, metaspace("always", true)},
		"old":     {nil, object{"type": "Metaspace", "replacement": bar, "add_prefix_space": true}},
	}
	tokens := []any{
		added("<|user|>", "rstrip"), added("<mask>", "lstrip"), added("<both>", "lstrip", "rstrip"), added("<norm>", "normalized"),
		added("a b", "normalized"), added("<nl>", "lstrip", "normalized"), added("<nr>", "rstrip", "normalized"), added(bar + "x" + bar),
		added("the", "normalized"), added(bar+bar+"q", "normalized"), added("<|user|>2"), added("é"),
	}
	reaching := [][2]string{
		{bar, bar}, {bar + bar, bar + bar}, {">", bar}, {">" + bar, "<"}, {"e", bar}, {"e" + bar, "a"}, {"的", "一"}, {"的一", bar}, {bar, "的"}, {"!", "的"}, {"の", "の"}, {"のの", "のの"},
	}
	for _, family := range []string{"llama2", "gemma3"} {
		for name, s := range stages {
			for _, variant := range []string{"", ", added tokens", ", reaching over spaces"} {
				file := families(t)[family]
				file["normalizer"], file["pre_tokenizer"] = s[0], s[1]
				switch variant {
				case "":
				case ", added tokens":
					// Gemma has line feeds among its own, which none may stand beside that
					// takes white space.
					file["added_tokens"] = tokens
				default:
					addMerges(file, reaching...)
				}
				b := load(t, family+", "+name+variant, toJSON(t, file))
				for _, text := range fixedTexts {
					if d := b.differ(text); d != "" {
						t.Errorf("%.2000s", d)
					}
				}
				compareRandom(t, b, 30<<10)
			}
		}
	}
}

// compareRandom compares tokens and ends on random texts of so many bytes in all.
func compareRandom(t *testing.T, b both, size int) {
	t.Helper()
	c := b.fast.NewCorpus(uint64(os.Getpid()), b.ref.decode)
	for done := 0; done < size; {
		text := c.Text(1 + c.rnd.IntN(400))
		done += len(text)
		if d := b.differ(text); d != "" {
			t.Fatalf("seed %d: %s", os.Getpid(), d)
		}
	}
}

// TestCharsAreCut looks at where a text is cut, and that it is wherever it can be.
func TestCharsAreCut(t *testing.T) {
	file := families(t)["llama2"]
	addMerges(file, [2]string{">", bar}, [2]string{"的", "一"})
	b := load(t, "llama2", toJSON(t, file))
	for text, want := range map[string][]string{
		"the the":         {"the", " the"},
		"> the":           {"> the"},
		"的一的的":            {"的一", "的", "的"},
		"1234":            {"1", "2", "3", "4"},
		"\x01é\U0001F44D": {"\x01", "é", "\U0001F44D"},
	} {
		w := append([]byte(text), make([]byte, padding)...)
		var got []string
		for i := 0; i < len(text); {
			j, _, alone := b.fast.chars.next(w, i, len(text))
			got = append(got, text[i:j])
			if chars := []rune(text[i:j]); alone != (len(chars) == 1) {
				t.Errorf("%q: alone is %v", text[i:j], alone)
			}
			i = j
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: parts %q, want %q", text, got, want)
		}
	}
}

// TestGoldenTexts compares the goldens' texts with the reference, for each family.
func TestGoldenTexts(t *testing.T) {
	file := must.Get(os.Open("../../../testdata/tokens/texts.jsonl.gz"))(t)
	defer func() { _ = file.Close() }()
	z := must.Get(gzip.NewReader(file))(t)
	var texts []string
	for dec := json.NewDecoder(z); dec.More(); {
		var line struct{ Text string }
		must.OK(t, dec.Decode(&line))
		texts = append(texts, line.Text)
	}
	var loaded []both
	for name, file := range families(t) {
		if name != "bert" && name != "claude" { // WordPiece, NFKC
			loaded = append(loaded, load(t, name, toJSON(t, file)))
		}
	}
	for _, b := range loaded {
		for _, text := range texts {
			if d := b.differ(text); d != "" {
				t.Errorf("%.2000s", d)
			}
		}
	}
}

// TestStrips compares random texts for byte-level BPE with added tokens that take white space.
func TestStrips(t *testing.T) {
	file := families(t)["llama3"]
	file["added_tokens"] = []any{
		added("<|im_start|>", "lstrip", "rstrip"), added("<|im_end|>", "rstrip"), added("<|l|>", "lstrip"), added("<|n|>", "normalized", "lstrip"), added("<|n|>2", "normalized"),
	}
	b := load(t, "llama3", toJSON(t, file))
	compareRandom(t, b, 200<<10)
}

// TestRefused changes a file in ways that leave it to the reference.
func TestRefused(t *testing.T) {
	for name, edit := range map[string]func(file, model object){
		"NFKC": func(f, _ object) { f["normalizer"] = object{"type": "NFKC"} },
		"another character": func(f, _ object) {
			f["normalizer"] = object{"type": "Replace", "pattern": object{"String": " "}, "content": "_"}
		},
		"an expression": func(f, _ object) {
			f["normalizer"] = object{"type": "Replace", "pattern": object{"Regex": " "}, "content": bar}
		},
		"another prefix": func(f, _ object) {
			f["normalizer"].(object)["normalizers"].([]any)[0] = object{"type": "Prepend", "prepend": "_"}
		},
		"no spaces":          func(f, _ object) { f["normalizer"] = nil },
		"another split":      func(f, _ object) { f["pre_tokenizer"] = object{"type": "Digits"} },
		"Metaspace and more": func(f, _ object) { f["pre_tokenizer"] = metaspace("first", false) },
		"a scheme": func(f, _ object) {
			f["normalizer"], f["pre_tokenizer"] = nil, metaspace("second", false)
		},
		"dropout":               func(_, m object) { m["dropout"] = 0.1 },
		"whole words":           func(_, m object) { m["ignore_merges"] = true },
		"no bytes":              func(_, m object) { m["byte_fallback"] = false },
		"a byte that lacks":     func(_, m object) { delete(m["vocab"].(object), "<0x80>") },
		"no space":              func(_, m object) { delete(m["vocab"].(object), bar); m["merges"] = []any{} },
		"a byte that is merged": func(f, _ object) { addMerges(f, [2]string{"<0x80>", "<0x81>"}) },
		"a byte that is made":   func(f, _ object) { addMerges(f, [2]string{"<0x4", "1>"}) },
		"a word":                func(f, _ object) { f["added_tokens"] = []any{added("<a>", "single_word")} },
		"white space that is taken": func(f, _ object) {
			f["added_tokens"] = []any{added("<a>", "rstrip"), added("\n\n")}
		},
		"two that are one": func(f, _ object) {
			f["added_tokens"] = []any{added("a b", "normalized"), added("a"+bar+"b", "normalized")}
		},
	} {
		file := families(t)["llama2"]
		edit(file, file["model"].(object))
		tables, err := Read(toJSON(t, file))
		if err == nil {
			_, err = New(tables)
		}
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "cannot unmarshal") {
			t.Errorf("%s: %v, which is about the test", name, err)
		}
	}
}

// TestSpaceCut asks whether texts can be cut before spaces, with added tokens and merges that
// stand in the way.
func TestSpaceCut(t *testing.T) {
	gemma := func(f object) { f["normalizer"], f["pre_tokenizer"] = barStage, nil }
	for name, c := range map[string]struct {
		edit   func(f object)
		tokens []any
		put    bool
		not    bool
	}{
		"legacy":              {put: true},
		"Gemma":               {edit: gemma},
		"Metaspace":           {edit: func(f object) { f["normalizer"], f["pre_tokenizer"] = nil, metaspace("first", false) }, put: true},
		"no space is put":     {edit: func(f object) { f["normalizer"], f["pre_tokenizer"] = nil, metaspace("never", true) }},
		"harmless tokens":     {tokens: []any{added("<a> b", "lstrip"), added(bar + bar), added("<|b|>", "rstrip")}, put: true},
		"normalized":          {edit: gemma, tokens: []any{added("<a>", "normalized")}},
		"a space in one":      {tokens: []any{added("<a b>")}, not: true},
		"a bar in one":        {edit: gemma, tokens: []any{added("<a"+bar+"b>", "normalized")}, not: true},
		"a space before one":  {tokens: []any{added(" <a>")}, not: true},
		"a bar before one":    {edit: gemma, tokens: []any{added(bar+"<a>", "normalized")}, not: true},
		"a letter before one": {tokens: []any{added("a>")}, not: true},
		"one takes it":        {tokens: []any{added("<a", "rstrip")}, not: true},
		"a prefix before one": {tokens: []any{added("<a>", "normalized")}, not: true},
		"a token over it":     {edit: func(f object) { addMerges(f, [2]string{"e", bar}) }, not: true},
		"a token over signs":  {edit: func(f object) { addMerges(f, [2]string{">", bar}) }, put: true},
	} {
		file := families(t)["llama2"]
		if c.edit != nil {
			c.edit(file)
		}
		file["added_tokens"] = append([]any{added("</s>")}, c.tokens...)
		b := load(t, name, toJSON(t, file))
		cut, ok := b.fast.SpaceCut()
		if ok == c.not || cut.Put != c.put {
			t.Errorf("%s: %+v, %v", name, cut, ok)
		}
		if want, _ := b.ref.encode(" "); ok && !c.put && cut.Token != want[0] {
			t.Errorf("%s: a space is token %d, want %d", name, cut.Token, want)
		}
	}
	if _, ok := load(t, "llama3", toJSON(t, families(t)["llama3"])).fast.SpaceCut(); ok {
		t.Error("byte-level BPE is cut before spaces")
	}
}
