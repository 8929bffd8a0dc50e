package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
)

// The routes of this file are those of vLLM's server (chats and completions from 0.18,
// messages and responses from 0.33), for callers that send it whole requests and want
// their tokens: a scheduler's token producer can point here. Their bodies are read as
// vLLM reads them, so what does not change the tokens is not looked at; what would, and
// is not done here, is refused.

// Detokenizer turns tokens back into text. *tokenpool.Pool is one.
type Detokenizer interface {
	Text(ctx context.Context, model string, ids []uint32, skipSpecial bool) (string, error)
}

// engineRequest is the body of a completion, of a chat completion, or of vLLM's
// and SGLang's /tokenize, as far as it changes the tokens.
type engineRequest struct {
	Model string `json:"model"`
	// Prompt is a text, texts, tokens, or lists of tokens.
	Prompt json.RawMessage `json:"prompt"`
	prompt.Chat
	// Media is what is known of the images, audio and video of a chat: ours.
	Media            json.RawMessage `json:"mm_items"`
	AddSpecialTokens json.RawMessage `json:"add_special_tokens"`
	Truncate         json.RawMessage `json:"truncate_prompt_tokens"`
	TruncationSide   json.RawMessage `json:"truncation_side"`
	ReturnTokenStrs  bool            `json:"return_token_strs"`

	PreviousResponse json.RawMessage `json:"previous_response_id"`
	Embeds           json.RawMessage `json:"prompt_embeds"`
	// These go before those of the chat: engines take more for true than JSON does.
	Generate json.RawMessage `json:"add_generation_prompt"`
	Continue json.RawMessage `json:"continue_final_message"`

	served          string // the model that Model means
	cut             scorer.Truncation
	noSpecialTokens bool
}

// given reports whether a field is there and is not null.
func given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// readEngine reads a body as engines do: unknown fields are let pass.
func (c *call) readEngine(dst any) error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	giveBack, err := c.takeTurn(len(body))
	if err != nil {
		return err
	}
	defer giveBack()
	if err := emptyBody(body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, dst); err != nil {
		if at, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return invalid(at.Field, "%s cannot be a JSON %s", at.Field, at.Value)
		}
		c.scan.start(body)
		c.scan.space()
		if _, err := c.scan.raw("a value"); errors.Is(err, errTooDeep) {
			return err
		}
		return &apiError{status: http.StatusBadRequest, code: codeInvalidJSON, message: "the body is no JSON: " + err.Error()}
	}
	return nil
}

func (c *call) readEngineRequest() (*engineRequest, error) {
	q := &engineRequest{}
	if err := c.readEngine(q); err != nil {
		return nil, err
	}
	c.model = q.Model
	if err := c.holdChat(&q.Chat); err != nil {
		return nil, err
	}
	switch {
	case q.Model == "":
		return nil, invalid("model", "model is missing: this server has the tokenizers of many")
	case c.s.cfg.Tokenizer == nil:
		return nil, noTokenizer(q.from())
	}
	q.served = c.s.meaning(c.ctx, q.Model).Model
	c.model = q.served
	var in input
	for _, f := range []struct {
		name string
		raw  json.RawMessage
		read func(*scanner, *input) error
	}{
		{"truncate_prompt_tokens", q.Truncate, readTruncation}, {"truncation_side", q.TruncationSide, readTruncationSide},
		{"add_special_tokens", q.AddSpecialTokens, readAddSpecialTokens},
		{"add_generation_prompt", q.Generate, readAddGenerationPrompt}, {"continue_final_message", q.Continue, readContinueFinalMessage},
	} {
		if given(f.raw) {
			if err := f.read(&scanner{data: f.raw, path: []byte(f.name)}, &in); err != nil {
				return nil, err
			}
		}
	}
	q.cut, q.noSpecialTokens = in.cut, in.noSpecialTokens
	q.Chat.AddSpecialTokens, q.AddGenerationPrompt, q.ContinueFinalMessage = in.chat.AddSpecialTokens, in.chat.AddGenerationPrompt, in.chat.ContinueFinalMessage
	return q, nil
}

// from is the field that has the prompt.
func (q *engineRequest) from() string {
	switch {
	case given(q.Input):
		return "input"
	case given(q.Messages):
		return "messages"
	}
	return "prompt"
}

// prompts are the prompts of a completion.
func (q *engineRequest) prompts(limits *Limits) (p prompts, err error) {
	if !given(q.Prompt) {
		return p, invalid("prompt", "prompt is missing")
	}
	s := &scanner{data: q.Prompt, path: []byte("prompt")}
	return s.prompts(limits)
}

// promptTokens are the tokens of the prompts of a completion.
func (c *call) promptTokens(q *engineRequest, p prompts) (out [][]uint32, err error) {
	for i, text := range p.texts {
		r := prompt.Request{Model: q.served, Text: text, Mode: prompt.Sync, NoSpecialTokens: q.noSpecialTokens}
		res, err := q.cut.Tokenized(c.ctx, c.s.cfg.Tokenizer, r)
		if err != nil {
			if p.list {
				err = blamePrompt("prompt", &scorer.InputError{Index: i, Err: err})
			}
			return nil, err
		}
		out = append(out, res.Tokens)
	}
	for _, ids := range p.tokens {
		out = append(out, q.cut.Given(ids))
	}
	return out, nil
}

