package config

import (
	"errors"
	"flag"
	"reflect"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/lmcache"
)

func TestParseLMCacheProfile(t *testing.T) {
	for _, c := range []struct {
		text  string
		model string
		want  lmcache.Profile
	}{
		{"m?version=fork", "m", lmcache.Profile{Config: lmcache.Config{Version: lmcache.VFork, VLLM: true, Tail: true}}},
		{"org/m?version=0.3.10&seed=0&python=3.12", "org/m", lmcache.Profile{Config: lmcache.Config{Version: lmcache.V0310, VLLM: true, Seed: "0", Python: 12, Tail: true}}},
		{"m?version=v0.3.12&vllm=no&python=12", "m", lmcache.Profile{Config: lmcache.Config{Version: lmcache.V0310, Python: 12}}},
		{"m?version=0.3.1&tail=false&chunk_size=16&world_size=1+2&fmt=sglang", "m", lmcache.Profile{
			Config: lmcache.Config{Version: lmcache.V031, VLLM: true, ChunkSize: 16}, WorldSizes: []int{1, 2}, Fmt: "sglang"}},
		{"a%2Cb?version=0.5.6&mp=true&algorithm=blake3&remote=resp&name=org%2Fx&dtype=half", "a,b", lmcache.Profile{
			Config: lmcache.Config{Version: lmcache.V046, VLLM: true, MP: true, Algorithm: lmcache.Blake3}, Remote: lmcache.RemoteRESP, Model: "org/x", DType: "half"}},
	} {
		model, p, err := ParseLMCacheProfile(c.text)
		if err != nil || model != c.model || !reflect.DeepEqual(p, c.want) {
			t.Errorf("%s:\ngot  %q %+v, %v\nwant %q %+v", c.text, model, p, err, c.model, c.want)
		}
	}
	for text, says := range map[string]string{
		"?version=0.5.6":                      "no model",
		"m":                                   "version is missing",
		"m?version=9.9.9":                     "newer than 0.5.6",
		"m?version=0.5.6&chunks=4":            "chunks: no such parameter",
		"m?version=0.5.6&chunksize=4":         `did you mean chunk_size`,
		"m?version=0.5.6&version=0.5.6":       "twice",
		"m?version=0.5.6&world_size=two":      `"two" is no whole number`,
		"m?version=0.5.6&mp=perhaps":          "neither true nor false",
		"m?version=0.5.6&algorithm=md5":       "md5",
		"m?version=0.5.6&remote=s3":           "s3",
		"m?version=0.5.6&seed=%zz":            "%zz",
		"%zz?version=0.5.6":                   "%zz",
		"m?version=0.5.6;algorithm=builtin":   "semicolon",
		"m?version=0.5.6&python=three":        `"three"`,
		"m?version=0.5.6&chunk_size=-1":       `"-1"`,
		"m?version=0.5.6&python=3.12&seed=0&": "",
	} {
		if _, _, err := ParseLMCacheProfile(text); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

func loadLMCache(args ...string) (*Loaded, error) {
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	l := NewLoader(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return l.Load(nil, func(string) ([]byte, error) { return nil, errors.New("no file") })
}

func TestLMCacheSettings(t *testing.T) {
	const (
		redis = "--redis=redis://r:6379"
		fork  = "--lmcache-models=m?version=fork"
		now   = "--lmcache-models=m?version=0.5.6&algorithm=sha256_cbor&seed=0"
	)
	for _, c := range []struct {
		args    []string
		models  int
		entries bool
		says    string
	}{
		{nil, 0, false, ""},
		{[]string{redis}, 0, false, ""},
		{[]string{fork}, 1, false, ""}, // chunk keys alone
		{[]string{redis, fork}, 1, true, ""},
		{[]string{redis, fork, "--lmcache=off"}, 0, false, ""},
		{[]string{redis, fork, "--lmcache=hset"}, 1, true, ""},
		{[]string{redis, "--lmcache-models=m?version=fork,m?version=0.3.1,n?version=0.3.1", "--lmcache=set"}, 2, true, ""},
		{[]string{redis, now}, 1, false, ""},
		{[]string{redis, now + "&remote=redis&dtype=half"}, 1, true, ""},
		{[]string{redis, now, "--lmcache=set"}, 0, false, "no version in lmcache-models writes what set reads"},
		{[]string{fork, "--lmcache=set"}, 0, false, "redis is not set"},
		{[]string{redis, "--lmcache=hset"}, 0, false, "lmcache-models has none"},
		{[]string{now + "&remote=redis&dtype=half"}, 0, false, "m has a remote store"},
		{[]string{"--lmcache=yes"}, 0, false, "not one of auto, off, set, hset"},
		{[]string{"--lmcache-models=m?version=0.5.6"}, 0, false, "PYTHONHASHSEED"},
		{[]string{now + "&remote=redis&dtype=int3"}, 0, false, "int3"},
		{[]string{"--lmcache-models=m"}, 0, false, "version is missing"},
		{[]string{"--lmcache-max-age=-1s"}, 0, false, "lmcache-max-age"},
	} {
		loaded, err := loadLMCache(c.args...)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v, want %q", c.args, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		readers, entries, err := loaded.LMCacheReaders()
		if err != nil || len(readers) != c.models || entries != c.entries {
			t.Errorf("%q: %d models, entries %v, %v; want %d, %v", c.args, len(readers), entries, err, c.models, c.entries)
		}
	}
}
