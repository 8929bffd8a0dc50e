package scorer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/prompt"
)

// ErrCut says that a prompt cannot be cut as a Truncation asks.
var ErrCut = errors.New("scorer: prompt cannot be cut")

// Truncation keeps a part of a prompt's tokens, as an engine does that is asked to
// (vLLM's truncate_prompt_tokens). The zero value keeps all.
type Truncation struct {
	// Keep is how many tokens are left at most; 0 is all.
	Keep int
	// Side says where tokens go.
	Side CutSide
}

// CutSide is a side of a prompt.
type CutSide uint8

// The sides. An engine that is not told one drops the tokens at the beginning. It
// keeps the special tokens that the tokenizer has put around the text.
const (
	CutDefault CutSide = iota
	CutLeft
	CutRight
)

// Given returns what is left of the tokens of a whole prompt.
func (t Truncation) Given(tokens []uint32) []uint32 {
	switch {
	case t.Keep == 0 || len(tokens) <= t.Keep:
		return tokens
	case t.Side == CutRight:
		return tokens[:t.Keep]
	}
	return tokens[len(tokens)-t.Keep:]
}

// Tokenized returns what is left of the tokens that tok gives for r. Of a part of a
// prompt nothing is known when its beginning goes. The errors are those of tok, and
// ErrCut for a prompt with images, audio or video.
func (t Truncation) Tokenized(ctx context.Context, tok Tokenizer, r prompt.Request) (prompt.Result, error) {
	res, err := tok.Tokens(ctx, r)
	switch {
	case err != nil || t.Keep == 0 || res.Exact && len(res.Tokens) <= t.Keep:
		return res, err
	case len(res.Media) > 0:
		return res, fmt.Errorf("%w: it has images, audio or video, and more than %d tokens", ErrCut, t.Keep)
	case t.Side == CutRight && !res.Exact:
		res.Tokens = res.Tokens[:min(t.Keep, len(res.Tokens))]
	case !res.Exact:
		res.Tokens = nil
	case t.Side == CutDefault && r.AddsSpecialTokens():
		res.Tokens, err = t.between(ctx, tok, r, res.Tokens)
	default:
		res.Tokens = t.Given(res.Tokens)
	}
	return res, err
}

// between cuts a text at its beginning and leaves the special tokens around it, which
// are those of an empty text.
func (t Truncation) between(ctx context.Context, tok Tokenizer, r prompt.Request, tokens []uint32) ([]uint32, error) {
	res, err := tok.Tokens(ctx, prompt.Request{Model: r.Model, Mode: prompt.Sync})
	if err != nil {
		return nil, err
	}
	special := res.Tokens
	if t.Keep < len(special) {
		return nil, fmt.Errorf("%w: the tokenizer puts %d special tokens around it, and %d are to be left", ErrCut, len(special), t.Keep)
	}
	before := 0
	for before < len(special) && special[before] == tokens[before] {
		before++
	}
	after := len(tokens) - (len(special) - before)
	first := after - (t.Keep - len(special))
	return slices.Concat(tokens[:before], tokens[first:after], tokens[after:]), nil
}
