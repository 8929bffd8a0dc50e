// Package tokens gives simulated engines the tokenizer and the chat template of a real model. So their tokens
// are those of an engine that serves it, and those by which a server of kvatlas scores its prompts.
//
// A Tokenizer is safe for concurrent use, and serves any number of pods.
package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// ErrMedia says that a chat has images, audio or video, of which a simulated engine does
// not know how many tokens they are.
var ErrMedia = errors.New("tokens: a chat has media: texts alone are taken")

// maxTextBytes is the longest text in bytes, beyond what any context has room for.
const maxTextBytes = 8 << 20

// Tokenizer is the tokenizer of one model, with its chat template. It is a wire.Tokenizer.
type Tokenizer struct {
	pool  *tokenpool.Pool
	model string
	form  prompt.ToolForm
}

// Open loads the tokenizer of a model for engines of a kind. Close releases it. The errors
// are those of tokenpool, such as ErrUnknownModel and ErrLoad.
func Open(ctx context.Context, origin tokenpool.Origin, model string, kind engine.Kind) (*Tokenizer, error) {
	pool, err := tokenpool.New(tokenpool.Config{
		Origin: origin, Workers: runtime.GOMAXPROCS(0), Queue: 1 << 14, MaxTextBytes: maxTextBytes, MaxTokenizers: 1,
	})
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{pool: pool, model: model}
	if kind == engine.SGLang {
		t.form = prompt.ToolsAsSent // it passes them on as clients send them
	}
	if _, err := t.Text(ctx, "text", false); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return t, nil
}

// Close releases the tokenizer. What is asked of it after that fails.
func (t *Tokenizer) Close() error { return t.pool.Close() }

// Text returns the tokens of a text, with the special tokens that the tokenizer puts around
// it if special is set.
func (t *Tokenizer) Text(ctx context.Context, text string, special bool) ([]uint32, error) {
	return t.tokens(ctx, prompt.Request{Text: text, NoSpecialTokens: !special})
}

// Chat returns the tokens of a chat, given the body of its request: the model's template
// renders it.
func (t *Tokenizer) Chat(ctx context.Context, body []byte) ([]uint32, error) {
	var chat prompt.Chat
	if err := json.Unmarshal(body, &chat); err != nil {
		return nil, err
	}
	chat.ToolForm = t.form
	return t.tokens(ctx, prompt.Request{Chat: &chat})
}

func (t *Tokenizer) tokens(ctx context.Context, r prompt.Request) ([]uint32, error) {
	r.Model, r.Mode = t.model, prompt.Sync
	res, err := t.pool.Tokens(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case res.Behind == prompt.BehindMedia:
		return nil, ErrMedia
	case !res.Exact:
		return nil, fmt.Errorf("tokens: these are not all: %s", res.Behind) // Sync is exact
	}
	return res.Tokens, nil
}

// Detokenize returns the text of tokens, without the special ones if plain is set.
func (t *Tokenizer) Detokenize(ctx context.Context, tokens []uint32, plain bool) (string, error) {
	return t.pool.Text(ctx, t.model, tokens, plain)
}
