package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/controller"
	"github.com/kvatlas/kvatlas/lmcache/coordinator"
	"github.com/kvatlas/kvatlas/lmcache/entries"
	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// lmcacheFeed is what LMCache's workers and servers talk to.
type lmcacheFeed struct {
	controller    *controller.Controller // nil when it is not set
	coordinator   *coordinator.Coordinator
	listener      *listener       // of the coordinator; nil when it is not set
	entries       *entries.Writer // nil when none are written
	failing       atomic.Bool     // the index cannot be written to, and that is in the log
	lastMalformed atomic.Int64    // when that was told last, in Unix seconds
}

// listenLMCache binds what the settings name.
func (s *service) listenLMCache(ctx context.Context) error {
	c := s.cfg
	if c.LMCacheControllerPull == "" && c.LMCacheCoordinatorListen == "" {
		return nil
	}
	instances, err := feed.ParseMap(c.LMCacheInstances)
	if err != nil {
		return fmt.Errorf("lmcache-instances: %w", err)
	}
	pods := feed.Pods{Map: instances, Model: c.LMCachePodsModel}
	f := &s.lmcache
	own, err := s.lmcacheHashers(false)
	if err != nil {
		return err
	}
	mp, err := s.lmcacheHashers(true)
	if err != nil {
		return err
	}
	index, heard, err := s.writeLMCache()
	if err != nil {
		return err
	}
	if c.LMCacheControllerPull != "" {
		f.controller, err = controller.New(ctx, controller.Config{
			Index: index, Heard: heard, Pods: pods, Pull: c.LMCacheControllerPull, Reply: c.LMCacheControllerReply, Filter: s.networks, Heartbeat: c.LMCacheControllerHeartbeat, HeartbeatURL: c.LMCacheControllerHeartbeatURL,
			Hashers: own, Lease: c.LMCacheLease, Workers: c.LMCacheWorkers, SyncWait: config.LMCacheSyncWait, Timeout: config.RedisTimeout,
			MaxWorkers: c.LMCacheMaxWorkers(), QueueKeys: config.LMCacheQueueKeys, SyncKeys: config.LMCacheSyncKeys, MaxMessage: int(config.LMCacheMaxMessage),
			Observer: s.watchController(),
		})
		if err != nil {
			return fmt.Errorf("lmcache-controller: %w", err)
		}
		if err := s.metrics.LMCacheController(f.controller.Stats); err != nil {
			return errors.Join(err, f.controller.Close())
		}
		pull, reply, beat := f.controller.Addrs()
		s.log.Info().Stringer("pull", pull).Any("reply", addressOf(reply)).Any("heartbeat", addressOf(beat)).Msg("standing in for LMCache's controller")
	}
	if c.LMCacheCoordinatorListen == "" {
		return nil
	}
	f.coordinator, err = coordinator.New(coordinator.Config{
		Index: index, Heard: heard, Pods: pods, Hashers: mp, Lease: c.LMCacheLease, Timeout: min(config.RedisTimeout, 1500*time.Millisecond),
		MaxInstances: c.LMCacheMaxWorkers(), MaxRegistrations: c.LMCacheMaxWorkers(), MaxBody: int64(config.LMCacheMaxBody), MaxTokens: c.MaxTokens,
		Observer: s.watchCoordinator(),
	})
	if err == nil {
		err = s.metrics.LMCacheCoordinator(f.coordinator.Stats)
	}
	if err == nil {
		f.listener, err = listenAt(ctx, "lmcache-coordinator-listen", c.LMCacheCoordinatorListen, withTLS(s.httpServer(f.coordinator)))
	}
	if err != nil {
		return errors.Join(err, s.closeController())
	}
	f.listener.Listener = s.networks.Listener(f.listener.Listener)
	s.log.Info().Stringer("address", f.listener.Addr()).Msg("standing in for the coordinator of LMCache's MP mode")
	return nil
}

// AskSync implements server.Syncer. The controller is there before the API is served.
func (f *lmcacheFeed) AskSync(instance string, worker int) (heard, asked int) {
	return f.controller.AskSync(instance, worker)
}

// lmcacheHashers are those that recompute chunks, by model: of each the first way of the
// settings that is of MP mode, or that is not.
func (s *service) lmcacheHashers(mp bool) (map[string]*lmcache.Hasher, error) {
	out := map[string]*lmcache.Hasher{}
	for model, list := range s.cfg.LMCacheModels.Profiles() {
		for _, p := range list {
			if p.MP != mp || out[model] != nil {
				continue
			}
			h, err := lmcache.New(p.Config)
			if err != nil {
				return nil, fmt.Errorf("lmcache-models: %s: %w", model, err)
			}
			out[model] = h
		}
	}
	return out, nil
}

func addressOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

func (s *service) closeController() error {
	if s.lmcache.controller == nil {
		return nil
	}
	return s.lmcache.controller.Close()
}

