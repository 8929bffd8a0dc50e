package server

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// input is the prompt of a request in one of its forms, and what belongs to
// it. /v1/score and /v1/tokenize share it, and /v1/blocks has a part.
type input struct {
	limits *Limits

	model           string
	named           string // the model as the request names it
	prompt          prompts
	prompts         []string
	tokens          []uint32 // of tokens, tokens_b64 or input_ids
	objects         []blockkey.Object
	chat            prompt.Chat
	media           []prompt.Medium
	processed       bool // media are not processed as by default
	keys            []blockkey.Key
	lora, salt      string
	resolved        bool // model and lora are what the request's model means
	loraPath        string
	noSpecialTokens bool
	cut             scorer.Truncation
	unpacked        []byte // room for tokens_b64
}

// reset empties the input and keeps its room.
func (in *input) reset() {
	*in = input{tokens: room(in.tokens), keys: room(in.keys), unpacked: room(in.unpacked)}
}

// room is the empty slice in the memory of s, unless that is too large to wait
// for the next request.
func room[T any](s []T) []T {
	if cap(s) > keepBytes/4 {
		return nil
	}
	return s[:0]
}

// inputOf reads one field of an input inside of a T.
func inputOf[T any](name string, at func(*T) *input, read func(*scanner, *input) error) field[T] {
	return field[T]{name, func(s *scanner, t *T) error { return read(s, at(t)) }}
}

func readModel(s *scanner, in *input) error {
	if err := s.text(&in.model); err != nil {
		return err
	}
	info := store.ModelInfo{Name: in.model, BlockSize: 1, Scheme: store.SchemeNative}
	if err := info.Validate(); err != nil {
		return s.refused(err)
	}
	return nil
}

func readPrompt(s *scanner, in *input) (err error) {
	in.prompt, err = s.prompts(in.limits)
	return err
}

func readPrompts(s *scanner, in *input) error {
	return s.array("an array of strings", in.limits.MaxPrompts, func() error {
		in.prompts = append(in.prompts, "")
		return s.text(&in.prompts[len(in.prompts)-1])
	})
}

func readTokens(s *scanner, in *input) (err error) {
	in.tokens, err = s.tokens(in.tokens[:0], in.limits.MaxTokens)
	return err
}

func readKeys(s *scanner, in *input) (err error) {
	in.keys, err = s.blockKeys(in.keys[:0], in.limits.MaxBlockKeys)
	return err
}

func readLoRA(s *scanner, in *input) error { return s.text(&in.lora) }
func readSalt(s *scanner, in *input) error { return s.text(&in.salt) }

