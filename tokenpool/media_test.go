package tokenpool

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/internal/media"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// mediaTemplate puts texts as they are, and Qwen's markers between vision tokens.
const mediaTemplate = `{%- for m in messages %}{%- for p in m.content %}{%- if p.type == 'text' %}{{- p.text }}{%- elif p.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- elif p.type == 'audio' %}{{- '<|AUDIO|>' }}{%- else %}{{- '<|video|>' }}{%- endif %}{%- endfor %}{%- endfor %}`

// Added tokens of mediaModel, behind 300 words.
const (
	visionStart = 300 + iota
	visionEnd
	imagePad
	audioPad
	videoPad
)

// mediaModel writes a model whose words w0, w1 ... are the tokens 0, 1 ...
func mediaModel(t testing.TB, root, name, rules string) {
	t.Helper()
	vocab := map[string]int{}
	for i := range 300 {
		vocab[fmt.Sprint("w", i)] = i
	}
	var added []map[string]any
	for i, content := range []string{"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|AUDIO|>", "<|video|>"} {
		vocab[content] = visionStart + i
		added = append(added, map[string]any{
			"id": visionStart + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
		})
	}
	data := must.Get(json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": added, "pre_tokenizer": map[string]any{"type": "WhitespaceSplit"},
		"model": map[string]any{"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
	}))(t)
	writeFile(t, string(data), root, name, tokenfile.TokenizerFile)
	writeFile(t, mediaTemplate, root, name, "chat_template.jinja")
	if rules != "" {
		writeFile(t, rules, root, name, media.File)
	}
}

// upTo are the words from one number to another, and their tokens.
func wordsOf(from, to int) (text string, ids []uint32) {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "w%d ", i)
		ids = append(ids, uint32(i))
	}
	return b.String(), ids
}

// chatOf is a chat of one message with these parts: texts, or "<kind>", or
// "<kind uuid>".
func chatOf(parts ...string) *prompt.Chat {
	var list []map[string]any
	for _, p := range parts {
		if !strings.HasPrefix(p, "<") || strings.HasPrefix(p, "<|") {
			list = append(list, map[string]any{"type": "text", "text": p})
			continue
		}
		kind, uuid, named := strings.Cut(strings.Trim(p, "<>"), " ")
		m := map[string]any{"type": kind}
		if named {
			m["uuid"] = uuid
		}
		list = append(list, m)
	}
	data, err := json.Marshal([]map[string]any{{"role": "user", "content": list}})
	if err != nil {
		panic(err)
	}
	return &prompt.Chat{Messages: data}
}

