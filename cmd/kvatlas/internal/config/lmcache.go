package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/nearest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store/redis"
)

// lmcacheSettings are what of LMCache counts in scores.
type lmcacheSettings struct {
	// LMCacheModels are the ways in which engines of models run LMCache, as
	// MODEL?version=0.5.6&algorithm=sha256_cbor&seed=0; all parameters are in
	// docs/lmcache.md. What LMCache holds of these models counts in their scores.
	LMCacheModels LMCacheModels `name:"lmcache-models" section:"LMCache"`
	// LMCache says which entries of LMCache in the Redis of the index are read. Auto reads
	// those that a model's version of LMCache writes, and learns of models that are not in
	// lmcache-models. Set reads strings, hset the fork's hashes. Off counts nothing of LMCache.
	LMCache string `name:"lmcache" default:"auto" oneof:"auto,off,set,hset"`
	// LMCacheRedis is the URL of the Redis that LMCache writes to, in the forms of redis,
	// if it is another than the index's: its lookup server's or its remote store's.
	LMCacheRedis SecretURL `name:"lmcache-redis"`
	// LMCacheMaxAge is the age to which entries of LMCache count that have the time
	// of their writing, such as the fork's; 0 is any age.
	LMCacheMaxAge time.Duration `name:"lmcache-max-age" default:"24h" min:"0s" max:"8760h"`
}

// LMCacheModels are the ways in which engines run LMCache. The text is a
// comma-separated list of what ParseLMCacheProfile reads; a model that is there
// several times has several ways.
type LMCacheModels []LMCacheModel

// LMCacheModel is one of them.
type LMCacheModel struct {
	Model   string
	Profile lmcache.Profile
	text    string
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *LMCacheModels) UnmarshalText(text []byte) error {
	var names Names
	if err := names.UnmarshalText(text); err != nil {
		return err
	}
	var out LMCacheModels
	for _, t := range names {
		model, p, err := ParseLMCacheProfile(t)
		if err != nil {
			return err
		}
		// What cannot be hashed is an error of the setting, not of a request.
		if _, err := lmcache.NewReader(model, lmcache.AutoEntries, p); err != nil {
			return err
		}
		out = append(out, LMCacheModel{model, p, t})
	}
	*m = out
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (m LMCacheModels) MarshalText() ([]byte, error) {
	texts := make([]string, len(m))
	for i := range m {
		texts[i] = m[i].text
	}
	return []byte(strings.Join(texts, ",")), nil
}

// Profiles are those of each model.
func (m LMCacheModels) Profiles() map[string][]lmcache.Profile {
	out := map[string][]lmcache.Profile{}
	for i := range m {
		out[m[i].Model] = append(out[m[i].Model], m[i].Profile)
	}
	return out
}

// lmcacheParams are what can be said of a profile.
var lmcacheParams = map[string]func(p *lmcache.Profile, v string) error{
	"version": func(p *lmcache.Profile, v string) (err error) {
		p.Version, err = lmcache.VersionOf(v)
		return err
	},
	"algorithm": func(p *lmcache.Profile, v string) (err error) {
		p.Algorithm, err = lmcache.ParseAlgorithm(v)
		return err
	},
	"remote": func(p *lmcache.Profile, v string) (err error) {
		p.Remote, err = lmcache.ParseRemote(v)
		return err
	},
	"mp":         func(p *lmcache.Profile, v string) error { return setBool(&p.MP, v) },
	"vllm":       func(p *lmcache.Profile, v string) error { return setBool(&p.VLLM, v) },
	"tail":       func(p *lmcache.Profile, v string) error { return setBool(&p.Tail, v) },
	"seed":       func(p *lmcache.Profile, v string) error { p.Seed = v; return nil },
	"name":       func(p *lmcache.Profile, v string) error { p.Model = v; return nil },
	"fmt":        func(p *lmcache.Profile, v string) error { p.Fmt = v; return nil },
	"dtype":      func(p *lmcache.Profile, v string) error { p.DType = v; return nil },
	"python":     func(p *lmcache.Profile, v string) error { return setInt(&p.Python, strings.TrimPrefix(v, "3.")) },
	"chunk_size": func(p *lmcache.Profile, v string) error { return setInt(&p.ChunkSize, v) },
	"world_size": func(p *lmcache.Profile, v string) error {
		for n := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == ' ' || r == '+' || r == ';' }) {
			var world int
			if err := setInt(&world, n); err != nil {
				return err
			}
			p.WorldSizes = append(p.WorldSizes, world)
		}
		return nil
	},
}

