package scorer

import (
	"errors"
	"fmt"
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

// The sides. An engine that is not told one drops the tokens at the beginning, but
// keeps the special tokens that the tokenizer has put there.
const (
	CutDefault CutSide = iota
	CutLeft
	CutRight
)

// Apply returns what is left of tokens. exact says that they are those of the whole
// prompt, special that the tokenizer has put special tokens around them. Of a part of a
// prompt nothing is known when its beginning goes. media says that there are images,
// audio or video in it, of which none can be cut. The error wraps ErrCut.
func (t Truncation) Apply(tokens []uint32, exact, special, media bool) ([]uint32, error) {
	switch {
	case t.Keep == 0 || exact && len(tokens) <= t.Keep:
		return tokens, nil
	case media:
		return nil, fmt.Errorf("%w: a prompt with media cannot be cut to %d tokens here", ErrCut, t.Keep)
	case t.Side == CutRight:
		return tokens[:min(t.Keep, len(tokens))], nil
	case !exact:
		return nil, nil
	case t.Side == CutDefault && special:
		return nil, fmt.Errorf("%w: the prompt has %d tokens and would be cut to %d: say the side, or send the tokens that are left", ErrCut, len(tokens), t.Keep)
	default:
		return tokens[len(tokens)-t.Keep:], nil
	}
}
