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
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
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
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Environ(), name: os.Args[0]}
	os.Exit(p.run(ctx, os.Args[1:]))
}

// program is the command line program with what it reads and writes.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string
	name           string // as it was called
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

// helpFlags ask for help.
var helpFlags = []string{"--help", "-help", "-h"}

// run runs one command to its end and returns the exit status. Its orderly end
// begins when ctx ends.
func (p *program) run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.stderr, usage)
		return exitUsage
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
		return p.inspect(ctx, args)
	case "bench":
		return p.fail("bench", errors.New("it is a program of its own now: go run ./cmd/kvbench in a checkout"))
	case "dump":
		return p.dump(ctx, args)
	case "restore":
		return p.restore(ctx, args)
	case "reset":
		return p.reset(ctx, args)
	case "changelog":
		return p.changelog(ctx, args)
	case "sim":
		return p.sim(ctx, args)
	case "up":
		return p.up(ctx, args)
	case "token":
		return p.token(args)
	case "version", "--version", "-version":
		if len(args) == 1 && slices.Contains(helpFlags, args[0]) {
			fmt.Fprint(p.stdout, versionUsage)
			return exitOK
		}
		if len(args) > 0 {
			return p.misuse("version", fmt.Errorf("%q: it takes no arguments", args[0]))
		}
		fmt.Fprintln(p.stdout, "kvatlas "+versionLine())
		return exitOK
	case "help", "--help", "-help", "-h":
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "help" {
			return p.run(ctx, append(args, "--help"))
		}
		fmt.Fprint(p.stdout, usage)
		return exitOK
	default:
		if strings.HasPrefix(command, "-") {
			fmt.Fprintf(p.stderr, "kvatlas: %q comes before a command: flags stand behind it, as in kvatlas serve %s\n\n%s", command, command, usage)
			return exitUsage
		}
		fmt.Fprintf(p.stderr, "kvatlas: %q is no command\n\n%s", command, usage)
		return exitUsage
	}
}

// misuse says what is wrong with a call of a command.
func (p *program) misuse(command string, err error) int {
	fmt.Fprintf(p.stderr, "kvatlas %s: %v\n(kvatlas %s --help lists the flags)\n", command, err, command)
	return exitUsage
}

// fail says why a command failed.
func (p *program) fail(command string, err error) int {
	fmt.Fprintf(p.stderr, "kvatlas %s: %v\n", command, err)
	return exitFailed
}

// getenv returns a variable of the program's environment.
func (p *program) getenv(name string) string {
	value := ""
	for _, kv := range p.env {
		if n := len(name); len(kv) > n && kv[n] == '=' && kv[:n] == name {
			value = kv[n+1:]
		}
	}
	return value
}
