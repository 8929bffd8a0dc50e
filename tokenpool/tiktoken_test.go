package tokenpool

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// tiktokenFile makes a tiktoken file of the vocabulary of a byte-level BPE's
// tokenizer.json, whose numbers are ranks.
func tiktokenFile(t testing.TB, model string) string {
	t.Helper()
	realModels(t) // is it there
	data := must.Get(os.ReadFile(filepath.Join(tokenizerDir, filepath.FromSlash(model), tokenfile.TokenizerFile)))(t)
	var file struct {
		Model struct {
			Vocab map[string]uint32 `json:"vocab"`
		} `json:"model"`
	}
	must.OK(t, json.Unmarshal(data, &file))
	byteOf := map[rune]byte{}
	for b, c := range &tokenfile.ByteChars {
		byteOf[c] = byte(b)
	}
	r := map[string]uint32{}
	for token, id := range file.Model.Vocab {
		var b []byte
		for _, c := range token {
			b = append(b, byteOf[c])
		}
		r[string(b)] = id
	}
	return fileOf(r)
}

// fileOf writes ranks as tiktoken does.
func fileOf(r map[string]uint32) string {
	var b strings.Builder
	for _, token := range slices.SortedFunc(maps.Keys(r), func(x, y string) int { return cmp.Compare(r[x], r[y]) }) {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), r[token])
	}
	return b.String()
}

// TestTiktokenGolden holds files of real vocabularies to what the library tiktoken
// and the models' Python code give (scripts/make-tiktoken-goldens.py). It does so
// through all that a text passes in a pool: pieces, stores and the cuts of long
// texts. KVATLAS_TEST_TIKTOKEN is a folder of further ones.
func TestTiktokenGolden(t *testing.T) {
	const golden = "../testdata/tokens"
	root := t.TempDir()
	writeFile(t, tiktokenFile(t, "meta-llama/Meta-Llama-3-8B-Instruct"), root, "kimi", "tiktoken.model")
	config := must.Get(os.ReadFile(filepath.Join(golden, "tiktoken-kimi-config.json")))(t)
	writeFile(t, string(config), root, "kimi", tokenfile.ConfigFile)
	writeFile(t, tiktokenFile(t, "Qwen/Qwen3-8B"), root, "qwen", "qwen.tiktoken")
	dir := must.Get(NewDirectory(root))(t)
	folders := map[string][]goldenText{golden: readGolden[goldenText](t, "texts.jsonl.gz")}
	if more := os.Getenv("KVATLAS_TEST_TIKTOKEN"); more != "" {
		folders[more] = nil
	}
	pools := map[string]*Pool{}
	for folder := range folders {
		p := must.Get(New(Config{Origin: dir, MaxTextBytes: 4 << 20}))(t)
		must.End(t, p.Close)
		pools[folder] = p
		for _, model := range []string{"kimi", "qwen"} {
			must.Get(p.Tokens(t.Context(), prompt.Request{Model: model, Text: "a", Mode: prompt.Sync}))(t)
		}
		for _, m := range p.Models() {
			if m.File != "tiktoken.model" && m.File != "qwen.tiktoken" || m.Vocabulary < 128_256 || len(m.SHA256) != 64 || m.MemoryBytes < 10<<20 {
				t.Errorf("%+v", m)
			}
			t.Logf("%s: %d MiB, loaded in %v", m.Name, m.MemoryBytes>>20, m.LoadTook)
		}
	}
	t.Parallel() // not before: MemoryBytes has in it what others allocate and free meanwhile
	for folder, texts := range folders {
		texts = append(texts, readGoldenOf[goldenText](t, filepath.Join(folder, "tiktoken-texts.jsonl.gz"))...)
		p := pools[folder]
		for _, model := range []string{"kimi", "qwen"} {
			lines := readGoldenOf[goldenTokens](t, filepath.Join(folder, "tiktoken-"+model+".jsonl.gz"))
			if len(lines) != len(texts) || len(texts) < 100 {
				t.Fatalf("%s: %d lines for %d texts", model, len(lines), len(texts))
			}
			for i, text := range texts {
				res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: text.Text, Mode: prompt.Sync})
				if err == nil {
					err = lines[i].check(res.Tokens)
				}
				if err != nil {
					t.Errorf("%s, %s text %d of %d bytes: %v", model, text.Kind, text.ID, len(text.Text), err)
				}
			}
			ids := []uint32{lastSpecial[model], 1, 2}
			if text, err := p.Text(t.Context(), model, ids, false); err != nil || !strings.HasPrefix(text, "<|im_end|>") {
				t.Errorf("%s: text %q, %v", model, text, err)
			}
		}
	}
}

var lastSpecial = map[string]uint32{"kimi": 128002, "qwen": 151645}

