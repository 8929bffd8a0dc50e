package tokenpool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/daulet/tokenizers"

	"github.com/kvatlas/kvatlas/tokenpool/internal/cut"
	// libtokenizers.a is linked from the project's own folder.
	_ "github.com/kvatlas/kvatlas/tokenpool/internal/link"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// encoder is a tokenizer in memory. The tests of queueing and loading use one
// that they can hold up; the other one is library.
type encoder interface {
	// encode returns the tokens of text and the byte offset at which each
	// ends. It returns none when it fails: see tokenize.
	encode(text string, special bool) (ids []uint32, ends []int)
	// check returns ErrTooLong for a text that would take more memory than there is.
	check(text string) error
	// decode returns the text of tokens, cut at the first NUL in it.
	decode(ids []uint32, skipSpecial bool) string
	// vocabulary is the number of different tokens.
	vocabulary() int
	// close gives the memory back. No call may follow, or run.
	close()
}

// library is the encoder of github.com/daulet/tokenizers.
type library struct{ t *tokenizers.Tokenizer }

// newLibrary reads the bytes of a tokenizer.json. With split, special tokens in a text
// are text.
func newLibrary(data []byte, split bool) (encoder, error) {
	data, err := plain(data)
	if err != nil {
		return nil, err
	}
	if hasNUL(data) {
		return nil, tokenfile.Wrong(tokenfile.TokenizerFile, "has a NUL outside of its tokens", tokenfile.CureReplace)
	}
	var options []tokenizers.TokenizerOption
	if split {
		options = append(options, tokenizers.WithEncodeSpecialTokens())
	}
	t, err := tokenizers.FromBytes(data, options...)
	if err != nil {
		return nil, refusedBy(err)
	}
	return library{t}, nil
}

func (l library) encode(text string, special bool) ([]uint32, []int) {
	e := l.t.EncodeWithOptions(text, special, tokenizers.WithReturnOffsets())
	if len(e.Offsets) != len(e.IDs) {
		return nil, nil
	}
	ends := make([]int, len(e.Offsets))
	for i, o := range e.Offsets {
		ends[i] = int(o[1])
	}
	return e.IDs, ends
}

func (l library) check(string) error { return nil }

func (l library) decode(ids []uint32, skipSpecial bool) string { return l.t.Decode(ids, skipSpecial) }

func (l library) vocabulary() int { return int(l.t.VocabSize()) }

func (l library) close() { _ = l.t.Close() } // always nil

// parted is an encoder of a family that tokenizes long texts in parts.
type parted struct {
	encoder
	parts cut.Parts
}

func (p parted) encode(text string, special bool) (ids []uint32, ends []int) {
	from := 0
	for _, to := range append(p.parts.Cuts(text), len(text)) {
		got, at := p.encoder.encode(text[from:to], special)
		if len(got) == 0 && from < to {
			return nil, nil // it has failed
		}
		if from == 0 {
			ids, ends = got, at
		} else {
			for _, e := range at {
				ends = append(ends, from+e)
			}
			ids = append(ids, got...)
		}
		from = to
	}
	return ids, ends
}

// check implements encoder, for each part of a text.
func (p parted) check(text string) error {
	if p.encoder.check(text) == nil {
		return nil
	}
	from := 0
	for _, to := range append(p.parts.Cuts(text), len(text)) {
		if err := p.encoder.check(text[from:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// tokenize runs e over text. The library swallows errors and panics of the
// tokenizer and returns no tokens. That is also the right answer to some texts
// that are not empty. BERT's normalizer strips white space and control
// characters, and a vocabulary may know none of the characters.
//
// Both can be told apart, since a failure leaves nothing of the whole text. The
// tokenizer did not fail if the same text gets special tokens around it. Nor did
// it if the text with a letter behind it gives tokens.
func tokenize(e encoder, text string, special bool) ([]uint32, []int, error) {
	if err := e.check(text); err != nil {
		return nil, nil, err
	}
	ids, ends := e.encode(text, special)
	if len(ids) > 0 || text == "" {
		return ids, ends, nil
	}
	if probe, _ := e.encode(text, true); len(probe) > 0 {
		return nil, nil, nil
	}
	if probe, _ := e.encode(text+" a", false); len(probe) > 0 {
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("%w: it gave no tokens for a text of %d bytes", ErrTokenizer, len(text))
}

// limits reports whether a tokenizer.json may have truncation or padding set, judged by the
// words alone. In a vocabulary a number stands behind them.
func limits(data []byte) bool {
	for _, key := range []string{`"truncation"`, `"padding"`} {
		for rest := data; ; {
			i := bytes.Index(rest, []byte(key))
			if i < 0 {
				break
			}
			rest = bytes.TrimLeft(rest[i+len(key):], " \t\r\n")
			if value, ok := bytes.CutPrefix(rest, []byte(":")); ok {
				value = bytes.TrimLeft(value, " \t\r\n")
				if !bytes.HasPrefix(value, []byte("null")) && (len(value) == 0 || value[0] < '0' || value[0] > '9') {
					return true
				}
			}
		}
	}
	return false
}

// hasNUL reports whether a tokenizer.json has a NUL elsewhere than in its tokens. The
// library repeats in an error what it does not know, and ends the process over a NUL in
// an error.
func hasNUL(data []byte) bool {
	nul := []byte(`\u0000`)
	if !bytes.Contains(data, nul) {
		return false
	}
	file, err := tokenfile.ReadObject(data)
	if err != nil {
		return true
	}
	file.Drop("added_tokens")
	if model, err := tokenfile.ReadObject(file.Get("model")); err == nil {
		model.Drop("vocab")
		file.Set("model", model.AppendJSON(nil))
	}
	return bytes.Contains(file.AppendJSON(nil), nul)
}

// plain returns a tokenizer.json without its truncation and padding. Files of
// embedding models carry both, and the library would cut every text at, say,
// 256 tokens without a word. Transformers, and with it the engines, switches
// both off.
func plain(data []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("tokenizer.json is not a JSON object")
	}
	if !limits(data) {
		return data, nil
	}
	out := make([]byte, 0, len(data))
	from := int64(0)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("tokenizer.json: %w", err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("tokenizer.json: %w", err)
		}
		if key == "truncation" || key == "padding" {
			end := dec.InputOffset()
			out = append(out, data[from:end-int64(len(value))]...)
			out = append(out, "null"...)
			from = end
		}
	}
	return append(out, data[from:]...), nil
}

// refusedBy says what the library finds wrong with a tokenizer.json. It has no line feeds
// and is cut to a length fit for a client.
func refusedBy(err error) error {
	what := strings.Join(strings.FieldsFunc(err.Error(), unicode.IsSpace), " ")
	what = strings.TrimPrefix(what, "Failed to create tokenizer from bytes: ")
	if len(what) > 200 {
		what = strings.ToValidUTF8(what[:200], "") + "..."
	}
	return tokenfile.Wrong(tokenfile.TokenizerFile, "is no tokenizer that the library reads ("+what+")", tokenfile.CureVersion)
}
