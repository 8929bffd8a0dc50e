package redisx

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Again stands in a reply for a string that is the same as the last one before it, as a line of
// its own. RESP has no type of this name.
const Again = '"'

// RawInto is a command whose reply is appended, as the server sends it, to memory of the
// caller's. It has the whole of what was replied, an error of the server's among it, but a
// string that is the same as the last one may be [Again]. The client makes it once only, also
// after an error of the connection. It is not safe for concurrent use; commands of one pipeline
// may share the memory.
type RawInto struct {
	*redis.RawWriteToCmd
	into       *[]byte
	begin, end int                    // where the reply begins and ends; begin is -1 before it has
	line       int                    // where the last line begins
	last       struct{ from, to int } // the last string, from its line on
}

// NewRawInto returns a command whose reply is appended to *into.
func NewRawInto(ctx context.Context, into *[]byte, args ...any) *RawInto {
	c := &RawInto{into: into, begin: -1}
	c.RawWriteToCmd = redis.NewRawWriteToCmd(ctx, (*appender)(c), args...)
	return c
}

// Reply is what was replied, a part of the caller's memory; it is empty before that.
func (c *RawInto) Reply() []byte {
	if c.begin < 0 {
		return nil
	}
	return (*c.into)[c.begin:c.end]
}

// Begin is where the reply begins in the caller's memory.
func (c *RawInto) Begin() int { return max(0, c.begin) }

// appender appends to the memory of its command.
type appender RawInto

func (a *appender) start() {
	if a.begin < 0 {
		a.begin = len(*a.into)
	}
}

// Write implements io.Writer. The client writes lines by it.
func (a *appender) Write(b []byte) (int, error) {
	a.start()
	if len(b) > 0 && b[0] != '\r' {
		a.line = len(*a.into)
	}
	*a.into = append(*a.into, b...)
	a.end = len(*a.into)
	return len(b), nil
}

// ReadFrom implements io.ReaderFrom, which the client copies each string by. Where a thousand
// pods hold a prompt, its strings are long and most are the same as the one before. That they
// are is seen here while they are near, and they take no memory.
func (a *appender) ReadFrom(src io.Reader) (total int64, err error) {
	a.start()
	for {
		b := *a.into
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b)+4096)
		}
		n, err := src.Read(b[len(b):cap(b)])
		*a.into, total = b[:len(b)+n], total+int64(n)
		switch {
		case errors.Is(err, io.EOF):
			a.keep()
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

// keep makes what was read the last string, or takes it back if it is the same as that.
func (a *appender) keep() {
	b := *a.into
	if bytes.Equal(b[a.line:], b[a.last.from:a.last.to]) {
		b = append(b[:a.line], Again, '\r', '\n')
	} else {
		a.last.from, a.last.to = a.line, len(b)
	}
	*a.into, a.end = b, len(b)
}

// rawReply is the reply of a command that the client does not look into.
func rawReply(c redis.Cmder) (reply []byte, raw bool) {
	switch c := c.(type) {
	case *redis.RawCmd:
		return c.Val(), true
	case *RawInto:
		return c.Reply(), true
	}
	return nil, false
}
