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
		o := &clientBody{x: &exchange{g: &Gateway{c: Config{Now: time.Now}}, ctx: t.Context()}, body: closedBehind{strings.NewReader("words")}, left: x.left, room: 5, patience: bodyStall}
		b, err := io.ReadAll(o)
		if !bytes.Equal(b, []byte("words")) || !errors.Is(err, x.err) {
			t.Errorf("%s: %q, %v", x.what, b, err)
		}
	}
}

// slow is a body of which each read takes some time and brings some bytes.
type slow struct {
	now   *time.Time
	takes time.Duration
	bytes int
}

func (s *slow) Read(p []byte) (int, error) {
	*s.now = s.now.Add(s.takes)
	return min(s.bytes, len(p)), nil
}

func (*slow) Close() error { return nil }

// A body that comes a little at a time is given up when it comes slower than the least rate.
func TestLeastRateOfABody(t *testing.T) {
	for _, x := range []struct {
		what  string
		takes time.Duration
		bytes int
		most  time.Duration // until it is given up
	}{
		{"a byte now and then", 29 * time.Second, 1, time.Minute},
		{"a byte a second", time.Second, 1, 32 * time.Second},
		{"half the rate", time.Second, bodyRate / 2, 61 * time.Second},
		{"the rate", time.Second, bodyRate, 0},
		{"much after a pause", 20 * time.Second, 20 * bodyRate, 0},
	} {
		start := time.Unix(1, 0)
		now := start
		g := &Gateway{c: Config{MaxBody: 1 << 30, Now: func() time.Time { return now }}}
		var b clientBody
		b.open(&exchange{g: g, ctx: t.Context()}, &http.Request{Body: &slow{&now, x.takes, x.bytes}, ContentLength: 1 << 30})
		p := make([]byte, 64<<10)
		var err error
		for range 1000 {
			if _, err = b.Read(p); err != nil {
				break
			}
		}
		took := now.Sub(start)
		if x.most == 0 && err != nil || x.most > 0 && (!errors.Is(err, errBodyStall) || took > x.most) {
			t.Errorf("%s: %v after %v", x.what, err, took)
		}
	}
	// The engine's time is no time of the client's.
	now := time.Unix(1, 0)
	g := &Gateway{c: Config{MaxBody: 1 << 30, Now: func() time.Time { return now }}}
	var b clientBody
	b.open(&exchange{g: g, ctx: t.Context()}, &http.Request{Body: &slow{&now, 0, 1}, ContentLength: 1 << 30})
	for range 100 {
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
}
