package server

import (
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// tokenizeRequest is the body of POST /v1/tokenize.
type tokenizeRequest struct{ input }

func tokenizeInput(q *tokenizeRequest) *input { return &q.input }

var tokenizeFields = append(chatFields(tokenizeInput), fields[tokenizeRequest]{
	inputOf("model", tokenizeInput, readModel),
	inputOf("prompt", tokenizeInput, readPrompt),
	inputOf("add_special_tokens", tokenizeInput, readAddSpecialTokens),
}...)

var tokenizeNames = namesOf(tokenizeFields)

// tokenize is POST /v1/tokenize.
func (c *call) tokenize() error {
	q := &tokenizeRequest{}
	q.limits = &c.s.cfg.Limits
	f, err := readChat(c, tokenizeFields, tokenizeNames, q)
	if err != nil {
		return err
	}
	if err := f.need("model"); err != nil {
		return err
	}
	c.model = q.model
	kind, err := f.one("prompt", "messages")
	if err != nil {
		return err
	}
	if err := q.checkChat(f, kind); err != nil {
		return err
	}
	if c.s.cfg.Tokenizer == nil {
		return scorer.ErrNoTokenizer
	}
	r := tokenpool.Request{Model: q.model, Text: q.prompt, NoSpecialTokens: q.noSpecialTokens, Mode: tokenpool.Sync}
	if kind == "messages" {
		r.Chat, r.Media = &q.chat, q.media
	}
	res, err := c.s.cfg.Tokenizer.Tokens(c.ctx, r)
	if err != nil {
		if kind == "messages" {
			return chatError(q.chat.ChatTemplate != "", err)
		}
		return err
	}
	b := appendTokens(append(c.out[:0], `{"tokens":`...), res.Tokens)
	b = append(b, `,"count":`...)
	b = strconv.AppendInt(b, int64(len(res.Tokens)), 10)
	b = append(b, `,"exact":`...)
	b = strconv.AppendBool(b, res.Exact)
	b = append(b, `,"source":`...)
	b = appendString(b, string(res.Source))
	if len(res.Media) > 0 {
		b = appendFeatures(append(b, `,"features":`...), res.Media)
	}
	b = append(b, "}\n"...)
	c.out = b
	c.reply(http.StatusOK, c.out)
	return nil
}
