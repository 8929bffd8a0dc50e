package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/tokenpool"
)

const doctorUsage = `kvatlas doctor looks at what a server depends on, and says what it finds, what
that means and what to do about it. It changes nothing.

  kvatlas doctor --redis URL           the servers that hold the index
  kvatlas doctor --tokenizers DIR      the directory of tokenizers
  kvatlas doctor --server URL          a server that runs
  kvatlas doctor --engine-events URL   the events of an engine
  kvatlas doctor --config FILE         the redis and the tokenizers of this file of kvatlas serve
  kvatlas doctor lmcache               what LMCache has filed; see its own --help

It takes the flags, variables and file of kvatlas serve, and these:

  --server URL         the server to ask, host:port or a URL [$KVATLAS_SERVER]
  --engine-events URL  the endpoint of one rank's events, tcp://host:port
  --engine-replay URL  that of its replay socket
  --engine-seed SEED   the PYTHONHASHSEED that it should have
  --timeout DURATION   how long to look at each of them at most (default 15s)
  --json               write the findings as JSON

It ends with status 0, and with 1 when something fails. docs/operations.md has
a paragraph on each finding.
`

// doctor is one call of kvatlas doctor.
type doctor struct {
	cfg     *config.Loaded
	server  string
	engine  engineEvents
	timeout time.Duration
}

// section is what there is to say about one subject.
type section struct {
	Name     string          `json:"name"`
	Subject  string          `json:"subject"`
	Findings []check.Finding `json:"findings"`
}

// doctorParts are the sections in the order of the report. A part that has no
// subject in this configuration returns nil.
var doctorParts = []func(*doctor, context.Context) *section{
	(*doctor).lookAtRedis, (*doctor).lookAtTokenizers, (*doctor).lookAtServer, (*doctor).lookAtEngine,
}

// doctor is the command.
func (p *program) doctor(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("kvatlas doctor", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	loader := config.NewLoader(flags)
	d := &doctor{}
	flags.StringVar(&d.server, "server", p.getenv("KVATLAS_SERVER"), "")
	flags.StringVar(&d.engine.endpoint, "engine-events", "", "")
	flags.StringVar(&d.engine.replay, "engine-replay", "", "")
	flags.Func("engine-seed", "", func(s string) error {
		d.engine.seeds = append(d.engine.seeds, s)
		return nil
	})
	flags.DurationVar(&d.timeout, "timeout", 15*time.Second, "")
	asJSON := flags.Bool("json", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.stdout, doctorUsage)
		return exitOK
	case err != nil:
		return p.misuse("doctor", config.FlagError(flags, err))
	case flags.NArg() > 0:
		return p.misuse("doctor", fmt.Errorf("%q: it takes flags only", flags.Arg(0)))
	case d.engine.endpoint == "" && (d.engine.replay != "" || d.engine.seeds != nil):
		return p.misuse("doctor", errors.New("--engine-replay and --engine-seed are for --engine-events"))
	case d.timeout <= 0:
		return p.misuse("doctor", fmt.Errorf("--timeout is %v, it must be positive", d.timeout))
	}
	var err error
	if d.cfg, err = loader.Load(p.env, config.ReadFile); err != nil {
		return p.misuse("doctor", fmt.Errorf("the configuration is wrong:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  ")))
	}
	report := []section{}
	for _, look := range doctorParts {
		within, cancel := context.WithTimeout(ctx, d.timeout)
		if s := look(d, within); s != nil {
			report = append(report, *s)
		}
		cancel()
	}
	if ctx.Err() != nil {
		return p.fail("doctor", context.Cause(ctx))
	}
	if len(report) == 0 {
		return p.misuse("doctor", errors.New("there is nothing to look at: name something with --redis, --tokenizers, --server, --engine-events or --config"))
	}
	return p.writeSections(report, *asJSON)
}

