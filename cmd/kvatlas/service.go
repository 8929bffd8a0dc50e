package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/lmcache/chunks"
	"github.com/kvatlas/kvatlas/lmcache/learn"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads/scrape"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/replica"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/telemetry"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// service is all that kvatlas serve is made of.
type service struct {
	cfg *config.Loaded
	log zerolog.Logger

	origin  tokenpool.Origin
	pool    *tokenpool.Pool
	index   store.Index
	keeper  *snapshot.Keeper // of the index in memory; nil without a snapshot-file
	api     *server.Server
	gateway *gateway.Gateway // nil without the role

	replica *replica.Replica // the index, if it is one; else nil
	backend string           // memory, redis or replica
	pieces  tokenpool.Shared // nil unless pieces of texts are shared

	metrics *telemetry.Metrics

	guard    *access.Guard
	networks *access.Networks     // where engines are
	tls      *access.Certificates // nil serves without TLS
	closers  []func() error       // in the order in which things were made

	redis   *redis.Index   // the index, or what a replica copies; nil for one in memory
	leases  store.Leases   // the index's own
	learner *learn.Learner // nil where nothing is learnt

	ingest  *ingesting      // nil without the role
	scraper *scrape.Scraper // nil where engines' metrics are not read
	upkeep  *route.Upkeep

	lmcache lmcacheFeed
}

