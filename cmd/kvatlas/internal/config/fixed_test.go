package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRemovedSettings: a setting that is gone is refused as a flag, as a variable and in
// the file, and the sentence says what holds instead.
func TestRemovedSettings(t *testing.T) {
	var names []string
	for i := range removed {
		r := &removed[i]
		names = append(names, r.name)
		t.Run(r.name, func(t *testing.T) {
			variable := variableOf(r.name)
			for place, given := range map[string]struct {
				args, env []string
				file      string
			}{
				"--" + r.name: {args: []string{"--" + r.name + "=1"}},
				variable:      {env: []string{variable + "=1"}},
				"k.yaml:2":    {args: []string{"--config=/etc/k.yaml"}, file: "listen: :1\n" + r.name + ": 1\n"},
			} {
				_, err := load(t, given.args, given.env, given.file)
				want := place + ": " + r.name + " is not a setting any more; it is always " + r.now() + ": " + r.why
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "did you mean") {
					t.Errorf("got %v, want %s", err, want)
				}
			}
			if _, err := load(t, []string{"--" + r.name, "1"}, nil, ""); err == nil || !strings.Contains(err.Error(), "any more") {
				t.Errorf("with a space: %v", err)
			}
		})
	}
	for _, s := range Settings() {
		if slices.Contains(names, s.Name) {
			t.Errorf("%s is a setting", s.Name)
		}
		names = append(names, s.Name)
	}
	if all := len(names); len(slices.Compact(slices.Sorted(slices.Values(names)))) != all {
		t.Error("a name is there twice")
	}
}

// TestRemovedAreNotSuggested: a misspelled setting is not corrected to one that is gone.
func TestRemovedAreNotSuggested(t *testing.T) {
	for _, args := range [][]string{{"--max-prompt=1"}, {"--tokenizer-queu=1"}, {"--max-obiects=1"}} {
		_, err := load(t, args, nil, "")
		for i := range removed {
			if err == nil || strings.Contains(err.Error(), "--"+removed[i].name+"?") {
				t.Errorf("%v: %v", args, err)
			}
		}
	}
}

// TestLimitsThatFollow has the limits that follow from settings, at their defaults, their
// ends and in between.
func TestLimitsThatFollow(t *testing.T) {
	for _, tc := range []struct {
		args []string
		get  func(c *Config) any
		want any
	}{
		{nil, func(c *Config) any { return c.WriteTimeout() }, 30 * time.Second},
		{[]string{"--request-timeout=10m"}, func(c *Config) any { return c.WriteTimeout() }, 10*time.Minute + 20*time.Second},
		{nil, func(c *Config) any { return c.MaxBlockKeys() }, 131072},
		{[]string{"--max-tokens=1"}, func(c *Config) any { return c.MaxBlockKeys() }, 1},
		{[]string{"--max-tokens=268435456"}, func(c *Config) any { return c.MaxBlockKeys() }, 1 << 25},
		{nil, func(c *Config) any { return c.MaxPods() }, 10000},
		{[]string{"--index-max-pods=1"}, func(c *Config) any { return c.MaxPods() }, 1},
		{[]string{"--index-max-pods=1000000"}, func(c *Config) any { return c.MaxPods() }, 65536},
		{nil, func(c *Config) any { return c.IndexMaxBlocks() }, 16 << 20},
		{[]string{"--index-max-bytes=1MiB"}, func(c *Config) any { return c.IndexMaxBlocks() }, 16384},
		{[]string{"--index-max-bytes=4TiB"}, func(c *Config) any { return c.IndexMaxBlocks() }, 1 << 36},
		{nil, func(c *Config) any { return c.IndexMaxHolders() }, 100000},
		{[]string{"--index-max-pods=1000000"}, func(c *Config) any { return c.IndexMaxHolders() }, 10_000_000},
		{nil, func(c *Config) any { return c.IngestRankQueueBytes() }, int64(16 << 20)},
		{[]string{"--ingest-queue-bytes=1MiB"}, func(c *Config) any { return c.IngestRankQueueBytes() }, int64(1 << 20)},
		{nil, func(c *Config) any { return c.LMCacheMaxWorkers() }, 4000},
		{[]string{"--index-max-pods=1"}, func(c *Config) any { return c.LMCacheMaxWorkers() }, 1},
		{nil, func(c *Config) any { return c.TokenizerQueueBytes() }, int64(64 << 20)},
		{[]string{"--max-in-flight-bytes=1GiB"}, func(c *Config) any { return c.TokenizerQueueBytes() }, int64(256 << 20)},
		{[]string{"--max-in-flight-bytes=64MiB", "--max-body-bytes=32MiB", "--max-prompt-bytes=32MiB"}, func(c *Config) any { return c.TokenizerQueueBytes() }, int64(32 << 20)},
		{nil, func(c *Config) any { return c.PieceTimeout() }, 20 * time.Millisecond},
		{[]string{"--tokenizer-budget=1us"}, func(c *Config) any { return c.PieceTimeout() }, time.Microsecond},
		{[]string{"--tokenizer-budget=1m", "--request-timeout=2m"}, func(c *Config) any { return c.PieceTimeout() }, 10 * time.Second},
	} {
		got, err := load(t, tc.args, nil, "")
		if err != nil {
			t.Fatalf("%v: %v", tc.args, err)
		}
		if v := tc.get(&got.Config); v != tc.want {
			t.Errorf("%v: got %v, want %v", tc.args, v, tc.want)
		}
	}
}