// writeSections writes a report, and returns the status that follows from it.
func (p *program) writeSections(report []section, asJSON bool) int {
	if asJSON {
		e := json.NewEncoder(p.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(struct {
			Worst    check.Level `json:"worst"`
			Sections []section   `json:"sections"`
		}{worst(report), report}); err != nil {
			return p.fail("doctor", err)
		}
	} else {
		writeReport(p.stdout, report)
	}
	if worst(report) == check.Fail {
		return exitFailed
	}
	return exitOK
}

func worst(report []section) check.Level {
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
func writeReport(w io.Writer, report []section) {
	const name = 18 // the longest of the usual names
	counts := map[check.Level]int{}
	for _, s := range report {
		fmt.Fprintf(w, "%s  %s\n", s.Name, printable(s.Subject))
		for _, f := range s.Findings {
			counts[f.Level]++
			found := f.Found
			if f.Where != "" {
				found = f.Where + ": " + found
			}
			indent := strings.Repeat(" ", name+9)
			text := wrap(printable(found), indent, reportWidth)
			head := fmt.Sprintf("  %-4s  %-*s ", f.Level, name, printable(f.What))
			if len(head) > len(indent) {
				text = head + "\n" + text
			} else {
				text = head + strings.TrimPrefix(text, strings.Repeat(" ", len(head)))
			}
			fmt.Fprint(w, text)
			if f.Means != "" {
				fmt.Fprint(w, wrap(printable(f.Means), indent, reportWidth))
			}
			if f.Do != "" {
				text := wrap(printable(f.Do), indent+"   ", reportWidth)
				fmt.Fprint(w, indent+"-> "+strings.TrimLeft(text, " "))
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "fail: %d, warn: %d, info: %d, ok: %d\n", counts[check.Fail], counts[check.Warn], counts[check.Info], counts[check.OK])
}

// lookAtRedis looks at the servers of the index.
func (d *doctor) lookAtRedis(ctx context.Context) *section {
	if d.cfg.Redis == "" {
		return nil
	}
	s := &section{Name: "redis", Subject: d.cfg.Redis.String()}
	c := redisConfig(d.cfg)
	c.NoSweep = true
	x, err := redis.Open(c)
	if err != nil {
		s.Findings = []check.Finding{{Level: check.Fail, What: "connection", Found: err.Error()}}
		return s
	}
	defer func() { _ = x.Close() }()
	s.Findings, err = x.Check(ctx, d.cfg.ScoreBudget)
	if err != nil && check.Worst(s.Findings) < check.Fail {
		s.Findings = append(s.Findings, check.Finding{
			Level: check.Fail, What: "connection", Found: err.Error(), Means: "the check has not come to its end", Do: "try again, with a longer --timeout",
		})
	}
	return s
}

// maxTokenizers bounds the tokenizers that are looked at.
const maxTokenizers = 1000

// lookAtTokenizers reads the tokenizers of the directory, without loading them
// into a tokenizer: that a file is JSON and has a model in it shows what goes
// wrong in the field, downloads that were cut off and pointers of Git LFS.
func (d *doctor) lookAtTokenizers(ctx context.Context) *section {
	if d.cfg.Tokenizers == "" {
		return nil
	}
	s := &section{Name: "tokenizers", Subject: d.cfg.Tokenizers}
	add := func(f check.Finding) { s.Findings = append(s.Findings, f) }
	dir, err := tokenpool.NewDirectory(d.cfg.Tokenizers)
	if err != nil {
		add(check.Finding{
			Level: check.Fail, What: "directory", Found: strings.TrimPrefix(err.Error(), "tokenpool: "),
			Means: "kvatlas serve does not start", Do: "make the directory, or correct " + d.cfg.Given("tokenizers"),
		})
		return s
	}
	models, err := findModels(ctx, d.cfg.Tokenizers)
	if err != nil {
		add(check.Finding{Level: check.Warn, What: "directory", Found: err.Error(), Means: "what lies behind it has not been looked at", Do: "let this user read the directory"})
	}
	if len(models) == 0 && err == nil {
		f := check.Finding{
			Level: check.Warn, What: "directory", Found: "no <org>/<model>/tokenizer.json in it",
			Means: "texts can be scored only for models that the hub has: " + d.cfg.HubEndpoint,
			Do:    "put the tokenizer.json of each model there; scripts/fetch-tokenizers.sh fetches some",
		}
		if d.cfg.HubOffline {
			f.Level, f.Means = check.Fail, "no text can be scored, since the hub is not asked (hub-offline); tokens and block keys can"
		}
		add(f)
	}
	for _, m := range models {
		add(lookAtTokenizer(ctx, dir, m))
	}
	return s
}

// findModels lists the models of a directory, which may have links in it.
func findModels(ctx context.Context, root string) (models []string, err error) {
	var walk func(model string, depth int) error
	walk = func(model string, depth int) error {
		entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(model)))
		if err != nil {
			return err
		}
		for _, e := range entries {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case len(models) >= maxTokenizers:
				return nil
			case tokenpool.IsTokenizerFile(e.Name()) && model != "":
				if !slices.Contains(models, model) {
					models = append(models, model)
				}
			case strings.HasPrefix(e.Name(), "."), depth == 0:
			case e.IsDir(), e.Type()&fs.ModeSymlink != 0 && isDir(filepath.Join(root, model, e.Name())):
				if err := walk(strings.TrimPrefix(model+"/"+e.Name(), "/"), depth-1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = walk("", 2)
	return models, err
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// lookAtTokenizer reads one tokenizer.
func lookAtTokenizer(ctx context.Context, dir *tokenpool.Directory, model string) check.Finding {
	f := check.Finding{What: "tokenizer", Where: model}
	broken := func(why string) check.Finding {
		f.Level, f.Found = check.Fail, why
		f.Means, f.Do = "texts of this model cannot be scored", "fetch its tokenizer.json again"
		return f
	}
	files, err := dir.Fetch(ctx, model)
	if err != nil {
		return broken(err.Error())
	}
	if bytes.HasPrefix(files.Tokenizer, []byte("version https://git-lfs")) {
		f := broken("a pointer of Git LFS in place of the file")
		f.Do = "run git lfs pull in its folder"
		return f
	}
	if files.Name != "tokenizer.json" {
		if files.Tokenizer, _, err = files.JSON(); err != nil {
			return broken(err.Error())
		}
	}
	var t struct {
		Model struct {
			Type  string          `json:"type"`
			Vocab json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(files.Tokenizer, &t); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			return broken(fmt.Sprintf("tokenizer.json is no JSON, or only a part of it (%d bytes): %v", len(files.Tokenizer), err))
		}
		return broken("tokenizer.json is not of the usual form: " + err.Error())
	}
	if len(t.Model.Vocab) == 0 {
		return broken("tokenizer.json has no vocabulary")
	}
	f.Found = fmt.Sprintf("%s, %.1f MB", cmp.Or(t.Model.Type, "vocabulary of no stated type"), float64(len(files.Tokenizer))/1e6)
	return f
}

// lookAtServer asks a server that runs.
func (d *doctor) lookAtServer(ctx context.Context) *section {
	if d.server == "" {
		return nil
	}
	s := &section{Name: "server", Subject: d.server}
	add := func(f check.Finding) { s.Findings = append(s.Findings, f) }
	c, err := client.New(client.Config{URL: d.server, Timeout: d.timeout, UserAgent: "kvatlas-doctor/" + versionWord()})
	if err != nil {
		add(check.Finding{Level: check.Fail, What: "health", Found: strings.TrimPrefix(err.Error(), "client: "), Do: "correct --server: host:port, or a URL"})
		return s
	}
	defer c.Close()
	begin := time.Now()
	h, err := c.Health(ctx)
	if err != nil {
		add(check.Finding{
			Level: check.Fail, What: "health", Found: answer(d.server, err), Means: "nobody is answered there",
			Do: "start a server (kvatlas serve), or correct --server",
		})
		return s
	}
	add(check.Finding{What: "health", Found: fmt.Sprintf("answers, in %v", time.Since(begin).Round(10*time.Microsecond))})

	ready := check.Finding{What: "readiness", Found: "wants requests"}
	if err := c.Ready(ctx); err != nil {
		ready.Level, ready.Found = check.Warn, answer(d.server, err)
		ready.Means, ready.Do = "load balancers send it no requests", "the reason is in the answer; with strict-ready, Redis must be reachable"
	}
	add(ready)

	version := check.Finding{What: "server version", Found: h.Version}
	if h.Version != versionWord() {
		version.Level = check.Info
		version.Means = "this program is " + versionWord() + ": what it says may be of another version than the server's"
	}
	add(version)

	index := check.Finding{What: "index", Found: "in " + h.Backend}
	switch {
	case h.Backend == "memory" && d.cfg.Redis != "":
		index.Level = check.Warn
		index.Means = "the server keeps an index of its own, and does not use the Redis of this configuration"
		index.Do = "give the server the same configuration: --redis"
	case h.Backend == "memory":
		index.Level = check.Info
		index.Means = "the index is lost when the process ends, and other servers have others"
		index.Do = "one server alone may do so; several share an index in Redis (--redis)"
	}
	add(index)
	return s
}

// answer is the first line of what there is to say about a call that failed; the
// second is advice, which a finding has of its own.
func answer(server string, err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		bare := *e
		bare.Param = "" // it is of a request that the doctor has made
		err = &bare
	}
	line, _, _ := strings.Cut(scoreError(server, err).Error(), "\n")
	return line
}