// chatTokens are the tokens of a chat. All of them, or it is an error: an answer
// with a part of the tokens would be taken for the whole.
func (c *call) chatTokens(q *engineRequest) (res prompt.Result, err error) {
	q.ToolForm = scorer.ToolForm(c.s.cfg.Index.Cached(), q.served)
	r := prompt.Request{Model: q.served, Chat: &q.Chat, Mode: prompt.Sync}
	if given(q.Media) {
		if r.Media, err = parseMedia(q.Media, &c.s.cfg.Limits); err != nil {
			return res, err
		}
	}
	from := "messages"
	if q.API == prompt.APIResponses {
		from = "input"
	}
	res, err = q.cut.Tokenized(c.ctx, c.s.cfg.Tokenizer, r)
	switch {
	case err != nil:
		return res, chatError(from, q.ChatTemplate != "", err)
	case !res.Exact:
		return res, &apiError{
			status: http.StatusNotImplemented, code: "multimodal", param: from,
			message: "the chat has images, audio or video: how many tokens they have is known to the model's processor, which is not here; give mm_items, and a media.json beside the tokenizer of a model whose markers are not known",
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
	if given(q.Embeds) {
		return refusedField("prompt_embeds")
	}
	p, err := q.prompts(&c.s.cfg.Limits)
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
		if p.list {
			id += "-" + strconv.Itoa(i)
		}
		b = appendRendered(b, id, q.Model, ids, nil)
	}
	b = append(b, "]\n"...)
	c.out = b
	c.reply(http.StatusOK, c.out)
	return nil
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
	if q.API = api; api == prompt.APIResponses && given(q.PreviousResponse) {
		return refusedField("previous_response_id")
	}
	res, err := c.chatTokens(q)
	if err != nil {
		return err
	}
	b := append(appendRendered(c.out[:0], id+c.id, q.Model, res.Tokens, res.Media), '\n')
	c.out = b
	c.reply(http.StatusOK, c.out)
	return nil
}

// appendRendered appends what vLLM answers, less what is about sampling.
func appendRendered(b []byte, id, model string, ids []uint32, media []prompt.PlacedMedium) []byte {
	b = appendString(append(b, `{"request_id":`...), id)
	b = appendString(append(b, `,"model":`...), model)
	b = appendTokens(append(b, `,"token_ids":`...), ids)
	b = appendFeatures(append(b, `,"token_offsets":null,"features":`...), media)
	return append(b, `,"output_mode":"tokens"}`...)
}

// engineTokenize is POST /tokenize, in the form of vLLM and SGLang.
func (c *call) engineTokenize() error {
	q, err := c.readEngineRequest()
	if err != nil {
		return err
	}
	if q.ReturnTokenStrs {
		return invalid("return_token_strs", "return_token_strs is not done here")
	}
	var tokens [][]uint32
	list := false
	switch {
	case given(q.Messages) && given(q.Prompt):
		return invalid("messages", "prompt and messages are both given, give one of them")
	case given(q.Messages):
		var res prompt.Result
		res, err = c.chatTokens(q)
		tokens = [][]uint32{res.Tokens}
	default:
		var p prompts
		if p, err = q.prompts(&c.s.cfg.Limits); err != nil {
			return err
		}
		if p.tokens != nil {
			return invalid("prompt", "prompt takes a string or strings")
		}
		list = p.list
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
		all = appendTokens(all, ids)
	}
	open, end := "", ""
	if list {
		open, end = "[", "]"
	}
	c.out = fmt.Appendf(c.out[:0], `{"count":%s%s%s,"max_model_len":null,"tokens":%s%s%s,"token_strs":null}`+"\n", open, count, end, open, all, end)
	c.reply(http.StatusOK, c.out)
	return nil
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
		return invalid("model", "model is missing: this server has the tokenizers of many")
	case !given(q.Tokens):
		return invalid("tokens", "tokens is missing")
	case c.s.cfg.Detokenizer == nil:
		return noTokenizer("tokens")
	}
	s := &scanner{data: q.Tokens, path: []byte("tokens")}
	ids, err := s.tokens(nil, c.s.cfg.Limits.MaxTokens)
	if err != nil {
		return err
	}
	text, err := c.s.cfg.Detokenizer.Text(c.ctx, c.s.meaning(c.ctx, q.Model).Model, ids, q.SkipSpecial)
	if err != nil {
		return err
	}
	b := appendString(append(c.out[:0], `{"prompt":`...), text)
	b = appendString(append(b, `,"text":`...), text)
	b = append(b, "}\n"...)
	c.out = b
	c.reply(http.StatusOK, c.out)
	return nil
}
