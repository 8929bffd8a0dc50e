package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
)

// everyCommand are the words of all commands that overviews list.
func everyCommand(t *testing.T) (out []string) {
	t.Helper()
	var walk func(c *cli.Command, path string)
	walk = func(c *cli.Command, path string) {
		for i := range c.Commands {
			if b := &c.Commands[i]; !b.Hidden {
				out = append(out, strings.TrimSpace(path+" "+b.Name))
				walk(b, path+" "+b.Name)
			}
		}
	}
	walk(commands(&cli.Program{}), "")
	if len(out) < 15 {
		t.Fatalf("the commands are %q", out)
	}
	return out
}

// completed are the words that are offered for the last of the words.
func completed(t *testing.T, words ...string) (out []string) {
	t.Helper()
	status, stdout, stderr := call(t, "", append([]string{"__complete"}, words...)...)
	if status != cli.ExitOK || stderr != "" {
		t.Fatalf("%q: ends with %d: %s", words, status, stderr)
	}
	for line := range strings.Lines(stdout) {
		word, _, _ := strings.Cut(line, "\t")
		out = append(out, word)
	}
	return out
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string // its last word is completed
		want string
	}{
		{"s", "serve score sim"},
		{"help sc", "score"},
		{"help inspect ", "events play keys"},
		{"doctor ", "lmcache"},
		{"inspect e", "events"},
		{"inspect events ", ""},
		{"nothing ", ""},
		{"up --pol", "--policy"},
		{"up --policy r", "random round_robin"},
		{"up --policy=r", "--policy=random --policy=round_robin"},
		{"up --policy eta --ch", "--chats --choose"},
		{"up --policy eta --choose ", "prefix turns"},
		{"serve --print-config --log-format ", "auto json console"},
		{"serve --strategy h", "highest_block"},
		{"serve -strategy h", "highest_block"},
		{"gateway --log-level=de", "--log-level=debug"},
		{"doctor --log-level e", "error"},
		{"doctor lmcache --pro", "--profile --prompt"},
		{"serve --block-size ", ""},
		{"serve --config ", ":files"},
		{"serve --config=", ":files"},
		{"serve --demo --stri", "--strict-ready"}, // a switch takes no value
		{"restore ", ":files"},
		{"restore --yes --mode r", "replace"},
		{"restore file ", ""},
		{"restore -- ", ":files"},
		{"restore -- --m", ":files"},
		{"inspect play ", ":files"},
		{"dump -o ", ":files"},
		{"completion ", "bash zsh fish"},
		{"completion bash ", ""},
		{"token --role ", "read write admin"},
		{"__comp", ""},
	} {
		if got := strings.Join(completed(t, strings.Split(c.line, " ")...), " "); got != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestCompletionOffersEveryFlag holds what is offered to the flags that each command's help
// lists.
func TestCompletionOffersEveryFlag(t *testing.T) {
	t.Parallel()
	flags := regexp.MustCompile(`(?m)^  (--?[a-z][a-z0-9-]*)( [^ ].*)?$`)
	for _, c := range everyCommand(t) {
		words := strings.Fields(c)
		_, help, _ := call(t, "", append(slices.Clone(words), "--help")...)
		want := []string{"--help"}
		for _, m := range flags.FindAllStringSubmatch(help, -1) {
			want = append(want, m[1])
		}
		got := completed(t, append(slices.Clone(words), "-")...)
		switch c {
		case "inspect": // it has none
			want = nil
		case "gateway", "doctor", "doctor lmcache": // which name the settings, and do not list them
			for _, f := range want {
				if !slices.Contains(got, f) {
					t.Errorf("kvatlas %s %s is not offered", c, f)
				}
			}
			continue
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("kvatlas %s: offers %q\nits help lists %q", c, got, want)
		}
	}
}

// pty is a terminal: what is written to ours is typed at its other end.
func pty(t *testing.T) (ours, end *os.File) {
	t.Helper()
	ours = must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	t.Cleanup(func() { _ = ours.Close() })
	must.OK(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	n := must.Get(unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN))(t)
	end = must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = end.Close() })
	must.OK(t, unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200}))
	return ours, end
}

// typed is a shell that a person types one line into, and what that called kvatlas with.
type typed struct {
	shell []string // the command, and a line that it begins with
	setup string
}

// call types a line, with Tab where it has a tab, and Enter.
func (s *typed) call(t *testing.T, dir, line string) string {
	t.Helper()
	called := filepath.Join(t.TempDir(), "called")
	const prompt = "ready>"
	ours, end := pty(t)
	cmd := exec.Command(s.shell[0], s.shell[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "TERM=vt100", "LC_ALL=C.UTF-8", "CALLED=" + called, "PS1=" + prompt, runAsProgram + "=1"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = end, end, end
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	must.OK(t, cmd.Start())
	var screen output
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := ours.Read(b)
			_, _ = screen.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	write := func(text string) {
		t.Helper()
		must.Get(ours.WriteString(text))(t)
	}
	if s.setup != "" {
		write(s.setup + "\r")
	}
	eventually.NoError(t, "the prompt of "+s.shell[0], func() error {
		if !strings.Contains(screen.String(), prompt) {
			return fmt.Errorf("on the screen: %q", screen.String())
		}
		return nil
	})
	write(line + "\r")
	var got []byte
	eventually.NoError(t, "the call of "+line, func() (err error) {
		if got, err = os.ReadFile(called); err == nil && len(got) == 0 {
			err = errors.New("nothing yet")
		}
		if err != nil {
			return fmt.Errorf("%w; on the screen: %q", err, screen.String())
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_ = end.Close()
	_ = ours.Close()
	<-read
	return strings.TrimSpace(string(got))
}

// TestShellsComplete types lines with Tab into bash, zsh and fish, and looks at what they call.
func TestShellsComplete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self := must.Get(os.Executable())(t)
	// It stands in for the program when a shell completes, and writes down any other call.
	program := "#!/bin/sh\nif [ \"$1\" = __complete ] || [ \"$1\" = completion ]; then exec '" + self + "' \"$@\"; fi\necho \"$*\" >>\"$CALLED\"\n"
	for name, text := range map[string]string{"kvatlas": program, "dump.jsonl": "", ".bashrc": "source <(kvatlas completion bash)\nPS1='ready>'\n", ".zshrc": "autoload -Uz compinit && compinit -u -D\nsource <(kvatlas completion zsh)\nPS1='ready>'\n"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o777))
	}
	shells := map[string]*typed{
		"bash": {shell: []string{"bash", "--noprofile", "-i"}},
		"zsh":  {shell: []string{"zsh", "-d", "-i"}},
		"fish": {shell: []string{"fish", "--private", "--init-command", "kvatlas completion fish | source; function fish_prompt; printf 'ready>'; end; function fish_greeting; end"}},
	}
	for name, s := range shells {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(name); err != nil {
				t.Skipf("%s is not installed", name)
			}
			for line, want := range map[string]string{
				"kvatlas sco\t":                           "score",
				"kvatlas doctor lm\t":                     "doctor lmcache",
				"./kvatlas up --policy round\t":           "up --policy round_robin",
				"kvatlas up --poli\t":                     "up --policy",
				"kvatlas serve --log-format=con\t":        "serve --log-format=console",
				"kvatlas restore --yes dum\t":             "restore --yes dump.jsonl",
				"kvatlas serve --config=dum\t":            "serve --config=dump.jsonl",
				"kvatlas score --server http://h --tok\t": "score --server http://h --tokens",
			} {
				if got := s.call(t, dir, line); got != want {
					t.Errorf("%q calls it with %q, want %q", line, got, want)
				}
			}
		})
	}
}
