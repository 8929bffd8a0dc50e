package enginemap

import (
	"fmt"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// State is what is known of the pages of a map. It has how often they have been
// compacted, how many they are, a power of 2 or 0, and about how many entries they hold.
// The text is the first element of the list, so that neither can be lost without the
// other.
type State struct {
	Compactions    uint64
	Pages, Entries int
	Text           string
}

// newMap is the state of a map that nothing has been compacted of.
const newMap = "0,0,0"

// MaxPages is more pages than any map has: of 64 entries each, a billion.
const MaxPages = 1 << 24

// ParseState reads the state that a list begins with.
func ParseState(list []string) (State, error) {
	if len(list) == 0 {
		return State{}, fmt.Errorf("%w: the server has lost the list of its map", store.ErrEnded)
	}
	s := State{Text: list[0]}
	if s.Text == newMap {
		return s, nil
	}
	if n, err := fmt.Sscanf(s.Text, "%d,%d,%d", &s.Compactions, &s.Pages, &s.Entries); err != nil || n != 3 || s.Pages < 1 || s.Pages > MaxPages || s.Pages&(s.Pages-1) != 0 || s.Entries < 0 {
		return State{}, fmt.Errorf("%w: the list of its map begins with %q", store.ErrEnded, redisx.Clip(s.Text))
	}
	return s, nil
}

// After is the state after a compaction.
func (s State) After(pages, entries int) State {
	next := State{Compactions: s.Compactions + 1, Pages: pages, Entries: max(0, entries)}
	next.Text = fmt.Sprintf("%d,%d,%d", next.Compactions, next.Pages, next.Entries)
	return next
}
