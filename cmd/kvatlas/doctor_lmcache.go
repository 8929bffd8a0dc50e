package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/survey"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

const doctorLMCacheUsage = `kvatlas doctor lmcache says which entries of LMCache in Redis, and which of its
workers, scoring will find, and which never match.

  kvatlas doctor lmcache --redis URL --profile PROFILE
  kvatlas doctor lmcache --redis URL --profile PROFILE --model MODEL --tokens-file FILE
  kvatlas doctor lmcache --redis URL --profile PROFILE --model MODEL --prompt TEXT --server URL

It takes the flags, variables and file of kvatlas serve, and these:

  --profile PROFILE    how engines of a model run LMCache, may stand more than once,
                       as in lmcache-models, which it replaces:
                       MODEL?version=0.5.6&algorithm=sha256_cbor&seed=0
  --model MODEL        the model of the prompt
  --tokens-file FILE   a prompt that an engine has had, as token ids in JSON: [1,2,...]
  --prompt TEXT        the same as text, which --server makes into tokens
  --server URL         the server to ask, http://host:port [$KVATLAS_SERVER]
  --keys N             how many of LMCache's keys to look at (default 100000)
  --timeout DURATION   how long to look at most (default 15s)
  --json               write the findings as JSON

With a prompt it looks for the hashes by which engines have filed it, and says
which setting differs. It reads no tensors and changes nothing.
`

// lmcacheScanSteps bounds the steps of SCAN for each key that is looked at: keys of
// others lie between.
const lmcacheScanSteps = 2000

// doctorLMCache is one call of kvatlas doctor lmcache.
type doctorLMCache struct {
	cfg     *config.Loaded
	model   string
	tokens  string // a file
	prompt  string
	server  string
	keys    int
	timeout time.Duration
	json    bool
	// profiles are those of --profile or, without any, of lmcache-models, by model.
	profiles map[string][]lmcache.Profile
}

// doctorLMCache is the command.
func (p *program) doctorLMCache(ctx context.Context, args []string) int {
	d, err := p.readDoctorLMCache(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.stdout, doctorLMCacheUsage)
		return exitOK
	case err != nil:
		return p.misuse("doctor lmcache", err)
	}
	within, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	tokens, err := d.readTokens(within)
	if err != nil {
		return p.fail("doctor lmcache", err)
	}
	s := section{Name: "lmcache", Subject: d.cfg.Redis.String(), Findings: d.look(within, tokens)}
	if ctx.Err() != nil {
		return p.fail("doctor lmcache", context.Cause(ctx))
	}
	return p.writeSections([]section{s}, d.json)
}

