package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestBenchUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"nothing":      {[]string{"bench"}, exitUsage, "kvatlas bench redis --start"},
		"help":         {[]string{"bench", "--help"}, exitOK, "kvatlas bench memory"},
		"what":         {[]string{"bench", "disk"}, exitUsage, `"disk" is neither redis nor memory`},
		"no server":    {[]string{"bench", "redis"}, exitUsage, "give either --redis URL or --start"},
		"two servers":  {[]string{"bench", "redis", "--start", "--redis", "redis://h"}, exitUsage, "give either"},
		"no number":    {[]string{"bench", "redis", "--start", "--sizes", "1,x"}, exitUsage, `"x" is no number`},
		"arguments":    {[]string{"bench", "memory", "128"}, exitUsage, "flags only"},
		"out of range": {[]string{"bench", "memory", "--blocks", "-1"}, exitFailed, "-1 blocks"},
		"no program":   {[]string{"bench", "redis", "--start", "--server", "no-such-server"}, exitFailed, "there is no no-such-server to start"},
		"flags":        {[]string{"bench", "redis", "--help"}, exitOK, "-memory-keys"},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := call(t, "", c.args...)
			if out := stdout + stderr; status != c.status || !strings.Contains(out, c.says) {
				t.Errorf("status %d, want %d with %q:\n%s", status, c.status, c.says, out)
			}
		})
	}
}

func TestBenchMemory(t *testing.T) {
	args := []string{"bench", "memory", "--blocks", "4096", "--sizes", "64", "--holders", "1", "--events", "16", "--rounds", "1"}
	status, stdout, stderr := call(t, "", args...)
	if status != exitOK || !strings.Contains(stdout, "### Find, of 4,096 blocks") {
		t.Fatalf("status %d:\n%s%s", status, stdout, stderr)
	}
	if strings.Contains(stdout, "kvatlas bench:") || !strings.Contains(stderr, "kvatlas bench: apply") {
		t.Errorf("the progress is not on stderr alone:\n%s", stderr)
	}
	status, stdout, stderr = call(t, "", append(args, "--json")...)
	var report struct{ Find []struct{ Blocks int } }
	if err := json.Unmarshal([]byte(stdout), &report); status != exitOK || err != nil || report.Find[0].Blocks != 64 {
		t.Errorf("status %d, %v:\n%s%s", status, err, stdout, stderr)
	}
}

func TestBenchRedis(t *testing.T) {
	status, stdout, stderr := call(t, "", "bench", "redis", "--start", "--parts", "lookup", "--keys", "1024", "--sizes", "64", "--hits", "100", "--rounds", "1", "--pods", "2")
	if status != exitOK || !strings.Contains(stdout, "64 blocks, 100 % held: kvatlas") {
		t.Errorf("status %d:\n%s%s", status, stdout, stderr)
	}
}
