package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
)

// The routes of this file are those of vLLM's server (chats and completions from 0.18,
// messages and responses from 0.33). They are for callers that send it whole requests
// and want their tokens: a scheduler's token producer can point here. Their bodies are
// read as vLLM reads them, so what does not change the tokens is not looked at. What
// would change them, and is not done here, is refused.

// Detokenizer turns tokens back into text. *tokenpool.Pool is one.
type Detokenizer interface {
	Text(ctx context.Context, model string, ids []uint32, skipSpecial bool) (string, error)
}

// readEngine reads a body as engines do: unknown fields are let pass.
func (c *call) readEngine(dst any) error {
	body, giveBack, err := c.bodyInTurn()
	if err != nil {
		return err
	}
	defer giveBack()
	if err := scan.EmptyBody(body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, dst); err != nil {
		if at, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return refusal.Invalid(at.Field, "%s cannot be a JSON %s", at.Field, at.Value)
		}
		c.scan.Start(body, nil)
		c.scan.Space()
		if _, err := c.scan.Raw("a value"); errors.Is(err, scan.ErrTooDeep) {
			return err
		}
		return &refusal.Error{Status: http.StatusBadRequest, Code: refusal.CodeInvalidJSON, Message: "the body is no JSON: " + err.Error()}
	}
	return nil
}

func (c *call) readEngineRequest() (*request.Engine, error) {
	q := &request.Engine{}
	if err := c.readEngine(q); err != nil {
		return nil, err
	}
	c.model = q.Model
	if err := c.holdChat(&q.Chat); err != nil {
		return nil, err
	}
	switch {
	case q.Model == "":
		return nil, refusal.Invalid("model", "model is missing: this server has the tokenizers of many")
	case c.s.cfg.Tokenizer == nil:
		return nil, refusal.NoTokenizer(q.From())
	}
	q.Served = c.s.meaning(c.ctx, q.Model).Model
	c.model = q.Served
	if err := q.Settle(); err != nil {
		return nil, err
	}
	return q, nil
}

// promptTokens are the tokens of the prompts of a completion.
func (c *call) promptTokens(q *request.Engine, p request.Completion) (out [][]uint32, err error) {
	for i, text := range p.Texts {
		r := prompt.Request{Model: q.Served, Text: text, Mode: prompt.Sync, NoSpecialTokens: q.NoSpecialTokens, Scope: c.caller.Salt}
		res, err := q.Truncation.Tokenized(c.ctx, c.s.cfg.Tokenizer, r)
		if err != nil {
			if p.List {
				err = request.BlamePrompt("prompt", &scorer.InputError{Index: i, Err: err})
			}
			return nil, err
		}
		out = append(out, res.Tokens)
	}
	for _, ids := range p.Tokens {
		out = append(out, q.Truncation.Given(ids))
	}
	return out, nil
}

// chatTokens are the tokens of a chat. All of them, or it is an error: an answer
// with a part of the tokens would be taken for the whole.
func (c *call) chatTokens(q *request.Engine) (res prompt.Result, err error) {
	q.ToolForm = scorer.ToolForm(c.s.cfg.Index.Cached(), q.Served)
	r := prompt.Request{Model: q.Served, Chat: &q.Chat, Mode: prompt.Sync, Scope: c.caller.Salt}
	if request.Given(q.Media) {
		if r.Media, err = request.ParseMedia(q.Media, &c.s.requests); err != nil {
			return res, err
		}
	}
	from := "messages"
	if q.API == prompt.APIResponses {
		from = "input"
	}
	res, err = q.Truncation.Tokenized(c.ctx, c.s.cfg.Tokenizer, r)
	switch {
	case err != nil:
		return res, request.ChatError(from, q.ChatTemplate != "", err)
	case !res.Exact:
		return res, &refusal.Error{
			Status: http.StatusNotImplemented, Code: "multimodal", Param: from,
			Message: "the chat has images, audio or video: how many tokens they have is known to the model's processor, which is not here; give mm_items, and a media.json beside the tokenizer of a model whose markers are not known",
		}
	}
	return res, nil
}

// renderCompletion is POST /v1/completions/render.
func (c *call) renderCompletion() error {
	q, err := c.readEngineRequest()
	if err != nil {
		return err
	}
	if request.Given(q.Embeds) {
		return request.RefusedField("prompt_embeds")
	}
	p, err := q.Prompts(&c.s.requests)
	if err != nil {
		return err
	}
	tokens, err := c.promptTokens(q, p)
	if err != nil {
		return err
	}
	b := c.out[:0]
	b = append(b, '[')
	for i, ids := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		id := "cmpl-" + c.id
		if p.List {
			id += "-" + strconv.Itoa(i)
		}
		b = appendRendered(b, id, q.Model, ids, nil)
	}
	return c.replyOK(append(b, "]\n"...))
}

