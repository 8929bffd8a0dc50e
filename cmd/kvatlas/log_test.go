package main

import (
	"io"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestLogFitsItsReader has lines for people on a terminal, with colours where they are wanted,
// and JSON elsewhere.
func TestLogFitsItsReader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags    []string
		env      []string
		terminal bool
		want     string // how the line begins behind its time
		colours  bool
	}{
		{nil, nil, false, `{"level":"info","time":"`, false},
		{nil, nil, true, "", true},
		{nil, []string{"NO_COLOR=1"}, true, "INF said", false},
		{nil, []string{"NO_COLOR="}, true, "", true},
		{nil, []string{"TERM=dumb"}, true, "INF said", false},
		{[]string{"--log-format=json"}, nil, true, `{"level":"info","time":"`, false},
		{[]string{"--log-format=console"}, nil, false, "INF said", false},
	} {
		p := &program{&cli.Program{Env: c.env}}
		var read func() string
		if c.terminal {
			ours, end := pty(t)
			p.Stderr = end
			read = func() string {
				b := make([]byte, 4096)
				n := must.Get(ours.Read(b))(t)
				return string(b[:n])
			}
		} else {
			var out output
			p.Stderr = io.Writer(&out)
			read = out.String
		}
		log := p.newLogger(settingsOf(t, c.flags, nil))
		log.Info().Msg("said")
		got := read()
		if !strings.Contains(got, "said") || !strings.Contains(got, c.want) || strings.Contains(got, "\x1b[") != c.colours {
			t.Errorf("%v %v, terminal %v: %q", c.flags, c.env, c.terminal, got)
		}
	}
}
