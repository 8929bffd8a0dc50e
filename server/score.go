package server

import (
	"context"
	"errors"
	"slices"

	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/answer"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
)

// score is POST /v1/score.
func (c *call) score() error {
	q := &c.req
	f, kind, err := readWithPrompt(c, request.ScoreFields, request.ScoreNames, q, &q.Input, "prompt", "prompts", "messages", "input", "tokens", "tokens_b64", "block_keys")
	if err != nil {
		return err
	}
	if err := q.Check(f, kind); err != nil {
		return err
	}
	if err := c.keepSalt(q); err != nil {
		return err
	}
	answer := func() error { return c.scorePrompt(q, kind, q.Only(f, kind)) }
	if kind == "prompts" || q.Prompt.List {
		answer = func() error { return c.scorePrompts(q, kind) }
	}
	asked, lora := q.Model, q.LoRA
	for try := range 2 {
		q.Model, q.LoRA = asked, lora
		r, err := c.resolve(&q.Input, kind)
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
	return c.replyOK(c.out)
}

// scorePrompt makes the answer to a request with one prompt.
func (c *call) scorePrompt(q *request.Score, kind string, in scorer.Input) error {
	rs, err := c.s.cfg.Scorer.Score(c.ctx, q.With(in))
	if err != nil {
		return q.Blame(kind, err)
	}
	c.degraded = string(rs.Degraded)
	c.out = append(answer.AppendScore(c.out[:0], rs, &q.Input), '\n')
	if rs.TokenIDs != nil {
		if c.out, err = answer.AppendReturned(c.out, q, rs.TokenIDs); err != nil {
			return err
		}
	}
	return nil
}

// read reads the body into dst and returns which fields were there.
func read[T any](c *call, fs scan.Fields[T], names []string, dst *T) (scan.Form, error) {
	return readAs(c, fs, names, nil, dst)
}

// readEngineBody is read for a body that a client may send an engine, too.
func readEngineBody[T any](c *call, fs scan.Fields[T], names []string, dst *T) (scan.Form, error) {
	return readAs(c, fs, names, request.EngineSkips, dst)
}

func readAs[T any](c *call, fs scan.Fields[T], names []string, skips *scan.Skips, dst *T) (scan.Form, error) {
	body, giveBack, err := c.bodyInTurn()
	if err != nil {
		return scan.Form{}, err
	}
	defer giveBack()
	c.scan.Start(body, skips)
	return scan.Read(&c.scan, fs, names, dst)
}

// readWithPrompt reads a body with one of several forms of a prompt, and returns which form it
// has. The memory that its chat takes while it is rendered is held then.
func readWithPrompt[T any](c *call, fs scan.Fields[T], names []string, dst *T, in *request.Input, forms ...string) (f scan.Form, kind string, err error) {
	in.Limits = &c.s.requests
	if request.IsTokensType(c.r.Header.Get("Content-Type")) && slices.Contains(forms, "tokens") {
		f, err = readBinary(c, fs, names, dst, in)
	} else {
		f, err = readEngineBody(c, fs, names, dst)
	}
	if err != nil {
		return f, "", err
	}
	if err := f.Need("model"); err != nil {
		return f, "", err
	}
	c.model = in.Model
	if err := c.holdChat(&in.Chat); err != nil {
		return f, "", err
	}
	if kind, err = f.One(forms...); err != nil {
		return f, "", err
	}
	return f, kind, c.applySalt(in, kind)
}

// readBinary reads a body of request.TokensType.
func readBinary[T any](c *call, fs scan.Fields[T], names []string, dst *T, in *request.Input) (f scan.Form, err error) {
	body, giveBack, err := c.bodyInTurn()
	if err != nil {
		return f, err
	}
	defer giveBack()
	head, tokens, err := request.CutTokens(body)
	if err != nil {
		return f, err
	}
	c.scan.Start(head, request.EngineSkips)
	if f, err = scan.Read(&c.scan, fs, names, dst); err != nil {
		return f, err
	}
	return in.ReadBinary(f, tokens)
}

// scorePrompts makes the answer to a request with a list of prompts.
func (c *call) scorePrompts(q *request.Score, kind string) error {
	b := c.out[:0]
	b = append(b, `{"results":[`...)
	if ins := q.Several(kind); len(ins) > 0 {
		all := make([]scorer.Request, len(ins))
		for i, in := range ins {
			all[i] = q.With(in)
		}
		rs, err := c.s.cfg.Scorer.ScoreAll(c.ctx, all)
		if err != nil {
			return request.BlamePrompt(kind, err)
		}
		for i, r := range rs {
			if i > 0 {
				b = append(b, ',')
			}
			b = answer.AppendScore(b, r, &q.Input)
			if r.Degraded != "" {
				c.degraded = string(r.Degraded)
			}
		}
	}
	b = append(b, "]}\n"...)
	c.out = b
	return nil
}

// gone is an error when the client has left. A scorer whose context ends gives
// what it has, as for a slow index, but there is no client to give it to.
func (c *call) gone() error {
	if errors.Is(c.ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return nil
}