// runLMCache serves until ctx is done, and ends what it serves before it returns.
func (s *service) runLMCache(ctx context.Context, failed chan<- error) {
	f := &s.lmcache
	if f.entries != nil {
		written := make(chan struct{})
		go func() { defer close(written); f.entries.Run(ctx) }()
		defer func() { <-written }()
	}
	defer func() {
		if err := s.closeController(); err != nil {
			s.log.Warn().Err(err).Msg("closing LMCache's sockets")
		}
	}()
	if f.listener == nil {
		<-ctx.Done()
		return
	}
	f.listener.serve(failed)
	<-ctx.Done()
	within, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	if err := f.listener.drain(within); err != nil {
		s.log.Warn().Err(err).Msg("events of LMCache were still coming after drain-timeout")
	}
}

// tellsMalformed reports whether what cannot be understood is in the log again: one line a
// minute, the rest is counted.
func (f *lmcacheFeed) tellsMalformed() bool {
	now := time.Now().Unix()
	last := f.lastMalformed.Load()
	return now-last >= 60 && f.lastMalformed.CompareAndSwap(last, now)
}

// watchController writes what matters to the log.
func (s *service) watchController() controller.Observer {
	f := &s.lmcache
	return controller.Observer{
		Began: func(id feed.ID, t feed.Target, tookOver bool) {
			f.failing.Store(false)
			s.log.Info().Stringer("worker", id).Str("pod", t.Pod).Int("rank", t.Rank).Str("model", t.Model).Bool("taken_over", tookOver).Msg("hearing a worker of LMCache")
		},
		Gone: func(id feed.ID, silent bool) {
			s.log.Info().Stringer("worker", id).Bool("silent", silent).Msg("a worker of LMCache is gone")
		},
		Unmapped: func(id feed.ID, err error) {
			what := "nothing is kept of a worker of LMCache"
			if errors.Is(err, feed.ErrUnmapped) {
				what += ": set lmcache-instances"
			}
			s.log.Warn().Stringer("worker", id).Err(err).Msg(what)
		},
		Shared: func(id feed.ID, by []string) {
			s.log.Warn().Stringer("worker", id).Strs("used_by", by).Msg("several workers of LMCache use one id: give each engine an lmcache_instance_id of its own; those behind one address do not count")
		},
		Stale: func(id feed.ID, from, by string) {
			s.log.Warn().Stringer("worker", id).Str("from", from).Str("registered_by", by).Msg("a worker of LMCache is not heard on a connection, since it has registered on another one: it was started anew, or its id is used twice")
		},
		Lost: func(id feed.ID, location, why string) {
			s.log.Warn().Stringer("worker", id).Str("location", location).Str("because", why).Msg("something that a worker of LMCache said is missing")
		},
		Synced: func(id feed.ID, location string, keys int, took time.Duration) {
			f.failing.Store(false)
			s.log.Info().Stringer("worker", id).Str("location", location).Int("keys", keys).Dur("took", took).Msg("full sync of a worker of LMCache")
		},
		Location: func(location string) {
			s.log.Warn().Str("location", location).Msg("the tier of a location of LMCache is not known: what is there does not count")
		},
		Malformed: func(addr string, err error) {
			if f.tellsMalformed() {
				s.log.Warn().Str("from", addr).Err(err).Msg("not understood as a message of LMCache")
			}
		},
		Failed: func(id feed.ID, err error) {
			if !f.failing.Swap(true) {
				s.log.Warn().Stringer("worker", id).Err(err).Msg("what LMCache says cannot be written, and is tried again")
			}
		},
	}
}

// watchCoordinator does the same for MP mode.
func (s *service) watchCoordinator() coordinator.Observer {
	f := &s.lmcache
	return coordinator.Observer{
		Began: func(instance string, incarnation uint64) {
			f.failing.Store(false)
			s.log.Info().Str("instance", instance).Uint64("incarnation", incarnation).Msg("hearing a server of LMCache")
		},
		Unmapped: func(instance string, err error) {
			s.log.Warn().Str("instance", instance).Err(err).Msg("nothing is kept of a server of LMCache: set lmcache-instances")
		},
		Shared: func(instance string, by []string) {
			s.log.Warn().Str("instance", instance).Strs("used_by", by).Msg("several servers of LMCache use one id: give each an instance id of its own")
		},
		Lost: func(instance, why string) {
			s.log.Warn().Str("instance", instance).Str("because", why).Msg("events of a server of LMCache are missing: its credit ends")
		},
		Refused: func(addr string, err error) {
			if f.tellsMalformed() {
				s.log.Warn().Str("from", addr).Err(err).Msg("not understood as a request of LMCache")
			}
		},
		Failed: func(instance string, err error) {
			if !f.failing.Swap(true) {
				s.log.Warn().Str("instance", instance).Err(err).Msg("what LMCache says cannot be written")
			}
		},
	}
}
