package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/replica"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// service is all that kvatlas serve is made of.
type service struct {
	cfg *config.Loaded
	log zerolog.Logger

	origin tokenpool.Origin
	pool   *tokenpool.Pool
	index  store.Index
	keeper *snapshot.Keeper // of the index in memory; nil without a snapshot-file
	api    *server.Server

	replica *replica.Replica // the index, if it is one; else nil
	backend string           // memory, redis or replica
	pieces  tokenpool.Shared // nil unless pieces of texts are shared

	metrics *server.Metrics
	closers []func() error // in the order in which things were made

	leases store.Leases // the index's own
	ingest *ingesting   // nil without the role

	lmcache lmcacheFeed
}

// newService makes everything and listens on nothing yet. A Redis that is down
// is no error: the service starts degraded.
func newService(cfg *config.Loaded, log zerolog.Logger) (_ *service, err error) {
	s := &service{cfg: cfg, log: log, metrics: server.NewMetrics()}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.backend, err = s.makeIndex(); err != nil {
		return nil, err
	}
	if err := s.makeTokenizers(); err != nil {
		return nil, err
	}
	var usage *scorer.Usage
	if cfg.UsageWindow > 0 {
		if usage, err = scorer.NewUsage(cfg.UsageWindow, cfg.UsageBlocks); err != nil {
			return nil, err
		}
	}
	lmcacheReaders, _, err := cfg.LMCacheReaders()
	if err != nil {
		return nil, fmt.Errorf("lmcache-models (from %s): %w", cfg.Origins["lmcache-models"], err)
	}
	sc, err := scorer.New(scorer.Config{
		Index:     s.index,
		Tokenizer: s.pool,
		Strategy:  scorer.Strategy(cfg.Strategy),
		Weights:   (*scorer.Weights)(&cfg.TierWeights),
		BlockSize: cfg.BlockSize,
		Budget:    cfg.ScoreBudget,
		Usage:     usage,
		LMCache:   lmcacheReaders,
		Observer:  s.watchScorer(),
	})
	if err != nil {
		return nil, err
	}
	if err := s.makeIngest(); err != nil {
		return nil, err
	}
	s.api, err = server.New(server.Config{
		Events:      s.pusher(),
		Relay:       s.relay(),
		Syncer:      s.syncer(),
		Scorer:      sc,
		Index:       s.index,
		Tokenizer:   s.pool,
		Detokenizer: s.pool,
		BlockSize:   cfg.BlockSize,
		Log:         log,
		Metrics:     s.metrics,
		StrictReady: cfg.StrictReady,
		Version:     versionWord(),
		Backend:     s.backend,
		Ready:       s.replicaReady(),
		Limits: server.Limits{
			MaxBodyBytes:     int64(cfg.MaxBodyBytes),
			MaxTokens:        cfg.MaxTokens,
			MaxBlockKeys:     cfg.MaxBlockKeys,
			MaxPrompts:       cfg.MaxPrompts,
			MaxPods:          cfg.MaxPods,
			MaxObjects:       cfg.MaxObjects,
			MaxInFlight:      cfg.MaxInFlight,
			MaxInFlightBytes: int64(cfg.MaxInFlightBytes),
			RequestTimeout:   cfg.RequestTimeout,
			MaxStreams:       cfg.MaxStreams,
			MaxRelayBytes:    int64(cfg.MaxRelayBytes),
			StreamStall:      cfg.StreamStall,
		},
	})
	return s, err
}

