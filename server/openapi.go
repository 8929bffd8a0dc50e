package server

import (
	_ "embed"
	"net/http"
)

// document is the OpenAPI description of every route of this package; a test
// holds the two against each other.
//
//go:embed openapi.json
var document []byte

// openAPI is GET /openapi.json.
func (c *call) openAPI() error {
	c.reply(http.StatusOK, document)
	return nil
}
