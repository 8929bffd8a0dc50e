package ingest

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// TestParkedAndMoved: what a reader has left is worth nothing once another has written to the generation. Its map
// does not say what it would have to.
func TestParkedAndMoved(t *testing.T) {
	x := newIndex(t)
	s := newStage(t, x, true, Config{InProcess: true})
	s.read(1)
	for range 20 {
		s.publish()
	}
	s.settled()
	s.stop()
	life := must.Get(x.Life(t.Context(), "pod", 0))(t)
	b := store.Batch{Pod: "pod", Model: testModel, Guard: &store.Guard{Generation: life.Generation, Fence: 1, Seq: life.Seq + 1}}
	must.OK(t, x.Apply(t.Context(), b))
	s.publish()
	s.read(2)
	s.settled()
	s.hears("began lost")
	if s.heard("took over") {
		t.Errorf("told: %q", s.told)
	}
}

// TestParkedAndEnded: what is left of generations that have ended is not kept.
func TestParkedAndEnded(t *testing.T) {
	x := newIndex(t)
	s := newStage(t, x, true, Config{InProcess: true})
	for fence := range uint64(2) {
		s.read(fence + 1)
		for range 20 {
			s.publish()
		}
		s.settled()
		s.stop()
		if n := len(s.in.parked); n != 1 {
			t.Fatalf("%d ranks are parked", n)
		}
	}
	must.Get(x.Retire(t.Context(), "pod"))(t)
	must.Get(x.Register(t.Context(), store.Pod{Name: "pod", Model: testModel}))(t)
	other := s.source
	other.Pod = "other"
	must.Get(x.Register(t.Context(), store.Pod{Name: "other", Model: testModel}))(t)
	s.source = other
	s.read(1)
	s.publish()
	s.until("the other pod to have all", func() bool {
		life, err := x.Life(t.Context(), "other", 0)
		return err == nil && life.Seq == s.seq
	})
	s.stop()
	if _, ok := s.in.parked[rankKey{"pod", 0}]; ok || len(s.in.parked) != 1 {
		t.Errorf("parked: %v", s.in.parked)
	}
}
