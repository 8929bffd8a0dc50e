package tokenpool

import (
	"context"
	"fmt"

	"github.com/kvatlas/kvatlas/prompt"
)

// Text returns the text of tokens, with the special ones as they are written or
// without them. What the tokens leave of a character at the end is U+FFFD.
//
// A model that is not loaded is loaded first, as long as ctx allows. The errors are
// those of Tokens in Sync mode, and ErrInvalidTokens.
func (p *Pool) Text(ctx context.Context, model string, ids []uint32, skipSpecial bool) (string, error) {
	t, err := p.hold(ctx, model)
	if err != nil {
		return "", err
	}
	defer p.release(t)
	turn := p.turns.of(len(ids) > slowTokens)
	if _, err := p.takeTurn(ctx, prompt.Sync, turn); err != nil {
		return "", err
	}
	defer func() { <-turn }()
	return t.text(ids, skipSpecial)
}

// hold returns the tokenizer of a model, to be released.
func (p *Pool) hold(ctx context.Context, model string) (*tokenizer, error) {
	for {
		seen, err := p.look(model, false)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		t, ok := p.loaded.Get(model)
		if ok {
			t.refs++
		}
		p.mu.Unlock()
		if ok {
			return t, nil
		}
		if _, _, err := p.bring(ctx, prompt.Request{Model: model, Mode: prompt.Sync}, seen); err != nil {
			return nil, err
		}
	}
}

// text decodes tokens. The library gives a C string, which ends at the first NUL:
// a letter behind the text shows whether it has been cut.
func (t *tokenizer) text(ids []uint32, skipSpecial bool) (string, error) {
	for i, id := range ids {
		if int(id) >= t.info.Vocabulary {
			return "", fmt.Errorf("%w: number %d is %d, the vocabulary has %d", ErrInvalidTokens, i, id, t.info.Vocabulary)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	text := t.enc.decode(ids, skipSpecial)
	letter, _ := t.enc.encode("a", false)
	if len(t.enc.decode(append(ids[:len(ids):len(ids)], letter...), skipSpecial)) <= len(text) {
		return "", fmt.Errorf("%w: their text holds a NUL byte", ErrInvalidTokens)
	}
	return text, nil
}
