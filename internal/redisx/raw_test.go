package redisx

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
)

// answering is the address of a server that answers a GET with the bytes that its key is. In a key \n
// stands for a line's end. It ends the connection behind "cut". It knows no other command.
func answering(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return l.Addr().String()
}

func answer(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	number := func() (n int) {
		line, _ := r.ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			n, _ = strconv.Atoi(line[1:])
		}
		return n
	}
	for {
		args := make([]string, number())
		for i := range args {
			b := make([]byte, number()+2)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			args[i] = string(b[:len(b)-2])
		}
		if len(args) == 0 {
			return
		}
		reply, cut := "-ERR unknown command\n", false
		if strings.EqualFold(args[0], "get") {
			reply, cut = strings.CutSuffix(args[1], "cut")
		}
		_, _ = io.WriteString(c, strings.ReplaceAll(reply, "\n", "\r\n"))
		if cut {
			return
		}
	}
}

// TestRawInto: replies lie one behind the other as they came, errors of the server among them,
// but a string that is the same as the last one of its reply is Again. A connection that ends
// amid a reply is an error.
func TestRawInto(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: answering(t), Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	long := "$70000\n" + strings.Repeat("x", 70000) + "\n"
	again := string(Again) + "\n"
	for _, c := range []struct {
		name    string
		replies []string
		kept    []string // nil: as they came
		fails   bool
	}{
		{"one", []string{"$3\nabc\n"}, nil, false},
		{"an array with nothing in it", []string{"*3\n$1\na\n$-1\n$0\n\n"}, nil, false},
		{"an error between others", []string{"$1\na\n", "-NOPERM no\n", long, "*0\n"}, nil, false},
		{"the same, with nothing between", []string{"*6\n$1\na\n$1\na\n$-1\n$1\na\n$1\nb\n$1\na\n"}, []string{"*6\n$1\na\n" + again + "$-1\n" + again + "$1\nb\n$1\na\n"}, false},
		{"the same, none of it long", []string{"*3\n$0\n\n$0\n\n$1\na\n"}, []string{"*3\n$0\n\n" + again + "$1\na\n"}, false},
		{"the same, all of it long", []string{"*3\n" + long + long + long, "$1\na\n"}, []string{"*3\n" + long + again + again, "$1\na\n"}, false},
		{"the same in two replies", []string{"*1\n$1\na\n", "*1\n$1\na\n", "$1\na\n"}, nil, false},
		{"the same of two types", []string{"*2\n$5\ntxt:a\n=5\ntxt:a\n"}, nil, false},
		{"cut before the reply", []string{"cut"}, nil, true},
		{"cut amid a value", []string{"$1\na\n", "*2\n$1\na\n$9\nabccut"}, nil, true},
		{"cut amid a number", []string{"*2cut"}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			memory := []byte("before")
			pipe := client.Pipeline()
			cmds := make([]*RawInto, len(c.replies))
			for i, r := range c.replies {
				cmds[i] = NewRawInto(t.Context(), &memory, "get", r)
				_ = pipe.Process(t.Context(), cmds[i])
			}
			_, err := pipe.Exec(t.Context())
			if (err != nil) != c.fails {
				t.Fatalf("got %v, fails: %v", err, c.fails)
			}
			if c.fails {
				return
			}
			all := "before"
			kept := c.kept
			if kept == nil {
				kept = c.replies
			}
			for i, r := range kept {
				want := strings.ReplaceAll(r, "\n", "\r\n")
				if got := string(cmds[i].Reply()); got != want || cmds[i].Begin() != len(all) {
					t.Errorf("reply %d is %.40q at %d, want %.40q at %d", i, got, cmds[i].Begin(), want, len(all))
				}
				if isRawError(cmds[i]) != strings.HasPrefix(r, "-") {
					t.Errorf("reply %d is taken for an error: %v", i, isRawError(cmds[i]))
				}
				all += want
			}
			if string(memory) != all {
				t.Errorf("the memory has %d bytes, want %d", len(memory), len(all))
			}
		})
	}
}
