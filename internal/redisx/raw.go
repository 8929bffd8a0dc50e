package redisx

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/redis/go-redis/v9"
)

// RawInto is a command whose reply is appended, byte by byte as the server sends it, to memory
// of the caller's. It has the whole of what was replied, an error of the server's among it. The
// client makes it once only, also after an error of the connection. It is not safe for
// concurrent use; commands of one pipeline may share the memory.
type RawInto struct {
	*redis.RawWriteToCmd
	into  *[]byte
	begin int // where the reply begins; -1 before it has
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
	return (*c.into)[c.begin : c.begin+int(c.Val())]
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

// Write implements io.Writer.
func (a *appender) Write(b []byte) (int, error) {
	a.start()
	*a.into = append(*a.into, b...)
	return len(b), nil
}

// ReadFrom implements io.ReaderFrom, which the client copies each value by.
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
			return total, nil
		case err != nil:
			return total, err
		}
	}
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
