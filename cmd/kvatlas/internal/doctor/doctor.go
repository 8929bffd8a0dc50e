// Package doctor looks at what a server of kvatlas depends on. That is the Redis of its
// index, its tokenizers, a server that runs, the events of an engine and what LMCache has
// filed. It changes nothing there. It reads no flags and prints nothing: kvatlas doctor
// does.
//
// What cannot be looked at is a finding, and no error.
package doctor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/route/loads"
	loadsredis "github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/store/redis"
)

// Config says what to look at. A part that it does not name is left out.
type Config struct {
	// Redis is what a server's settings say about the index in Redis; without a URL there
	// is none. RedisName is its URL as it may be shown, without passwords.
	Redis     redis.Config
	RedisName string
	// ScoreBudget is the time of a lookup, against which the round trips are held.
	ScoreBudget time.Duration
	// Tokenizers is the directory of tokenizers, TokenizersGiven what to correct if it
	// is wrong: a flag, a variable or a key of a file.
	Tokenizers, TokenizersGiven string
	// Hub has the tokenizers that the directory has not, unless HubOffline.
	Hub        string
	HubOffline bool
	// Server is the server to ask, host:port or a URL.
	Server string
	// Token is what is sent to it as a bearer token; empty means none.
	Token  string
	Engine Engine
	// Timeout is how long to look at each part at most. It must be positive.
	Timeout time.Duration
	// Version is this program's.
	Version string
}

// Section is the findings about one subject.
type Section struct {
	Name     string          `json:"name"`
	Subject  string          `json:"subject"`
	Findings []check.Finding `json:"findings"`
}

// parts are the sections in the order of the report. A part that has no subject in
// this configuration returns nil.
var parts = []func(*Config, context.Context) *Section{
	(*Config).lookAtRedis, (*Config).lookAtTokenizers, (*Config).lookAtServer, (*Config).lookAtEngine,
}

// Look looks at each part that c names, one after the other. Once ctx has ended, what
// it returns is of no use.
func Look(ctx context.Context, c Config) []Section {
	report := []Section{}
	for _, look := range parts {
		within, cancel := context.WithTimeout(ctx, c.Timeout)
		if s := look(&c, within); s != nil {
			report = append(report, *s)
		}
		cancel()
	}
	return report
}

// lookAtRedis looks at the servers of the index.
func (c *Config) lookAtRedis(ctx context.Context) *Section {
	if c.Redis.URL == "" {
		return nil
	}
	s := &Section{Name: "redis", Subject: c.RedisName}
	to := c.Redis
	to.NoSweep = true
	x, err := redis.Open(to)
	if err != nil {
		s.Findings = []check.Finding{{Level: check.Fail, What: "connection", Found: err.Error()}}
		return s
	}
	defer func() { _ = x.Close() }()
	s.Findings, err = x.Check(ctx, c.ScoreBudget)
	if err == nil {
		s.Findings = append(s.Findings, c.loadsOf(ctx, x)...)
	}
	if err != nil && check.Worst(s.Findings) < check.Fail {
		s.Findings = append(s.Findings, check.Finding{
			Level: check.Fail, What: "connection", Found: err.Error(), Means: "the check has not come to its end", Do: "try again, with a longer --timeout",
		})
	}
	return s
}

// maxModels bounds the models whose loads are looked at.
const maxModels = 1000

// loadsOf says of which models processes of several versions book requests. It says nothing
// where no model is indexed, and where loads cannot be read.
func (c *Config) loadsOf(ctx context.Context, x *redis.Index) []check.Finding {
	registry, err := x.Registry(ctx)
	if err != nil {
		return nil
	}
	models := slices.Collect(maps.Keys(registry.Models))
	for i := range registry.Pods {
		models = append(models, registry.Pods[i].Model)
	}
	slices.Sort(models)
	if models = slices.Compact(models); len(models) == 0 {
		return nil
	}
	store, err := loadsredis.Open(loadsredis.Address{URL: c.Redis.URL, Prefix: c.Redis.Prefix, PoolSize: 1, Timeout: c.Timeout})
	if err != nil {
		return nil
	}
	defer func() { _ = store.Close() }()
	var mixed []string
	for _, m := range models[:min(len(models), maxModels)] {
		switch err := store.CheckForms(ctx, m); {
		case errors.Is(err, loads.ErrMixed):
			mixed = append(mixed, m)
		case err != nil:
			return nil
		}
	}
	if len(mixed) == 0 {
		return []check.Finding{{What: "forms of loads", Found: "no running request is booked by another version"}}
	}
	f := check.Finding{
		Level: check.Warn, What: "forms of loads", Means: "routers of several versions run: each counts its own requests alone, so engines get more than their share",
		Do: "update all of them to one version; until then let one version route a model",
	}
	f.Found = "requests of these models are booked by another version: " + firstOf(mixed)
	return []check.Finding{f}
}
