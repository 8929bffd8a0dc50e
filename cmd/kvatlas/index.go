package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/replica"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// makeIndex makes the index and says which kind it is.
func (s *service) makeIndex() (backend string, err error) {
	if s.cfg.Redis == "" {
		s.index, err = s.makeMemory()
		backend = "memory"
	} else {
		c := redisConfig(s.cfg)
		// A wrong setting is reported when the scorer is made.
		_, c.Entries, _ = s.cfg.LMCacheReaders()
		c.Entries = c.Entries || s.cfg.LMCacheLearns()
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
	s.redis, s.leases = in, in
	if err == nil && s.cfg.LMCacheLearns() {
		s.learner = s.newLearner(in)
	}
	if err == nil && s.cfg.PieceSecret != "" {
		s.pieces = in.Pieces(config.PieceTTL)
	}
	if err != nil || !s.cfg.Replica {
		return in, "redis", err
	}
	s.replica, err = replica.New(replica.Config{
		Index:      in,
		MaxBytes:   int64(s.cfg.ReplicaMaxBytes),
		MaxLag:     s.cfg.ReplicaMaxLag,
		MaxStale:   s.cfg.ReplicaMaxStale,
		LogEntries: config.ReplicaLogEntries,
		Verify:     cmp.Or(s.cfg.ReplicaVerify, none),
		Poll:       config.ReplicaPoll,
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

// makeMemory makes the index in memory, with what keeps it over a restart.
func (s *service) makeMemory() (store.Index, error) {
	x, err := memory.New(memory.Config{
		MaxBlocks:  s.cfg.IndexMaxBlocks(),
		MaxBytes:   int64(s.cfg.IndexMaxBytes),
		MaxPods:    s.cfg.IndexMaxPods,
		MaxHolders: s.cfg.IndexMaxHolders(),
		MaxModels:  config.IndexMaxModels,
	})
	s.leases = x
	if err != nil || s.cfg.SnapshotFile == "" {
		return x, err
	}
	s.keeper, err = snapshot.NewKeeper(snapshot.KeeperConfig{
		Index:    x,
		File:     s.cfg.SnapshotFile,
		Changes:  config.SnapshotChanges,
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
		if r.TrueAt.Time.IsZero() {
			s.log.Info().Str("file", s.cfg.SnapshotFile).Msg("no snapshot yet: the index begins empty")
			return
		}
		s.log.Info().Str("file", s.cfg.SnapshotFile).Int64("blocks", r.Blocks).Int("pods", r.Pods).Time("true_at", r.TrueAt.Time).Dur("took", took).Msg("snapshot restored")
	}
	return o
}

// redisConfig is what the settings say about the index in Redis.
func redisConfig(c *config.Loaded) redis.Config {
	return redis.Config{
		URL:        string(c.Redis),
		Prefix:     c.RedisPrefix,
		PoolSize:   c.RedisPool,
		Timeout:    config.RedisTimeout,
		MapCache:   int(config.RedisMapCache),
		TextAge:    cmp.Or(c.PlainMaxAge, none),
		MaxPods:    c.IndexMaxPods,
		MaxHolders: c.IndexMaxHolders(),
		MaxModels:  config.IndexMaxModels,
		EntryAge:   c.LMCacheMaxAge,
		EntriesURL: string(c.LMCacheRedis),
	}
}

// The times of the checks that serve makes.
const (
	checkTimeout = 15 * time.Second
	checkAgain   = 3 * time.Second
)

// checkIndex looks once at what the index depends on and writes down what
// should not be so. It waits for a Redis that is down.
func (s *service) checkIndex(ctx context.Context) {
	if s.redis == nil {
		return
	}
	var told []check.Finding
	for {
		within, cancel := context.WithTimeout(ctx, checkTimeout)
		list, err := s.redis.Check(within, s.cfg.ScoreBudget)
		cancel()
		if ctx.Err() != nil {
			return
		}
		for _, f := range list {
			// Once each, while it waits.
			if f.Level >= check.Warn && !slices.ContainsFunc(told, func(t check.Finding) bool { return t.What == f.What && t.Do == f.Do }) {
				told = append(told, f)
				s.logFinding(f)
			}
		}
		if !errors.Is(err, store.ErrUnavailable) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkAgain):
		}
	}
}

func (s *service) logFinding(f check.Finding) {
	level := zerolog.WarnLevel
	if f.Level == check.Fail {
		level = zerolog.ErrorLevel
	}
	s.log.WithLevel(level).Str("where", f.Where).Str("check", f.What).Str("means", f.Means).Str("do", f.Do).Msg("redis: " + f.What + ": " + f.Found)
}
