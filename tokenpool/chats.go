package tokenpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// maxChats bounds the renderers that are kept of models whose tokenizers are
// not in memory.
const maxChats = 64

// chatEntry is what renders the chats of a model, in a version of its files.
type chatEntry struct {
	version  string // of the origin
	renderer *chat.Renderer
	err      error // why there is none
}

// RenderChat renders the messages of a chat with the model's template, as the
// engine does. The text has its special tokens; ask for its tokens with
// Request.NoSpecialTokens. If the prompt has media, they are not the engine's.
//
// The model's files come with its tokenizer, so a model that is not loaded is
// loaded first, as long as ctx allows. The errors are those of Tokens in Sync
// mode (ErrUnknownModel, ErrLoad, ErrBusy, ErrClosed, ctx's) and those of package
// chat.
func (p *Pool) RenderChat(ctx context.Context, model string, req chat.Request) (chat.Prompt, error) {
	c, err := p.chat(ctx, model)
	if err != nil {
		return chat.Prompt{}, err
	}
	if c.err != nil {
		return chat.Prompt{}, fmt.Errorf("tokenpool: model %s: %w", quoteModel(model), c.err)
	}
	return c.renderer.Render(req)
}

// chat returns what renders the chats of a model.
func (p *Pool) chat(ctx context.Context, model string) (chatEntry, error) {
	for {
		seen, err := p.look(model, false)
		if err != nil {
			return chatEntry{}, err
		}
		p.mu.Lock()
		if t, ok := p.loaded.Get(model); ok {
			p.mu.Unlock()
			return t.chat, nil
		}
		if c, ok := p.chats.Get(model); ok && seen.version != "" && c.version == seen.version {
			p.mu.Unlock()
			return c, nil
		}
		p.mu.Unlock()

		// A flight of no text brings the tokenizer, and the renderer with it.
		f, err := p.submit(ctx, Request{Model: model, NoSpecialTokens: true, Mode: Sync}, seen)
		if errors.Is(err, errDoneMeanwhile) {
			continue
		}
		if err != nil {
			return chatEntry{}, err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return chatEntry{}, fmt.Errorf("tokenpool: %w", ctx.Err())
		case <-p.done:
			return chatEntry{}, ErrClosed
		}
		switch {
		case f.tok != nil: // whatever has become of the text
			return f.tok.chat, nil
		case errors.Is(f.err, errAbandoned):
		default:
			return chatEntry{}, f.err
		}
	}
}

// newChat makes what renders the chats of a model with these files.
func (p *Pool) newChat(files Files) chatEntry {
	c := chatEntry{version: files.Version, err: files.ChatErr}
	if c.err == nil {
		f := files.Chat
		if f.Config == nil {
			f.Config = files.Config
		}
		c.renderer, c.err = chat.NewRenderer(f, p.cfg.Chat)
	}
	return c
}
