package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
)

const doctorUsage = `kvatlas doctor looks at what a server depends on, and says what it finds, what
that means and what to do about it. It changes nothing.

  kvatlas doctor --redis URL           the servers that hold the index
  kvatlas doctor --tokenizers DIR      the directory of tokenizers
  kvatlas doctor --server URL          a server that runs
  kvatlas doctor --engine-events URL   the events of an engine
  kvatlas doctor --config FILE         the redis and the tokenizers of this file of kvatlas serve
  kvatlas doctor lmcache               what LMCache has filed; see its own --help

It ends with status 0, and with 1 when something fails. docs/operations.md has
a paragraph on each finding. It takes the flags, variables and file of kvatlas
serve, and these:

`

// doctor is the command.
func (p *program) doctor(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("kvatlas doctor", flag.ContinueOnError)
	loader := config.NewLoader(flags)
	d := doctor.Config{Version: versionWord(), Token: p.Getenv("KVATLAS_TOKEN")}
	flags.StringVar(&d.Server, "server", p.Getenv("KVATLAS_SERVER"), "the server to ask, host:port or a `URL` [$KVATLAS_SERVER]")
	flags.StringVar(&d.Engine.Endpoint, "engine-events", "", "the `ENDPOINT` of one rank's events, tcp://host:port")
	flags.StringVar(&d.Engine.Replay, "engine-replay", "", "the `ENDPOINT` of its replay socket")
	flags.Func("engine-seed", "the PYTHONHASHSEED that it should have, a `SEED`; may stand more than once", func(s string) error {
		d.Engine.Seeds = append(d.Engine.Seeds, s)
		return nil
	})
	flags.DurationVar(&d.Timeout, "timeout", 15*time.Second, "how long to look at each of them at most")
	asJSON := flags.Bool("json", false, "write the findings as JSON")
	switch err := p.ReadSettings(flags, loader, args, func(w io.Writer) {
		fmt.Fprint(w, doctorUsage)
		cli.WriteFlags(w, flags, loader)
	}); {
	case err != nil:
		return p.Misuse("doctor", err)
	case d.Engine.Endpoint == "" && (d.Engine.Replay != "" || d.Engine.Seeds != nil):
		return p.Misuse("doctor", errors.New("--engine-replay and --engine-seed are for --engine-events"))
	case d.Timeout <= 0:
		return p.Misuse("doctor", fmt.Errorf("--timeout is %v, it must be positive", d.Timeout))
	}
	cfg, err := p.Load(loader)
	if err != nil {
		return p.Misuse("doctor", err)
	}
	d.Redis, d.RedisName, d.ScoreBudget = redisConfig(cfg), cfg.Redis.String(), cfg.ScoreBudget
	d.Tokenizers, d.TokenizersGiven = cfg.Tokenizers, cfg.Given("tokenizers")
	d.Hub, d.HubOffline = cfg.HubEndpoint, cfg.HubOffline
	report := doctor.Look(ctx, d)
	if ctx.Err() != nil {
		return p.Fail("doctor", context.Cause(ctx))
	}
	if len(report) == 0 {
		return p.Misuse("doctor", errors.New("there is nothing to look at: name something with --redis, --tokenizers, --server, --engine-events or --config"))
	}
	return p.writeSections(report, *asJSON)
}

// writeSections writes a report, and returns the status that follows from it.
func (p *program) writeSections(report []doctor.Section, asJSON bool) int {
	if asJSON {
		e := json.NewEncoder(p.Stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(struct {
			Worst    check.Level      `json:"worst"`
			Sections []doctor.Section `json:"sections"`
		}{worst(report), report}); err != nil {
			return p.Fail("doctor", err)
		}
	} else {
		writeReport(p.Stdout, report)
	}
	if worst(report) == check.Fail {
		return cli.ExitFailed
	}
	return cli.ExitOK
}

func worst(report []doctor.Section) check.Level {
	w := check.OK
	for _, s := range report {
		w = max(w, check.Worst(s.Findings))
	}
	return w
}

// reportWidth is the width of a report, in columns.
const reportWidth = 100

// writeReport writes the report for people. What machines have said is in it,
// so nothing steers the terminal.
func writeReport(w io.Writer, report []doctor.Section) {
	const name = 18 // the longest of the usual names
	counts := map[check.Level]int{}
	for _, s := range report {
		fmt.Fprintf(w, "%s  %s\n", s.Name, terminal.Printable(s.Subject))
		for _, f := range s.Findings {
			counts[f.Level]++
			found := f.Found
			if f.Where != "" {
				found = f.Where + ": " + found
			}
			indent := strings.Repeat(" ", name+9)
			text := cli.Wrap(terminal.Printable(found), indent, reportWidth)
			head := fmt.Sprintf("  %-4s  %-*s ", f.Level, name, terminal.Printable(f.What))
			if len(head) > len(indent) {
				text = head + "\n" + text
			} else {
				text = head + strings.TrimPrefix(text, strings.Repeat(" ", len(head)))
			}
			fmt.Fprint(w, text)
			if f.Means != "" {
				fmt.Fprint(w, cli.Wrap(terminal.Printable(f.Means), indent, reportWidth))
			}
			if f.Do != "" {
				text := cli.Wrap(terminal.Printable(f.Do), indent+"   ", reportWidth)
				fmt.Fprint(w, indent+"-> "+strings.TrimLeft(text, " "))
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "fail: %d, warn: %d, info: %d, ok: %d\n", counts[check.Fail], counts[check.Warn], counts[check.Info], counts[check.OK])
}