// mergeAsTiktoken is tiktoken's way, step by step.
func mergeAsTiktoken(r map[string]uint32, text string) (ids []uint32) {
	if id, ok := r[text]; ok {
		return []uint32{id}
	}
	var parts []string
	for i := range len(text) {
		parts = append(parts, text[i:i+1])
	}
	for {
		best, at := ^uint32(0), -1
		for i := range len(parts) - 1 {
			if id, ok := r[parts[i]+parts[i+1]]; ok && id < best {
				best, at = id, i
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	for _, p := range parts {
		ids = append(ids, r[p])
	}
	return ids
}

// TestTiktokenMerges has vocabularies made at random. So the ranks of parts are above
// those of the whole, there are tokens that no merge comes to, and many ways to each.
func TestTiktokenMerges(t *testing.T) {
	const letters = "abc"
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := map[string]uint32{}
		for b := range 256 {
			r[string([]byte{byte(b)})] = uint32(b)
		}
		word := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = letters[rnd.IntN(len(letters))]
			}
			return string(b)
		}
		for id := uint32(256); len(r) < 256+120; id++ {
			if w := word(2 + rnd.IntN(5)); r[w] == 0 {
				r[w] = id
			}
		}
		data, _, err := tokenfile.Files{Tokenizer: []byte(fileOf(r)), Name: "qwen.tiktoken"}.JSON()
		must.OK(t, err)
		e := must.Get(newLibrary(data, false))(t)
		for range 500 {
			text := word(1 + rnd.IntN(24))
			if got, _ := e.encode(text, false); !slices.Equal(got, mergeAsTiktoken(r, text)) {
				t.Errorf("seed %d: %q is %v, want %v", seed, text, got, mergeAsTiktoken(r, text))
			}
		}
		e.close()
	}
}

// TestSlowOnly asks for models that have their tokenizers in other forms.
func TestSlowOnly(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"tokenizer.model", "spiece.model", "vocab.txt", "merges.txt", "glm.tiktoken", "tekken.json"} {
		writeFile(t, "x", root, "slow", f, f)
	}
	writeFile(t, "{}", root, "empty", modelFile)
	dir := must.Get(NewDirectory(root))(t)
	h := newFakeHub(t)
	hub := h.client(HubConfig{})
	p := must.Get(New(Config{Origin: Chain(dir, hub)}))(t)
	defer func() { _ = p.Close() }()
	for _, f := range []string{"tokenizer.model", "spiece.model", "vocab.txt", "merges.txt", "glm.tiktoken", "tekken.json"} {
		_, err := p.Tokens(t.Context(), prompt.Request{Model: "slow/" + f, Text: "x", Mode: prompt.Sync})
		if !errors.Is(err, ErrUnsupported) || !errors.Is(err, ErrUnknownModel) || !strings.Contains(err.Error(), f) || !strings.Contains(err.Error(), "save_pretrained") {
			t.Errorf("%s: %v", f, err)
		}
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "empty", Text: "x", Mode: prompt.Sync}); errors.Is(err, ErrUnsupported) || !errors.Is(err, ErrUnknownModel) {
		t.Errorf("nothing there: %v", err)
	}
	// A hub that says that the model is there.
	h.set(func(h *fakeHub) { h.status, h.errCode = []int{404, 404, 404}, "EntryNotFound" })
	_, err := hub.Fetch(t.Context(), "gguf")
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "nor tiktoken.model or qwen.tiktoken") {
		t.Errorf("another form on the hub: %v", err)
	}
}

// TestHubTiktoken takes tiktoken files from the hub, and from its cache when the hub is
// away. It takes one from nowhere when it is not what it should be.
func TestHubTiktoken(t *testing.T) {
	r := map[string]uint32{}
	for b := range 256 {
		r[string([]byte{byte(b)})] = uint32(255 - b)
	}
	file := fileOf(r)
	h := newFakeHub(t)
	h.files["/kimi/resolve/main/tiktoken.model"] = file
	h.files["/kimi/resolve/main/"+tokenfile.ConfigFile] = `{"added_tokens_decoder":{"256":{"content":"[BOS]"}}}`
	h.files["/page/resolve/main/tiktoken.model"] = "<html>sign in</html>"
	cfg := HubConfig{CacheDir: t.TempDir()}
	ask := func(o Origin, model string) (prompt.Result, error) {
		p := must.Get(New(Config{Origin: o}))(t)
		defer func() { _ = p.Close() }()
		return p.Tokens(t.Context(), prompt.Request{Model: model, Text: "[BOS]Hi", Mode: prompt.Sync})
	}
	want := []uint32{256, 255 - 'H', 255 - 'i'}
	if res, err := ask(h.client(cfg), "kimi"); err != nil || !slices.Equal(res.Tokens, want) {
		t.Errorf("from the hub: %v, %v", res, err)
	}
	if _, err := ask(h.client(HubConfig{Attempts: 1}), "page"); !errors.Is(err, tokenfile.ErrLoad) {
		t.Errorf("a page: %v", err)
	}
	h.srv.Close()
	if res, err := ask(h.client(HubConfig{CacheDir: cfg.CacheDir, Attempts: 1}), "kimi"); err != nil || !slices.Equal(res.Tokens, want) {
		t.Errorf("from the cache: %v, %v", res, err)
	}
	cfg.Offline = true
	if res, err := ask(h.client(cfg), "kimi"); err != nil || !slices.Equal(res.Tokens, want) {
		t.Errorf("offline: %v, %v", res, err)
	}
}
