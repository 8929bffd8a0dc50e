package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/discover"
	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// ingesting has the parts of the role ingest: discovery of pods, the fleet that shares out the ranks, and the
// readers.
type ingesting struct {
	ingester  *ingest.Ingester
	fleet     *fleet.Fleet
	registrar *discover.Registrar // nil when there is nothing to find
	asker     discover.Asker
	silent    atomic.Int64 // healthy engines that send nothing
	failing   atomic.Bool  // the index cannot be asked, and that is in the log
	links     *connections
}

// makeIngest makes the parts of the role ingest.
func (s *service) makeIngest() (err error) {
	c := s.cfg
	if !c.Roles.Has(config.RoleIngest) {
		return nil
	}
	media, err := c.IngestMedia.Words()
	if err != nil {
		return err
	}
	in := &ingesting{links: newConnections(s.log), asker: discover.Asker{Client: s.networks.Client()}}
	in.ingester, err = ingest.New(ingest.Config{
		Index: s.index, InProcess: s.cfg.Redis == "", BlockSize: c.BlockSize, TotalBytes: int64(c.IngestQueueBytes), QueueBytes: c.IngestRankQueueBytes(),
		Replays: config.IngestReplays, ReplayBytes: int64(config.IngestReplayBytes),
		Wire: zmq.Config{Filter: s.networks}, Media: media, Copies: c.IngestCopies, Records: c.IngestRecords,
		RelayMessages: cmp.Or(c.IngestRelayMessages, none), RelayBytes: int64(config.IngestRelayBytes),
		Unremoved: cmp.Or(c.IngestUnremovedBlocks, none),
		Observer: ingest.Observer{
			Connected:    func(pod string, rank int, peer string) { in.links.connected(pod, rank, peer, time.Now()) },
			Disconnected: func(pod string, rank int, err error) { in.links.disconnected(pod, rank, err, time.Now()) },
			Began: func(pod string, rank int, _ store.Generation, why ingest.Reason) {
				s.log.Info().Str("pod", pod).Int("rank", rank).Stringer("because", why).Msg("generation begun")
			},
			TookOver: func(pod string, rank int, _ store.Generation, next uint64) {
				s.log.Info().Str("pod", pod).Int("rank", rank).Uint64("next", next).Msg("generation taken over")
			},
			UnknownMedium: func(pod string, rank int, medium string) {
				s.log.Warn().Str("pod", pod).Int("rank", rank).Str("medium", medium).
					Msg("the engine has blocks in a medium that is not known, which count for nothing; ingest-media says what tier it is")
			},
			OtherRank: func(pod string, rank, named int) {
				s.log.Warn().Str("pod", pod).Int("rank", rank).Int("named", named).
					Msg("the engine's events name another data-parallel rank; they are indexed under this one, which is right where each rank is a pod of its own, and wrong where a port of the pod is another rank's")
			},
			Doubted: func(pod string, rank int, live, next uint64) {
				s.log.Warn().Str("pod", pod).Int("rank", rank).Uint64("live", live).Uint64("next", next).
					Msg("the replay socket contradicts what the engine publishes, and is ignored until it agrees: is it another engine's?")
			},
			Gap: func(pod string, rank int, first, next uint64) {
				s.log.Warn().Str("pod", pod).Int("rank", rank).Uint64("first", first).Uint64("next", next).Msg("events are missing")
			},
		},
	})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, in.ingester.Close)
	wiring := fleet.Wiring{Topic: c.IngestTopic, Bind: c.IngestBind}
	if c.IngestCurveKeys != "" {
		if wiring.Curve, err = zmq.ReadCurve(c.IngestCurveKeys, c.IngestCurveServer); err != nil {
			return fmt.Errorf("ingest-curve-keys, ingest-curve-server: %w", err)
		}
	}
	in.fleet, err = fleet.New(fleet.Config{
		Index: s.index, Leases: s.leases, Read: in.ingester.Read, TTL: c.IngestTTL, Beat: c.IngestTTL / 4,
		MaxRanks: config.IngestMaxRanks, HandOver: config.IngestHandOver, Wiring: wiring, Observer: s.watchFleet(in),
	})
	if err != nil {
		return err
	}
	if err := s.makeRegistrar(in); err != nil {
		return err
	}
	s.ingest = in
	return s.metrics.Ingest(in.ingester.Stats, in.fleet.Stats, in.silent.Load)
}

// none is a setting of 0, or never, for the packages below, to which 0 is a default.
const none = -1

