package config

import (
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/lmcache/filing"
)

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
	if _, err := filing.ParseMap(c.LMCacheInstances); err != nil {
		errs = append(errs, fmt.Errorf("lmcache-instances: %w", err))
	}
	if (c.LMCacheControllerPull != "" || c.LMCacheCoordinatorListen != "") && !c.Roles.Has(RoleIngest) {
		errs = append(errs, errors.New("lmcache-controller-pull, lmcache-coordinator-listen: hearing LMCache is part of the role ingest, which roles has not"))
	}
	return errors.Join(errs...)
}
