package request

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// oracle reads a body slowly, with encoding/json and the rules that it lacks.
func oracle(body []byte) (*decoded, error) {
	if !json.Valid(body) || !utf8.Valid(body) || loneSurrogate(body) {
		return nil, fmt.Errorf("not JSON in UTF-8")
	}
	raw, err := members(body)
	if err != nil {
		return nil, err
	}
	d := &decoded{}
	for _, n := range ScoreNames {
		v, ok := raw[n]
		if !ok {
			continue
		}
		delete(raw, n)
		if string(v) == "null" {
			continue
		}
		d.Seen = append(d.Seen, n)
		if err := d.set(n, v); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
	}
	for n := range raw {
		if !EngineSkips.Has(n) {
			return nil, fmt.Errorf("unknown field %s", n)
		}
	}
	return d, nil
}

// members are the fields of an object. None can be there twice.
func members(object []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("not an object: %v", t)
	}
	raw := map[string]json.RawMessage{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		n, _ := name.(string)
		if _, twice := raw[n]; twice {
			return nil, fmt.Errorf("%s twice", n)
		}
		raw[n] = v
	}
	return raw, nil
}

// slowly decodes v; elements of lists that are null are refused.
func slowly[T any](v []byte) (out T, err error) {
	err = json.Unmarshal(v, &out)
	return out, err
}

func listOf[T any](v []byte) (out []T, err error) {
	ptrs, err := slowly[[]*T](v)
	for _, p := range ptrs {
		if p == nil {
			return nil, fmt.Errorf("null")
		}
		out = append(out, *p)
	}
	return out, err
}