// newService makes everything and listens on nothing yet. A Redis that is down
// is no error: the service starts degraded.
func newService(cfg *config.Loaded, log zerolog.Logger) (_ *service, err error) {
	s := &service{cfg: cfg, log: log, metrics: telemetry.NewMetrics()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.makeAccess(); err != nil {
		return nil, err
	}
	if s.backend, err = s.makeIndex(); err != nil {
		return nil, err
	}
	if err := s.makeTokenizers(); err != nil {
		return nil, err
	}
	var usage *scorer.Usage
	if cfg.UsageWindow > 0 {
		if usage, err = scorer.NewUsage(cfg.UsageWindow, config.UsageBlocks); err != nil {
			return nil, err
		}
	}
	lmcacheReaders, _, err := cfg.LMCacheReaders()
	if err != nil {
		return nil, fmt.Errorf("lmcache-models (from %s): %w", cfg.Origins["lmcache-models"], err)
	}
	learnt := &chunks.Source{Readers: lmcacheReaders}
	if s.learner != nil {
		learnt.Learn = s.learner.Reader
	}
	sc, err := scorer.New(scorer.Config{
		Index:     s.index,
		Tokenizer: s.pool,
		Strategy:  scorer.Strategy(cfg.Strategy),
		Weights:   (*scorer.Weights)(&cfg.TierWeights),
		BlockSize: cfg.BlockSize,
		Budget:    cfg.ScoreBudget,
		Usage:     usage,
		Chunks:    learnt,
		Observer:  s.watchScorer(),
	})
	if err != nil {
		return nil, err
	}
	if err := s.makeIngest(); err != nil {
		return nil, err
	}
	router, err := s.makeRouter(sc)
	if err != nil {
		return nil, err
	}
	if err := s.makeGateway(router); err != nil {
		return nil, err
	}
	s.api, err = server.New(s.serverConfig(sc, router))
	return s, err
}

// serverConfig is what the API is made of.
func (s *service) serverConfig(sc *scorer.Scorer, router *route.Router) server.Config {
	cfg := s.cfg
	c := server.Config{
		Router:      router,
		Access:      s.guard,
		Scorer:      sc,
		Index:       s.index,
		Tokenizer:   s.pool,
		Tokenizers:  s.pool,
		Detokenizer: s.pool,
		BlockSize:   cfg.BlockSize,
		Log:         s.log,

		LogEveryRequest: cfg.AccessLog == "all",

		Metrics:     s.metrics,
		StrictReady: cfg.StrictReady,
		Version:     versionWord(),
		Backend:     s.backend,
		Limits: server.Limits{
			MaxBodyBytes:     int64(cfg.MaxBodyBytes),
			MaxTokens:        cfg.MaxTokens,
			MaxBlockKeys:     cfg.MaxBlockKeys(),
			MaxPrompts:       config.MaxPrompts,
			MaxPods:          cfg.MaxPods(),
			MaxObjects:       config.MaxObjects,
			MaxInFlight:      cfg.MaxInFlight,
			MaxInFlightBytes: int64(cfg.MaxInFlightBytes),
			RequestTimeout:   cfg.RequestTimeout,
			MaxStreams:       config.MaxStreams,
			MaxRelayBytes:    int64(config.MaxRelayBytes),
			StreamStall:      config.StreamStall,
		},
	}
	// An interface that holds a nil pointer is not nil, so these stay unset where they do not exist.
	if s.redis != nil {
		c.Shared = s.redis
	}
	if s.replica != nil {
		c.Ready = s.replica.Ready
	}
	if s.ingest != nil {
		c.Events, c.Relay = s.ingest.ingester, s.ingest.ingester
	}
	if cfg.LMCacheControllerPull != "" {
		c.Syncer = &s.lmcache
	}
	return c
}

// errRestoring is why /readyz says no while the snapshot is restored.
var errRestoring = errors.New("restoring the snapshot")

// warmUp does what must be done before /readyz says yes. An error ends the
// service.
func (s *service) warmUp(ctx context.Context) error {
	var loading sync.WaitGroup
	defer loading.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	missing := newPreloading(s.cfg.Preload)
	loading.Go(func() { s.load(ctx, missing) })
	if s.keeper != nil {
		s.api.SetReady(errRestoring)
		if err := s.keeper.Restore(ctx); ctx.Err() != nil {
			return nil // the end came first
		} else if err != nil {
			return err
		}
	}
	if len(s.cfg.Preload) > 0 {
		s.api.SetReady(missing)
	}
	loading.Wait()
	if ctx.Err() == nil {
		s.api.SetReady(nil)
	}
	return nil
}

// warnOfMemory warns when Go's limit of memory is below what the settings let this
// process take. The collector would then work all the time under load.
func warnOfMemory(log zerolog.Logger, c *config.Config, limit int64) {
	heap, native := c.MemoryBounds()
	if limit >= heap {
		return
	}
	log.Warn().Int64("gomemlimit", limit).Int64("settings_allow", heap).Int64("tokenizers_library", native).
		Msg("GOMEMLIMIT is below what the settings allow together: lower max-in-flight-bytes, prefix-cache-bytes, piece-cache-bytes, ingest-queue-bytes, index-max-bytes or replica-max-bytes, or raise it (docs/sizing.md)")
}

// close ends what was made, the last first. Its error says that something is lost: the
// last snapshot. All else that cannot be ended in order, such as a connection that has
// broken, is for the log alone.
func (s *service) close() error {
	for i := len(s.closers) - 1; i >= 0; i-- {
		if err := s.closers[i](); err != nil {
			s.log.Warn().Err(err).Msg("closing")
		}
	}
	s.closers = nil
	if s.keeper == nil {
		return nil
	}
	if err := s.keeper.Close(); err != nil { // it is closed, and says what came of it
		return fmt.Errorf("the last snapshot could not be saved, what has changed since the one before is lost: %w", err)
	}
	return nil
}

// run serves until ctx ends, then drains. First /readyz turns to 503, and after
// the drain delay no connection is accepted any more. Requests under way have
// the drain timeout to finish. Func after, when not nil, is called with the
// API's URL once it is served. Its context ends with ctx, and its error ends
// run.
func (s *service) run(ctx context.Context, after func(context.Context, string) error) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := s.listen(ctx)
	if err != nil {
		return err
	}
	// Room for one error of each part, so that none waits to send its own.
	failed := make(chan error, 6)
	if err := s.listenLMCache(ctx); err != nil {
		return errors.Join(err, l.close())
	}
	for _, one := range l.all() {
		one.serve(failed)
	}
	cold := s.keeper != nil || len(s.cfg.Preload) > 0
	if !cold {
		s.api.SetReady(nil)
	}
	warnOfMemory(s.log, &s.cfg.Config, debug.SetMemoryLimit(-1))
	s.log.Info().Str("version", versionWord()).Str("index", s.backend).Str("address", l.api.address()).Str("admin_address", l.admin.address()).Str("gateway_address", l.gateway.address()).
		Str("config", s.cfg.File).Msg("listening")

	s.tellNoPods()
	var playing sync.WaitGroup
	playing.Go(func() { s.checkIndex(ctx) })
	playing.Go(func() { s.runIngest(ctx, failed) })
	playing.Go(func() { s.runLMCache(ctx, failed) })
	playing.Go(func() { s.upkeep.Run(ctx) })
	if s.gateway != nil {
		playing.Go(func() { s.loadTokenizersOfPods(ctx) })
	}
	if s.scraper != nil {
		playing.Go(func() { s.scraper.Run(ctx) })
	}
	if s.learner != nil {
		playing.Go(func() { s.learner.Run(ctx) })
	}
	playing.Go(func() {
		var err error
		if cold {
			err = s.warmUp(ctx)
		}
		if err == nil && after != nil && ctx.Err() == nil {
			err = after(ctx, s.scheme()+dialable(l.api.Addr()))
		}
		if err != nil {
			failed <- err
		}
	})
	select {
	case <-ctx.Done():
		s.log.Info().Str("because", context.Cause(ctx).Error()).Msg("ending")
	case err = <-failed:
	}
	cancel()
	err = errors.Join(err, l.drain(s))
	playing.Wait()
	return err
}
