package telemetry

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/store"
)

// Ingest shows the figures of the reading of events; it is called at most once. Func
// silent returns the number of engines that are healthy and send nothing. The series
// with the labels pod and rank are those of ranks that this process reads, and go with
// them. At most maxShownRanks have any.
func (m *Metrics) Ingest(read func() ingest.Stats, shared func() fleet.Stats, silent func() int64) error {
	type f = fleet.Stats
	for _, c := range []prometheus.Collector{
		figures[f]{shared, []figure[f]{
			gauge("kvatlas_ingest_replicas", "Replicas that ingest, as far as this one knows.", func(s f) int { return s.Replicas }),
			gauge("kvatlas_ingest_ranks", "Ranks that there are to be read by all replicas.", func(s f) int { return s.Ranks }),
			gauge("kvatlas_ingest_reading_ranks", "Ranks that this replica reads.", func(s f) int { return s.Reading }),
			gauge("kvatlas_ingest_unread_ranks", "Ranks that find room in no replica.", func(s f) int { return s.Unread }),
		}},
		figures[int64]{silent, []figure[int64]{
			gauge("kvatlas_ingest_silent_engines", "Engines that are healthy and have sent no events for ingest-silent.", func(n int64) int64 { return n }),
		}},
		&rankFigures{read: read, shown: map[store.RankRef]struct{}{}},
	} {
		if err := m.registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// maxShownRanks bounds the ranks with series of their own, some 25 each: the caller that registers pods
// chooses their names and number.
const maxShownRanks = 1024

// rankFigures shows the figures of ranks that are read. Those that have series keep them for
// as long as they are read: later ones find what room there is.
type rankFigures struct {
	read func() ingest.Stats

	mu    sync.Mutex // protects shown
	shown map[store.RankRef]struct{}
}

// show returns the ranks that have series, and how many have none.
func (c *rankFigures) show(ranks []ingest.RankStats) (shown []*ingest.RankStats, hidden int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.shown
	c.shown = make(map[store.RankRef]struct{}, min(len(ranks), maxShownRanks))
	room := maxShownRanks
	for i := range ranks {
		if _, ok := was[refOf(&ranks[i])]; ok {
			room--
		}
	}
	for i := range ranks {
		r := &ranks[i]
		_, ok := was[refOf(r)]
		if !ok && room > 0 {
			room--
			ok = true
		}
		if !ok {
			hidden++
			continue
		}
		c.shown[refOf(r)] = struct{}{}
		shown = append(shown, r)
	}
	return shown, hidden
}

func refOf(r *ingest.RankStats) store.RankRef { return store.RankRef{Pod: r.Pod, Rank: r.Rank} }

// rankLabels are those of all series of a rank.
var rankLabels = []string{"pod", "rank"}

func rankDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("kvatlas_ingest_"+name, help, append(rankLabels[:2:2], more...), nil)
}

// matchAfter is how long blocks may be there that no lookup matches.
const matchAfter = 10 * time.Minute

var (
	hiddenRanks = prometheus.NewDesc("kvatlas_ingest_hidden_ranks", "Ranks that this replica reads and that have no series of their own, as too many have.", nil, nil)
	rankEvents  = rankDesc("events_total", "Events that have been applied.", "kind")
	rankBegun   = rankDesc("generation_reasons_total", "Generations begun, by reason.", "reason")
	rankSkipped = rankDesc("skipped_blocks_total", "Blocks that engines have stored and that were not indexed.", "reason")
	rankGauges  = []rankFigure{
		{rankDesc("connected", "1 while the publisher is connected."), func(r *ingest.RankStats) float64 { return truth(r.Connected) }},
		{rankDesc("lag_seconds", "How old the newest event was when it had been applied."), func(r *ingest.RankStats) float64 { return r.Lag.Seconds() }},
		{rankDesc("last_message_timestamp_seconds", "When the last message came; 0 is never."), func(r *ingest.RankStats) float64 {
			if r.LastMessage.IsZero() {
				return 0
			}
			return float64(r.LastMessage.UnixMilli()) / 1000
		}},
		{rankDesc("paused", "1 while the publisher is not read because the queue is full."), func(r *ingest.RankStats) float64 { return truth(r.Paused) }},
		{rankDesc("queue_messages", "Messages that wait to be applied."), func(r *ingest.RankStats) float64 { return float64(r.QueueMessages) }},
		{rankDesc("queue_bytes", "Bytes of the messages that wait to be applied."), func(r *ingest.RankStats) float64 { return float64(r.QueueBytes) }},
		{rankDesc("unmatched", "1 when lookups of this process ask for the model ten minutes after blocks have come, and none has matched one."), func(r *ingest.RankStats) float64 {
			return truth(r.Unmatched(matchAfter))
		}},
	}
	rankCounters = []rankFigure{
		{rankDesc("messages_total", "Messages that have been followed."), func(r *ingest.RankStats) float64 { return float64(r.Messages) }},
		{rankDesc("connections_total", "Connections to the publisher."), func(r *ingest.RankStats) float64 { return float64(r.Connections) }},
		{rankDesc("expired_blocks_total", "Blocks taken for removed, of an engine that does not report removals."), func(r *ingest.RankStats) float64 { return float64(r.Blocks.Expired) }},
		{rankDesc("undecodable_total", "Messages and events that could not be understood."), func(r *ingest.RankStats) float64 { return float64(r.Undecodable) }},
		{rankDesc("gaps_total", "Times that messages were missing."), func(r *ingest.RankStats) float64 { return float64(r.Gaps) }},
		{rankDesc("doubts_total", "Times that the replay socket began to contradict what the engine publishes."), func(r *ingest.RankStats) float64 { return float64(r.Doubts) }},
		{rankDesc("replays_total", "Questions to the replay socket."), func(r *ingest.RankStats) float64 { return float64(r.Replays) }},
		{rankDesc("pauses_total", "Times that reading paused because the queue was full."), func(r *ingest.RankStats) float64 { return float64(r.Pauses) }},
		// Reading pauses instead of dropping; dashboards have the series.
		{rankDesc("dropped_total", "Messages that found no room in the queue: always 0, since reading pauses."), func(*ingest.RankStats) float64 { return 0 }},
		{rankDesc("failures_total", "Batches that the index did not take at once."), func(r *ingest.RankStats) float64 { return float64(r.Failures) }},
		{rankDesc("generations_total", "Generations begun."), func(r *ingest.RankStats) float64 { return float64(r.Generations) }},
	}
)

// rankFigure is one part of a rank's figures.
type rankFigure struct {
	desc *prometheus.Desc
	of   func(*ingest.RankStats) float64
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *rankFigures) Describe(ch chan<- *prometheus.Desc) {
	ch <- hiddenRanks
	ch <- rankEvents
	ch <- rankBegun
	ch <- rankSkipped
	for _, list := range [][]rankFigure{rankGauges, rankCounters} {
		for i := range list {
			ch <- list[i].desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c *rankFigures) Collect(ch chan<- prometheus.Metric) {
	shown, hidden := c.show(c.read().Ranks)
	ch <- prometheus.MustNewConstMetric(hiddenRanks, prometheus.GaugeValue, float64(hidden))
	for _, r := range shown {
		rank := strconv.Itoa(r.Rank)
		for kind, n := range r.Events {
			if n > 0 {
				ch <- prometheus.MustNewConstMetric(rankEvents, prometheus.CounterValue, float64(n), r.Pod, rank, event.Kind(kind).String())
			}
		}
		for reason, n := range r.Begun {
			if n > 0 {
				ch <- prometheus.MustNewConstMetric(rankBegun, prometheus.CounterValue, float64(n), r.Pod, rank, ingest.Reason(reason).String())
			}
		}
		for reason, n := range r.Skipped {
			if n > 0 {
				ch <- prometheus.MustNewConstMetric(rankSkipped, prometheus.CounterValue, float64(n), r.Pod, rank, rechunk.Reason(reason).String())
			}
		}
		for j := range rankGauges {
			ch <- prometheus.MustNewConstMetric(rankGauges[j].desc, prometheus.GaugeValue, rankGauges[j].of(r), r.Pod, rank)
		}
		for j := range rankCounters {
			ch <- prometheus.MustNewConstMetric(rankCounters[j].desc, prometheus.CounterValue, rankCounters[j].of(r), r.Pod, rank)
		}
	}
}
