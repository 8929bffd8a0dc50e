package tokenfile

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// A tiktoken file has a token a line, its bytes in base64 and its rank, which is
// its number as well. Its tokenizer matches an expression over a text, looks each
// match up, and merges what is not found. Of all neighbours that are a token
// together it merges those of the lowest rank, the first of equal ones.
//
// Such a file is made into the tokenizer.json that gives the same tokens, and goes
// the way of all others from there. A tokenizer.json names the pairs that are merged
// to each token. One pair is enough. A token's bytes are merged in the same way
// wherever they stand, as long as no merge goes over their ends. For what is merged
// next among them depends on them alone. And when the token is made, no merge has
// gone over its ends. So the last pair is always the one that its bytes by
// themselves come to. A token that its bytes do not come to is made by no merge, and
// found as a whole match only (ignore_merges). Ranks need not grow with a token's
// parts for that.
//
// The expression and the special tokens are not in the file, but in the Python code
// of its model. They are known for the models in tiktokens.

// tiktoken is what the code of a family of models adds to its file.
type tiktoken struct {
	file string
	// pattern is the expression. Each covers every character, so that it makes no
	// difference that tiktoken drops what is not matched.
	pattern string
	// normalize says that texts are brought into NFC.
	normalize bool
	// special gives the special tokens by number, of a file with so many tokens.
	special func(config []byte, tokens int) (map[uint32]specialToken, error)
	// maxPart is how many characters between two special tokens are tokenized at
	// once. Of these, maxRun is the most in a row without white space, or of nothing
	// but it. 0 is any.
	maxPart, maxRun int
}

// specialToken is an element of added_tokens_decoder in a tokenizer_config.json.
type specialToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Special    bool   `json:"special"`
}

// tiktokens are the families, in the order in which their files are looked for.
var tiktokens = []tiktoken{
	{
		file: "tiktoken.model", pattern: SplitKimi, special: kimiSpecial,
		maxPart: 400_000, maxRun: 25_000,
	},
	{
		// tokenization_qwen.py, QWenTokenizer: Qwen 1. The expression is that of Qwen 2.
		file: "qwen.tiktoken", pattern: SplitQwen, normalize: true, special: qwenSpecial,
	},
}

// Bounds of a tiktoken file. The largest known one has 200,000 tokens, the longest
// of 128 bytes.
const (
	maxTiktokens     = 1 << 20
	maxTiktokenBytes = 1024
)

// kimiSpecial: 256 numbers behind the tokens, those with names in the
// configuration and the rest reserved.
func kimiSpecial(config []byte, tokens int) (map[uint32]specialToken, error) {
	out := map[uint32]specialToken{}
	for i := uint32(tokens); i < uint32(tokens)+256; i++ {
		out[i] = specialToken{Content: fmt.Sprintf("<|reserved_token_%d|>", i), Special: true}
	}
	var c struct {
		Added map[string]specialToken `json:"added_tokens_decoder"`
	}
	if config == nil {
		return nil, errors.New("there is no tokenizer_config.json beside it, which has the special tokens")
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %w", err)
	}
	if len(c.Added) == 0 {
		return nil, errors.New("tokenizer_config.json has no added_tokens_decoder, which has the special tokens")
	}
	for number, t := range c.Added {
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil || id < uint64(tokens) || id > math.MaxInt32 || t.Content == "" {
			return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %q: %q is no token behind the %d of the file", number, t.Content, tokens)
		}
		out[uint32(id)] = t
	}
	return out, nil
}

// qwenSpecial: the numbers are fixed.
func qwenSpecial(_ []byte, tokens int) (map[uint32]specialToken, error) {
	const first = 151643
	if tokens > first {
		return nil, fmt.Errorf("it has %d tokens; those of Qwen have at most %d", tokens, first)
	}
	names := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
	for i := range 205 {
		names = append(names, fmt.Sprintf("<|extra_%d|>", i))
	}
	out := map[uint32]specialToken{}
	for i, name := range names {
		out[first+uint32(i)] = specialToken{Content: name, Special: true}
	}
	return out, nil
}

// ranks are the tokens of a tiktoken file, by their bytes.
type ranks map[string]uint32

