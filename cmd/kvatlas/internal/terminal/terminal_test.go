package terminal

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/kvatlas/kvatlas/client"
)

func TestServerError(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		err         error
		text, first string
	}{
		{&client.Error{Status: 404, Code: "not\x1bfound", Message: "no\nmodel", Param: "mo\x07del"}, "the server at s answers 404 not?found: no?model (mo?del)", "the server at s answers 404 not?found: no?model"},
		{&client.Error{Status: 500, Message: "m"}, "the server at s answers 500: m", "the server at s answers 500: m"},
		{
			&client.Error{Status: 404, Message: "404 page not found"},
			"the server at s answers 404: 404 page not found\nThis is no answer of kvatlas: --server names its --listen address, not that of an engine or of the gateway's clients",
			"the server at s answers 404: 404 page not found",
		},
		{fmt.Errorf("client: %w", refused), "no server can be reached at s: refused\nStart one with kvatlas serve, or name another with --server URL", "no server can be reached at s: refused"},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, "s: read: reset", "s: read: reset"},
		{errors.New("client: late"), "s: late", "s: late"},
	} {
		if got := ServerError("s", c.err).Error(); got != c.text {
			t.Errorf("got %q, want %q", got, c.text)
		}
		if got := ServerAnswer("s", c.err); got != c.first {
			t.Errorf("got %q, want %q", got, c.first)
		}
	}
	if got := Printable("pod\u202e8\u200b0\u2066\ufeff:\u2028x \u00df\u4f60"); got != "pod?8?0??:?x \u00df\u4f60" {
		t.Errorf("got %q", got)
	}
	if got := Printable("a\x1b[2J\r\tb\u0085\u00e4"); got != "a?[2J??b?\u00e4" {
		t.Errorf("got %q", got)
	}
}
