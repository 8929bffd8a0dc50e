package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// Bytes is a tokenizer without a vocabulary: each byte of a text is a token, by its
// number. A chat is its messages, and <|assistant|> with a line feed at the end. Each
// message is <|role|>, a line feed, its text and a line feed. No model has it; it is for
// trials in which texts only have to come back as they went.
type Bytes struct{}

// Text is part of Tokenizer.
func (Bytes) Text(_ context.Context, text string, _ bool) ([]uint32, error) {
	out := make([]uint32, len(text))
	for i := range len(text) {
		out[i] = uint32(text[i])
	}
	return out, nil
}

// Chat is part of Tokenizer.
func (b Bytes) Chat(ctx context.Context, body []byte) ([]uint32, error) {
	var r struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	var s strings.Builder
	for i, m := range r.Messages {
		text, err := contentText(m.Content)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		s.WriteString("<|" + m.Role + "|>\n" + text + "\n")
	}
	s.WriteString("<|assistant|>\n")
	return b.Text(ctx, s.String(), false)
}

// contentText returns the text of a message: a string, or parts of type text.
func contentText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", err
	}
	for _, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("a part of type %q: texts alone are taken", p.Type)
		}
		text += p.Text
	}
	return text, nil
}

// Detokenize is part of Tokenizer. What is no byte becomes a question mark.
func (Bytes) Detokenize(_ context.Context, tokens []uint32, _ bool) (string, error) {
	out := make([]byte, len(tokens))
	for i, t := range tokens {
		out[i] = '?'
		if t < 256 {
			out[i] = byte(t)
		}
	}
	return strings.ToValidUTF8(string(out), "?"), nil
}

// words are what simulated models say.
var words = strings.Fields("the cache holds a block for each prompt that came before and what a model has read once need not be read again " +
	"so requests go where their prefix is unless many others wait there since time in a queue costs more than what is saved")

// say returns what a model says: at least so many bytes of text, by a seed.
func say(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 0x6b766174))
	var s strings.Builder
	for s.Len() < n {
		s.WriteString(words[rng.IntN(len(words))])
		s.WriteByte(' ')
	}
	return s.String()
}
