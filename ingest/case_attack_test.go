package ingest

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// TestCaseSmallOnesUnderAttackMedia pushes more words for media than the log has lines for.
func TestCaseSmallOnesUnderAttackMedia(t *testing.T) {
	x := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = x.Close() })
	told := 0
	in := newIngester(t, Config{Index: x, Observer: Observer{UnknownMedium: func(string, int, string) { told++ }}})
	must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: testModel}))(t)
	var events []event.Event
	for i := range 3 * maxUnknownMedia {
		events = append(events, event.Event{Kind: event.Stored, Hashes: []event.Hash{event.Hash(i)}, Tokens: make([]uint32, 16), BlockSize: 16, Medium: fmt.Sprint("tape", i)})
	}
	r, err := in.Push(t.Context(), Pushed{Pod: "a", Model: testModel, Ranks: []RankEvents{{0, events}}})
	if err != nil || r.Skipped != len(events) {
		t.Errorf("%+v, %v", r, err)
	}
	if told != maxUnknownMedia {
		t.Errorf("told of %d media, want %d", told, maxUnknownMedia)
	}
}
