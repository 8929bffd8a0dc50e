package tokenpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/internal/media"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// maxChats bounds the renderers that are kept of models whose tokenizers are
// not in memory.
const maxChats = 64

// chatEntry is what renders the chats of a model, in a version of its files.
type chatEntry struct {
	version  string // of the origin
	renderer *chat.Renderer
	media    media.Rules // where media stand, by kind
	err      error       // why there is none
}

// rendered is what comes of a rendering.
type rendered struct {
	prompt chat.Prompt
	err    error
}

// render renders the chat of req once it has its turn. A caller whose time is over leaves, and
// the rendering goes on: its text is tokenized behind.
func (p *Pool) render(ctx context.Context, c chatEntry, req prompt.Request) (chat.Prompt, prompt.Behind, error) {
	if c.err != nil {
		return chat.Prompt{}, "", fmt.Errorf("tokenpool: model %s: %w", tokenfile.Quote(req.Model), c.err)
	}
	turn := p.turns.of(c.isSlow(req.Chat))
	if behind, err := p.takeTurn(ctx, req.Mode, turn); behind != "" || err != nil {
		return chat.Prompt{}, behind, err
	}
	life := p.ctx
	if req.Mode == prompt.Sync {
		life = ctx
	}
	given := req.Chat.Clone() // the caller's memory is the caller's again once it has left
	req.Chat = &given
	out, left := make(chan rendered), make(chan struct{})
	if !p.spawn(func() {
		defer func() { <-turn }()
		r := p.renderNow(life, c, given)
		select {
		case out <- r:
		case <-left:
			if r.err == nil && len(r.prompt.Media) == 0 && req.Mode != prompt.Sync {
				p.tokenizeBehind(req, r.prompt.Text)
			}
		}
	}) {
		<-turn
		return chat.Prompt{}, "", ErrClosed
	}
	select {
	case r := <-out:
		return r.prompt, "", r.err
	case <-ctx.Done():
		close(left)
		behind, err := outOfTime(ctx, req.Mode)
		return chat.Prompt{}, behind, err
	}
}

// renderNow renders a chat and checks its text.
func (p *Pool) renderNow(ctx context.Context, c chatEntry, req prompt.Chat) (r rendered) {
	r.prompt, r.err = c.renderer.RenderContext(ctx, req)
	if r.err == nil {
		r.err = checkText(r.prompt.Text, p.cfg.MaxTextBytes)
	}
	return r
}

// tokenizeBehind has the text of req's chat tokenized for the next request that asks.
func (p *Pool) tokenizeBehind(req prompt.Request, text string) {
	special := req.AddsSpecialTokens()
	seen, err := p.look(req.Model, special)
	if err == nil {
		_, err = p.submit(p.ctx, prompt.Request{Model: req.Model, Text: text, NoSpecialTokens: !special, Scope: req.Scope, Mode: prompt.Async}, seen)
	}
	_ = err // the caller has left: the next request has it, if it lasts
}

// chat returns what renders the chats of req's model, or why it is not known
// yet. It waits as the mode says, like ask.
func (p *Pool) chat(ctx context.Context, req prompt.Request) (chatEntry, prompt.Behind, error) {
	for {
		seen, err := p.look(req.Model, false)
		if err != nil {
			return chatEntry{}, "", err
		}
		p.mu.Lock()
		if t, ok := p.loaded.Get(req.Model); ok {
			p.mu.Unlock()
			return t.chat, "", nil
		}
		if c, ok := p.chats.Get(req.Model); ok && seen.version != "" && c.version == seen.version {
			p.mu.Unlock()
			return c, "", nil
		}
		p.mu.Unlock()

		t, behind, err := p.bring(ctx, req, seen)
		switch {
		case err != nil || behind != "":
			return chatEntry{}, behind, err
		case t != nil:
			return t.chat, "", nil
		}
	}
}

// bring has the tokenizer of req's model loaded by a flight of no text, whatever
// becomes of that. It waits as the mode says, like ask. The tokenizer that it
// returns may leave memory at any time; with none, and no error, look again.
func (p *Pool) bring(ctx context.Context, req prompt.Request, seen view) (*tokenizer, prompt.Behind, error) {
	f, err := p.submit(ctx, prompt.Request{Model: req.Model, NoSpecialTokens: true, Mode: req.Mode}, seen)
	switch {
	case errors.Is(err, errDoneMeanwhile):
		return nil, "", nil
	case errors.Is(err, ErrBusy) && req.Mode != prompt.Sync:
		return nil, prompt.BehindBusy, nil
	case err != nil:
		return nil, "", err
	case req.Mode == prompt.Async:
		return p.notLoaded(req.Model, seen, prompt.BehindAsync)
	}
	switch behind, err := p.await(ctx, f, req.Mode); {
	case err != nil:
		return nil, "", err
	case !f.ended():
		return p.notLoaded(req.Model, seen, behind)
	}
	if f.tok != nil || errors.Is(f.err, errAbandoned) {
		return f.tok, "", nil
	}
	return nil, "", f.err
}

// notLoaded is how bring ends for a request that does not wait any longer.
func (p *Pool) notLoaded(model string, seen view, behind prompt.Behind) (*tokenizer, prompt.Behind, error) {
	if err := p.lastFailure(model, seen.version); err != nil {
		return nil, "", err
	}
	return nil, behind, nil
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
