package server

import (
	"strconv"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/request"
)

// tokenize is POST /v1/tokenize.
func (c *call) tokenize() error {
	q := &request.Tokenize{}
	f, kind, err := readWithPrompt(c, request.TokenizeFields, request.TokenizeNames, q, &q.Input, request.EngineForms...)
	if err != nil {
		return err
	}
	if err := q.CheckEngine(f, kind); err != nil {
		return err
	}
	if _, err := c.resolve(&q.Input, kind); err != nil {
		return err
	}
	b := c.out[:0]
	switch {
	case kind == "prompt":
		b, err = c.appendPrompts(b, q)
	case q.Rendered(f, kind):
		q.Chat.ToolForm = scorer.ToolForm(c.s.cfg.Index.Cached(), q.Model)
		b, err = c.appendTokensOf(b, q, prompt.Request{Chat: &q.Chat, Media: q.Media})
	default:
		b = appendGiven(b, q, q.Tokens)
	}
	if err != nil {
		return q.Blame(kind, err)
	}
	return c.replyOK(append(b, '\n'))
}

// appendPrompts appends the tokens of a completion's prompt, or of each of its prompts.
func (c *call) appendPrompts(b []byte, q *request.Tokenize) (_ []byte, err error) {
	if q.Prompt.List {
		b = append(b, `{"results":[`...)
	}
	for i, text := range q.Prompt.Texts {
		if b, err = c.appendTokensOf(appendjson.Comma(b, i), q, prompt.Request{Text: text}); err != nil {
			if q.Prompt.List {
				err = request.BlamePrompt("prompt", &scorer.InputError{Index: i, Err: err})
			}
			return nil, err
		}
	}
	for i, ids := range q.Prompt.Tokens {
		b = appendGiven(appendjson.Comma(b, i), q, ids)
	}
	if q.Prompt.List {
		b = append(b, "]}"...)
	}
	return b, nil
}

// appendTokensOf appends the tokens of a text or a chat.
func (c *call) appendTokensOf(b []byte, q *request.Tokenize, r prompt.Request) ([]byte, error) {
	if c.s.cfg.Tokenizer == nil {
		return nil, scorer.ErrNoTokenizer
	}
	r.Model, r.Mode, r.NoSpecialTokens, r.Scope = q.Model, prompt.Sync, q.NoSpecialTokens, q.Scope
	res, err := q.Truncation.Tokenized(c.ctx, c.s.cfg.Tokenizer, r)
	if err != nil {
		return nil, err
	}
	return appendTokenized(b, q, res), nil
}

// appendGiven appends tokens that the request has itself.
func appendGiven(b []byte, q *request.Tokenize, ids []uint32) []byte {
	return appendTokenized(b, q, prompt.Result{Tokens: q.Truncation.Given(ids), Exact: true, Source: scorer.SourceTokens})
}

// appendTokenized appends the answer about one prompt.
func appendTokenized(b []byte, q *request.Tokenize, res prompt.Result) []byte {
	b = appendjson.Tokens(append(b, `{"tokens":`...), res.Tokens)
	b = append(b, `,"count":`...)
	b = strconv.AppendInt(b, int64(len(res.Tokens)), 10)
	b = append(b, `,"exact":`...)
	b = strconv.AppendBool(b, res.Exact)
	b = append(b, `,"source":`...)
	b = q.AppendResolved(appendjson.String(b, string(res.Source)))
	if len(res.Media) > 0 {
		b = request.AppendFeatures(append(b, `,"features":`...), res.Media)
	}
	return append(b, '}')
}