// makeTokenizers makes the tokenizer pool, its prefix store and its origins.
func (s *service) makeTokenizers() error {
	c := s.cfg
	var prefixes prefixcache.Store
	if c.PrefixCache != "none" {
		var err error
		if prefixes, err = prefixcache.New(c.PrefixCache, prefixcache.Config{MaxBytes: int64(c.PrefixCacheBytes)}); err != nil {
			return err
		}
	}
	var origins []tokenpool.Origin
	if c.Tokenizers != "" {
		dir, err := tokenpool.NewDirectory(c.Tokenizers)
		if err != nil {
			return fmt.Errorf("tokenizers (from %s): %w", c.Origins["tokenizers"], err)
		}
		origins = append(origins, dir)
	}
	pins, err := tokenpool.ParsePins(c.TokenizerPins)
	if err != nil {
		return fmt.Errorf("tokenizer-pins: %w", err)
	}
	hub, err := s.makeHub(pins)
	switch {
	case err == nil:
		origins = append(origins, hub)
		s.closers = append(s.closers, func() error { hub.Close(); return nil })
	case c.HubCache == "" && c.Tokenizers != "":
		// A read-only container without a home is a fine place for a scorer
		// that has its tokenizers in a folder.
		s.log.Warn().Err(err).Msg("no hub: only tokenizers of the directory can be used; set hub-cache to change that")
	default:
		return fmt.Errorf("hub-cache: %w", err)
	}
	s.origin = tokenpool.Chain(origins...)
	s.pool, err = tokenpool.New(tokenpool.Config{
		Origin:        s.origin,
		Store:         prefixes,
		Workers:       c.TokenizerWorkers,
		Queue:         c.TokenizerQueue,
		QueueBytes:    int64(c.TokenizerQueueBytes),
		MaxTextBytes:  int(c.MaxPromptBytes),
		PieceBytes:    cmp.Or(int64(c.PieceCacheBytes), -1),
		Shared:        s.pieces,
		SharedSecret:  []byte(c.PieceSecret),
		SharedTimeout: c.PieceTimeout,
		Budget:        c.TokenizerBudget,
		MaxTokenizers: c.TokenizersLoaded,
		Pins:          pins,
		Chat: chat.Options{
			Engine: chat.Engine(c.ChatEngine), DefaultKwargs: []byte(c.ChatKwargs),
			RebuildTools: c.ChatRebuildTools, OwnTemplatesOnly: c.ChatOwnTemplatesOnly,
			Limits: chat.Limits{Items: c.MaxChatItems, Values: c.MaxChatValues},
		},
		Observer: s.watchTokenizers(),
	})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, s.pool.Close)
	if prefixes != nil {
		return s.metrics.PrefixStore(prefixes.Stats)
	}
	return nil
}

func (s *service) makeHub(pins map[string]tokenpool.Pin) (*tokenpool.Hub, error) {
	revisions := map[string]string{}
	for model, pin := range pins {
		if pin.Revision != "" {
			revisions[model] = pin.Revision
		}
	}
	return tokenpool.NewHub(tokenpool.HubConfig{
		Endpoint:  s.cfg.HubEndpoint,
		Token:     string(s.cfg.HubToken),
		Revision:  s.cfg.HubRevision,
		Revisions: revisions,
		CacheDir:  s.cfg.HubCache,
		Offline:   s.cfg.HubOffline,
	})
}

// watchTokenizers times what the pool does and writes loads to the log.
func (s *service) watchTokenizers() tokenpool.Observer {
	o := s.metrics.Tokenizer()
	o.Loaded = func(m tokenpool.Model, err error) {
		if err != nil {
			s.log.Warn().Str("model", m.Name).Err(err).Msg("tokenizer not loaded")
			return
		}
		if m.Before != "" {
			s.log.Warn().Str("model", m.Name).Str("before", m.Before).Str("fingerprint", m.Fingerprint).
				Msg("the tokenizer of this model has changed: engines that still run with the one of before have other blocks; tokenizer-pins refuses changes")
		}
		s.log.Info().Str("model", m.Name).Str("from", m.From).Str("file", m.File).Str("revision", m.Revision).Str("sha256", m.SHA256).
			Str("fingerprint", m.Fingerprint).Int("vocabulary", m.Vocabulary).Int64("memory_bytes", m.MemoryBytes).Dur("took", m.LoadTook).Msg("tokenizer loaded")
	}
	return o
}

// makeIndex makes the index and says which kind it is.
func (s *service) makeIndex() (backend string, err error) {
	if s.cfg.Redis == "" {
		s.index, err = s.makeMemory()
		backend = "memory"
	} else {
		c := redisConfig(s.cfg)
		// A wrong setting is told of when the scorer is made.
		_, c.Entries, _ = s.cfg.LMCacheReaders()
		c.Observer = redis.Observer{Log: func(msg string) { s.log.Warn().Msg(msg) }}
		s.index, backend, err = s.makeRedis(c)
	}
	if err != nil {
		return "", err
	}
	s.closers = append(s.closers, s.index.Close)
	return backend, nil
}

