package chat

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/prompt"
)

// Options are how the chats of a model are rendered. The zero value is vLLM with
// the model's own templates, or those of requests.
type Options struct {
	// Engine says how messages are prepared. Default EngineVLLM.
	Engine Engine
	// Format says how contents are given to the template. Default: as the
	// template wants them (vLLM's "auto").
	Format Format
	// DefaultKwargs is a JSON object of variables for templates, which those of
	// a request go before (vLLM's --default-chat-template-kwargs).
	DefaultKwargs json.RawMessage
	// OwnTemplatesOnly refuses requests that bring a template, as vLLM does
	// without --trust-request-chat-template. Names of the model's are allowed.
	OwnTemplatesOnly bool
	// Tools says in which form tools and tool calls reach the template. Default:
	// as the engine's HTTP server passes them on, which is ToolsRebuilt for
	// EngineVLLM and ToolsAsSent for EngineTransformers.
	Tools prompt.ToolForm
	// Limits bound each rendering.
	Limits Limits
	// Given compiles and keeps the templates of requests. Default: a Templates of
	// this renderer alone.
	Given *Templates
	// Now is the clock of strftime_now, in the engine's time zone. Default
	// time.Now, which is in the zone of this process.
	Now func() time.Time
}

// Renderer renders the chats of one model.
type Renderer struct {
	templates *templates
	kwargs    []member
	opts      Options

	mu  sync.Mutex // protects own
	own map[string]compiled

	// What the model's own template does, found by rendering it; see probe.go.
	systemsFirst func() bool
	thinkingOff  func() string
}

// compiled is one of the model's templates, or the error that compiling it gave.
type compiled struct {
	t   *Template
	err error
}

// NewRenderer returns the Renderer of a model with these files. The errors wrap
// ErrFiles or ErrRequest (of the options); a model without templates is no error
// before Render.
func NewRenderer(files Files, opts Options) (*Renderer, error) {
	opts.Engine = cmp.Or(opts.Engine, EngineVLLM)
	if opts.Engine != EngineVLLM && opts.Engine != EngineTransformers {
		return nil, bad("options", "unknown engine %q", opts.Engine)
	}
	if opts.Format != "" && opts.Format != FormatString && opts.Format != FormatOpenAI {
		return nil, bad("options", "unknown content format %q", opts.Format)
	}
	if opts.Tools == "" {
		opts.Tools = prompt.ToolsAsSent
		if opts.Engine == EngineVLLM {
			opts.Tools = prompt.ToolsRebuilt
		}
	}
	if opts.Tools != prompt.ToolsAsSent && opts.Tools != prompt.ToolsRebuilt {
		return nil, bad("options", "unknown form of tools %q", opts.Tools)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	kwargs, err := object(newBudget(context.Background(), opts.Limits), opts.DefaultKwargs, "options: default kwargs")
	if err != nil {
		return nil, err
	}
	if err := checkKwargs("options: default kwargs", kwargs); err != nil {
		return nil, err
	}
	t, err := parseFiles(files)
	if err != nil {
		return nil, err
	}
	if opts.Given == nil {
		opts.Given = NewTemplates()
	}
	r := &Renderer{templates: t, kwargs: kwargs, opts: opts, own: map[string]compiled{}}
	r.systemsFirst, r.thinkingOff = sync.OnceValue(r.probeSystems), sync.OnceValue(r.probeThinking)
	return r, nil
}

// Prompt is a rendered chat.
type Prompt struct {
	// Text is the prompt. It has all special tokens: none are to be added when
	// it is tokenized.
	Text string
	// Media are the kinds ("image", "audio", "video") of the parts that are no
	// texts, in their order. If there are any, Text is not the engine's: the
	// model's processor, which is not here, puts placeholders for them.
	Media []string
	// MediaIDs are the parts' own names of them (uuid, which vLLM takes for the
	// hash of the content), empty for those without.
	MediaIDs []string
	// Sure is how many bytes of Text are certain to be the engine's. Without media
	// these are all, else those before the content of the first message that has
	// any.
	Sure int
}

// HasTemplate reports whether the model has a template of its own for requests
// with or without tools.
func (r *Renderer) HasTemplate(tools bool) bool {
	_, _, err := r.templates.choose("", tools)
	return err == nil
}

// Render renders a request. The errors are those of this package's list.
func (r *Renderer) Render(req prompt.Chat) (Prompt, error) {
	return r.RenderContext(context.Background(), req)
}

// RenderContext is Render for a caller whose time may end; the error is the
// context's then. It looks at the context while it prepares messages and before the
// template runs, not while it runs.
func (r *Renderer) RenderContext(ctx context.Context, req prompt.Chat) (Prompt, error) {
	now := r.opts.Now()
	req, err := r.completion(ctx, req)
	if err != nil {
		return Prompt{}, err
	}
	c, text, err := r.render(ctx, req, now)
	if err != nil {
		return Prompt{}, err
	}
	out := Prompt{Text: text, Media: c.media, MediaIDs: c.mediaIDs, Sure: len(text)}
	if len(c.media) > 0 {
		if out.Sure, err = r.sure(ctx, req, c.mediaAt, text, now); err != nil {
			return Prompt{}, err
		}
	}
	return out, nil
}

func (r *Renderer) render(ctx context.Context, req prompt.Chat, now time.Time) (prepared, string, error) {
	spend := newBudget(ctx, r.opts.Limits)
	c, err := r.prepare(spend, req)
	defer r.giveBack(c.given)
	if err == nil {
		err = spend.alive()
	}
	if err != nil {
		return prepared{}, "", err
	}
	limits := r.opts.Limits
	if c.given != nil {
		limits = limits.given(len(c.context))
	}
	text, err := c.template.Render(string(c.context), limits, now)
	if errors.Is(err, ErrRequest) {
		return c, "", blame(req, err)
	}
	if err == nil && req.ContinueFinalMessage {
		text, err = cut(text, c.final)
	}
	return c, text, err
}

// blame names the field that the library refuses to read, such as one with half of a
// surrogate pair. The library has seen all fields as one text.
func blame(req prompt.Chat, err error) error {
	empty, cerr := Compile("")
	if cerr != nil {
		return err
	}
	defer empty.close()
	why := func(err error) string {
		what := err.Error()
		if e, ok := errors.AsType[*Error](err); ok {
			what = e.Message
		}
		if _, rest, ok := strings.Cut(what, ": "); ok && strings.HasPrefix(what, "JSON, byte ") {
			return rest
		}
		return what
	}
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"messages", req.Messages}, {"tools", req.Tools}, {"documents", req.Documents}, {"chat_template_kwargs", req.ChatTemplateKwargs}} {
		if isNull(f.raw) {
			continue
		}
		if _, err := empty.Render(string(encodeObject([]member{{"x", f.raw}})), Limits{}, time.Time{}); errors.Is(err, ErrRequest) {
			return bad(f.name, "%s", why(err))
		}
	}
	return bad("messages", "%s", why(err))
}

