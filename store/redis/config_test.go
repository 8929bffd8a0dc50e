package redis

import (
	"strings"
	"testing"
	"time"
)

func TestConfigRefuses(t *testing.T) {
	for say, c := range map[string]Config{
		"prefix has 33 bytes":   {Prefix: strings.Repeat("a", 33)},
		`has the character '{'`: {Prefix: "k{a}"},
		`has the character '*'`: {Prefix: "k*"},
		"window of 0":           {Windows: []int{64, 0}},
		"window of 100000":      {Windows: []int{100000}},
		"pool size -1":          {PoolSize: -1},
		"negative":              {Timeout: -time.Second},
		"protocol 4":            {Protocol: 4},
		"below 1":               {MaxPods: -1},
		"sweep duty 2":          {SweepDuty: 2},
		"no scheme":             {},
	} {
		if c.URL == "" && say != "no scheme" {
			c.URL = "redis://localhost"
		}
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("got %v, want an error that says %q", err, say)
		}
	}
}