// readPacked reads tokens_b64: u32 little-endian in base64 (RFC 4648, section
// 4), with padding or without.
func readPacked(s *scanner, in *input) error {
	b, err := s.string("a string of base64")
	if err != nil {
		return err
	}
	enc := base64.RawStdEncoding
	if len(b)%4 == 0 {
		enc = base64.StdEncoding
	}
	if most := in.limits.MaxTokens; len(b)/4*3 > 4*most+2 {
		return s.tooMany(most)
	}
	in.unpacked = slices.Grow(in.unpacked[:0], enc.DecodedLen(len(b)))
	raw := in.unpacked[:enc.DecodedLen(len(b))]
	n, err := enc.Strict().Decode(raw, b)
	// The decoder skips line ends; then it gives less than the digits make.
	if digits := bytes.TrimRight(b, "="); err != nil || n != base64.RawStdEncoding.DecodedLen(len(digits)) {
		return s.wrong("is not base64 (standard alphabet, padded or not)")
	}
	if n%4 != 0 {
		return s.wrong("does not hold whole tokens: they have 4 bytes each, little-endian")
	}
	in.tokens = slices.Grow(in.tokens[:0], n/4)[:n/4]
	for i := range in.tokens {
		in.tokens[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return nil
}

// form is the set of fields that were given, for rules between fields.
type form struct {
	names []string
	seen  uint64
	// skipped is the first field of an engine that was skipped, "" if none was, and
	// refused are those that may not be skipped.
	skipped string
	refused []string
}

// namesOf lists the names of fs, in order.
func namesOf[T any](fs fields[T]) []string {
	names := make([]string, len(fs))
	for i := range fs {
		names[i] = fs[i].name
	}
	return names
}

func (f form) has(name string) bool { return f.seen&(1<<slices.Index(f.names, name)) != 0 }

// need refuses a form without these fields.
func (f form) need(names ...string) error {
	for _, n := range names {
		if !f.has(n) {
			return invalid(n, "%s is missing", n)
		}
	}
	return nil
}

// one refuses a form that has not exactly one of the fields, and returns it.
func (f form) one(names ...string) (string, error) {
	var got string
	for _, n := range names {
		switch {
		case !f.has(n):
		case got != "":
			return "", invalid(n, "%s and %s are both given, give one of %s", got, n, strings.Join(names, ", "))
		default:
			got = n
		}
	}
	if got == "" {
		return "", invalid(names[0], "one of %s is needed", strings.Join(names, ", "))
	}
	return got, nil
}

// exclude refuses a form that has one of the fields.
func (f form) exclude(because string, names ...string) error {
	for _, n := range names {
		if f.has(n) {
			return invalid(n, "%s cannot be given: %s", n, because)
		}
	}
	return nil
}

// readWithPrompt reads a body with one of several forms of a prompt, and returns which form it
// has. The memory that its chat takes while it is rendered is held then.
func readWithPrompt[T any](c *call, fs fields[T], names []string, dst *T, in *input, forms ...string) (f form, kind string, err error) {
	in.limits = &c.s.cfg.Limits
	if f, err = readEngineBody(c, fs, names, dst); err != nil {
		return f, "", err
	}
	if err := f.need("model"); err != nil {
		return f, "", err
	}
	c.model = in.model
	if err := c.holdChat(&in.chat); err != nil {
		return f, "", err
	}
	kind, err = f.one(forms...)
	return f, kind, err
}

const keysAreSeeded = "block_keys already contain LoRA and salt"

// scoreRequest is the body of POST /v1/score.
type scoreRequest struct {
	input

	pods      []string
	strategy  scorer.Strategy
	explain   bool
	predicted bool
	returns   string // return_tokens
	earlyExit bool
	mode      prompt.Mode
	wait      time.Duration
}

func (q *scoreRequest) reset() {
	in := q.input
	in.reset()
	*q = scoreRequest{input: in}
}

func scoreInput(q *scoreRequest) *input { return &q.input }

var scoreFields = append(engineFields(scoreInput), fields[scoreRequest]{
	inputOf("model", scoreInput, readModel),
	inputOf("prompts", scoreInput, readPrompts),
	inputOf("tokens", scoreInput, readTokens),
	inputOf("tokens_b64", scoreInput, readPacked),
	inputOf("block_keys", scoreInput, readKeys),
	inputOf("features", scoreInput, readFeatures),
	{"pods", func(s *scanner, q *scoreRequest) error {
		q.pods = []string{}
		return s.array("an array of pod names", q.limits.MaxPods, func() error {
			var name string
			if err := s.podName(&name); err != nil {
				return err
			}
			q.pods = append(q.pods, name)
			return nil
		})
	}},
	{"strategy", func(s *scanner, q *scoreRequest) error {
		b, err := s.string("a string")
		if err != nil {
			return err
		}
		var names []string
		for _, st := range scorer.Strategies() {
			if string(b) == string(st) {
				q.strategy = st
				return nil
			}
			names = append(names, string(st))
		}
		return s.wrong("is none of " + strings.Join(names, ", "))
	}},
	inputOf("lora", scoreInput, readLoRA),
	{"explain", func(s *scanner, q *scoreRequest) error { return s.bool(&q.explain) }},
	{"return_tokens", readReturnTokens},
	{"predicted", func(s *scanner, q *scoreRequest) error { return s.bool(&q.predicted) }},
	{"wait_ms", func(s *scanner, q *scoreRequest) error {
		ms, err := s.uint(uint64(q.limits.RequestTimeout.Milliseconds()), "a whole number of milliseconds")
		// To the tokenizer a wait of 0 is its default; here it is none.
		q.wait = max(time.Duration(ms)*time.Millisecond, 1)
		return err
	}},
	{"mode", func(s *scanner, q *scoreRequest) error {
		b, err := s.string("a string")
		if err != nil {
			return err
		}
		switch string(b) {
		case "wait":
			q.mode = prompt.Wait
		case "async":
			q.mode = prompt.Async
		case "sync":
			q.mode = prompt.Sync
		default:
			return s.wrong("is none of wait, async, sync")
		}
		return nil
	}},
	{"early_exit", func(s *scanner, q *scoreRequest) error { return s.bool(&q.earlyExit) }},
}...)

var scoreNames = namesOf(scoreFields)
