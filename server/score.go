package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/kvatlas/kvatlas/scorer"
)

// score is POST /v1/score.
func (c *call) score() error {
	q := &c.req
	f, kind, err := readWithPrompt(c, scoreFields, scoreNames, q, &q.input, "prompt", "prompts", "messages", "input", "tokens", "tokens_b64", "block_keys")
	if err != nil {
		return err
	}
	if err := q.check(f, kind); err != nil {
		return err
	}
	answer := func() error { return c.scorePrompt(q, kind, q.only(f, kind)) }
	if kind == "prompts" || q.prompt.list {
		answer = func() error { return c.scorePrompts(q, kind) }
	}
	asked, lora := q.model, q.lora
	for try := range 2 {
		q.model, q.lora = asked, lora
		r, err := c.resolve(&q.input, kind)
		if err != nil {
			return err
		}
		if err := answer(); err != nil {
			return err
		}
		// The lookup has brought the registry up to date, in which the name may mean something
		// else by now.
		if try > 0 || meaningIn(c.s.cfg.Index.Cached(), asked) == r {
			break
		}
	}
	if err := c.gone(); err != nil {
		return err
	}
	c.reply(http.StatusOK, c.out)
	return nil
}

// scorePrompt makes the answer to a request with one prompt.
func (c *call) scorePrompt(q *scoreRequest, kind string, in scorer.Input) error {
	rs, err := c.s.cfg.Scorer.Score(c.ctx, q.with(in))
	if err != nil {
		return q.blame(kind, err)
	}
	c.degraded = string(rs.Degraded)
	c.out = append(appendScore(c.out[:0], rs, &q.input), '\n')
	if rs.TokenIDs != nil {
		if c.out, err = q.withTokens(c.out, rs.TokenIDs); err != nil {
			return err
		}
	}
	return nil
}

// read reads the body into dst and returns which fields were there.
func read[T any](c *call, fs fields[T], names []string, dst *T) (form, error) {
	return readAs(c, fs, names, false, dst)
}

// readEngineBody is read for a body that a client may send an engine, too.
func readEngineBody[T any](c *call, fs fields[T], names []string, dst *T) (form, error) {
	return readAs(c, fs, names, true, dst)
}

func readAs[T any](c *call, fs fields[T], names []string, engine bool, dst *T) (form, error) {
	body, err := c.readBody()
	if err != nil {
		return form{}, err
	}
	giveBack, err := c.takeTurn(len(body))
	if err != nil {
		return form{}, err
	}
	defer giveBack()
	c.scan.start(body)
	c.scan.engine = engine
	seen, err := decode(&c.scan, fs, dst)
	return form{names: names, seen: seen, skipped: c.scan.passed.first, refused: c.scan.passed.refused}, err
}

// check holds the rules between fields.
func (q *scoreRequest) check(f form, kind string) error {
	if kind == "block_keys" {
		if err := f.exclude(keysAreSeeded, "lora", "cache_salt"); err != nil {
			return err
		}
	}
	if err := q.checkEngine(f, kind); err != nil {
		return err
	}
	if err := q.checkFeatures(f, kind); err != nil {
		return err
	}
	if err := q.checkReturnTokens(kind); err != nil {
		return err
	}
	if f.has("wait_ms") && f.has("mode") && q.mode != 0 {
		return invalid("wait_ms", "wait_ms is for mode wait only")
	}
	if q.earlyExit && q.strategy != "" && q.strategy != scorer.LongestPrefix {
		return invalid("early_exit", "early_exit is for strategy longest_prefix only")
	}
	return nil
}

// only is the prompt of a request that has one.
func (q *scoreRequest) only(f form, kind string) scorer.Input {
	switch {
	case kind == "prompt" && q.prompt.tokens != nil:
		return scorer.Tokens(q.prompt.tokens[0])
	case kind == "prompt":
		return scorer.Prompt(q.prompt.texts[0])
	case kind == "block_keys":
		return scorer.BlockKeys(q.keys)
	case q.rendered(f, kind):
		return scorer.Chat(q.chat)
	default:
		return scorer.Tokens(q.tokens)
	}
}

// with is the scorer's request for one prompt.
func (q *scoreRequest) with(in scorer.Input) scorer.Request {
	return scorer.Request{
		Model: q.model, Input: in, Pods: q.pods, Strategy: q.strategy,
		LoRA: q.lora, Salt: q.salt, Objects: q.objects, Media: q.media, Mode: q.mode, Wait: q.wait,
		NoSpecialTokens: q.noSpecialTokens, Truncation: q.cut, EarlyExit: q.earlyExit, Explain: q.explain, Predicted: q.predicted, ReturnTokens: q.returns != "",
	}
}

// several are the prompts of a request with a list of them.
func (q *scoreRequest) several(kind string) (out []scorer.Input) {
	texts := q.prompts
	if kind == "prompt" {
		texts = q.prompt.texts
	}
	for _, t := range texts {
		out = append(out, scorer.Prompt(t))
	}
	for _, ids := range q.prompt.tokens {
		out = append(out, scorer.Tokens(ids))
	}
	return out
}

// scorePrompts makes the answer to a request with a list of prompts.
func (c *call) scorePrompts(q *scoreRequest, kind string) error {
	b := c.out[:0]
	b = append(b, `{"results":[`...)
	if ins := q.several(kind); len(ins) > 0 {
		all := make([]scorer.Request, len(ins))
		for i, in := range ins {
			all[i] = q.with(in)
		}
		rs, err := c.s.cfg.Scorer.ScoreAll(c.ctx, all)
		if err != nil {
			return blamePrompt(kind, err)
		}
		for i, r := range rs {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendScore(b, r, &q.input)
			if r.Degraded != "" {
				c.degraded = string(r.Degraded)
			}
		}
	}
	b = append(b, "]}\n"...)
	c.out = b
	return nil
}

// gone is an error when the client has left: a scorer whose context ends gives
// what it has, as for a slow index, but there is nobody to give it to.
func (c *call) gone() error {
	if errors.Is(c.ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return nil
}