func mediaPool(t testing.TB) *Pool {
	t.Helper()
	root := t.TempDir()
	mediaModel(t, root, "m", "")
	mediaModel(t, root, "own", `[
		{"kind":"video","target":"<|video|>","before":"w1 w2","repeat":"w3","after":"w4"},
		{"kind":"image","target":"<|vision_start|><|image_pad|><|vision_end|>","repeat":"<|image_pad|>"}]`)
	mediaModel(t, root, "bad", `[{"kind":"image","target":"<|nothing|>","repeat":"w1"}]`)
	dir := must.Get(NewDirectory(root))(t)
	p := must.Get(New(Config{Origin: dir}))(t)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestMedia(t *testing.T) {
	p := mediaPool(t)
	n := func(id uint32, n int) []uint32 { return slices.Repeat([]uint32{id}, n) }
	seq := slices.Concat[[]uint32]
	one := func(ids ...uint32) []uint32 { return ids }
	for _, c := range []struct {
		name   string
		model  string
		chat   *prompt.Chat
		media  []prompt.Medium
		want   []uint32
		placed []prompt.PlacedMedium
		exact  bool
	}{
		{
			"two images and an audio", "m", chatOf("w5 w6", "<image>", "w7", "<audio>", "<image>", "w8"),
			[]prompt.Medium{{Hash: "a", Tokens: 3}, {Kind: "audio", Hash: "b", Tokens: 2}, {Hash: "c", Tokens: 1}},
			seq(one(5, 6, visionStart), n(imagePad, 3), one(visionEnd, 7), n(audioPad, 2), one(visionStart, imagePad, visionEnd, 8)),
			[]prompt.PlacedMedium{{Kind: "image", Hash: "a", Offset: 3, Length: 3}, {Kind: "audio", Hash: "b", Offset: 8, Length: 2}, {Kind: "image", Hash: "c", Offset: 11, Length: 1}}, true,
		},
		{
			"named by their parts", "m", chatOf("<image x>", "<image y>"), []prompt.Medium{{Tokens: 1}, {Hash: "z", Tokens: 1}},
			one(visionStart, imagePad, visionEnd, visionStart, imagePad, visionEnd),
			[]prompt.PlacedMedium{{Kind: "image", Hash: "x", Offset: 1, Length: 1}, {Kind: "image", Hash: "z", Offset: 4, Length: 1}}, true,
		},
		{
			"tokens given", "m", chatOf("w1", "<image>", "w2"), []prompt.Medium{{Hash: "a", TokenIDs: one(9, imagePad, 10)}},
			one(1, visionStart, 9, imagePad, 10, visionEnd, 2), []prompt.PlacedMedium{{Kind: "image", Hash: "a", Offset: 2, Length: 3}}, true,
		},
		{
			"the second is not known", "m", chatOf("w1", "<image>", "w2", "<image>", "w3"), []prompt.Medium{{Hash: "a", Tokens: 2}},
			seq(one(1, visionStart), n(imagePad, 2), one(visionEnd, 2, visionStart)), []prompt.PlacedMedium{{Kind: "image", Hash: "a", Offset: 2, Length: 2}}, false,
		},
		{
			"nor the first", "m", chatOf("w1", "<image>", "w2", "<image>", "w3"), []prompt.Medium{{}, {Hash: "a", Tokens: 2}},
			one(1, visionStart), nil, false,
		},
		{"a hash without a number", "m", chatOf("w1", "<image x>", "w2"), nil, one(1, visionStart), nil, false},
		{"a number without a hash", "m", chatOf("w1", "<image>", "w2"), []prompt.Medium{{Tokens: 5}}, one(1, visionStart), nil, false},
		{
			// As vLLM: the first marker is the first medium's.
			"a marker in a text", "m", chatOf("w1 <|image_pad|>", "<image>", "w2"), []prompt.Medium{{Hash: "a", Tokens: 2}},
			seq(one(1), n(imagePad, 2), one(visionStart, imagePad, visionEnd, 2)), []prompt.PlacedMedium{{Kind: "image", Hash: "a", Offset: 1, Length: 2}}, true,
		},
		{"no rule for a kind", "m", chatOf("w1", "<video>", "<image>"), []prompt.Medium{{Hash: "a", Tokens: 5}, {Hash: "b", Tokens: 5}}, nil, nil, false},
		{
			"a model's own rules", "own", chatOf("w9", "<video>", "<image>", "<audio>", "w8"),
			[]prompt.Medium{{Hash: "v", Tokens: 5}, {Hash: "i", Tokens: 2}, {Hash: "a", Tokens: 1}},
			one(9, 1, 2, 3, 3, 4, imagePad, imagePad, audioPad, 8),
			[]prompt.PlacedMedium{{Kind: "video", Hash: "v", Offset: 1, Length: 5}, {Kind: "image", Hash: "i", Offset: 6, Length: 2}, {Kind: "audio", Hash: "a", Offset: 8, Length: 1}}, true,
		},
		{"too few tokens for a rule", "own", chatOf("w9", "<video>"), []prompt.Medium{{Hash: "v", Tokens: 3}}, one(9), nil, false},
	} {
		for range 2 {
			res, err := p.Tokens(t.Context(), prompt.Request{Model: c.model, Chat: c.chat, Media: c.media, Mode: prompt.Sync})
			behind := prompt.BehindMedia
			if c.exact {
				behind = ""
			}
			if err != nil || !slices.Equal(res.Tokens, c.want) || !slices.Equal(res.Media, c.placed) || res.Exact != c.exact || res.Behind != behind {
				t.Errorf("%s: %v\ngot  %v %v %v %q\nwant %v %v %v", c.name, err, res.Tokens, res.Media, res.Exact, res.Behind, c.want, c.placed, c.exact)
			}
		}
	}
	for _, c := range []struct {
		chat  *prompt.Chat
		media []prompt.Medium
		says  string
	}{
		{chatOf("w1"), []prompt.Medium{{Hash: "a", Tokens: 1}}, "1 are described, the chat has 0"},
		{chatOf("<image>"), []prompt.Medium{{}, {}}, "2 are described, the chat has 1"},
		{chatOf("<image>"), []prompt.Medium{{Kind: "audio", Hash: "a", Tokens: 1}}, `number 0 is described as "audio", the chat has "image" there`},
		{chatOf("<image>"), []prompt.Medium{{Hash: "a", Tokens: -1}}, "has -1 tokens"},
		{chatOf("<image>", "<image>"), []prompt.Medium{{Hash: "a", Tokens: media.MaxTokens}, {Hash: "a", Tokens: 1}}, "number 1 has 1 tokens"},
	} {
		if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Chat: c.chat, Media: c.media, Mode: prompt.Sync}); !errors.Is(err, ErrMedia) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error %v, want one that says %q", err, c.says)
		}
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "w1", Media: []prompt.Medium{{}}}); !errors.Is(err, ErrMedia) {
		t.Errorf("media of a text: %v", err)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "bad", Chat: chatOf("w1"), Mode: prompt.Sync}); !errors.Is(err, chat.ErrFiles) || !strings.Contains(err.Error(), "media.json: rule 0") {
		t.Errorf("a bad media.json: %v", err)
	}
	if res, err := p.Tokens(t.Context(), prompt.Request{Model: "bad", Text: "w1 w2", Mode: prompt.Sync}); err != nil || len(res.Tokens) != 2 {
		t.Errorf("a text beside a bad media.json: %v, %v", res, err)
	}
}

