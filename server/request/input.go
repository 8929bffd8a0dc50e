// Package request reads the bodies that have a prompt. The prompt is scored, routed,
// tokenized or rendered, in our own form or as a client sends it to an engine. It does no
// I/O: it makes scorer.Inputs of bytes, and what is wrong is a refusal that names the field.
//
//	var s scan.Scanner
//	q := &request.Route{}
//	q.Limits = &limits
//	s.Start(body, request.EngineSkips)
//	form, err := scan.Read(&s, request.RouteFields, request.RouteNames, q)
//
// What it reads belongs to one goroutine.
package request

import (
	"errors"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/appendjson"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
)

// Limits bound what one request may carry.
type Limits struct {
	// MaxTokens, MaxBlockKeys, MaxPrompts, MaxPods and MaxObjects are the most that one
	// request may have of each. Objects are images, audio and video.
	MaxTokens, MaxBlockKeys, MaxPrompts, MaxPods, MaxObjects int
	// MaxWait is the longest wait_ms.
	MaxWait time.Duration
}

// Input is the prompt of a request in one of its forms, and what belongs to
// it. The routes /v1/score and /v1/tokenize share it, and /v1/blocks has a
// part.
type Input struct {
	Limits *Limits

	Model           string
	Named           string // the model as the request names it
	Prompt          Completion
	prompts         []string
	Tokens          []uint32 // of tokens, tokens_b64 or input_ids
	Objects         []blockkey.Object
	Chat            prompt.Chat
	Media           []prompt.Medium
	processed       bool // media are not processed as by default
	Keys            []blockkey.Key
	LoRA, Salt      string
	Scope           string // prompt.Request's
	Resolved        bool   // model and lora are what the request's model means
	LoRAPath        string
	NoSpecialTokens bool
	Truncation      scorer.Truncation
}

// Resolve puts what the model's name means into model and lora.
func (in *Input) Resolve(r store.Reading, kind string) error {
	if r.LoRA != "" && in.LoRA != "" && in.LoRA != r.LoRA {
		return refusal.Invalid("lora", "lora names another adapter than model, which is the adapter %s of %s", refusal.Clip(r.LoRA), refusal.Clip(r.Model))
	}
	in.Named = in.Model
	in.Resolved = r != store.Reading{Model: in.Model}
	in.Model = r.Model
	if r.LoRA != "" && kind != "block_keys" { // which already contain it
		in.LoRA = r.LoRA
	}
	return nil
}

// AppendResolved appends what the request's model means, where that is not itself.
func (in *Input) AppendResolved(b []byte) []byte {
	if !in.Resolved {
		return b
	}
	b = appendjson.String(append(b, `,"resolved":{"model":`...), in.Model)
	if in.LoRA != "" {
		b = appendjson.String(append(b, `,"lora":`...), in.LoRA)
	}
	return append(b, '}')
}

// reset empties the input and keeps its room.
func (in *Input) reset() {
	*in = Input{Tokens: room(in.Tokens), Keys: room(in.Keys)}
}

// keepRoom is how many elements of a slice wait for the next request at the most.
const keepRoom = 1 << 20

// room is the empty slice in the memory of s, unless that is too large to wait
// for the next request.
func room[T any](s []T) []T {
	if cap(s) > keepRoom {
		return nil
	}
	return s[:0]
}

// InputOf reads one field of an input inside of a T.
func InputOf[T any](name string, at func(*T) *Input, read func(*scan.Scanner, *Input) error) scan.Field[T] {
	return scan.Field[T]{Name: name, Read: func(s *scan.Scanner, t *T) error { return read(s, at(t)) }}
}

// ReadModel reads the name of a model.
func ReadModel(s *scan.Scanner, in *Input) error {
	if err := s.Text(&in.Model); err != nil {
		return err
	}
	info := store.ModelInfo{Name: in.Model, BlockSize: 1, Scheme: store.SchemeNative}
	if err := info.Validate(); err != nil {
		return s.Refused(err)
	}
	return nil
}

func readPrompt(s *scan.Scanner, in *Input) (err error) {
	in.Prompt, err = readPrompts(s, in.Limits)
	return err
}

func readTexts(s *scan.Scanner, in *Input) error {
	return s.Array("an array of strings", in.Limits.MaxPrompts, func() error {
		in.prompts = append(in.prompts, "")
		return s.Text(&in.prompts[len(in.prompts)-1])
	})
}

// ReadTokens reads an array of tokens.
func ReadTokens(s *scan.Scanner, in *Input) (err error) {
	in.Tokens, err = s.Tokens(in.Tokens[:0], in.Limits.MaxTokens)
	return err
}

// ReadKeys reads an array of block keys.
func ReadKeys(s *scan.Scanner, in *Input) (err error) {
	in.Keys, err = s.BlockKeys(in.Keys[:0], in.Limits.MaxBlockKeys)
	return err
}

// ReadLoRA reads the name of an adapter.
func ReadLoRA(s *scan.Scanner, in *Input) error { return s.Text(&in.LoRA) }

// ReadSalt reads a cache salt.
func ReadSalt(s *scan.Scanner, in *Input) error { return s.Text(&in.Salt) }

// ReadPacked reads tokens_b64: u32 little-endian in base64 (RFC 4648, section
// 4), with padding or without.
func ReadPacked(s *scan.Scanner, in *Input) error {
	// Most bytes of such a request are these: they are looked at once, by the decoder, which
	// takes nothing that a string could not have.
	if b, ok := s.PeekQuoted(); ok && len(b)/4*3 <= 4*in.Limits.MaxTokens+2 {
		if tokens, err := appendPacked(in.Tokens[:0], b); err == nil {
			in.Tokens = tokens
			s.SkipQuoted(b)
			return nil
		}
	}
	b, err := s.StringBytes("a string of base64")
	if err != nil {
		return err
	}
	if most := in.Limits.MaxTokens; len(b)/4*3 > 4*most+2 {
		return s.TooMany(most)
	}
	in.Tokens, err = appendPacked(in.Tokens[:0], b)
	switch {
	case errors.Is(err, errPartOfToken):
		return s.Wrong("does not hold whole tokens: they have 4 bytes each, little-endian")
	case err != nil:
		return s.Wrong("is not base64 (standard alphabet, padded or not)")
	}
	return nil
}

// KeysAreSeeded is why block keys take no LoRA and no salt.
const KeysAreSeeded = "block_keys already contain LoRA and salt"
