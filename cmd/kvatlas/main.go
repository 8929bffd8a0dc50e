// Kvatlas is a distributed index of KV-cache blocks: it tells a scheduler which
// engine holds the longest prefix of a prompt.
//
// kvatlas --help lists its commands. A command ends with status 0, with 1 when it
// failed, and with 2 when it was not called right.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/admin"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/completion"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/inspect"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/look"
)

func main() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	// The first signal ends the command in an orderly way. A second one ends the
	// process at once: signals have their usual effect again before the context of the first ends.
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		first := <-signals
		signal.Stop(signals)
		end(fmt.Errorf("%v signal received", first))
	}()
	p := &program{&cli.Program{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(), Name: os.Args[0], Version: versionWord()}}
	os.Exit(p.run(ctx, os.Args[1:]))
}

const about = `kvatlas is a distributed index of KV-cache blocks: it tells a scheduler which
engine holds the longest prefix of a prompt.`

const versionUsage = `kvatlas version says which version this is.

`

// program is the command line program.
type program struct{ *cli.Program }

// run runs one command to its end and returns the exit status. Its orderly end
// begins when ctx ends.
func (p *program) run(ctx context.Context, args []string) int {
	return p.Dispatch(ctx, commands(p.Program), "kvatlas", args)
}

// commands is the tree of all commands.
func commands(of *cli.Program) *cli.Command {
	p := &program{of}
	first := []cli.Command{
		{Name: "serve", Short: "answer over HTTP", Run: p.serve},
		{Name: "gateway", Short: "take requests of OpenAI's clients, and send them to engines", Run: p.gateway},
		{Name: "score", Short: "ask a server from the command line", Run: p.score},
	}
	rest := []cli.Command{
		{
			Name: "doctor", Short: "look at what a server depends on", Run: p.doctor,
			Commands: []cli.Command{{Name: "lmcache", Short: "look at what LMCache has filed", Run: p.doctorLMCache}},
		},
		inspect.Command(of),
		{Name: "dump", Short: "write all that an index holds", Run: func(ctx context.Context, args []string) int { return admin.Dump(ctx, of, args) }},
		{Name: "restore", Short: "load that into an index", Files: true, Run: func(ctx context.Context, args []string) int { return admin.Restore(ctx, of, args) }},
		{Name: "reset", Short: "make an index forget a pod, a model or all", Run: func(ctx context.Context, args []string) int { return admin.Reset(ctx, of, args) }},
		{Name: "changelog", Short: "switch the log on or off that replicas follow", Run: func(ctx context.Context, args []string) int { return admin.Changelog(ctx, of, args) }},
		{Name: "sim", Short: "run simulated engines", Run: p.sim},
		{Name: "up", Short: "try it: engines, a server and chats, in one go", Run: p.up},
		{Name: "token", Short: "make a credential for a caller", Run: p.token},
		completion.Command(of),
		{Name: "version", Short: "say which version this is", Run: p.tellVersion},
		// As other programs are asked.
		{Name: "--version", Hidden: true, Run: p.tellVersion},
		{Name: "-version", Hidden: true, Run: p.tellVersion},
		{Name: "bench", Hidden: true, Run: func(context.Context, []string) int {
			return p.Fail("bench", errors.New("it is a program of its own now: go run ./cmd/kvbench in a checkout"))
		}},
		completion.Asked(of, commands),
	}
	return &cli.Command{About: about, Commands: slices.Concat(first, look.Commands(of), rest)}
}

// tellVersion is the command.
func (p *program) tellVersion(_ context.Context, args []string) int {
	words, err := p.ReadFlags(flag.NewFlagSet("kvatlas version", flag.ContinueOnError), args, versionUsage)
	if err == nil && len(words) > 0 {
		err = fmt.Errorf("%q: it takes no arguments", words[0])
	}
	if err != nil {
		return p.Misuse("version", err)
	}
	fmt.Fprintln(p.Stdout, "kvatlas "+versionLine())
	return cli.ExitOK
}