// makeRegistrar makes what finds pods, if there is something to look at.
func (s *service) makeRegistrar(in *ingesting) error {
	c := s.cfg
	var sources []discover.Source
	if len(c.Pods) > 0 {
		list, err := discover.ParseList(c.Pods)
		if err != nil {
			return err
		}
		sources = append(sources, list)
	}
	for _, text := range c.PodsDNS {
		d, err := discover.NewDNS(text, nil, config.PodsDNSInterval, c.IndexMaxPods)
		if err != nil {
			return err
		}
		sources = append(sources, d)
	}
	if k, ok := c.Kubernetes(); ok {
		var err error
		if k.Client, err = discover.KubernetesClient(c.PodsKubernetesConfig); err != nil {
			if c.PodsKubernetesConfig == "" {
				err = fmt.Errorf("%w; outside of a cluster name a kubeconfig with --pods-kubernetes-config", err)
			}
			return err
		}
		found, err := discover.NewKubernetes(k)
		if err != nil {
			return err
		}
		sources = append(sources, found)
	}
	if len(sources) == 0 {
		return nil
	}
	conf := discover.Config{
		Index: s.index, Sources: sources, Lease: c.PodsLease, MaxPods: c.IndexMaxPods,
		Template: discover.Template{Model: c.PodsModel, Engine: c.PodsEngine, EventsPort: c.PodsPortEvents, ReplayPort: c.PodsPortReplay, Ranks: c.PodsRanks, Approximate: c.PodsApproximate},
		Observer: discover.Observer{
			Registered: func(p store.Pod) {
				s.log.Info().Str("pod", p.Name).Str("model", p.Model).Str("events", p.Events).Msg("pod found")
			},
			Failed: func(err error) { s.log.Warn().Err(err).Msg("cannot find or register pods now; it is tried again") },
		},
	}
	if c.PodsAsk {
		conf.Asker = &in.asker
	}
	var err error
	in.registrar, err = discover.New(conf)
	return err
}

// watchFleet writes what matters of the fleet to the log.
func (s *service) watchFleet(in *ingesting) fleet.Observer {
	return fleet.Observer{
		Started: func(src ingest.Source, fence uint64, took string) {
			in.failing.Store(false)
			in.links.begun(src, time.Now())
			s.log.Info().Str("pod", src.Pod).Int("rank", src.Rank).Str("events", src.Events).Uint64("fence", fence).Str("from", took).Msg("the rank's events are this process's to read")
		},
		Stopped: func(src ingest.Source, fence uint64, err error) {
			in.links.ended(src)
			s.log.Info().Str("pod", src.Pod).Int("rank", src.Rank).Uint64("fence", fence).AnErr("because", err).Msg("the rank's events are not this process's to read any more")
		},
		Readers: func(living []store.Reader) {
			in.failing.Store(false)
			s.log.Info().Int("replicas", len(living)).Msg("replicas that ingest")
		},
		Lapsed: func(silent time.Duration) {
			in.failing.Store(false)
			s.log.Warn().Dur("silent", silent).Msg("silent for longer than ingest-ttl: other replicas, if there are any, take the ranks over")
		},
		Unreadable: func(pod string, err error) {
			s.log.Warn().Str("pod", pod).Err(err).Msg("the pod's events cannot be read")
		},
		Failed: func(err error) {
			if !in.failing.Swap(true) {
				s.log.Warn().Err(err).Msg("ingest cannot ask the index, and tries again")
			}
		},
	}
}

// watchScorer counts what is scored, and tells the ingester whose blocks were found.
func (s *service) watchScorer() scorer.Observer {
	o := s.metrics.Scorer()
	count := o.Scored
	o.Scored = func(model string, r *scorer.Response) {
		count(model, r)
		if s.ingest == nil || r.Blocks == 0 { // no pod can hold a prompt without blocks
			return
		}
		s.ingest.ingester.Asked(model)
		reg := s.index.Cached()
		for i := range r.Pods {
			if r.Pods[i].Blocks == 0 {
				continue
			}
			if p, known := reg.Serving(r.Pods[i].Pod, model); known {
				s.ingest.ingester.Matched(reg.Pods[p].Name)
			}
		}
	}
	return o
}

// runIngest reads until ctx is done, and gives up what it reads before it returns. A
// part that ends by itself reports to failed.
func (s *service) runIngest(ctx context.Context, failed chan<- error) {
	in := s.ingest
	if in == nil {
		return
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	if in.registrar != nil {
		parts.Go(func() { _ = in.registrar.Run(ctx) }) // it ends with ctx
	}
	parts.Go(func() { in.links.run(ctx) })
	if s.cfg.IngestSilent > 0 {
		parts.Go(func() { s.watchSilence(ctx) })
	}
	if err := in.fleet.Run(ctx); err != nil && ctx.Err() == nil {
		failed <- errors.Join(errors.New("ingest has ended"), err)
	}
}

// watchSilence looks for engines that are healthy and publish nothing: most often the
// events are not switched on.
func (s *service) watchSilence(ctx context.Context) {
	in := s.ingest
	told := map[string]bool{}
	first := map[store.RankRef]time.Time{} // when a rank was seen first
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(s.cfg.IngestSilent/4, 100*time.Millisecond)):
		}
		pods := map[string]bool{} // silent since
		seen := map[store.RankRef]time.Time{}
		for _, r := range in.ingester.Stats().Ranks {
			ref := store.RankRef{Pod: r.Pod, Rank: r.Rank}
			if seen[ref] = first[ref]; seen[ref].IsZero() {
				seen[ref] = time.Now()
			}
			since := seen[ref]
			if r.LastMessage.After(since) {
				since = r.LastMessage
			}
			if !r.Paused && time.Since(since) >= s.cfg.IngestSilent {
				pods[r.Pod] = true
			}
		}
		first = seen
		reg := s.index.Cached()
		silent := int64(0)
		for pod := range pods {
			i, ok := reg.PodIndex(pod)
			if !ok || in.asker.Healthy(ctx, &reg.Pods[i]) != nil {
				continue
			}
			silent++
			if !told[pod] {
				s.log.Warn().Str("pod", pod).Dur("silent", s.cfg.IngestSilent).Msg("the engine is healthy and sends no events: is it idle, or are its events not switched on?")
			}
		}
		told = pods
		in.silent.Store(silent)
	}
}
