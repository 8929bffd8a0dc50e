package ingest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// TestUnknownMedia: each pod and medium is reported once, by whatever way it comes, and all
// its blocks are counted, over generations too.
func TestUnknownMedia(t *testing.T) {
	x := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = x.Close() })
	var mu sync.Mutex
	var told []string
	in := newIngester(t, Config{Index: x, Observer: Observer{UnknownMedium: func(pod string, rank int, medium string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprint(pod, " ", rank, " ", medium))
	}}})
	stored := func(medium string) event.Event {
		return event.Event{Kind: event.Stored, Hashes: []event.Hash{1, 2}, Tokens: make([]uint32, 32), BlockSize: 16, Medium: medium}
	}
	for _, pod := range []string{"a", "b"} {
		must.Get(x.Register(t.Context(), store.Pod{Name: pod, Model: testModel, Ranks: 2}))(t)
		for rank := range 2 {
			p := Pushed{Pod: pod, Rank: rank, Model: testModel, Ranks: []RankEvents{{rank, []event.Event{stored("tape"), stored("GPU"), stored("tape"), stored("punch cards")}}}}
			must.Get(in.Push(t.Context(), p))(t)
		}
	}
	want := []string{"a 0 tape", "a 0 punch cards", "b 0 tape", "b 0 punch cards"}
	if !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}

	// A rank that is read: a second life of its engine does not begin to count anew.
	dir := t.TempDir()
	must.Get(x.Register(t.Context(), store.Pod{Name: "c", Model: testModel}))(t)
	s := &stage{t: t, x: x, in: in, ended: make(chan error, 1), source: Source{Pod: "c", Model: testModel, Events: "ipc://" + dir + "/e", Replay: "ipc://" + dir + "/r"}}
	s.o = zmq.PublisherConfig{Endpoint: s.source.Events, Replay: s.source.Replay}
	s.publisher()
	defer func() { s.pub.Close() }()
	s.read(1)
	for life := range 2 {
		if life > 0 {
			s.publisher()
			s.until("a connection", func() bool { return s.pub.Subscribers() > 0 })
		}
		b := event.Batch{Time: float64(life + 1), Events: []event.Event{stored("tape")}}
		s.pub.Publish(zmq.Message{Payload: encode.Append(nil, &b, encode.VLLM24)})
		s.until("two blocks that are left out", func() bool {
			return in.Stats().Ranks[0].Skipped[rechunk.UnknownMedium] == uint64(2*(life+1))
		})
	}
	s.stop()
	mu.Lock()
	defer mu.Unlock()
	if want = append(want, "c 0 tape"); !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
}