// other is a content that no message begins with.
const other = "\uf8d7kvatlas"

// sure returns how much of text stands before the content of message i. Only the
// template knows, and it is asked by rendering the chat once more with another
// content there. Where that fails nothing is sure.
func (r *Renderer) sure(ctx context.Context, req prompt.Chat, i int, text string, now time.Time) (int, error) {
	messages := elements(req.Messages)
	messages[i] = encodeObject(put(members(messages[i]), "content", quote(other)))
	req.Messages = encodeArray(messages)
	_, with, err := r.render(ctx, req, now)
	if ended := ctx.Err(); ended != nil {
		return 0, fmt.Errorf("chat: %w", ended)
	}
	if err != nil {
		return 0, nil //nolint:nilerr // then nothing is sure
	}
	n := 0
	for n < min(len(text), len(with)) && text[n] == with[n] {
		n++
	}
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return n, nil
}

// Brings reports whether the request brings a template, and not the name of one of
// the model's.
func (r *Renderer) Brings(req prompt.Chat) bool {
	_, own, err := r.templates.choose(req.ChatTemplate, !isNull(req.Tools))
	return err == nil && !own
}

// Prepare returns the template that Render would render for the request, and
// the context that it would give to it. A template that the request brought stays in
// memory until the collector finds that nothing refers to it.
func (r *Renderer) Prepare(req prompt.Chat) (*Template, json.RawMessage, error) {
	req, err := r.completion(context.Background(), req)
	if err != nil {
		return nil, nil, err
	}
	c, err := r.prepare(newBudget(context.Background(), r.opts.Limits), req)
	return c.template, c.context, err
}

// prepared is a request ready to be rendered.
type prepared struct {
	template *Template
	given    *lent // the template, if the request brought it; to be given back
	context  json.RawMessage
	final    string // text of the last message, if it is to be continued
	media    []string
	mediaIDs []string // as many
	mediaAt  int      // the first message that has any
}

