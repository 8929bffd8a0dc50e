package tokenpool

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/internal/cut"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// TestCaseTokensOfTokenizerConfig changes one of Llama 3's two files in each of the ways in
// which fine-tuned models have them. It asks for the tokens of transformers' AutoTokenizer.
// The tokenizers are told apart by what they give: none has the prefix store's entries or the
// pieces of another.
func TestCaseTokensOfTokenizerConfig(t *testing.T) {
	realModels(t)
	const text = "a<|eot_id|>  \n\n b <|start_header_id|>user<|end_header_id|>\n\n hi <|my_tool|> <|mine|> <|mine2|> tool tools tool. retool"
	split := []uint32{83739, 6095, 91, 29}
	tokens := func(tool, mine []uint32) []uint32 {
		return slices.Concat([]uint32{128000, 64, 128009, 19124, 293, 220, 128006, 882, 128007, 271, 15960}, tool, mine,
			[]uint32{83739, 6095, 17, 91, 29, 5507, 7526, 5507, 13, 312, 14506})
	}
	asText := []uint32{83739, 2465, 23627, 91, 29}
	root := t.TempDir()
	for _, c := range []struct {
		name         string
		file, config func(m map[string]any)
		want         []uint32
	}{
		{name: "zz/as-it-is", want: tokens(asText, split)},
		{
			name:   "zz/additional",
			config: func(m map[string]any) { m["additional_special_tokens"] = []string{"<|my_tool|>"} },
			want:   tokens([]uint32{220, 128256}, split),
		},
		{
			name:   "zz/extra",
			config: func(m map[string]any) { m["extra_special_tokens"] = []string{"<|my_tool|>", "<|mine|>"} },
			want:   tokens([]uint32{220, 128256}, []uint32{220, 128257}),
		},
		{
			name: "zz/decoder",
			config: func(m map[string]any) {
				m["added_tokens_decoder"].(map[string]any)["128256"] = map[string]any{
					"content": "<|mine|>", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true,
				}
			},
			want: tokens(asText, []uint32{220, 128256}),
		},
		{
			name: "zz/flags",
			file: func(m map[string]any) {
				for _, token := range m["added_tokens"].([]any) {
					switch token := token.(map[string]any); token["content"] {
					case "<|eot_id|>", "<|end_header_id|>":
						token["rstrip"] = true
					case "<|start_header_id|>":
						token["lstrip"] = true
					}
				}
			},
			want: tokens(asText, split),
		},
	} {
		dir := filepath.Join(root, c.name)
		must.OK(t, os.MkdirAll(dir, 0o755))
		for name, edit := range map[string]func(map[string]any){tokenfile.TokenizerFile: c.file, tokenfile.ConfigFile: c.config} {
			data, err := os.ReadFile(filepath.Join(tokenizerDir, "meta-llama", "Meta-Llama-3-8B-Instruct", name))
			must.OK(t, err)
			if edit != nil {
				var m map[string]any
				dec := json.NewDecoder(bytes.NewReader(data))
				dec.UseNumber()
				must.OK(t, dec.Decode(&m))
				edit(m)
				if data, err = json.Marshal(m); err != nil {
					t.Fatal(err)
				}
			}
			must.OK(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
		}
		origin := must.Get(NewDirectory(root))(t)
		p := must.Get(New(Config{Origin: origin}))(t)
		got, err := p.Tokens(t.Context(), prompt.Request{Model: c.name, Text: text, Mode: prompt.Sync})
		if err != nil || !got.Exact || !slices.Equal(got.Tokens, c.want) {
			t.Errorf("%s: %v\ngot  %d\nwant %d", c.name, err, got.Tokens, c.want)
		}
		_ = p.Close()
	}
}

// TestSplitSpecialTokens: a flag of the configuration that changes no file's tokens gives
// another fingerprint, and no cut at what is text now.
func TestSplitSpecialTokens(t *testing.T) {
	qwen := autoFamilies(t)["qwen3"]
	family := qwen.AppendJSON(nil)
	plain, split, err := tokenfile.Files{Tokenizer: family}.JSON()
	if err != nil || split || !bytes.Equal(plain, family) {
		t.Fatalf("split %v, %v; the file as it is: %v", split, err, bytes.Equal(plain, family))
	}
	again, split, err := tokenfile.Files{Tokenizer: family, Config: []byte(`{"split_special_tokens":true}`)}.JSON()
	if err != nil || !split || !bytes.Equal(again, family) {
		t.Fatalf("split %v, %v", split, err)
	}
	if sumOf(plain, false) == sumOf(again, true) {
		t.Error("both have one fingerprint")
	}
	const text = "a b<|im_start|>c d"
	if at := cut.New(plain, false).Next(text, 1); at != 3 {
		t.Errorf("cut at %d, want 3", at)
	}
	if at := cut.New(again, true).Next(text, 1); at != len(text) {
		t.Errorf("cut at %d, though the token is text there", at)
	}
}
