package request

import (
	"fmt"

	"github.com/kvatlas/kvatlas/server/scan"
)

// Completion is what a completion is asked for: a text, texts, token ids, or lists of
// token ids.
type Completion struct {
	Texts  []string
	Tokens [][]uint32
	List   bool // several, or a list of one
}

// readPrompts reads prompts. Tokens of all of them are counted together.
func readPrompts(s *scan.Scanner, limits *Limits) (p Completion, err error) {
	text := func() error {
		p.Texts = append(p.Texts, "")
		return s.Text(&p.Texts[len(p.Texts)-1])
	}
	total := 0
	ids := func() error {
		one, err := s.Tokens(nil, limits.MaxTokens-total)
		total += len(one)
		p.Tokens = append(p.Tokens, one)
		return err
	}
	if s.IsAt('"') {
		return p, text()
	}
	if !s.IsAt('[') {
		return p, s.Unexpected("a string, strings, tokens, or lists of tokens")
	}
	switch s.PeekElement() {
	case ']':
		return p, s.Wrong(fmt.Sprintf("has 0 prompts, it can have 1 to %d", limits.MaxPrompts))
	case '"':
		p.List = true
		return p, s.Array("an array of strings", limits.MaxPrompts, text)
	case '[':
		p.List = true
		return p, s.Array("an array of lists of tokens", limits.MaxPrompts, ids)
	default:
		return p, ids()
	}
}