func (r *Renderer) prepare(spend *budget, req prompt.Chat) (prepared, error) {
	none := prepared{}
	messages, err := array(spend, req.Messages, "messages")
	if err != nil {
		return none, err
	}
	if len(messages) == 0 {
		return none, bad("messages", "there are none")
	}
	tools, err := array(spend, req.Tools, "tools")
	if err != nil {
		return none, err
	}
	documents, err := array(spend, req.Documents, "documents")
	if err != nil {
		return none, err
	}
	kwargs, err := object(spend, req.ChatTemplateKwargs, "chat_template_kwargs")
	if err != nil {
		return none, err
	}
	if err := checkKwargs("chat_template_kwargs", kwargs); err != nil {
		return none, err
	}
	if len(kwargs) > maxKwargs {
		return none, tooLarge("chat_template_kwargs", "more than %d variables, which is the limit", maxKwargs)
	}
	generate := !req.ContinueFinalMessage
	if req.AddGenerationPrompt != nil {
		generate = *req.AddGenerationPrompt
	}
	if generate && req.ContinueFinalMessage {
		return none, bad("continue_final_message", "it cannot be combined with add_generation_prompt")
	}

	t, given, err := r.template(req.ChatTemplate, !isNull(req.Tools))
	if err != nil {
		return none, err
	}
	none.given = given
	p := preparer{engine: r.opts.Engine, format: cmp.Or(r.opts.Format, t.Format()), rebuild: cmp.Or(req.ToolForm, r.opts.Tools) == prompt.ToolsRebuilt, spend: spend}
	conversation := make([][]member, len(messages))
	mediaAt := 0
	for i, m := range messages {
		if i%checkEvery == checkEvery-1 {
			if err := spend.alive(); err != nil {
				return none, err
			}
		}
		if conversation[i], err = p.message(i, m); err != nil {
			return none, err
		}
		if len(p.media) == 0 {
			mediaAt = i + 1
		}
	}
	if p.engine == EngineVLLM && !strings.Contains(t.Source(), `"developer"`) && !strings.Contains(t.Source(), `'developer'`) {
		conversation = developersToSystem(conversation)
	}
	out := prepared{template: t, given: given, media: p.media, mediaIDs: p.mediaIDs, mediaAt: mediaAt}
	if req.ContinueFinalMessage {
		last := len(conversation) - 1
		conversation[last], out.final, err = mark(conversation[last], t.Source())
		if err != nil {
			return none, err
		}
	}
	for i, m := range conversation {
		messages[min(i, len(messages)-1)] = encodeObject(m)
	}
	messages = messages[:len(conversation)]

	if p.rebuild {
		for i := range tools {
			tools[i] = rebuildTool(tools[i])
		}
	}
	vars := []member{{"messages", encodeArray(messages)}, {"tools", json.RawMessage("null")}, {"documents", json.RawMessage("null")}}
	for _, m := range r.templates.tokens {
		vars = put(vars, m.key, m.value)
	}
	if tools != nil || !isNull(req.Tools) {
		vars = put(vars, "tools", encodeArray(tools))
	}
	for _, m := range r.kwargs {
		vars = put(vars, m.key, m.value)
	}
	for _, m := range kwargs {
		// vLLM takes these two for "not said".
		if !isNull(m.value) && string(m.value) != `"auto"` {
			vars = put(vars, m.key, m.value)
		}
	}
	if documents != nil || !isNull(req.Documents) {
		vars = put(vars, "documents", encodeArray(documents))
	}
	if e := req.ReasoningEffort; e != "" {
		vars = put(vars, "reasoning_effort", quote(e))
		if get(kwargs, "enable_thinking") == nil {
			vars = put(vars, "enable_thinking", boolean(e != "none"))
		}
	}
	vars = put(vars, "add_generation_prompt", boolean(generate))
	out.context = encodeObject(vars)
	return out, nil
}

// checkKwargs refuses variables that are no variables, but what is rendered.
func checkKwargs(where string, kwargs []member) error {
	for _, key := range []string{"chat_template", "tokenize", "messages", "conversation"} {
		if get(kwargs, key) != nil {
			return bad(where, "%s is not allowed in it", key)
		}
	}
	return nil
}

func boolean(b bool) json.RawMessage {
	if b {
		return json.RawMessage("true")
	}
	return json.RawMessage("false")
}

// template returns the compiled template for a request, and what is to be given back
// if the request brought it.
func (r *Renderer) template(given string, tools bool) (*Template, *lent, error) {
	src, own, err := r.templates.choose(given, tools)
	if err != nil {
		return nil, nil, err
	}
	if own {
		r.mu.Lock()
		defer r.mu.Unlock()
		c, ok := r.own[src]
		if !ok {
			c.t, c.err = Compile(src)
			r.own[src] = c
		}
		return c.t, nil, c.err
	}
	if r.opts.OwnTemplatesOnly {
		return nil, nil, bad("chat_template", "requests may not bring templates")
	}
	l, err := r.opts.Given.borrow(src)
	if err != nil {
		return nil, nil, err
	}
	return l.Template, l, nil
}

// giveBack ends the use of a request's template; nil means none.
func (r *Renderer) giveBack(given *lent) {
	if given != nil {
		r.opts.Given.giveBack(given)
	}
}
