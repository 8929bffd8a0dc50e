// Package terminal makes what other machines have said fit to be shown to a person.
package terminal

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"unicode"

	"github.com/kvatlas/kvatlas/client"
)

// ServerError says what to do about an error that has a remedy.
func ServerError(server string, err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		text := fmt.Sprintf("the server at %s answers %d", server, e.Status)
		if e.Code != "" {
			text += " " + Printable(e.Code)
		}
		text += ": " + Printable(e.Message)
		if e.Param != "" {
			text += " (" + Printable(e.Param) + ")"
		}
		if e.Status == http.StatusUnauthorized {
			text += "\nThe token is taken from $KVATLAS_TOKEN; kvatlas token makes one"
		}
		if e.Status == http.StatusNotFound && e.Code == "" {
			text += "\nThis is no answer of kvatlas: --server names its --listen address, not that of an engine or of the gateway's clients"
		}
		return errors.New(text)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("no server can be reached at %s: %w\nStart one with kvatlas serve, or name another with --server URL", server, op.Err)
	}
	return fmt.Errorf("%s: %s", server, strings.TrimPrefix(err.Error(), "client: "))
}

// ServerAnswer says in one line why a call failed, without advice: a finding has its own.
func ServerAnswer(server string, err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		bare := *e
		bare.Param = "" // it is of a request that the person has not written
		err = &bare
	}
	line, _, _ := strings.Cut(ServerError(server, err).Error(), "\n")
	return line
}

// Printable keeps what another machine says from steering the terminal. It takes out control
// characters, and those of Unicode that are not seen and turn text around, join it or break
// its line.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return '?'
		}
		return r
	}, s)
}
