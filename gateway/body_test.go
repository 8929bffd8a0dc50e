package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// closedBehind is a body of which what lies behind its bytes is an error. The server has closed it,
// as it does with the first byte of the answer.
type closedBehind struct{ io.Reader }

func (c closedBehind) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = http.ErrBodyReadAfterClose
	}
	return n, err
}

func (closedBehind) Close() error { return nil }

// A body of known length is not read beyond it, which the transport does beside the answer.
func TestBodyIsNotReadBeyondItsLength(t *testing.T) {
	for _, x := range []struct {
		what string
		left int64
		err  error
	}{{"of known length", 5, nil}, {"of unknown length", -1, errBody}} {
		o := &clientBody{x: &exchange{g: &Gateway{c: Config{Now: time.Now}}, ctx: t.Context()}, body: closedBehind{strings.NewReader("words")}, left: x.left, room: 5}
		b, err := io.ReadAll(o)
		if !bytes.Equal(b, []byte("words")) || !errors.Is(err, x.err) {
			t.Errorf("%s: %q, %v", x.what, b, err)
		}
	}
}
