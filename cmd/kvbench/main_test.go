package main

import (
	"encoding/json"
	"errors"
	"flag"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call runs the program.
func call(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, says strings.Builder
	err = run(t.Context(), &out, &says, args)
	return out.String(), says.String(), err
}

func TestMisuse(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		says  string
		usage bool
	}{
		"nothing":      {nil, "neither redis nor memory", true},
		"what":         {[]string{"disk"}, `"disk" is neither redis nor memory`, true},
		"no server":    {[]string{"redis"}, "give either --redis URL or --start", true},
		"two servers":  {[]string{"redis", "--start", "--redis", "redis://h"}, "give either", true},
		"no number":    {[]string{"redis", "--start", "--sizes", "1,x"}, `"x" is no number`, true},
		"arguments":    {[]string{"memory", "128"}, "flags only", true},
		"out of range": {[]string{"memory", "--blocks", "-1"}, "-1 blocks", false},
		"no program":   {[]string{"redis", "--start", "--server", "no-such-server"}, "there is no no-such-server to start", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := call(t, c.args...)
			if err == nil || errors.Is(err, errUsage) != c.usage || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q and usage %v", err, c.says, c.usage)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	if stdout, _, err := call(t, "--help"); err != nil || !strings.Contains(stdout, "kvbench memory") {
		t.Errorf("%v:\n%s", err, stdout)
	}
	if stdout, _, err := call(t, "redis", "--help"); !errors.Is(err, flag.ErrHelp) || !strings.Contains(stdout, "-memory-keys") || !strings.Contains(stdout, "end measuring after this time") {
		t.Errorf("%v:\n%s", err, stdout)
	}
}

func TestMemory(t *testing.T) {
	args := []string{"memory", "--blocks", "4096", "--sizes", "64", "--holders", "1", "--events", "16", "--rounds", "1"}
	stdout, stderr, err := call(t, args...)
	if err != nil || !strings.Contains(stdout, "### Find, of 4,096 blocks") {
		t.Fatalf("%v:\n%s%s", err, stdout, stderr)
	}
	if strings.Contains(stdout, "kvbench:") || !strings.Contains(stderr, "kvbench: apply") {
		t.Errorf("the progress is not on stderr alone:\n%s", stderr)
	}
	stdout, stderr, err = call(t, append(args, "--json")...)
	var report struct{ Find []struct{ Blocks int } }
	if err := errors.Join(err, json.Unmarshal([]byte(stdout), &report)); err != nil || report.Find[0].Blocks != 64 {
		t.Errorf("%v:\n%s%s", err, stdout, stderr)
	}
}

func TestRedis(t *testing.T) {
	stdout, stderr, err := call(t, "redis", "--start", "--parts", "lookup", "--keys", "1024", "--sizes", "64", "--hits", "100", "--rounds", "1", "--pods", "2")
	if err != nil || !strings.Contains(stdout, "64 blocks, 100 % held: kvatlas") {
		t.Errorf("%v:\n%s%s", err, stdout, stderr)
	}
}

func TestRedisLimit(t *testing.T) {
	_, _, err := call(t, "redis", "--start", "--limit", "1ns")
	if err == nil || !strings.Contains(err.Error(), "it has not ended within 1ns") {
		t.Errorf("%v", err)
	}
}