// makeRedis makes the index in Redis, or the replica of it.
func (s *service) makeRedis(c redis.Config) (x store.Index, backend string, err error) {
	in, err := redis.Open(c)
	s.leases = in
	if err == nil && s.cfg.PieceSecret != "" {
		s.pieces = in.Pieces(s.cfg.PieceTTL)
	}
	if err != nil || !s.cfg.Replica {
		return in, "redis", err
	}
	never := func(n int64) int64 { // what has 0 for never in the settings
		if n == 0 {
			return -1
		}
		return n
	}
	s.replica, err = replica.New(replica.Config{
		Index:      in,
		MaxBytes:   int64(s.cfg.ReplicaMaxBytes),
		MaxLag:     s.cfg.ReplicaMaxLag,
		MaxStale:   s.cfg.ReplicaMaxStale,
		LogEntries: int(never(int64(s.cfg.ReplicaLogEntries))),
		Verify:     time.Duration(never(int64(s.cfg.ReplicaVerify))),
		Poll:       s.cfg.ReplicaPoll,
		Changed: func(from, to replica.Mode, why error) {
			if to == replica.Memory {
				s.log.Info().Stringer("from", from).Msg("lookups are answered from the replica in memory")
				return
			}
			s.log.Warn().Stringer("from", from).Stringer("to", to).AnErr("because", why).Msg("lookups are not answered from the replica as they should be")
		},
	})
	if err != nil {
		return nil, "", errors.Join(err, in.Close())
	}
	if err := s.metrics.Replica(s.replica.Status); err != nil {
		return nil, "", errors.Join(err, s.replica.Close())
	}
	return s.replica, "replica", nil
}

// replicaReady is what /readyz waits for besides the start; nil for nothing.
func (s *service) replicaReady() func() error {
	if s.replica == nil {
		return nil
	}
	return s.replica.Ready
}

