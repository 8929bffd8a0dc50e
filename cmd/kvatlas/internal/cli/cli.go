// Package cli is what the commands of kvatlas have in common: what they read and write,
// their flags, and how they end.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
)

// The exit statuses.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Program is the command line program with what it reads and writes.
type Program struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            []string
	Name           string // as it was called
	Version        string // the word for what it is a version of
	// OnFlags, if not nil, is given the flags of the command that is run, which then ends
	// with ExitOK: completion looks at them.
	OnFlags func(Flags)
}

// HelpFlags ask for help.
var HelpFlags = []string{"--help", "-help", "-h"}

// Misuse says what is wrong with a call of a command. Help that was asked for is no misuse.
func (p *Program) Misuse(command string, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return ExitOK
	}
	fmt.Fprintf(p.Stderr, "kvatlas %s: %v\n(kvatlas %s --help lists the flags)\n", command, err, command)
	return ExitUsage
}

// Fail says why a command failed.
func (p *Program) Fail(command string, err error) int {
	fmt.Fprintf(p.Stderr, "kvatlas %s: %v\n", command, err)
	return ExitFailed
}

// Getenv returns a variable of the program's environment.
func (p *Program) Getenv(name string) string {
	value := ""
	for _, kv := range p.Env {
		if text, is := strings.CutPrefix(kv, name+"="); is {
			value = text
		}
	}
	return value
}

// Client returns a client of the server that --server of a command names.
func (p *Program) Client(command, server string, timeout time.Duration) (*client.Client, error) {
	c, err := client.New(client.Config{Token: p.Getenv("KVATLAS_TOKEN"), URL: server, Timeout: timeout, UserAgent: "kvatlas-" + command + "/" + p.Version})
	if err != nil {
		return nil, fmt.Errorf("--server: %s", strings.TrimPrefix(err.Error(), "client: Config.URL: "))
	}
	return c, nil
}

// Load makes the configuration of a command that has read its settings.
func (p *Program) Load(l *config.Loader) (*config.Loaded, error) {
	cfg, err := l.Load(p.Env, config.ReadFile)
	if err != nil {
		return nil, fmt.Errorf("the configuration is wrong:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	return cfg, nil
}

// SleepUntil waits, and returns false when ctx ends before.
func SleepUntil(ctx context.Context, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ParseTokens reads token ids between commas.
func ParseTokens(list string) ([]uint32, error) {
	words := SplitList(list)
	out := make([]uint32, 0, len(words))
	for i, w := range words {
		n, err := strconv.ParseUint(w, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--tokens: number %d, %.40q, is no token id (0 to %d)", i+1, w, uint32(1<<32-1))
		}
		out = append(out, uint32(n))
	}
	return out, nil
}

// DefaultServer is where kvatlas serve listens unless told otherwise.
const DefaultServer = "http://127.0.0.1:8080"

// Count writes a number of things.
func Count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
