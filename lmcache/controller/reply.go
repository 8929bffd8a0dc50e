package controller

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// reply is a message to a worker.
type reply []byte

// newReply begins a reply with n fields besides its type.
func newReply(kind string, n int) reply {
	b := msgp.AppendMapHeader(nil, uint32(n+1))
	return msgp.AppendString(msgp.AppendString(b, "type"), kind)
}

func newMap(n int) []byte { return msgp.AppendMapHeader(nil, uint32(n)) }

// errorReply is LMCache's ErrorMsg.
func errorReply(format string, args ...any) reply {
	return newReply("ErrorMsg", 1).text("error", fmt.Sprintf(format, args...))
}

func (r reply) text(name, v string) reply { return msgp.AppendString(msgp.AppendString(r, name), v) }

func (r reply) yes(name string, v bool) reply {
	return msgp.AppendBool(msgp.AppendString(r, name), v)
}

func (r reply) null(name string) reply { return msgp.AppendNil(msgp.AppendString(r, name)) }

func (r reply) list(name string, n int) reply {
	return msgp.AppendArrayHeader(msgp.AppendString(r, name), uint32(n))
}

func (r reply) float(name string, v float64) reply {
	return msgp.AppendFloat64(msgp.AppendString(r, name), v)
}

func (r reply) mapping(name string, n int) reply {
	return msgp.AppendMapHeader(msgp.AppendString(r, name), uint32(n))
}

// item and int append a value to a list.
func (r reply) item(v string) reply { return msgp.AppendString(r, v) }

func (r reply) int(v int) reply { return msgp.AppendInt(r, v) }

// values begins a list of n in a list.
func (r reply) values(n int) reply { return msgp.AppendArrayHeader(r, uint32(n)) }