// renderChat is POST /v1/chat/completions/render.
func (c *call) renderChat() error { return c.renderAs(prompt.APIChat, "chatcmpl-") }

// renderMessages is POST /v1/messages/render.
func (c *call) renderMessages() error { return c.renderAs(prompt.APIMessages, "chatcmpl-") }

// renderResponses is POST /v1/responses/render.
func (c *call) renderResponses() error { return c.renderAs(prompt.APIResponses, "resp_") }

// renderAs renders a chat that is a request of an API.
func (c *call) renderAs(api prompt.API, id string) error {
	q, err := c.readEngineRequest()
	if err != nil {
		return err
	}
	if q.API = api; api == prompt.APIResponses && request.Given(q.PreviousResponse) {
		return request.RefusedField("previous_response_id")
	}
	res, err := c.chatTokens(q)
	if err != nil {
		return err
	}
	return c.replyOK(append(appendRendered(c.out[:0], id+c.id, q.Model, res.Tokens, res.Media), '\n'))
}

// appendRendered appends what vLLM answers, less what is about sampling.
func appendRendered(b []byte, id, model string, ids []uint32, media []prompt.PlacedMedium) []byte {
	b = appendjson.String(append(b, `{"request_id":`...), id)
	b = appendjson.String(append(b, `,"model":`...), model)
	b = appendjson.Tokens(append(b, `,"token_ids":`...), ids)
	b = request.AppendFeatures(append(b, `,"token_offsets":null,"features":`...), media)
	return append(b, `,"output_mode":"tokens"}`...)
}

// engineTokenize is POST /tokenize, in the form of vLLM and SGLang.
func (c *call) engineTokenize() error {
	q, err := c.readEngineRequest()
	if err != nil {
		return err
	}
	if q.ReturnTokenStrs {
		return refusal.Invalid("return_token_strs", "return_token_strs is not done here")
	}
	var tokens [][]uint32
	list := false
	switch {
	case request.Given(q.Messages) && request.Given(q.Prompt):
		return refusal.Invalid("messages", "prompt and messages are both given, give one of them")
	case request.Given(q.Messages):
		var res prompt.Result
		res, err = c.chatTokens(q)
		tokens = [][]uint32{res.Tokens}
	default:
		var p request.Completion
		if p, err = q.Prompts(&c.s.requests); err != nil {
			return err
		}
		if p.Tokens != nil {
			return refusal.Invalid("prompt", "prompt takes a string or strings")
		}
		list = p.List
		tokens, err = c.promptTokens(q, p)
	}
	if err != nil {
		return err
	}
	var count, all []byte
	for i, ids := range tokens {
		if i > 0 {
			count, all = append(count, ','), append(all, ',')
		}
		count = strconv.AppendInt(count, int64(len(ids)), 10)
		all = appendjson.Tokens(all, ids)
	}
	open, end := "", ""
	if list {
		open, end = "[", "]"
	}
	return c.replyOK(fmt.Appendf(c.out[:0], `{"count":%s%s%s,"max_model_len":null,"tokens":%s%s%s,"token_strs":null}`+"\n", open, count, end, open, all, end))
}

// engineDetokenize is POST /detokenize. vLLM calls the text prompt, SGLang text.
func (c *call) engineDetokenize() error {
	var q struct {
		Model       string          `json:"model"`
		Tokens      json.RawMessage `json:"tokens"`
		SkipSpecial bool            `json:"skip_special_tokens"`
	}
	if err := c.readEngine(&q); err != nil {
		return err
	}
	c.model = q.Model
	switch {
	case q.Model == "":
		return refusal.Invalid("model", "model is missing: this server has the tokenizers of many")
	case !request.Given(q.Tokens):
		return refusal.Invalid("tokens", "tokens is missing")
	case c.s.cfg.Detokenizer == nil:
		return refusal.NoTokenizer("tokens")
	}
	s := scan.New("tokens", q.Tokens)
	ids, err := s.Tokens(nil, c.s.cfg.Limits.MaxTokens)
	if err != nil {
		return err
	}
	text, err := c.s.cfg.Detokenizer.Text(c.ctx, c.s.meaning(c.ctx, q.Model).Model, ids, q.SkipSpecial)
	if err != nil {
		return err
	}
	b := appendjson.String(append(c.out[:0], `{"prompt":`...), text)
	b = appendjson.String(append(b, `,"text":`...), text)
	return c.replyOK(append(b, "}\n"...))
}