// ParseLMCacheProfile reads MODEL?version=0.5.6&..., escaped as in a URL. The version
// must be there. LMCache is taken to run inside vLLM, and to keep the last short chunk
// where its version does so by default.
func ParseLMCacheProfile(text string) (model string, p lmcache.Profile, err error) {
	model, params, _ := strings.Cut(text, "?")
	if model, err = url.PathUnescape(model); err != nil {
		return "", p, fmt.Errorf("%q: %w", text, err)
	}
	if model == "" {
		return "", p, fmt.Errorf("%q has no model; it should be as MODEL?version=0.5.6&algorithm=sha256_cbor&seed=0", text)
	}
	values, err := url.ParseQuery(params)
	if err != nil {
		return "", p, fmt.Errorf("%s: %w", model, err)
	}
	p.VLLM = true
	for _, name := range slices.Sorted(maps.Keys(values)) {
		set, known := lmcacheParams[name]
		switch {
		case !known:
			return "", p, fmt.Errorf("%s: %s: no such parameter%s; there are %s", model, name,
				nearest.Clause(name, slices.Sorted(maps.Keys(lmcacheParams))), strings.Join(slices.Sorted(maps.Keys(lmcacheParams)), ", "))
		case len(values[name]) > 1:
			return "", p, fmt.Errorf("%s: %s is there twice", model, name)
		}
		if err := set(&p, values[name][0]); err != nil {
			return "", p, fmt.Errorf("%s: %s: %w", model, name, err)
		}
	}
	release := values.Get("version")
	if release == "" {
		return "", p, fmt.Errorf("%s: version is missing, LMCache's release or fork; it should be as %s?version=0.5.6&algorithm=sha256_cbor&seed=0", model, model)
	}
	if !values.Has("tail") {
		p.Tail = tailByDefault(p.Version, release)
	}
	return model, p, nil
}

// tailByDefault is save_unfull_chunk of a release that does not set it.
func tailByDefault(v lmcache.Version, release string) bool {
	// 0.3.10 and 0.3.12 are of one line, and differ.
	return v < lmcache.V0310 || v == lmcache.V0310 && strings.TrimPrefix(release, "v") == lmcache.V0310.String()
}

func setBool(to *bool, v string) (err error) {
	*to, err = parseBool(v)
	return err
}

func setInt(to *int, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no whole number", v)
	}
	*to = n
	return nil
}

// lmcacheModes are the words of the setting lmcache.
var lmcacheModes = map[string]lmcache.Mode{
	"auto": lmcache.AutoEntries, "off": lmcache.NoEntries, "set": lmcache.SetEntries, "hset": lmcache.HSetEntries,
}

// LMCacheMode returns which entries of LMCache are read, NoEntries without Redis.
func (c *Config) LMCacheMode() lmcache.Mode {
	if c.Redis == "" {
		return lmcache.NoEntries
	}
	return lmcacheModes[c.LMCache]
}

// LMCacheLearns reports whether the profiles of models that have none are learnt from what
// LMCache has written to Redis.
func (c *Config) LMCacheLearns() bool { return c.LMCache == "auto" && c.Redis != "" }

// LMCacheReaders returns what is asked of LMCache by model, nil for nothing, and whether
// any of it is entries in Redis.
func (c *Config) LMCacheReaders() (readers map[string]*lmcache.Reader, entries bool, err error) {
	if c.LMCache == "off" {
		return nil, false, nil
	}
	for model, profiles := range c.LMCacheModels.Profiles() {
		r, err := lmcache.NewReader(model, c.LMCacheMode(), profiles...)
		if err != nil {
			return nil, false, err
		}
		if readers == nil {
			readers = map[string]*lmcache.Reader{}
		}
		readers[model] = r
		for _, g := range r.Groups() {
			entries = entries || len(g.Entries) > 0
		}
	}
	return readers, entries, nil
}

// validateLMCache checks the rules between the settings of LMCache and others.
func (c *Config) validateLMCache() error {
	asked := c.LMCache == "set" || c.LMCache == "hset"
	switch {
	case asked && c.Redis == "":
		return fmt.Errorf("lmcache: %s is about what LMCache writes to the Redis of the index, and redis is not set: the index in memory has none of it", c.LMCache)
	case asked && len(c.LMCacheModels) == 0:
		return fmt.Errorf("lmcache: %s reads entries of models, and lmcache-models has none", c.LMCache)
	}
	if c.LMCacheRedis != "" {
		if err := redis.CheckURL(string(c.LMCacheRedis)); err != nil {
			return fmt.Errorf("lmcache-redis: %w", err)
		}
		if c.Redis == "" {
			return errors.New("lmcache-redis: entries of LMCache are read beside an index in Redis, and redis is not set")
		}
	}
	if c.LMCache == "off" {
		return nil
	}
	var errs []error
	if c.Redis == "" {
		for _, m := range c.LMCacheModels {
			if m.Profile.Remote != lmcache.NoRemote {
				errs = append(errs, fmt.Errorf("lmcache-models: %s has a remote store, which is looked for in the Redis of the index, and redis is not set", m.Model))
			}
		}
	}
	_, entries, err := c.LMCacheReaders()
	if err != nil {
		errs = append(errs, fmt.Errorf("lmcache-models: %w", err))
	} else if asked && !entries {
		errs = append(errs, fmt.Errorf("lmcache: no version in lmcache-models writes what %s reads; up to 0.3.6 have set, the fork has hset", c.LMCache))
	}
	return errors.Join(errs...)
}
