package main

import (
	"fmt"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/scorer"
)

// makeRouter makes what answers /v1/route: with loads in this process, or in the Redis of the
// index.
func (s *service) makeRouter(sc *scorer.Scorer) (*route.Router, error) {
	var kept loads.Store = loads.NewMemory(nil)
	if s.cfg.Redis != "" {
		c := redisConfig(s.cfg)
		shared, err := redis.Open(redis.Address{
			URL: c.URL, Prefix: c.Prefix, PoolSize: c.PoolSize, Timeout: c.Timeout,
			Log: func(msg string) { s.log.Warn().Msg(msg) },
		})
		if err != nil {
			return nil, fmt.Errorf("loads: %w", err)
		}
		s.closers = append(s.closers, shared.Close)
		kept = shared
	}
	settings := route.DefaultSettings()
	settings.TierWeights = route.TierWeights(s.cfg.TierWeights)
	for t, w := range settings.TierWeights { // the scorer's may be above 1; a token cannot be worth more than not computing it
		settings.TierWeights[t] = min(1, w)
	}
	return route.New(route.Config{Scorer: sc, Pods: s.index, Loads: kept, Settings: &settings})
}
