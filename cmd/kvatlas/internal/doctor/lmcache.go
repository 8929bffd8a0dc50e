package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/diagnose"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/external"
)

// lmcacheScanSteps bounds the steps of SCAN for each key that is looked at: keys of
// others lie between.
const lmcacheScanSteps = 2000

// LMCache says which entries of LMCache to look at, and for which prompt.
type LMCache struct {
	// Redis and RedisName are as in Config.
	Redis     redis.Config
	RedisName string
	// Profiles are the ways in which engines run LMCache, by model. Mode is which entries
	// a server reads, and Learns whether it learns profiles from them.
	Profiles map[string][]lmcache.Profile
	Mode     lmcache.Mode
	Learns   bool
	// Keys is how many keys of LMCache to look at, at most.
	Keys int
	// Model and Tokens are the prompt to look for; without Tokens there is none.
	Model  string
	Tokens []uint32
}

// LookAtLMCache says which entries of LMCache in Redis scoring will find.
func LookAtLMCache(ctx context.Context, l LMCache) Section {
	return Section{Name: "lmcache", Subject: l.RedisName, Findings: l.look(ctx)}
}

// look makes the findings.
func (l *LMCache) look(ctx context.Context) []check.Finding {
	failed := func(err error) []check.Finding {
		if f, ok := l.refused(err); ok {
			return []check.Finding{f}
		}
		return []check.Finding{{Level: check.Fail, What: "connection", Found: err.Error(), Means: "the check has not come to its end", Do: "correct --redis, or try again with a longer --timeout"}}
	}
	to := l.Redis
	to.NoSweep, to.Entries = true, true
	x, err := redis.Open(to)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = x.Close() }()
	reg, err := x.Registry(ctx)
	if err != nil {
		return failed(err)
	}
	var entries []diagnose.Entry
	var refusals []check.Finding // of the findings on single keys, each once
	owners := &entryOwners{ask: func(model string, texts []string) ([]string, error) { return x.EntryOwners(ctx, model, texts) }}
	s := diagnose.New(diagnose.Config{
		Profiles: l.Profiles, Mode: l.Mode, Pods: reg.Pods, Now: time.Now(), MaxAge: l.Redis.EntryAge,
		Owner: owners.of, Learns: l.Learns,
	})
	seen := map[string]bool{}
	all, err := x.External().Scan(ctx, external.Scan{
		Match: "*@*", MaxKeys: l.Keys, MaxSteps: lmcacheScanSteps,
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
		Each: func(k external.Key) {
			if k.Refused != nil {
				if f, ok := l.refused(k.Refused); ok && !slices.Contains(refusals, f) {
					refusals = append(refusals, f)
				}
			}
			entries = append(entries, diagnose.Entry{Name: k.Name, Type: k.Type, Aged: k.Aged, Text: k.Text, Fields: k.Fields})
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
	if l.Tokens != nil {
		more, err := explain(ctx, x, s.Explain(l.Model, l.Tokens), l.Model)
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
func (l *LMCache) refused(err error) (f check.Finding, ok bool) {
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
	if u, err := url.Parse(l.Redis.URL); user == "" && err == nil {
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
func (o *entryOwners) meet(e diagnose.Entry) {
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
func explain(ctx context.Context, x *redis.Index, e *diagnose.Explanation, model string) ([]check.Finding, error) {
	h := &heldKeys{}
	q := &store.Query{Model: blockkey.ModelOf(model), Keys: e.Keys(), Fold: h}
	if err := x.Lookup(ctx, q); err != nil {
		return nil, err
	}
	there, err := x.External().Has(ctx, e.Names())
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
