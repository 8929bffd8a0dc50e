package config

import (
	"strings"
	"testing"
)

func TestFeedRules(t *testing.T) {
	for _, r := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.LMCacheControllerPull = "8300" }, "lmcache-controller-pull: it should be as tcp://*:8300"},
		{func(c *Config) { c.LMCacheControllerReply = "tcp://*:8400" }, "lmcache-controller-pull, and that is not set"},
		{func(c *Config) {
			c.LMCacheControllerPull, c.LMCacheControllerHeartbeat = "tcp://*:8300", "tcp://*:8401"
		}, "lmcache-controller-reply, and that is not set"},
		{func(c *Config) { c.LMCacheCoordinatorListen = "x" }, "lmcache-coordinator-listen"},
		{func(c *Config) { c.LMCacheInstances = Names{"a"} }, "lmcache-instances"},
		{func(c *Config) { c.LMCacheControllerPull, c.Roles = "tcp://*:8300", Roles{RoleScore} }, "role ingest"},
		{func(c *Config) {
			c.LMCacheControllerPull, c.LMCacheControllerReply, c.LMCacheControllerHeartbeat = "tcp://*:8300", "tcp://*:8400", "tcp://*:8401"
			c.LMCacheCoordinatorListen, c.LMCacheInstances = ":9300", Names{"a=b", "a=c#1"}
		}, ""},
	} {
		var c Config
		c.Roles = Roles{RoleScore, RoleIngest}
		r.change(&c)
		err := c.validateFeed()
		if r.want == "" && err != nil || r.want != "" && (err == nil || !strings.Contains(err.Error(), r.want)) {
			t.Errorf("%v, want %q", err, r.want)
		}
	}
}