// kinds decodes the lists of each kind of features.
func kinds[T any](v []byte) (map[string][]T, error) {
	out := map[string][]T{}
	if v == nil {
		return out, nil
	}
	raw, err := slowly[map[string]json.RawMessage](v)
	if err != nil || raw == nil {
		return nil, fmt.Errorf("no object: %w", err)
	}
	for kind, l := range raw {
		if !slices.Contains([]string{"audio", "image", "video", "vision_chunk"}, kind) || string(l) == "null" {
			return nil, fmt.Errorf("kind %s", kind)
		}
		if out[kind], err = listOf[T](l); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// part is a number of a placeholder, 0 if it is not there.
func part(v []byte) (int, error) {
	if v == nil {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(v), 10, 64)
	if err != nil || n > 1<<20 {
		return 0, fmt.Errorf("%s is no number", v)
	}
	return int(n), nil
}

func (d *decoded) set(name string, v []byte) (err error) {
	switch name {
	case "model":
		if d.Model, err = slowly[string](v); err == nil {
			info := store.ModelInfo{Name: d.Model, BlockSize: 1, Scheme: "native"}
			err = info.Validate()
		}
	case "prompt":
		d.Given, err = slowPrompts(v)
	case "system", "input":
		if v[0] != '"' && v[0] != '[' {
			return fmt.Errorf("neither a string nor an array")
		}
		d.chat(name, string(v))
	case "thinking", "output_config", "reasoning":
		_, err = slowly[map[string]json.RawMessage](v)
		d.chat(name, string(v))
	case "instructions":
		var text string
		text, err = slowly[string](v)
		d.chat(name, text)
	case "mm_processor_kwargs", "media_io_kwargs":
		var m map[string]json.RawMessage
		m, err = slowly[map[string]json.RawMessage](v)
		d.Processed = d.Processed || len(m) > 0
	case "truncate_prompt_tokens":
		if string(v) == "-1" {
			return nil
		}
		var n uint64
		if n, err = slowly[uint64](v); err == nil && (n == 0 || n > math.MaxInt64) {
			err = fmt.Errorf("nothing left")
		}
		d.Cut.Keep = int(n)
	case "truncation_side":
		var side string
		side, err = slowly[string](v)
		switch side {
		case "left":
			d.Cut.Side = scorer.CutLeft
		case "right":
			d.Cut.Side = scorer.CutRight
		default:
			return fmt.Errorf("no side")
		}
	case "lora_path":
		d.Path, err = slowText(v)
	case "input_ids":
		d.Tokens, err = listOf[uint32](v)
	case "prompts":
		d.Prompts, err = listOf[string](v)
	case "messages", "tools", "documents":
		_, err = slowly[[]json.RawMessage](v)
		d.chat(name, string(v))
	case "mm_items":
		items, err := slowly[[]json.RawMessage](v)
		if err != nil || len(items) > 1024 {
			return fmt.Errorf("%d items, %w", len(items), err)
		}
		total := 0
		for _, item := range items {
			var m prompt.Medium
			fields := map[string]json.RawMessage{}
			if string(item) != "null" {
				if fields, err = members(item); err != nil {
					return err
				}
			}
			for name, v := range fields {
				switch {
				case !slices.Contains([]string{"kind", "hash", "tokens", "token_ids"}, name):
					return fmt.Errorf("unknown field %s", name)
				case string(v) == "null":
				case name == "kind":
					m.Kind, err = slowly[string](v)
				case name == "hash":
					m.Hash, err = slowly[string](v)
				case name == "tokens":
					var n uint64
					n, err = strconv.ParseUint(string(v), 10, 31)
					m.Tokens = int(n)
				default:
					m.TokenIDs, err = listOf[uint32](v)
				}
				if err != nil {
					return err
				}
			}
			if m.Tokens > 0 && len(m.TokenIDs) > 0 || len(m.Hash) > 1024 {
				return fmt.Errorf("tokens")
			}
			if total += m.Tokens + len(m.TokenIDs); total > 1<<20 {
				return fmt.Errorf("too many tokens")
			}
			d.Media = append(d.Media, m)
		}
		return nil
	case "features":
		if string(v) == "null" {
			return nil
		}
		f, err := slowly[map[string]json.RawMessage](v)
		if err != nil {
			return err
		}
		hashes, err := kinds[string](f["mm_hashes"])
		if err != nil {
			return err
		}
		places, err := kinds[map[string]json.RawMessage](f["mm_placeholders"])
		if err != nil {
			return err
		}
		for _, kind := range []string{"audio", "image", "video", "vision_chunk"} {
			if len(hashes[kind]) != len(places[kind]) {
				return fmt.Errorf("unequal")
			}
			var taken []blockkey.Range
			for i, id := range hashes[kind] {
				h, ok := blockkey.ObjectHash(id)
				offset, err := part(places[kind][i]["offset"])
				length, err2 := part(places[kind][i]["length"])
				at := blockkey.Range{Start: offset, End: offset + length}
				if !ok || len(id) > 1024 || err != nil || err2 != nil || length == 0 {
					return fmt.Errorf("no object")
				}
				if slices.ContainsFunc(taken, func(r blockkey.Range) bool { return r.Start < at.End && at.Start < r.End }) {
					return fmt.Errorf("overlap")
				}
				taken = append(taken, at)
				d.Objects = append(d.Objects, blockkey.Object{Hash: h, Ranges: []blockkey.Range{at}})
			}
		}
		return nil
	case "chat_template_kwargs":
		_, err = slowly[map[string]json.RawMessage](v)
		d.chat(name, string(v))
	case "add_generation_prompt", "continue_final_message":
		value := ""
		if name == "continue_final_message" {
			value = "false"
		}
		if string(v) != "null" {
			var b bool
			b, err = slowBool(v)
			value = fmt.Sprint(b)
		}
		d.chat(name, value)
	case "chat_template", "reasoning_effort":
		var text string
		if string(v) != "null" {
			text, err = slowly[string](v)
		}
		d.chat(name, text)
	case "tokens":
		d.Tokens, err = listOf[uint32](v)
	case "tokens_b64":
		var s string
		if s, err = slowly[string](v); err == nil {
			var raw []byte
			raw, err = unpack(s)
			for ; len(raw) > 0 && err == nil; raw = raw[4:] {
				d.Tokens = append(d.Tokens, binary.LittleEndian.Uint32(raw))
			}
		}
	case "block_keys":
		var ss []string
		ss, err = listOf[string](v)
		for _, s := range ss {
			k, kerr := strconv.ParseUint(s, 16, 64)
			if kerr != nil || len(s) != 16 {
				return fmt.Errorf("no key")
			}
			d.Keys = append(d.Keys, blockkey.Key(k))
		}
	case "pods":
		d.Pods, err = listOf[string](v)
		for _, p := range d.Pods {
			if e := store.CheckPodName(p); e != nil {
				return e
			}
		}
	case "top":
		var n int32
		if n, err = slowly[int32](v); err == nil && n < 0 {
			err = fmt.Errorf("below 0")
		}
		d.Top = int(n)
	case "strategy":
		var s string
		if s, err = slowly[string](v); err == nil {
			d.Strategy, err = scorer.ParseStrategy(s)
			if s == "" {
				err = fmt.Errorf("empty")
			}
		}
	case "lora":
		d.LoRA, err = slowly[string](v)
	case "cache_salt":
		d.Salt, err = slowText(v)
	case "explain":
		d.Explain, err = slowly[bool](v)
	case "wait_ms":
		var ms uint64
		if ms, err = slowly[uint64](v); err == nil && ms > 10_000 {
			err = fmt.Errorf("too long")
		}
		d.Wait = max(1, time.Duration(ms)*time.Millisecond)
	case "mode":
		var s string
		if s, err = slowly[string](v); err == nil {
			i := slices.Index([]string{"wait", "async", "sync"}, s)
			if i < 0 {
				return fmt.Errorf("no mode")
			}
			d.Mode = prompt.Mode(i)
		}
	case "early_exit":
		d.Early, err = slowly[bool](v)
	case "add_special_tokens":
		var add bool
		add, err = slowBool(v)
		d.NoSpecial = !add
	default:
		err = fmt.Errorf("the oracle does not know %s", name)
	}
	return err
}

// slowPrompts decodes the prompts of a completion.
func slowPrompts(v []byte) (p Completion, err error) {
	if v[0] == '"' {
		one, err := slowly[string](v)
		return Completion{Texts: []string{one}}, err
	}
	several, err := slowly[[]json.RawMessage](v)
	if err != nil || len(several) == 0 {
		return p, fmt.Errorf("no prompts: %w", err)
	}
	switch p.List = true; several[0][0] {
	case '"':
		p.Texts, err = listOf[string](v)
	case '[':
		total := 0
		for _, l := range several {
			if l[0] != '[' {
				return p, fmt.Errorf("no list")
			}
			ids, err := listOf[uint32](l)
			if err != nil {
				return p, err
			}
			total += len(ids)
			p.Tokens = append(p.Tokens, ids)
		}
		if total > 1<<20 {
			return p, fmt.Errorf("too many tokens")
		}
	default:
		ids, err := listOf[uint32](v)
		return Completion{Tokens: [][]uint32{ids}}, err
	}
	if len(several) > 64 {
		return p, fmt.Errorf("too many prompts")
	}
	return p, err
}

// slowBool decodes what pydantic takes for a bool.
func slowBool(v []byte) (bool, error) {
	word := strings.ToLower(strings.Trim(string(v), `"`))
	i := slices.Index([]string{"false", "true", "0", "1", "f", "t", "no", "yes", "n", "y", "off", "on"}, word)
	if quoted := v[0] == '"'; i < 0 || !quoted && i > 3 {
		return false, fmt.Errorf("no bool")
	}
	return i%2 == 1, nil
}

// slowText decodes a string, or a list of one or none; null means none.
func slowText(v []byte) (string, error) {
	if v[0] != '[' {
		return slowly[string](v)
	}
	l, err := slowly[[]*string](v)
	switch {
	case err != nil || len(l) > 1:
		return "", fmt.Errorf("%d texts: %w", len(l), err)
	case len(l) == 0 || l[0] == nil:
		return "", nil
	}
	return *l[0], nil
}

// unpack is base64 by the letter of RFC 4648: groups of 4 digits, padding
// right or absent, unused bits zero.
func unpack(s string) ([]byte, error) {
	digits := strings.TrimRight(s, "=")
	if pad := len(s) - len(digits); pad > 0 && (len(s)%4 != 0 || pad > 2) {
		return nil, fmt.Errorf("padding")
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	var out []byte
	var acc, n uint
	for _, c := range []byte(digits) {
		i := strings.IndexByte(alphabet, c)
		if i < 0 {
			return nil, fmt.Errorf("digit %q", c)
		}
		acc, n = acc<<6|uint(i), n+6
		if n >= 8 {
			n -= 8
			out = append(out, byte(acc>>n))
			acc &= 1<<n - 1
		}
	}
	if len(digits)%4 == 1 || acc != 0 || len(out)%4 != 0 {
		return nil, fmt.Errorf("rest")
	}
	return out, nil
}

// loneSurrogate finds half of a surrogate pair in valid JSON.
func loneSurrogate(b []byte) bool {
	unit := func(i int) (rune, bool) {
		if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(b[i+2:i+6]), 16, 16)
		return rune(v), err == nil
	}
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		r, ok := unit(i)
		if !ok {
			i++
			continue
		}
		if utf16.IsSurrogate(r) {
			low, ok := unit(i + 6)
			if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
				return true
			}
			i += 6
		}
		i += 5
	}
	return false
}
