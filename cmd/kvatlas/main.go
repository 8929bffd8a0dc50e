// Kvatlas is a distributed index of KV-cache blocks: it tells a scheduler which
// engine holds the longest prefix of a prompt.
//
//	kvatlas serve     answer over HTTP
//	kvatlas gateway   take requests of OpenAI's clients, and send them to engines
//	kvatlas score     ask a server from the command line
//	kvatlas doctor    look at what a server depends on
//	kvatlas inspect   look at engines' events, record and play them; name blocks in Redis
//	kvatlas dump      write all that an index holds
//	kvatlas restore   load that into an index
//	kvatlas reset     make an index forget a pod, a model or all
//	kvatlas changelog switch the log on or off that replicas follow
//	kvatlas sim       run simulated engines
//	kvatlas up        try it: engines, a server and chats, in one go
//	kvatlas token     make a credential for a caller
//	kvatlas version   say which version this is
//
// A command ends with status 0, with 1 when it failed, and with 2 when it was
// not called right.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/admin"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/inspect"
)

func main() {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	// The first signal ends the command in an orderly way. A second one ends the
	// process at once: signals have their usual effect again before anybody learns
	// of the first.
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

const usage = `kvatlas is a distributed index of KV-cache blocks: it tells a scheduler which
engine holds the longest prefix of a prompt.

  kvatlas serve     answer over HTTP
  kvatlas gateway   take requests of OpenAI's clients, and send them to engines
  kvatlas score     ask a server from the command line
  kvatlas doctor    look at what a server depends on
  kvatlas inspect   look at engines' events, record and play them; name blocks in Redis
  kvatlas dump      write all that an index holds
  kvatlas restore   load that into an index
  kvatlas reset     make an index forget a pod, a model or all
  kvatlas changelog switch the log on or off that replicas follow
  kvatlas sim       run simulated engines
  kvatlas up        try it: engines, a server and chats, in one go
  kvatlas token     make a credential for a caller
  kvatlas version   say which version this is

kvatlas COMMAND --help lists the flags of a command.
`

const versionUsage = `kvatlas version says which version this is.
`

// program is the command line program.
type program struct{ *cli.Program }

// run runs one command to its end and returns the exit status. Its orderly end
// begins when ctx ends.
func (p *program) run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.Stderr, usage)
		return cli.ExitUsage
	}
	switch command, args := args[0], args[1:]; command {
	case "serve":
		return p.serve(ctx, args)
	case "gateway":
		return p.gateway(ctx, args)
	case "score":
		return p.score(ctx, args)
	case "doctor":
		if len(args) > 0 && args[0] == "lmcache" {
			return p.doctorLMCache(ctx, args[1:])
		}
		return p.doctor(ctx, args)
	case "inspect":
		return inspect.Run(ctx, p.Program, args)
	case "bench":
		return p.Fail("bench", errors.New("it is a program of its own now: go run ./cmd/kvbench in a checkout"))
	case "dump":
		return admin.Dump(ctx, p.Program, args)
	case "restore":
		return admin.Restore(ctx, p.Program, args)
	case "reset":
		return admin.Reset(ctx, p.Program, args)
	case "changelog":
		return admin.Changelog(ctx, p.Program, args)
	case "sim":
		return p.sim(ctx, args)
	case "up":
		return p.up(ctx, args)
	case "token":
		return p.token(args)
	case "version", "--version", "-version":
		if len(args) == 1 && slices.Contains(cli.HelpFlags, args[0]) {
			fmt.Fprint(p.Stdout, versionUsage)
			return cli.ExitOK
		}
		if len(args) > 0 {
			return p.Misuse("version", fmt.Errorf("%q: it takes no arguments", args[0]))
		}
		fmt.Fprintln(p.Stdout, "kvatlas "+versionLine())
		return cli.ExitOK
	case "help", "--help", "-help", "-h":
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "help" {
			return p.run(ctx, append(args, "--help"))
		}
		fmt.Fprint(p.Stdout, usage)
		return cli.ExitOK
	default:
		if strings.HasPrefix(command, "-") {
			fmt.Fprintf(p.Stderr, "kvatlas: %q comes before a command: flags stand behind it, as in kvatlas serve %s\n\n%s", command, command, usage)
			return cli.ExitUsage
		}
		fmt.Fprintf(p.Stderr, "kvatlas: %q is no command\n\n%s", command, usage)
		return cli.ExitUsage
	}
}
