package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/entries"
	"github.com/kvatlas/kvatlas/lmcache/learn"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/external"
)

// learnSteps bounds a scan for names of LMCache, in steps of 1,000 keys of a server.
const learnSteps = 500

// newLearner learns the profiles of models that the settings do not have.
func (s *service) newLearner(x *redis.Index) *learn.Learner {
	var last atomic.Value // the failure that was told last
	return learn.New(learn.Config{
		Names: func(ctx context.Context, each func(string)) error {
			_, err := x.External().Scan(ctx, external.Scan{
				Match: "*@*", MaxSteps: learnSteps,
				Want: func(name string) (tell, read bool) {
					each(name)
					return false, false
				},
			})
			return err
		},
		There: x.External().Has,
		Learnt: func(model, profile string) {
			s.log.Info().Str("model", model).Str("profile", profile).Msg("learnt how engines run LMCache, from what they have written to Redis: it counts in scores from now on")
		},
		Failed: func(err error) {
			if text := err.Error(); last.Swap(text) != text {
				s.log.Info().Err(err).Msg("how engines run LMCache cannot be learnt from Redis: lmcache-models says it, and lmcache off says that it does not matter")
			}
		},
	})
}

// writeLMCache returns the index that LMCache's controller and coordinator write to, and the function that
// they report hashes to. Where entries of LMCache are to be written, both pass through their writer.
func (s *service) writeLMCache() (index store.Index, heard func(lmcache.Hash), err error) {
	var shapes entries.Shapes
	switch s.cfg.LMCacheWrite {
	case "set":
		shapes = entries.Strings
	case "hset":
		shapes = entries.Hashes
	case "both":
		shapes = entries.Strings | entries.Hashes
	default:
		return s.index, nil, nil
	}
	if s.redis == nil {
		return nil, nil, fmt.Errorf("lmcache-write (from %s): it writes into the Redis of the index, and there is none", s.cfg.Origins["lmcache-write"])
	}
	profiles := map[string]lmcache.Profile{}
	for model, list := range s.cfg.LMCacheModels.Profiles() {
		profiles[model] = list[0]
	}
	failing := false // of the one goroutine that writes
	s.lmcache.entries, err = entries.New(entries.Config{
		Registry: s.index.Cached, Shapes: shapes, Profiles: profiles, TTL: config.LMCacheWriteTTL, MaxEntries: config.LMCacheWriteEntries, Timeout: config.RedisTimeout,
		Write: func(ctx context.Context, ttl time.Duration, list []entries.Write) error {
			writes := make([]external.Write, len(list))
			for i, w := range list {
				writes[i] = external.Write{Name: w.Name, Field: w.Field, Value: w.Value, Delete: w.Delete}
			}
			refusals, err := s.redis.External().Write(ctx, ttl, writes)
			if err == nil {
				failing = false
			}
			if refusals > 0 {
				s.log.Warn().Int("entries", refusals).Str("first", list[0].Name).Msg("entries of LMCache are of another type in Redis, and stay so")
			}
			return err
		},
		Failed: func(err error) {
			if !failing {
				failing = true
				s.log.Warn().Err(err).Msg("entries of LMCache cannot be written, and are tried again")
			}
		},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := s.metrics.LMCacheEntries(s.lmcache.entries.Stats); err != nil {
		return nil, nil, err
	}
	return s.lmcache.entries.Index(s.index), s.lmcache.entries.Heard, nil
}