// TestMediaAsVLLM renders a chat with two images whose tokens are those of vLLM's
// vectors, and comes to its block hashes.
func TestMediaAsVLLM(t *testing.T) {
	p := mediaPool(t)
	var parts []string
	var all []uint32
	for _, span := range [][2]int{{0, 20}, {60, 100}, {130, 256}} {
		text, ids := wordsOf(span[0], span[1])
		parts, all = append(parts, text), append(all, ids...)
	}
	_, first := wordsOf(20, 60)
	_, second := wordsOf(100, 130)
	// The template's own vision tokens stand around a marker; vLLM's vectors have none.
	req := chatOf(parts[0], "<image imgsha_aaaa>", parts[1], "<image>", parts[2])
	req.ChatTemplate = strings.NewReplacer("<|vision_start|>", "", "<|vision_end|>", "").Replace(mediaTemplate)
	res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Chat: req, Mode: prompt.Sync, Media: []prompt.Medium{{TokenIDs: first}, {Hash: "imgsha_bbbb", TokenIDs: second}}})
	if err != nil || !res.Exact || len(res.Tokens) != 256 || len(all) != 186 {
		t.Fatalf("%+v, %v", res, err)
	}
	var objects []blockkey.VLLMObject
	for _, m := range res.Media {
		objects = append(objects, blockkey.VLLMObject{ID: m.Hash, Offset: m.Offset, Length: m.Length})
	}
	f := must.Get(os.Open("../blockkey/testdata/vllm_hashes.json.gz"))(t)
	defer func() { _ = f.Close() }()
	z := must.Get(gzip.NewReader(f))(t)
	var file struct {
		Vectors []struct {
			Versions  []string `json:"versions_run"`
			Algorithm string   `json:"algo"`
			Seed      *string  `json:"PYTHONHASHSEED"`
			BlockSize int      `json:"block_size"`
			Case      string   `json:"case"`
			Hashes    []string `json:"hashes"`
		} `json:"vectors"`
	}
	must.OK(t, json.NewDecoder(z).Decode(&file))
	checked := 0
	for _, v := range file.Vectors {
		if v.Case != "mm" || v.Seed == nil || v.Algorithm != "sha256" && v.Algorithm != "sha256_cbor" {
			continue
		}
		var minor int
		if _, err := fmt.Sscanf(v.Versions[0], "0.%d", &minor); err != nil || minor < 12 {
			continue
		}
		algorithm := map[string]blockkey.VLLMAlgorithm{"sha256": blockkey.VLLMSHA256, "sha256_cbor": blockkey.VLLMSHA256CBOR}[v.Algorithm]
		c := blockkey.NewVLLMChain(algorithm, *v.Seed, v.BlockSize)
		switch {
		case minor < 19:
			c.Keys = blockkey.VLLMKeys11
		case minor < 31:
			c.Keys = blockkey.VLLMKeys19
		}
		got := c.Append(nil, res.Tokens, objects...)
		if len(got) != len(v.Hashes) {
			t.Fatalf("vLLM %s: %d blocks, want %d", v.Versions[0], len(got), len(v.Hashes))
		}
		for i := range got {
			if got[i].String() != v.Hashes[i] {
				t.Errorf("vLLM %s, %s: block %d is %s, want %s", v.Versions[0], v.Algorithm, i, got[i], v.Hashes[i])
				break
			}
		}
		checked++
	}
	if checked < 6 {
		t.Errorf("only %d vectors compared", checked)
	}
}