// makeMemory makes the index in memory, with what keeps it over a restart.
func (s *service) makeMemory() (store.Index, error) {
	x, err := memory.New(memory.Config{
		MaxBlocks:  s.cfg.IndexMaxBlocks,
		MaxBytes:   int64(s.cfg.IndexMaxBytes),
		MaxPods:    s.cfg.IndexMaxPods,
		MaxHolders: s.cfg.IndexMaxHolders,
		MaxModels:  s.cfg.IndexMaxModels,
	})
	s.leases = x
	if err != nil || s.cfg.SnapshotFile == "" {
		return x, err
	}
	s.keeper, err = snapshot.NewKeeper(snapshot.KeeperConfig{
		Index:    x,
		File:     s.cfg.SnapshotFile,
		Changes:  int64(s.cfg.SnapshotChanges),
		Interval: s.cfg.SnapshotInterval,
		MaxAge:   s.cfg.SnapshotMaxAge,
		Observer: s.watchSnapshots(),
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot-file (from %s): %w", s.cfg.Origins["snapshot-file"], err), x.Close())
	}
	return s.keeper, nil
}

// watchSnapshots counts snapshots and writes them to the log.
func (s *service) watchSnapshots() snapshot.Observer {
	o := s.metrics.Snapshots()
	saved, restored := o.Saved, o.Restored
	o.Saved = func(sum snapshot.Summary, took time.Duration, err error) {
		saved(sum, took, err)
		if err != nil {
			s.log.Error().Err(err).Str("file", s.cfg.SnapshotFile).Msg("snapshot not saved")
			return
		}
		s.log.Info().Str("file", s.cfg.SnapshotFile).Int64("blocks", sum.Blocks).Int64("bytes", sum.Bytes).Dur("took", took).Msg("snapshot saved")
	}
	o.Restored = func(r snapshot.Report, took time.Duration, err error) {
		restored(r, took, err)
		if err != nil {
			s.log.Error().Err(err).Msg("snapshot not restored")
			return
		}
		s.log.Info().Str("file", s.cfg.SnapshotFile).Int64("blocks", r.Blocks).Int("pods", r.Pods).Time("true_at", r.TrueAt.Time).Dur("took", took).Msg("snapshot restored")
	}
	return o
}

// Why /readyz says no at first.
var (
	errRestoring = errors.New("restoring the snapshot")
	errLoading   = errors.New("loading tokenizers")
)

// warmUp does what must be done before /readyz says yes. An error ends the
// service.
func (s *service) warmUp(ctx context.Context) error {
	var loading sync.WaitGroup
	loading.Go(func() { s.preload(ctx) })
	defer loading.Wait()
	if s.keeper != nil {
		s.api.SetReady(errRestoring)
		if err := s.keeper.Restore(ctx); ctx.Err() != nil {
			return nil // the end came first
		} else if err != nil {
			return err
		}
	}
	if len(s.cfg.Preload) > 0 {
		s.api.SetReady(errLoading)
	}
	loading.Wait()
	if ctx.Err() == nil {
		s.api.SetReady(nil)
	}
	return nil
}

// redisConfig is what the settings say about the index in Redis.
func redisConfig(c *config.Loaded) redis.Config {
	return redis.Config{
		URL:        string(c.Redis),
		Prefix:     c.RedisPrefix,
		PoolSize:   c.RedisPool,
		Timeout:    c.RedisTimeout,
		TextAge:    textAge(c.PlainMaxAge),
		MaxPods:    c.IndexMaxPods,
		MaxHolders: c.IndexMaxHolders,
		MaxModels:  c.IndexMaxModels,
		EntryAge:   c.LMCacheMaxAge,
	}
}

// textAge is the age of texts as package redis takes it, for which 0 is a default.
func textAge(setting time.Duration) time.Duration {
	if setting == 0 {
		return -1
	}
	return setting
}

// hasTokenizer says what is wrong when the model's tokenizer cannot be had.
func (s *service) hasTokenizer(model string) error {
	if _, err := s.origin.Stat(model); err != nil {
		return fmt.Errorf("%w\nscripts/fetch-tokenizers.sh prepares %s; --tokenizers names another directory", err, demoTokenizers)
	}
	return nil
}

// preload loads the tokenizers that were asked for, all at once. One that
// cannot be loaded is in the log and keeps nobody from the others.
func (s *service) preload(ctx context.Context) {
	var wg sync.WaitGroup
	for _, model := range s.cfg.Preload {
		wg.Go(func() {
			_, err := s.pool.Tokens(ctx, tokenpool.Request{Model: model, Text: "a", Mode: tokenpool.Sync})
			if err != nil && ctx.Err() == nil {
				s.log.Error().Str("model", model).Err(err).Msg("preload: no tokenizer, the server goes on without it")
			}
		})
	}
	wg.Wait()
}

// close ends what was made, the last first.
func (s *service) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		if err := s.closers[i](); err != nil {
			s.log.Warn().Err(err).Msg("closing")
		}
	}
	s.closers = nil
}

