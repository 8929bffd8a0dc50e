package request

import (
	"time"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// Check holds the rules between fields.
func (q *Score) Check(f scan.Form, kind string) error {
	if kind == "block_keys" {
		if err := f.Exclude(KeysAreSeeded, "lora", "cache_salt"); err != nil {
			return err
		}
	}
	if err := q.CheckEngine(f, kind); err != nil {
		return err
	}
	if err := q.CheckFeatures(f, kind); err != nil {
		return err
	}
	if err := q.checkReturnTokens(kind); err != nil {
		return err
	}
	if f.Has("wait_ms") && f.Has("mode") && q.mode != 0 {
		return refusal.Invalid("wait_ms", "wait_ms is for mode wait only")
	}
	if q.earlyExit && q.strategy != "" && q.strategy != scorer.LongestPrefix {
		return refusal.Invalid("early_exit", "early_exit is for strategy longest_prefix only")
	}
	return nil
}

// Only is the prompt of a request that has one.
func (q *Score) Only(f scan.Form, kind string) scorer.Input {
	switch {
	case kind == "prompt" && q.Prompt.Tokens != nil:
		return scorer.Tokens(q.Prompt.Tokens[0])
	case kind == "prompt":
		return scorer.Prompt(q.Prompt.Texts[0])
	case kind == "block_keys":
		return scorer.BlockKeys(q.Keys)
	case q.Rendered(f, kind):
		return scorer.Chat(q.Chat)
	default:
		return scorer.Tokens(q.Tokens)
	}
}

// With is the scorer's request for one prompt.
func (q *Score) With(in scorer.Input) scorer.Request {
	return scorer.Request{
		Model: q.Model, Input: in, Pods: q.pods, Top: q.top, Strategy: q.strategy,
		LoRA: q.LoRA, Salt: q.Salt, Scope: q.Scope, Objects: q.Objects, Media: q.Media, Mode: q.mode, Wait: q.wait,
		NoSpecialTokens: q.NoSpecialTokens, Truncation: q.Truncation, EarlyExit: q.earlyExit, Explain: q.Explain, Predicted: q.predicted, ReturnTokens: q.Returns != "",
	}
}

// Several are the prompts of a request with a list of them.
func (q *Score) Several(kind string) (out []scorer.Input) {
	texts := q.prompts
	if kind == "prompt" {
		texts = q.Prompt.Texts
	}
	for _, t := range texts {
		out = append(out, scorer.Prompt(t))
	}
	for _, ids := range q.Prompt.Tokens {
		out = append(out, scorer.Tokens(ids))
	}
	return out
}

// Score is the body of POST /v1/score.
type Score struct {
	Input

	pods      []string
	top       int
	strategy  scorer.Strategy
	Explain   bool
	predicted bool
	Returns   string // return_tokens
	earlyExit bool
	mode      prompt.Mode
	wait      time.Duration
}

// Reset empties the request and keeps its room.
func (q *Score) Reset() {
	in := q.Input
	in.reset()
	*q = Score{Input: in}
}

func scoreInput(q *Score) *Input { return &q.Input }

// modeNames are the names of modes.
var (
	modeNames = []string{"wait", "async", "sync"}
	modes     = []prompt.Mode{prompt.Wait, prompt.Async, prompt.Sync}
)

// strategyNames are the names of all strategies.
var strategyNames = func() (out []string) {
	for _, s := range scorer.Strategies() {
		out = append(out, string(s))
	}
	return out
}()

// ScoreFields are the fields of POST /v1/score.
var ScoreFields = append(engineFields(scoreInput), scan.Fields[Score]{
	InputOf("model", scoreInput, ReadModel),
	InputOf("prompts", scoreInput, readTexts),
	InputOf("tokens", scoreInput, ReadTokens),
	InputOf("tokens_b64", scoreInput, ReadPacked),
	InputOf("block_keys", scoreInput, ReadKeys),
	InputOf("features", scoreInput, ReadFeatures),
	{Name: "pods", Read: func(s *scan.Scanner, q *Score) error {
		q.pods = []string{}
		return s.Array("an array of pod names", q.Limits.MaxPods, func() error {
			var name string
			if err := s.PodName(&name); err != nil {
				return err
			}
			q.pods = append(q.pods, name)
			return nil
		})
	}},
	{Name: "top", Read: func(s *scan.Scanner, q *Score) error { return s.Count(&q.top) }},
	{Name: "strategy", Read: func(s *scan.Scanner, q *Score) error {
		i, err := s.WordOf(strategyNames)
		if err == nil {
			q.strategy = scorer.Strategy(strategyNames[i])
		}
		return err
	}},
	InputOf("lora", scoreInput, ReadLoRA),
	{Name: "explain", Read: func(s *scan.Scanner, q *Score) error { return s.Bool(&q.Explain) }},
	{Name: "return_tokens", Read: readReturnTokens},
	{Name: "predicted", Read: func(s *scan.Scanner, q *Score) error { return s.Bool(&q.predicted) }},
	{Name: "wait_ms", Read: func(s *scan.Scanner, q *Score) error {
		ms, err := s.Uint(uint64(q.Limits.MaxWait.Milliseconds()), "a whole number of milliseconds")
		// To the tokenizer a wait of 0 is its default; here it means no wait.
		q.wait = max(time.Duration(ms)*time.Millisecond, 1)
		return err
	}},
	{Name: "mode", Read: func(s *scan.Scanner, q *Score) error {
		i, err := s.WordOf(modeNames)
		if err == nil {
			q.mode = modes[i]
		}
		return err
	}},
	{Name: "early_exit", Read: func(s *scan.Scanner, q *Score) error { return s.Bool(&q.earlyExit) }},
}...)

// ScoreNames are their names.
var ScoreNames = scan.NamesOf(ScoreFields)
