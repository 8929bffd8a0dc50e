package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestMultimodal has an engine publish the events of a chat with two images, as vLLM 0.19
// and later does, and scores the chat itself. It does so with what a caller knows of the
// images, with one of them changed, and with nothing known.
func TestMultimodal(t *testing.T) {
	// The model has no images; one of its reserved tokens is made their marker.
	const marker = "<|reserved_special_token_5|>"
	const markerID = 128010
	const template = `{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{%- for p in m.content %}{%- if p.type == 'image' %}{{- '` + marker + `' }}{%- else %}{{- p.text }}{%- endif %}{%- endfor %}{{- '<|eot_id|>' }}{%- endfor %}`
	dir := tokenizers(t)
	rule := `[{"kind":"image","target":"` + marker + `","repeat":"` + marker + `"}]`
	must.OK(t, os.WriteFile(filepath.Join(dir, filepath.FromSlash(demo.Model), "media.json"), []byte(rule), 0o600))
	r := start(t, "--tokenizers="+dir, "--tokenizer-budget=1m", "--request-timeout=5m")
	ask := func(path string, body, into any) {
		t.Helper()
		data := must.Get(json.Marshal(body))(t)
		req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+path, bytes.NewReader(data)))(t)
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		must.OK(t, err)
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", path, resp.StatusCode, answer, err)
		}
		if err := json.Unmarshal(answer, into); err != nil {
			t.Fatalf("%s: %s: %v", path, answer, err)
		}
	}
	type object = map[string]any
	hashes := []string{strings.Repeat("ab", 32), "a name of an image"}
	request := func(items any) object {
		return object{
			"model": demo.Model, "chat_template": template, "mm_items": items,
			"messages": []object{
				{"role": "user", "content": []object{
					{"type": "text", "text": strings.Repeat("Compare the two pictures. ", 14)},
					{"type": "image_url", "image_url": object{"url": "http://localhost/a.png"}},
					{"type": "text", "text": "This was the first."},
					{"type": "image_url", "image_url": object{"url": "http://localhost/b.png"}, "uuid": hashes[1]},
				}},
				{"role": "assistant", "content": "They differ."},
				{"role": "user", "content": strings.Repeat("How? ", 70)},
			},
		}
	}
	known := []object{{"kind": "image", "hash": hashes[0], "tokens": 100}, {"tokens": 259}}

	type span struct{ Offset, Length int }
	var rendered struct {
		Tokens   []uint32 `json:"token_ids"`
		Features struct {
			Hashes map[string][]string `json:"mm_hashes"`
			Places map[string][]span   `json:"mm_placeholders"`
		}
	}
	ask("/v1/chat/completions/render", request(known), &rendered)
	places := rendered.Features.Places["image"]
	if !slices.Equal(rendered.Features.Hashes["image"], hashes) || len(places) != 2 || places[0].Length != 100 || places[1].Length != 259 {
		t.Fatalf("features %+v", rendered.Features)
	}
	for i, id := range rendered.Tokens {
		in := slices.ContainsFunc(places, func(p span) bool { return i >= p.Offset && i < p.Offset+p.Length })
		if in != (id == markerID) {
			t.Fatalf("token %d is %d", i, id)
		}
	}

	// The engine has blocks of 16. An image is in a block's extra keys when it
	// reaches into it, with the token of the block at which it begins.
	const size = 16
	blocks := len(rendered.Tokens) / size
	ids, extra := make([]int, blocks), make([][]any, blocks)
	for b := range blocks {
		ids[b] = 1000 + b
		for i, p := range places {
			if p.Offset < (b+1)*size && p.Offset+p.Length > b*size {
				extra[b] = append(extra[b], []any{hashes[i], p.Offset - b*size})
			}
		}
	}
	var applied struct{ Applied int }
	ask("/v1/events", object{"pod": "p", "model": demo.Model, "engine": "vllm", "events": []object{{
		"type": "BlockStored", "block_hashes": ids, "parent_block_hash": nil, "token_ids": rendered.Tokens[:blocks*size],
		"block_size": size, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": extra,
	}}}, &applied)
	if applied.Applied != 1 {
		t.Fatalf("%+v", applied)
	}

	type answer struct {
		Scores map[string]float64
		Blocks struct{ Size int }
		Tokens struct {
			Total int
			Exact bool
		}
		Degraded *struct{ Reason string }
	}
	score := func(q object) (a answer) {
		t.Helper()
		ask("/v1/score", q, &a)
		if a.Blocks.Size != 64 {
			t.Fatalf("blocks of %d", a.Blocks.Size)
		}
		return a
	}
	for name, q := range map[string]object{
		"chat": request(known),
		"tokens": {"model": demo.Model, "tokens": rendered.Tokens, "features": object{
			"mm_hashes": rendered.Features.Hashes, "mm_placeholders": object{"image": []object{
				{"offset": places[0].Offset, "length": places[0].Length}, {"offset": places[1].Offset, "length": places[1].Length},
			}},
		}},
	} {
		a := score(q)
		if want := float64(blocks * size / 64); a.Scores["p"] != want || a.Tokens.Total != len(rendered.Tokens) || !a.Tokens.Exact || a.Degraded != nil {
			t.Errorf("%s: %+v, want all %v blocks", name, a, want)
		}
	}
	first, second := places[0].Offset/64, places[1].Offset/64
	if first < 1 || second <= first {
		t.Fatalf("images at %+v", places)
	}
	for _, c := range []struct {
		name     string
		items    any
		want     int
		degraded bool
	}{
		{"another second image", []object{{"hash": hashes[0], "tokens": 100}, {"hash": "another", "tokens": 259}}, second, false},
		{"another first image", []object{{"hash": "another", "tokens": 100}, {"tokens": 259}}, first, false},
		{"only the first known", known[:1], second, true},
		{"only the second known", []any{nil, known[1]}, first, true},
		{"nothing known", nil, first, true},
	} {
		a := score(request(c.items))
		if a.Scores["p"] != float64(c.want) || a.Tokens.Exact == c.degraded || (a.Degraded != nil) != c.degraded || c.degraded && a.Degraded.Reason != "multimodal" {
			t.Errorf("%s: %+v, want %d", c.name, a, c.want)
		}
	}
}