// run serves until ctx ends, then drains: /readyz turns to 503, after the
// drain delay no connection is accepted any more, and requests under way have
// the drain timeout to finish. after, when not nil, is called with the API's
// URL once it is served; its context ends with ctx, and its error ends run.
func (s *service) run(ctx context.Context, after func(context.Context, string) error) error {
	defer s.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := s.listen(ctx)
	if err != nil {
		return err
	}
	// Room for all who can fail, so that nobody waits to tell.
	failed := make(chan error, 5)
	if err := s.listenLMCache(ctx); err != nil {
		return errors.Join(err, l.close())
	}
	l.serve(failed)
	cold := s.keeper != nil || len(s.cfg.Preload) > 0
	if !cold {
		s.api.SetReady(nil)
	}
	s.log.Info().Str("version", versionWord()).Str("index", s.backend).Str("address", l.api.Addr().String()).Str("admin_address", l.adminAddress()).
		Str("config", s.cfg.File).Msg("listening")

	var playing sync.WaitGroup
	playing.Go(func() { s.checkIndex(ctx) })
	playing.Go(func() { s.runIngest(ctx, failed) })
	playing.Go(func() { s.runLMCache(ctx, failed) })
	playing.Go(func() {
		var err error
		if cold {
			err = s.warmUp(ctx)
		}
		if err == nil && after != nil && ctx.Err() == nil {
			err = after(ctx, "http://"+dialable(l.api.Addr()))
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

// dialable is an address to reach a listener at: one that listens on all
// addresses is reached at the loopback.
func dialable(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(t.Port))
}

// listeners are the API's listener and, perhaps, the admin's.
type listeners struct {
	api, admin             net.Listener
	apiServer, adminServer *http.Server
}

func (s *service) listen(ctx context.Context) (*listeners, error) {
	l := &listeners{}
	var lc net.ListenConfig
	var err error
	if l.api, err = lc.Listen(ctx, "tcp", s.cfg.Listen); err != nil {
		return nil, listenError("listen", s.cfg.Listen, err)
	}
	l.apiServer = s.httpServer(s.api.Handler())
	if s.cfg.AdminListen == "" {
		return l, nil
	}
	if l.admin, err = lc.Listen(ctx, "tcp", s.cfg.AdminListen); err != nil {
		return nil, errors.Join(listenError("admin-listen", s.cfg.AdminListen, err), l.api.Close())
	}
	l.apiServer.Handler = withoutAdmin(s.api.Handler())
	l.adminServer = s.httpServer(adminHandler(s.api.Handler()))
	return l, nil
}

// listenError says what to do about an address that cannot be listened on.
func listenError(setting, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("something else listens on %s already: stop it, or choose another address with --%s, such as 127.0.0.1:8081 (port 0 takes a free one)", address, setting)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listening on %s is not permitted: ports below 1024 are for root; choose another with --%s", address, setting)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("this machine has no address %s: choose another with --%s", address, setting)
	}
	return fmt.Errorf("--%s: %w", setting, err)
}

// httpServer bounds what a client can hold without sending a request.
func (s *service) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		ReadTimeout:       s.cfg.ReadHeaderTimeout + s.cfg.RequestTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    int(s.cfg.MaxHeaderBytes),
		ErrorLog:          httpLog(s.log),
	}
}

// adminPaths are what the admin listener has for itself, beside all that is below
// adminFolder.
var adminPaths = []string{"/metrics", "/v1/dump", "/v1/restore", "/v1/reset", "/v1/lmcache/sync"}

// adminFolder has the tokens of prompts.
const adminFolder = "/v1/ingest/"

func isAdmin(path string) bool {
	return slices.Contains(adminPaths, path) || strings.HasPrefix(path, adminFolder)
}

// withoutAdmin leaves to the admin listener what is its own. (A http.ServeMux
// would do so too, and redirect pod names that hold two slashes on the way.)
func withoutAdmin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isAdmin(r.URL.Path) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"metrics, dump, restore, reset, syncs of LMCache and the events of ranks are on the admin listener","param":null}}`+"\n")
	})
}

// adminHandler passes on what the admin listener serves.
func adminHandler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path := r.URL.Path; path != "/healthz" && path != "/readyz" && !isAdmin(path) {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (l *listeners) adminAddress() string {
	if l.admin == nil {
		return ""
	}
	return l.admin.Addr().String()
}

// close gives up listeners that nothing was served on.
func (l *listeners) close() error {
	err := l.api.Close()
	if l.admin != nil {
		err = errors.Join(err, l.admin.Close())
	}
	return err
}

// serve begins to serve. A listener that breaks reports to failed.
func (l *listeners) serve(failed chan<- error) {
	start := func(srv *http.Server, on net.Listener) {
		go func() {
			if err := srv.Serve(on); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	start(l.apiServer, l.api)
	if l.admin != nil {
		start(l.adminServer, l.admin)
	}
}

// errCutOff says that the drain timeout ended requests.
var errCutOff = errors.New("requests were still running after drain-timeout and have been cut off")

// drain ends the listeners in an orderly way.
func (l *listeners) drain(s *service) error {
	start := time.Now()
	s.api.Drain()
	s.log.Info().Dur("delay", s.cfg.DrainDelay).Dur("timeout", s.cfg.DrainTimeout).Msg("draining")
	time.Sleep(s.cfg.DrainDelay)

	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	err := l.apiServer.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(errCutOff, l.apiServer.Close())
	}
	if l.adminServer != nil {
		// Nobody's work is lost with it.
		err = errors.Join(err, l.adminServer.Close())
	}
	s.log.Info().Dur("took", time.Since(start)).Msg("drained")
	return err
}
