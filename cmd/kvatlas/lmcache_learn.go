package main

import (
	"context"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/learn"
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

// learn is what the scorer asks for models that the settings do not have; nil for nothing.
func (s *service) learn() func(string, []uint32) *lmcache.Reader {
	if s.learner == nil {
		return nil
	}
	return s.learner.Reader
}
