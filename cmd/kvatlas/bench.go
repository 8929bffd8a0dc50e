package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/kvatlas/kvatlas/bench"
)

const benchUsage = `kvatlas bench measures the indexes beside those of others, and prints tables.

  kvatlas bench redis --start                   on a throw-away redis-server
  kvatlas bench redis --start --masters 3       on a throw-away cluster
  kvatlas bench redis --redis redis://host/1    on an empty database
  kvatlas bench memory                          the embedded index

docs/performance.md has the figures of such runs and says how to read them.
kvatlas bench redis --help and kvatlas bench memory --help list the flags.
`

// bench is the command.
func (p *program) bench(ctx context.Context, args []string) int {
	what := ""
	if len(args) > 0 {
		what = args[0]
	}
	switch what {
	case "redis":
		return p.benchRedis(ctx, args[1:])
	case "memory":
		return p.benchMemory(ctx, args[1:])
	case "help", "--help", "-help", "-h":
		fmt.Fprint(p.stdout, benchUsage)
		return exitOK
	case "":
		fmt.Fprint(p.stderr, benchUsage)
		return exitUsage
	}
	return p.misuse("bench", fmt.Errorf("%q is neither redis nor memory", what))
}

const benchRedisUsage = `kvatlas bench redis compares the index in Redis with the layouts of llm-d: one
HASH a block, with short fields and with the JSON fields that it writes at
present. All of them lie in one database, which must be empty and is empty
afterwards, and take turns.

`

func (p *program) benchRedis(ctx context.Context, args []string) int {
	fs := flag.NewFlagSet("kvatlas bench redis", flag.ContinueOnError)
	var c bench.RedisConfig
	fs.StringVar(&c.URL, "redis", p.getenv("KVATLAS_BENCH_REDIS"), "`URL` of an empty database: redis://, rediss://, unix:// or redis+cluster:// [$KVATLAS_BENCH_REDIS]")
	start := fs.Bool("start", false, "start a server for the run, without persistence and in a temporary directory")
	masters := fs.Int("masters", 1, "with --start: `number` of masters; above 1 it is a cluster")
	binary := fs.String("server", "redis-server", "with --start: the `program` to start; valkey-server works too")
	fs.Func("parts", "what to measure, a `LIST` of memory,lookup,ingest,retire; all by default", func(s string) error {
		c.Parts = splitList(s)
		return nil
	})
	fs.IntVar(&c.Pods, "pods", 10, "how many pods hold each block")
	fs.IntVar(&c.Keys, "keys", 1_000_000, "how many blocks the index has")
	fs.IntVar(&c.MemoryKeys, "memory-keys", 250_000, "how many blocks to measure memory with")
	intList(fs, &c.Sizes, "sizes", "numbers of blocks of a lookup, a `LIST`; 128,1024,8192 by default")
	intList(fs, &c.Hits, "hits", "how much of the chain is held, a `LIST` in percent; 0,50,100 by default")
	fs.IntVar(&c.Rounds, "rounds", 20, "how often each side has its turn")
	fs.BoolVar(&c.Track, "track", false, "read the server's times of the sweep's commands, resetting its statistics; always with --start")
	asJSON := fs.Bool("json", false, "write JSON")
	if status, done := p.parseFlags("bench redis", benchRedisUsage, fs, args); done {
		return status
	}
	switch {
	case *start == (c.URL != ""):
		return p.misuse("bench redis", errors.New("give either --redis URL or --start"))
	case *start:
		s, err := bench.Start(ctx, *binary, *masters)
		if err != nil {
			return p.fail("bench redis", err)
		}
		defer func() { _ = s.Close() }()
		c.URL, c.Track = s.URL, true
	}
	c.Progress = p.progress
	report, err := bench.Redis(ctx, c)
	if report != nil {
		if status := p.writeReport("bench redis", report, *asJSON); status != exitOK {
			return status
		}
	}
	if err != nil {
		return p.fail("bench redis", err)
	}
	return exitOK
}

const benchMemoryUsage = `kvatlas bench memory measures the embedded index: finding and applying blocks,
the memory of a block, and what is left of it after churn.

`

func (p *program) benchMemory(ctx context.Context, args []string) int {
	fs := flag.NewFlagSet("kvatlas bench memory", flag.ContinueOnError)
	var c bench.MemoryConfig
	fs.IntVar(&c.Blocks, "blocks", 1<<20, "how many blocks the index has")
	intList(fs, &c.Sizes, "sizes", "numbers of blocks of a chain, a `LIST`; 128,1024,8192 by default")
	intList(fs, &c.Holders, "holders", "how many pods hold each block, a `LIST`; 1,10,100 by default")
	intList(fs, &c.Events, "events", "numbers of blocks of an event, a `LIST`; 1,16,128 by default")
	fs.IntVar(&c.Rounds, "rounds", 20, "how many samples of each figure")
	asJSON := fs.Bool("json", false, "write JSON")
	if status, done := p.parseFlags("bench memory", benchMemoryUsage, fs, args); done {
		return status
	}
	c.Progress = p.progress
	report, err := bench.Memory(ctx, c)
	if err != nil {
		return p.fail("bench memory", err)
	}
	return p.writeReport("bench memory", report, *asJSON)
}

// progress says on stderr what is going on, so that stdout is the report alone.
func (p *program) progress(what string) { fmt.Fprintln(p.stderr, "kvatlas bench: "+what) }

func (p *program) writeReport(command string, report interface{ Write(io.Writer) error }, asJSON bool) int {
	var err error
	if asJSON {
		e := json.NewEncoder(p.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		err = report.Write(p.stdout)
	}
	if err != nil {
		return p.fail(command, err)
	}
	return exitOK
}
