package server

import "fmt"

// prompts are what a completion is asked for: a text, texts, token ids, or lists of
// token ids.
type prompts struct {
	texts  []string
	tokens [][]uint32
	list   bool // several, or a list of one
}

// prompts reads prompts. Tokens of all of them are counted together.
func (s *scanner) prompts(limits *Limits) (p prompts, err error) {
	text := func() error {
		p.texts = append(p.texts, "")
		return s.text(&p.texts[len(p.texts)-1])
	}
	total := 0
	ids := func() error {
		one, err := s.tokens(nil, limits.MaxTokens-total)
		total += len(one)
		p.tokens = append(p.tokens, one)
		return err
	}
	if s.at('"') {
		return p, text()
	}
	if !s.at('[') {
		return p, s.unexpected("a string, strings, tokens, or lists of tokens")
	}
	switch s.second() {
	case ']':
		return p, s.wrong(fmt.Sprintf("has 0 prompts, it can have 1 to %d", limits.MaxPrompts))
	case '"':
		p.list = true
		return p, s.array("an array of strings", limits.MaxPrompts, text)
	case '[':
		p.list = true
		return p, s.array("an array of lists of tokens", limits.MaxPrompts, ids)
	default:
		return p, ids()
	}
}

// second returns the first byte of the first element of the array that is next, 0 at
// the end of the text.
func (s *scanner) second() byte {
	at := s.pos + 1
	for at < len(s.data) && isSpace(s.data[at]) {
		at++
	}
	if at == len(s.data) {
		return 0
	}
	return s.data[at]
}
