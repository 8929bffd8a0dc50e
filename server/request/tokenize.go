package request

import (
	"github.com/kvatlas/kvatlas/server/scan"
)

// Tokenize is the body of POST /v1/tokenize.
type Tokenize struct{ Input }

func tokenizeInput(q *Tokenize) *Input { return &q.Input }

// TokenizeFields are the fields of POST /v1/tokenize.
var TokenizeFields = append(engineFields(tokenizeInput), scan.Fields[Tokenize]{
	InputOf("model", tokenizeInput, ReadModel),
}...)

// TokenizeNames are their names.
var TokenizeNames = scan.NamesOf(TokenizeFields)
