package blocks

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

func TestReadArray(t *testing.T) {
	type values = []any // string or nil
	for _, c := range []struct {
		reply string
		want  values
		err   error
	}{
		{"*0\r\n", values{}, nil},
		{"*2\r\n$2\r\n17\r\n$-1\r\n", values{"17", nil}, nil},
		{"*3\r\n_\r\n$0\r\n\r\n$3\r\na\r\n\r\n", values{nil, "", "a\r\n"}, nil},
		{"*5\r\n$2\r\n17\r\n\"\r\n$-1\r\n\"\r\n$0\r\n\r\n", values{"17", "17", nil, "17", ""}, nil},
		{"*2\r\n$0\r\n\r\n\"\r\n", values{"", ""}, nil},
		{"*2\r\n\"\r\n$2\r\n17\r\n", values{"x", "17"}, keyspace.ErrProtocol},
		{"*2\r\n_\r\n\"\r\n", values{nil, "x"}, keyspace.ErrProtocol},
		{"-LOADING Redis is loading\r\n", nil, redisx.ReplyError([]byte("-LOADING Redis is loading\r\n"))},
		{"!21\r\nSYNTAX invalid syntax\r\n", nil, redisx.ReplyError([]byte("-SYNTAX invalid syntax\r\n"))},
		{"", values{"x"}, keyspace.ErrProtocol},
		{":3\r\n", values{"x"}, keyspace.ErrProtocol},
		{"$3\r\nabc\r\n", values{"x"}, keyspace.ErrProtocol},
		{"*2\r\n$1\r\na\r\n", values{"a", "b"}, keyspace.ErrProtocol},
		{"*1\r\n$1\r\na\r\n", values{"a", "b"}, keyspace.ErrProtocol},
		{"*1\r\n$5\r\na\r\n", values{"a"}, keyspace.ErrProtocol},
		{"*1\r\n:1\r\n", values{"a"}, keyspace.ErrProtocol},
		{"*1\r\n$1x\r\na\r\n", values{"a"}, keyspace.ErrProtocol},
		{"*1\r\n$99999999999\r\na\r\n", values{"a"}, keyspace.ErrProtocol},
		{"*1\r\n$1", values{"a"}, keyspace.ErrProtocol},
		{"*1", values{"a"}, keyspace.ErrProtocol},
		{"*-1\r\n", values{"a"}, keyspace.ErrProtocol},
	} {
		for _, at := range []int{0, 3} {
			buf := []byte("..."[:at] + c.reply)
			spans, err := readArray(nil, buf, at, len(c.want))
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("%q: got %v, want %v", c.reply, err, c.err)
				}
				continue
			}
			got := values{}
			for _, s := range spans {
				if v, ok := s.of(buf); ok {
					got = append(got, string(v))
				} else {
					got = append(got, nil)
				}
			}
			if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%q: got %q, %v; want %q", c.reply, got, err, c.want)
			}
		}
	}
}

func FuzzReadArray(f *testing.F) {
	for _, s := range []string{"*2\r\n$2\r\n17\r\n$-1\r\n", "*1\r\n_\r\n", "-ERR x\r\n", "*1\r\n$1\r\n", "*2\r\n$1\r\na\r\n\"\r\n"} {
		f.Add([]byte(s), 2)
	}
	f.Fuzz(func(t *testing.T, buf []byte, want int) {
		spans, err := readArray(nil, buf, 0, want)
		if err == nil && len(spans) != want {
			t.Fatalf("%d values for %d", len(spans), want)
		}
		for _, s := range spans {
			s.of(buf) // lies in the buffer, or panics
		}
	})
}