// ReadRanks reads a tiktoken file: the number of each token, by its bytes.
func ReadRanks(data []byte) (map[string]uint32, error) {
	out := map[string]uint32{}
	seen := map[uint32]bool{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		text, rank, ok := bytes.Cut(line, []byte{' '})
		token, err := base64.StdEncoding.AppendDecode(nil, text)
		id, err2 := strconv.ParseUint(string(rank), 10, 31)
		switch {
		case !ok || err != nil || err2 != nil || len(token) == 0:
			return nil, fmt.Errorf("line %d is not a token in base64 and its rank", number)
		case len(token) > maxTiktokenBytes:
			return nil, fmt.Errorf("line %d: a token of %d bytes, the limit is %d", number, len(token), maxTiktokenBytes)
		case len(out) == maxTiktokens:
			return nil, fmt.Errorf("more than %d tokens", maxTiktokens)
		}
		if _, again := out[string(token)]; again || seen[uint32(id)] {
			return nil, fmt.Errorf("line %d: a token or a rank that an earlier line has", number)
		}
		out[string(token)], seen[uint32(id)] = uint32(id), true
	}
	for b := range 256 {
		if _, ok := out[string([]byte{byte(b)})]; !ok {
			return nil, fmt.Errorf("the byte 0x%02x is no token", b)
		}
	}
	return out, nil
}

// lastMerge merges the bytes of a token as tiktoken does, and returns where its last
// two parts meet. It returns 0 if they do not come to one.
func (r ranks) lastMerge(token string) int {
	ends := make([]int, len(token)) // of the parts
	for i := range ends {
		ends[i] = i + 1
	}
	const none = math.MaxUint32
	pair := make([]uint32, len(token)) // rank of a part and the next one
	rank := func(i int) uint32 {
		from := 0
		if i > 0 {
			from = ends[i-1]
		}
		if i+1 < len(ends) {
			if id, ok := r[token[from:ends[i+1]]]; ok {
				return id
			}
		}
		return none
	}
	for i := range pair {
		pair[i] = rank(i)
	}
	for len(ends) > 1 {
		at := 0
		for i := range ends {
			if pair[i] < pair[at] {
				at = i
			}
		}
		if pair[at] == none {
			return 0
		}
		if len(ends) == 2 {
			return ends[0]
		}
		ends, pair = slices.Delete(ends, at, at+1), slices.Delete(pair, at, at+1)
		pair[at] = rank(at)
		if at > 0 {
			pair[at-1] = rank(at - 1)
		}
	}
	return 0
}

// ByteChars are the characters by which byte-level BPE writes bytes: printable ones
// of Latin-1 as they are, the others from U+0100 on.
var ByteChars = func() (out [256]rune) {
	next := rune(256)
	for b := range out {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			out[b] = rune(b)
			continue
		}
		out[b] = next
		next++
	}
	return out
}()

func levelled(token string) string {
	out := make([]rune, 0, 2*len(token))
	for _, b := range []byte(token) {
		out = append(out, ByteChars[b])
	}
	return string(out)
}

// json makes the tokenizer.json of a tiktoken file.
func (k *tiktoken) json(data, config []byte) ([]byte, error) {
	read, err := ReadRanks(data)
	if err != nil {
		return nil, err
	}
	r := ranks(read)
	special, err := k.special(config, len(r))
	if err != nil {
		return nil, err
	}
	byRank := slices.SortedFunc(maps.Keys(r), func(a, b string) int { return int(r[a]) - int(r[b]) })
	vocab := make(map[string]uint32, len(r)+len(special))
	merges := make([][2]string, 0, len(r))
	for _, token := range byRank {
		vocab[levelled(token)] = r[token]
		if len(token) == 1 {
			continue
		}
		if at := r.lastMerge(token); at > 0 {
			merges = append(merges, [2]string{levelled(token[:at]), levelled(token[at:])})
		}
	}
	// The special tokens are in the vocabulary too, since the library takes their
	// numbers from there. No match can be one of them: they are found before.
	var added []map[string]any
	for _, id := range slices.Sorted(maps.Keys(special)) {
		t := special[id]
		if have, ok := vocab[t.Content]; ok && have != id {
			return nil, fmt.Errorf("the special token %q has two numbers, %d and %d", t.Content, have, id)
		}
		if id <= r[byRank[len(byRank)-1]] {
			return nil, fmt.Errorf("the special token %q has the number %d of another one", t.Content, id)
		}
		vocab[t.Content] = id
		added = append(added, map[string]any{
			"id": id, "content": t.Content, "single_word": t.SingleWord, "lstrip": t.LStrip, "rstrip": t.RStrip,
			"normalized": false, "special": t.Special,
		})
	}
	type object = map[string]any
	level := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	file := object{
		"version": "1.0", "added_tokens": added,
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			{"type": "Split", "pattern": object{"Regex": k.pattern}, "behavior": "Isolated", "invert": false}, level,
		}},
		"decoder": level,
		"model":   object{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": true},
	}
	if k.normalize {
		file["normalizer"] = object{"type": "NFC"}
	}
	return toJSON(file), nil
}
