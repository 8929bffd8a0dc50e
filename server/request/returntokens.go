package request

import (
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// The forms of return_tokens.
const (
	ReturnIDs    = "ids"
	ReturnPacked = "packed"
	ReturnBody   = "body"
)

var returnForms = []string{ReturnIDs, ReturnPacked, ReturnBody}

func readReturnTokens(s *scan.Scanner, q *Score) error {
	if err := s.Text(&q.Returns); err != nil {
		return err
	}
	if !slices.Contains(returnForms, q.Returns) {
		return s.Wrong("is not one of " + strings.Join(returnForms, ", "))
	}
	return nil
}

// checkReturnTokens refuses return_tokens where the tokens are not the whole prompt, or not
// those of one prompt.
func (q *Score) checkReturnTokens(kind string) error {
	switch {
	case q.Returns == "":
	case kind == "block_keys":
		return refusal.Invalid("return_tokens", "block_keys have no tokens to return")
	case kind == "prompts" || q.Prompt.List:
		return refusal.Invalid("return_tokens", "return_tokens is for one prompt")
	case len(q.Objects)+len(q.Media) > 0:
		return refusal.Invalid("return_tokens", "the tokens of a prompt with images, audio or video are not all of it")
	}
	return nil
}
