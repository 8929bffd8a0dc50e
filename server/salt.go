package server

import (
	"crypto/rand"
	"fmt"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/server/request"
)

// forSalted are the patterns that a caller with a salt may use, beside those that need no role. They
// answer from its own prompts, and give names of pods and models. All others tell, or may one day tell,
// of prompts of others: keys of prefixes, loads, metrics.
var forSalted = map[string]bool{
	"/v1/score": true, "/v1/route": true, "/v1/requests/{id}/done": true, "/v1/requests/{id}/output": true, "/v1/requests/{id}/end": true,
	"/v1/tokenize": true, "/tokenize": true, "/detokenize": true,
	"/v1/completions/render": true, "/v1/chat/completions/render": true, "/v1/messages/render": true, "/v1/responses/render": true,
	"/v1/pods": true, "/v1/pods/{name}": true, "/v1/models": true,
}

// checkSalted refuses a caller with a salt what is not for it.
func (c *call) checkSalted() error {
	if c.caller.Salt != "" && !forSalted[c.route.pattern] {
		return fmt.Errorf("%w: the credentials of %q have a salt, and this shows requests of others", access.ErrForbidden, c.caller.Name)
	}
	return nil
}

// applySalt has a prompt run under the salt of its caller, if that has one.
func (c *call) applySalt(in *request.Input, kind string) error {
	if c.caller.Salt != "" && kind == "block_keys" {
		return fmt.Errorf("%w: the credentials of %q have a salt, and block_keys may be under any: send tokens or a text", access.ErrForbidden, c.caller.Name)
	}
	in.Salt, in.Scope = c.caller.CacheSalt(in.Salt), c.caller.Salt
	return nil
}

// keepSalt refuses what would show a caller its own salt, or keys from which it could be found. Keys add
// the hashes of salt and adapter. So a caller that knows the one can choose the name of an adapter that
// undoes it.
func (c *call) keepSalt(q *request.Score) error {
	if c.caller.Salt != "" && (q.Explain || q.Returns == request.ReturnBody) {
		return fmt.Errorf("%w: the credentials of %q have a salt, which explain, and return_tokens with body, would show", access.ErrForbidden, c.caller.Name)
	}
	return nil
}

// scopeID has a request run under an ID that no other tenant can name, if its caller has a
// salt. It returns the one that the caller knows it by. A request that is booked without an ID
// gets one here: the caller is to report by it.
func (c *call) scopeID(q *request.Route) (own string) {
	if own = q.ID; own == "" && q.Reserve && c.caller.Salt != "" {
		own = rand.Text()
	}
	q.ID = c.caller.Scoped(own)
	return own
}
