package config

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// lmcacheFeedSettings are what LMCache itself talks to.
type lmcacheFeedSettings struct {
	// LMCacheControllerPull is the endpoint where LMCache's workers say what they hold,
	// as tcp://*:8300: their controller_pull_url. Empty means none.
	LMCacheControllerPull string `name:"lmcache-controller-pull"`
	// LMCacheControllerReply is the endpoint of their controller_reply_url, as
	// tcp://*:8400, which workers from 0.3.10 on need.
	LMCacheControllerReply string `name:"lmcache-controller-reply"`
	// LMCacheControllerHeartbeat is the endpoint of their heartbeats, as tcp://*:8401.
	// They get it when they register, and requests to them are sent there.
	LMCacheControllerHeartbeat string `name:"lmcache-controller-heartbeat"`
	// LMCacheControllerHeartbeatURL is the host:port that they are told. Empty is the
	// address at which they have reached this process.
	LMCacheControllerHeartbeatURL string `name:"lmcache-controller-heartbeat-url"`
	// LMCacheCoordinatorListen is the address, host:port, where servers of LMCache's MP
	// mode report: their --coordinator-url. Empty means none.
	LMCacheCoordinatorListen string `name:"lmcache-coordinator-listen"`
	// LMCacheInstances are the pods of LMCache's instances, as instance=pod or
	// instance=pod#rank. Of others it is the pod of that name, or the only one at
	// their IP.
	LMCacheInstances Names `name:"lmcache-instances"`
	// LMCachePodsModel is the model of the pods that are looked for so. Empty is any.
	LMCachePodsModel string `name:"lmcache-pods-model"`
	// LMCacheWorkers is how many workers each instance has at least: a chunk counts when
	// all have it, and until the last has registered there seem to be fewer.
	LMCacheWorkers int `name:"lmcache-workers" default:"1" min:"1" max:"1024"`
	// LMCacheLease is how long a silent worker keeps its blocks.
	LMCacheLease time.Duration `name:"lmcache-lease" default:"30s" min:"100ms" max:"24h"`
	// LMCacheWrite says in which of LMCache's shapes the workers' reports are also written
	// into the Redis of the index, for other tools: set is strings, hset the fork's hashes.
	LMCacheWrite string `name:"lmcache-write" default:"off" oneof:"off,set,hset,both"`
}

// validateFeed checks the rules between the settings of what LMCache talks to.
func (c *Config) validateFeed() error {
	var errs []error
	for _, e := range []struct{ setting, endpoint string }{
		{"lmcache-controller-pull", c.LMCacheControllerPull},
		{"lmcache-controller-reply", c.LMCacheControllerReply},
		{"lmcache-controller-heartbeat", c.LMCacheControllerHeartbeat},
	} {
		if e.endpoint == "" {
			continue
		}
		if err := (zmq.Config{Endpoint: e.endpoint, Bind: true}).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: it should be as tcp://*:8300: %w", e.setting, err))
		}
		if c.LMCacheControllerPull == "" {
			errs = append(errs, fmt.Errorf("%s: workers say what they hold at lmcache-controller-pull, and that is not set", e.setting))
		}
	}
	if c.LMCacheControllerHeartbeat != "" && c.LMCacheControllerReply == "" {
		errs = append(errs, errors.New("lmcache-controller-heartbeat: workers learn of it at lmcache-controller-reply, and that is not set"))
	}
	if c.LMCacheCoordinatorListen != "" {
		errs = append(errs, checkAddress("lmcache-coordinator-listen", c.LMCacheCoordinatorListen))
	}
	if _, err := feed.ParseMap(c.LMCacheInstances); err != nil {
		errs = append(errs, fmt.Errorf("lmcache-instances: %w", err))
	}
	if (c.LMCacheControllerPull != "" || c.LMCacheCoordinatorListen != "") && !c.Roles.Has(RoleIngest) {
		errs = append(errs, errors.New("lmcache-controller-pull, lmcache-coordinator-listen: hearing LMCache is part of the role ingest, which roles has not"))
	}
	return errors.Join(errs...)
}
