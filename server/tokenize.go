package server

import (
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
)

// tokenizeRequest is the body of POST /v1/tokenize.
type tokenizeRequest struct{ input }

func tokenizeInput(q *tokenizeRequest) *input { return &q.input }

var tokenizeFields = append(engineFields(tokenizeInput), fields[tokenizeRequest]{
	inputOf("model", tokenizeInput, readModel),
}...)

var tokenizeNames = namesOf(tokenizeFields)

// tokenize is POST /v1/tokenize.
func (c *call) tokenize() error {
	q := &tokenizeRequest{}
	f, kind, err := readWithPrompt(c, tokenizeFields, tokenizeNames, q, &q.input, engineForms...)
	if err != nil {
		return err
	}
	if err := q.checkEngine(f, kind); err != nil {
		return err
	}
	if _, err := c.resolve(&q.input, kind); err != nil {
		return err
	}
	b := c.out[:0]
	switch {
	case kind == "prompt":
		b, err = c.appendPrompts(b, q)
	case q.rendered(f, kind):
		q.chat.ToolForm = scorer.ToolForm(c.s.cfg.Index.Cached(), q.model)
		b, err = c.appendTokensOf(b, q, prompt.Request{Chat: &q.chat, Media: q.media})
	default:
		b = q.appendGiven(b, q.tokens)
	}
	if err != nil {
		return q.blame(kind, err)
	}
	b = append(b, '\n')
	c.out = b
	c.reply(http.StatusOK, c.out)
	return nil
}

// appendPrompts appends the tokens of a completion's prompt, or of each of its prompts.
func (c *call) appendPrompts(b []byte, q *tokenizeRequest) (_ []byte, err error) {
	if q.prompt.list {
		b = append(b, `{"results":[`...)
	}
	for i, text := range q.prompt.texts {
		if b, err = c.appendTokensOf(comma(b, i), q, prompt.Request{Text: text}); err != nil {
			if q.prompt.list {
				err = blamePrompt("prompt", &scorer.InputError{Index: i, Err: err})
			}
			return nil, err
		}
	}
	for i, ids := range q.prompt.tokens {
		b = q.appendGiven(comma(b, i), ids)
	}
	if q.prompt.list {
		b = append(b, "]}"...)
	}
	return b, nil
}

// appendTokensOf appends the tokens of a text or a chat.
func (c *call) appendTokensOf(b []byte, q *tokenizeRequest, r prompt.Request) ([]byte, error) {
	if c.s.cfg.Tokenizer == nil {
		return nil, scorer.ErrNoTokenizer
	}
	r.Model, r.Mode, r.NoSpecialTokens = q.model, prompt.Sync, q.noSpecialTokens
	res, err := q.cut.Tokenized(c.ctx, c.s.cfg.Tokenizer, r)
	if err != nil {
		return nil, err
	}
	return q.appendTokenized(b, res), nil
}

// appendGiven appends tokens that the request has itself.
func (q *tokenizeRequest) appendGiven(b []byte, ids []uint32) []byte {
	return q.appendTokenized(b, prompt.Result{Tokens: q.cut.Given(ids), Exact: true, Source: scorer.SourceTokens})
}

// appendTokenized appends the answer about one prompt.
func (q *tokenizeRequest) appendTokenized(b []byte, res prompt.Result) []byte {
	b = appendTokens(append(b, `{"tokens":`...), res.Tokens)
	b = append(b, `,"count":`...)
	b = strconv.AppendInt(b, int64(len(res.Tokens)), 10)
	b = append(b, `,"exact":`...)
	b = strconv.AppendBool(b, res.Exact)
	b = append(b, `,"source":`...)
	b = q.appendResolved(appendString(b, string(res.Source)))
	if len(res.Media) > 0 {
		b = appendFeatures(append(b, `,"features":`...), res.Media)
	}
	return append(b, '}')
}
