package server

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
)

// The forms of return_tokens.
const (
	returnIDs    = "ids"
	returnPacked = "packed"
	returnBody   = "body"
)

var returnForms = []string{returnIDs, returnPacked, returnBody}

func readReturnTokens(s *scanner, q *scoreRequest) error {
	if err := s.text(&q.returns); err != nil {
		return err
	}
	if !slices.Contains(returnForms, q.returns) {
		return s.wrong("is none of " + strings.Join(returnForms, ", "))
	}
	return nil
}

// checkReturnTokens refuses return_tokens where the tokens are not the whole prompt, or not
// those of one prompt.
func (q *scoreRequest) checkReturnTokens(kind string) error {
	switch {
	case q.returns == "":
	case kind == "block_keys":
		return invalid("return_tokens", "block_keys have no tokens to return")
	case kind == "prompts" || q.prompt.list:
		return invalid("return_tokens", "return_tokens is for one prompt")
	case len(q.objects)+len(q.media) > 0:
		return invalid("return_tokens", "the tokens of a prompt with images, audio or video are not all of it")
	}
	return nil
}

// returned are the tokens of a prompt as an answer has them.
type returned struct {
	// IDs, Packed and Body are the forms of return_tokens. Packed is u32 little-endian.
	IDs    []uint32        `json:"token_ids,omitempty"`
	Packed []byte          `json:"token_ids_b64,omitempty"`
	Body   *completionBody `json:"body,omitempty"`
}

// completionBody is what vLLM's /v1/completions takes: the engine does not tokenize again.
type completionBody struct {
	Model  string   `json:"model"`
	Prompt []uint32 `json:"prompt"`
	Salt   string   `json:"cache_salt,omitempty"`
}

// returned puts tokens into the form that was asked for. A body has the model by the name
// that the request has for it, as an engine's client has: of an adapter the adapter's.
func (q *scoreRequest) returned(ids []uint32) returned {
	switch q.returns {
	case returnIDs:
		return returned{IDs: ids}
	case returnPacked:
		b := make([]byte, 0, 4*len(ids))
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		return returned{Packed: b}
	case returnBody:
		return returned{Body: &completionBody{q.named, ids, q.salt}}
	}
	return returned{}
}

// withTokens adds tokens to an answer that is a whole object and a line end.
func (q *scoreRequest) withTokens(answer []byte, ids []uint32) ([]byte, error) {
	more, err := json.Marshal(q.returned(ids))
	if err != nil || len(more) <= len("{}") {
		return answer, err
	}
	answer = append(bytes.TrimSuffix(answer, []byte("}\n")), ',')
	return append(append(answer, more[1:]...), '\n'), nil
}