func (p *program) readDoctorLMCache(args []string) (*doctorLMCache, error) {
	flags := flag.NewFlagSet("kvatlas doctor lmcache", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	loader := config.NewLoader(flags)
	d := &doctorLMCache{profiles: map[string][]lmcache.Profile{}}
	flags.Func("profile", "", func(text string) error {
		model, p, err := config.ParseLMCacheProfile(text)
		if err != nil {
			return err
		}
		d.profiles[model] = append(d.profiles[model], p)
		return nil
	})
	flags.StringVar(&d.model, "model", "", "")
	flags.StringVar(&d.tokens, "tokens-file", "", "")
	flags.StringVar(&d.prompt, "prompt", "", "")
	flags.StringVar(&d.server, "server", p.getenv("KVATLAS_SERVER"), "")
	flags.IntVar(&d.keys, "keys", 100_000, "")
	flags.DurationVar(&d.timeout, "timeout", 15*time.Second, "")
	flags.BoolVar(&d.json, "json", false, "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, config.FlagError(flags, err)
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("%q: it takes flags only", flags.Arg(0))
	case d.timeout <= 0:
		return nil, fmt.Errorf("--timeout is %v, it must be positive", d.timeout)
	case d.keys < 1 || d.keys > 10_000_000:
		return nil, fmt.Errorf("--keys is %d, it can be 1 to 10000000", d.keys)
	case d.tokens != "" && d.prompt != "":
		return nil, errors.New("--tokens-file and --prompt are two prompts, and one is looked for")
	case d.model == "" && (d.tokens != "" || d.prompt != ""):
		return nil, errors.New("a prompt needs --model")
	case d.model != "" && d.tokens == "" && d.prompt == "":
		return nil, errors.New("--model is for a prompt: --tokens-file or --prompt")
	case d.prompt != "" && d.server == "":
		return nil, errors.New("--prompt needs --server, which makes tokens of it; --tokens-file does not")
	}
	var err error
	if d.cfg, err = loader.Load(p.env, config.ReadFile); err != nil {
		return nil, fmt.Errorf("the configuration is wrong:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	if len(d.profiles) == 0 {
		d.profiles = d.cfg.LMCacheModels.Profiles()
	}
	if d.cfg.Redis == "" {
		return nil, errors.New("it looks at Redis, and there is none: name it with --redis or in --config")
	}
	return d, nil
}

// readTokens are those of the prompt; nil when there is none.
func (d *doctorLMCache) readTokens(ctx context.Context) ([]uint32, error) {
	switch {
	case d.tokens != "":
		text, err := os.ReadFile(d.tokens)
		if err != nil {
			return nil, err
		}
		var tokens []uint32
		if err := json.Unmarshal(text, &tokens); err != nil {
			return nil, fmt.Errorf("%s is no JSON array of token ids: %w", d.tokens, err)
		}
		return tokens, nil
	case d.prompt != "":
		c, err := client.New(client.Config{URL: d.server, Timeout: d.timeout, UserAgent: "kvatlas-doctor/" + versionWord()})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		got, err := c.Tokenize(ctx, client.TokenizeRequest{Model: d.model, Prompt: d.prompt})
		if err != nil {
			return nil, errors.New(answer(d.server, err))
		}
		return got.Tokens, nil
	}
	return nil, nil
}

// look makes the findings.
func (d *doctorLMCache) look(ctx context.Context, tokens []uint32) []check.Finding {
	failed := func(err error) []check.Finding {
		if f, ok := d.refused(err); ok {
			return []check.Finding{f}
		}
		return []check.Finding{{Level: check.Fail, What: "connection", Found: err.Error(), Means: "the check has not come to its end", Do: "correct --redis, or try again with a longer --timeout"}}
	}
	c := redisConfig(d.cfg)
	c.NoSweep, c.Entries = true, true
	x, err := redis.Open(c)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = x.Close() }()
	reg, err := x.Registry(ctx)
	if err != nil {
		return failed(err)
	}
	var entries []survey.Entry
	var refusals []check.Finding // of what is told of single keys, each once
	owners := &entryOwners{ask: func(model string, texts []string) ([]string, error) { return x.ForeignOwners(ctx, model, texts) }}
	s := survey.New(survey.Config{
		Profiles: d.profiles, Mode: d.cfg.LMCacheMode(), Pods: reg.Pods, Now: time.Now(), MaxAge: d.cfg.LMCacheMaxAge,
		Owner: owners.of, Learns: d.cfg.LMCacheLearns(),
	})
	seen := map[string]bool{}
	all, err := x.ScanForeign(ctx, redis.ForeignScan{
		Match: "*@*", MaxKeys: d.keys, MaxSteps: lmcacheScanSteps,
		Want: func(name string) (tell, read bool) {
			if seen[name] {
				return false, false
			}
			tell, read = s.Want(name)
			if tell {
				seen[name] = true
			}
			return tell, read
		},
		Each: func(k redis.ForeignKey) {
			if k.Refused != nil {
				if f, ok := d.refused(k.Refused); ok && !slices.Contains(refusals, f) {
					refusals = append(refusals, f)
				}
			}
			entries = append(entries, survey.Entry{Name: k.Name, Type: k.Type, Aged: k.Aged, Text: k.Text, Fields: k.Fields})
		},
	})
	if err != nil {
		return failed(err)
	}
	for i := range refusals {
		refusals[i].Level, refusals[i].Means = check.Warn, "what it would tell is missing below"
	}
	for _, e := range entries {
		owners.meet(e)
		s.Add(e)
	}
	findings := slices.Concat(refusals, s.Findings(all))
	if owners.err != nil {
		return append(findings, failed(owners.err)...)
	}
	if tokens != nil {
		more, err := explain(ctx, x, s.Explain(d.model, tokens), d.model)
		if err != nil {
			return append(findings, failed(err)...)
		}
		findings = append(findings, more...)
	}
	return findings
}

// lmcacheRules are what the doctor's user may do beside what docs/operations.md has for
// kvatlas doctor, for the keys of LMCache.
var lmcacheRules = []string{"%R~*@*", "+type", "+exists", "+strlen", "+getrange", "+pttl"}

// refusedCommand is what Redis says of a command that a user may not call; Redis 6
// leaves out which user and command it is.
var refusedCommand = regexp.MustCompile(`^NOPERM (?:User (\S+) has|this user has) no permissions to run the '([^']+)' command`)

// refused says which rule the user lacks when Redis has refused a command.
func (d *doctorLMCache) refused(err error) (f check.Finding, ok bool) {
	_, text, ok := strings.Cut(err.Error(), "NOPERM ")
	if !ok {
		// A script is refused a command without its name.
		return check.Finding{
			Level: check.Fail, What: "access", Found: err.Error(), Means: "the check has not come to its end",
			Do: "give the user the rights of kvatlas doctor; docs/operations.md has them, in the section on users",
		}, strings.Contains(err.Error(), "can't run this command")
	}
	f = check.Finding{Level: check.Fail, What: "access", Found: "NOPERM " + text, Means: "the check has not come to its end"}
	// A refusal that names no command is of a key.
	user, rule := "", lmcacheRules[0]
	if m := refusedCommand.FindStringSubmatch("NOPERM " + text); m != nil {
		user, rule = m[1], "+"+m[2]
	}
	if u, err := url.Parse(string(d.cfg.Redis)); user == "" && err == nil {
		user = u.User.Username()
	}
	user = cmp.Or(user, "default")
	f.Do = fmt.Sprintf("ACL SETUSER %s %s", user, rule)
	lacking := append([]string{"+scan"}, lmcacheRules...) // what a reader does
	if !slices.Contains(lacking, rule) {
		f.Do += "; docs/operations.md has all that kvatlas doctor calls, in the section on users"
		return f, true
	}
	f.Do += fmt.Sprintf("; all that this check needs beside the rights of a reader is ACL SETUSER %s %s", user, strings.Join(lacking, " "))
	return f, true
}

// entryOwners finds the pods that texts in entries mean, of each model at once.
type entryOwners struct {
	ask   func(model string, texts []string) (pods []string, err error)
	texts []string
	met   map[string]bool
	by    map[string]map[string]string // of a model: a text's pod
	err   error
}

// meet takes in the texts of an entry.
func (o *entryOwners) meet(e survey.Entry) {
	if o.met == nil {
		o.met, o.by = map[string]bool{}, map[string]map[string]string{}
	}
	add := func(text string) {
		if text != "" && !o.met[text] {
			o.met[text] = true
			o.texts = append(o.texts, text)
		}
	}
	add(e.Text)
	for field := range e.Fields {
		add(field)
	}
}

// of returns the pod that a text means, "" for none.
func (o *entryOwners) of(model, text string) string {
	named := o.by[model]
	if named == nil {
		named = map[string]string{}
		pods, err := o.ask(model, o.texts)
		if err != nil {
			o.err = err
		}
		for i, pod := range pods {
			named[o.texts[i]] = pod
		}
		o.by[model] = named
	}
	return named[text]
}

// explain asks the index and Redis what an explanation wants to know.
func explain(ctx context.Context, x *redis.Index, e *survey.Explanation, model string) ([]check.Finding, error) {
	h := &heldKeys{}
	q := &store.Query{Model: blockkey.ModelOf(model), Keys: e.Keys(), Fold: h}
	if err := x.Lookup(ctx, q); err != nil {
		return nil, err
	}
	there, err := x.HasForeign(ctx, e.Names())
	if err != nil {
		return nil, err
	}
	return e.Findings(h.held, there), nil
}

// heldKeys says of each key of a query whether a cache worker that lives holds it.
type heldKeys struct {
	reg  *store.Registry
	held []bool
}

// Begin implements store.Folder.
func (h *heldKeys) Begin(reg *store.Registry) { h.reg, h.held = reg, nil }

// Run implements store.Folder.
func (h *heldKeys) Run(n int, holders []store.HolderID) bool {
	held := slices.ContainsFunc(holders, func(id store.HolderID) bool {
		_, _, live := h.reg.Holder(id)
		return live
	})
	h.held = append(h.held, slices.Repeat([]bool{held}, n)...)
	return true
}
