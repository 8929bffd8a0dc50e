package notes_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/route/notes/notestest"
	"github.com/kvatlas/kvatlas/store"
)

func TestMemory(t *testing.T) {
	notestest.Run(t, func(_ *testing.T, now func() time.Time) notes.Store { return notes.NewMemory(now) })
}

// A flood of sessions takes bounded memory: those whose leases end first are forgotten.
func TestMemoryBoundsSessions(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	m := notes.NewMemory(func() time.Time { return now })
	const more = 1000
	for i := range notes.MaxSessions + more {
		lease := time.Hour + time.Duration(i)*time.Millisecond
		must.OK(t, m.Bind(t.Context(), "m", fmt.Sprint(i), store.RankRef{Pod: "a"}, lease))
	}
	for i, known := range map[int]bool{0: false, more - 1: false, more: true, notes.MaxSessions + more - 1: true} {
		if at, err := m.Session(t.Context(), "m", fmt.Sprint(i)); err != nil || (at.Left > 0) != known {
			t.Errorf("session %d: %v, %v; want known %v", i, at, err, known)
		}
	}
}
