package answer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	"github.com/kvatlas/kvatlas/server/request"
)

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

// returnedOf puts tokens into the form that was asked for. A body has the model by the name
// that the request has for it, as an engine's client has: of an adapter the adapter's.
func returnedOf(q *request.Score, ids []uint32) returned {
	switch q.Returns {
	case request.ReturnIDs:
		return returned{IDs: ids}
	case request.ReturnPacked:
		b := make([]byte, 0, 4*len(ids))
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		return returned{Packed: b}
	case request.ReturnBody:
		return returned{Body: &completionBody{q.Named, ids, q.Salt}}
	}
	return returned{}
}

// AppendReturned adds tokens to an answer that is a whole object and a line end.
func AppendReturned(answer []byte, q *request.Score, ids []uint32) ([]byte, error) {
	more, err := json.Marshal(returnedOf(q, ids))
	if err != nil || len(more) <= len("{}") {
		return answer, err
	}
	answer = append(bytes.TrimSuffix(answer, []byte("}\n")), ',')
	return append(append(answer, more[1:]...), '\n'), nil
}
