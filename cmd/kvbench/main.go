// Kvbench measures the indexes of kvatlas beside those of others and prints tables.
// The figures of such runs, and how to read them, are in docs/performance.md.
//
//	go run ./cmd/kvbench redis --start                   on a throw-away redis-server
//	go run ./cmd/kvbench redis --start --masters 3       on a throw-away cluster
//	go run ./cmd/kvbench redis --redis redis://host/1    on an empty database
//	go run ./cmd/kvbench memory                          the embedded index
//
// It is a program of its own so that the product does not carry it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/bench"
)

const usage = `kvbench measures the indexes of kvatlas beside those of others, and prints tables.

  kvbench redis --start                   on a throw-away redis-server
  kvbench redis --start --masters 3       on a throw-away cluster
  kvbench redis --redis redis://host/1    on an empty database
  kvbench memory                          the embedded index

kvbench redis --help and kvbench memory --help list the flags.
`

const redisUsage = `kvbench redis compares the index in Redis with the layouts of llm-d: one
HASH a block, with short fields and with the JSON fields that it writes at
present. All of them lie in one database, which must be empty and is empty
afterwards, and take turns.

All parts, with everything by default, take one to four minutes, and --limit
ends what takes longer. The figures of docs/performance.md are of
--keys 1000000 --memory-keys 250000 --rounds 20 --limit 0: half an hour, most
of it the sweep of retire, which --parts memory,lookup,ingest leaves out.

`

const memoryUsage = `kvbench memory measures the embedded index: finding and applying blocks,
the memory of a block, and what is left of it after churn.

`

// errUsage says that the program was not called right.
var errUsage = errors.New("kvbench --help says how to call it")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "kvbench: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "kvbench: %v\n", err)
		os.Exit(1)
	}
}

// run writes the report alone to stdout, and its progress to stderr.
func run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	what := ""
	if len(args) > 0 {
		what, args = args[0], args[1:]
	}
	progress := func(what string) { fmt.Fprintln(stderr, "kvbench: "+what) }
	switch what {
	case "redis":
		return runRedis(ctx, stdout, progress, args)
	case "memory":
		return runMemory(ctx, stdout, progress, args)
	case "help", "--help", "-help", "-h":
		fmt.Fprint(stdout, usage)
		return nil
	}
	return fmt.Errorf("%q is neither redis nor memory: %w", what, errUsage)
}

func runRedis(ctx context.Context, stdout io.Writer, progress func(string), args []string) error {
	fs := flag.NewFlagSet("kvbench redis", flag.ContinueOnError)
	var c bench.RedisConfig
	fs.StringVar(&c.URL, "redis", "", "`URL` of an empty database: redis://, rediss://, unix:// or redis+cluster://")
	start := fs.Bool("start", false, "start a server for the run, without persistence and in a temporary directory")
	masters := fs.Int("masters", 1, "with --start: `number` of masters; above 1 it is a cluster")
	binary := fs.String("server", "redis-server", "with --start: the `program` to start; valkey-server works too")
	fs.Func("parts", "what to measure, a `LIST` of memory,lookup,ingest,retire; all by default", func(s string) error {
		c.Parts = splitList(s)
		return nil
	})
	fs.IntVar(&c.Pods, "pods", 10, "how many pods hold each block")
	fs.IntVar(&c.Keys, "keys", 1<<17, "how many blocks the index has")
	fs.IntVar(&c.MemoryKeys, "memory-keys", 1<<16, "how many blocks to measure memory with")
	intList(fs, &c.Sizes, "sizes", "numbers of blocks of a lookup, a `LIST`; 128,1024,8192 by default")
	intList(fs, &c.Hits, "hits", "how much of the chain is held, a `LIST` in percent; 0,50,100 by default")
	fs.IntVar(&c.Rounds, "rounds", 6, "how often each side has its turn")
	limit := fs.Duration("limit", 5*time.Minute, "end measuring after this `time`, and print what has been measured; 0 for no limit")
	fs.BoolVar(&c.Track, "track", false, "read the server's times of the sweep's commands, resetting its statistics; always with --start")
	asJSON := fs.Bool("json", false, "write JSON")
	if err := parse(fs, stdout, redisUsage, args); err != nil {
		return err
	}
	switch {
	case *start == (c.URL != ""):
		return fmt.Errorf("give either --redis URL or --start: %w", errUsage)
	case *start:
		s, err := bench.Start(ctx, *binary, *masters)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		c.URL, c.Track = s.URL, true
	}
	c.Progress = progress
	if *limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, *limit, fmt.Errorf("it has not ended within %v: fewer --parts, --keys and --rounds make it shorter, --limit 0 lets it go on", *limit))
		defer cancel()
	}
	report, err := bench.Redis(ctx, c)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if report != nil { // what was measured before an error is worth reading
		err = errors.Join(err, write(stdout, report, *asJSON))
	}
	return err
}

func runMemory(ctx context.Context, stdout io.Writer, progress func(string), args []string) error {
	fs := flag.NewFlagSet("kvbench memory", flag.ContinueOnError)
	var c bench.MemoryConfig
	fs.IntVar(&c.Blocks, "blocks", 1<<20, "how many blocks the index has")
	intList(fs, &c.Sizes, "sizes", "numbers of blocks of a chain, a `LIST`; 128,1024,8192 by default")
	intList(fs, &c.Holders, "holders", "how many pods hold each block, a `LIST`; 1,10,100 by default")
	intList(fs, &c.Events, "events", "numbers of blocks of an event, a `LIST`; 1,16,128 by default")
	fs.IntVar(&c.Rounds, "rounds", 20, "how many samples of each figure")
	asJSON := fs.Bool("json", false, "write JSON")
	if err := parse(fs, stdout, memoryUsage, args); err != nil {
		return err
	}
	c.Progress = progress
	report, err := bench.Memory(ctx, c)
	if err != nil {
		return err
	}
	return write(stdout, report, *asJSON)
}

// parse reads the flags of a command that takes nothing else.
func parse(fs *flag.FlagSet, stdout io.Writer, usage string, args []string) error {
	fs.SetOutput(io.Discard)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", err, errUsage)
	case fs.NArg() > 0:
		return fmt.Errorf("%q: it takes flags only: %w", fs.Arg(0), errUsage)
	}
	return nil
}

// splitList splits at commas and drops spaces.
func splitList(s string) (out []string) {
	for w := range strings.SplitSeq(s, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// intList is a flag with numbers and commas.
func intList(fs *flag.FlagSet, to *[]int, name, usage string) {
	fs.Func(name, usage, func(s string) error {
		*to = nil
		for _, w := range splitList(s) {
			n, err := strconv.Atoi(w)
			if err != nil {
				return fmt.Errorf("%.20q is no number", w)
			}
			*to = append(*to, n)
		}
		return nil
	})
}

// write writes a report as Markdown or as JSON.
func write(w io.Writer, report interface{ Write(io.Writer) error }, asJSON bool) error {
	if !asJSON {
		return report.Write(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(report)
}
