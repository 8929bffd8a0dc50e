package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/route/loads/scrape"
	"github.com/kvatlas/kvatlas/route/notes"
	notesredis "github.com/kvatlas/kvatlas/route/notes/redis"
	"github.com/kvatlas/kvatlas/scorer"
)

// makeRouter makes what answers /v1/route: with loads in this process, or in the Redis of the
// index.
func (s *service) makeRouter(sc *scorer.Scorer) (*route.Router, error) {
	var kept loads.Store = loads.NewMemory(nil)
	var noted notes.Store = notes.NewMemory(nil)
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
		at := shared.Config()
		if noted, err = notesredis.New(notesredis.Config{Client: at.Client, Prefix: at.Prefix, Timeout: at.Timeout}); err != nil {
			return nil, fmt.Errorf("notes: %w", err)
		}
	}
	settings := route.DefaultSettings()
	settings.TierWeights = route.TierWeights(s.cfg.TierWeights)
	for t, w := range settings.TierWeights { // the scorer's may be above 1; a token cannot be worth more than not computing it
		settings.TierWeights[t] = min(1, w)
	}
	router, err := route.New(route.Config{Scorer: sc, Pods: s.index, Loads: kept, Index: s.index, Notes: noted, Predicted: s.metrics.Predicted, Settings: &settings, Away: s.tellLoadsAway()})
	if err != nil {
		return nil, err
	}
	if err := s.makeUpkeep(router); err != nil {
		return nil, err
	}
	return router, s.makeScraper(router, kept)
}

// loadsAwayEvery is how often the log says of a model that its loads are away.
const loadsAwayEvery = time.Minute

// tellLoadsAway returns what writes to the log why the loads of a model are away.
func (s *service) tellLoadsAway() func(model string, err error) {
	var mu sync.Mutex
	told := map[string]time.Time{} // when, by model; mu protects it
	return func(model string, err error) {
		mu.Lock()
		at, before := told[model]
		again := before && (time.Since(at) < loadsAwayEvery || errors.Is(err, loads.ErrReadOnly)) // that is as an operator has set it
		if !again {
			if len(told) >= maxFailing {
				clear(told)
			}
			told[model] = time.Now()
		}
		mu.Unlock()
		if again {
			return
		}
		s.log.Warn().Str("model", model).Err(err).Msg("loads cannot be read or booked: requests are routed by what this process knows of them alone")
	}
}

// makeUpkeep makes what looks after loads, and after ranks whose index lies.
func (s *service) makeUpkeep(router *route.Router) error {
	counts, err := s.metrics.Routing(router.Outcomes)
	if err != nil {
		return err
	}
	s.upkeep = &route.Upkeep{
		Router: router, Index: s.index,
		Audited: func(model string, found []loads.Difference) {
			counts.Audited(found)
			for i := range found {
				d := &found[i]
				s.log.Warn().Str("model", model).Str("pod", d.Pod).Int("rank", d.Rank).Int64("requests", d.Load.Requests).Int64("reserved", d.Reserved.Requests).
					Int64("blocks", d.Load.Blocks).Int64("reserved_blocks", d.Reserved.Blocks).Msg("a load was not the sum of its reservations, and was set right: has Redis lost keys?")
			}
		},
		Lies: func(model string, t loads.Truth, mended bool) {
			counts.Lied(mended)
			does := "its blocks are read anew"
			if !mended {
				does = "no process reads its events, so it cannot be read anew; clear it with POST /v1/blocks, or find out what writes it"
			}
			s.log.Warn().Str("model", model).Str("pod", t.Pod).Int("rank", t.Rank).Int64("requests", t.Requests).Int64("predicted", t.Predicted).Int64("delivered", t.Delivered).
				Msg("the engine has less than half of what the index says it holds: " + does)
		},
		Failed: func(model string, err error) {
			s.log.Warn().Str("model", model).Err(err).Msg("the upkeep of loads has failed, and is tried again")
		},
	}
	return nil
}

// maxFailing is of how many pods it is remembered that the log has why they failed.
const maxFailing = 4096

// makeScraper makes what asks engines for their load, if it is to be done.
func (s *service) makeScraper(router *route.Router, kept loads.Store) (err error) {
	if !s.cfg.PodsMetrics {
		return nil
	}
	var mu sync.Mutex
	failing := map[string]bool{} // pods of which the log has why; mu protects it
	s.scraper, err = scrape.New(scrape.Config{
		Client: s.networks.Client(), Loads: kept, Pods: s.index.Cached, Models: func() []string { return router.Models(route.RoutedLately) },
		Failed: func(pod string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if len(failing) >= maxFailing {
				clear(failing)
			}
			if !failing[pod] {
				failing[pod] = true
				s.log.Warn().Str("pod", pod).Err(err).Msg("the engine's metrics cannot be read, so what runs there besides what is booked here is not known; are they switched on?")
			}
		},
		Read: func(pod string) {
			mu.Lock()
			defer mu.Unlock()
			if failing[pod] {
				delete(failing, pod)
				s.log.Info().Str("pod", pod).Msg("the engine's metrics can be read again")
			}
		},
	})
	if err != nil {
		return err
	}
	return s.metrics.EngineLoads(s.scraper.Stats)
}
