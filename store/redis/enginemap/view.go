package enginemap

import (
	"sync"

	"github.com/kvatlas/kvatlas/store"
)

// View is the list of changes of a map as far as it has been read. It has a table of
// the last change of each entry. Together they take 20 to 40 bytes an entry.
type View struct {
	State    State // that the list belongs to
	Elements int   // of the list, without the state
	rows     []byte
	table    []uint32 // places in rows + 1, 0 for none; its length is a power of 2
	used     int
	seen     uint64 // when it was put back last
}

// Add takes in the next element of the list, and reports whether it could be read.
func (v *View) Add(element string) bool {
	v.Elements++
	from := len(v.rows)
	v.rows = append(v.rows, element...)
	for at := from; at < len(v.rows); {
		e, rest, ok := nextEntry(v.rows[at:])
		if !ok {
			v.rows = v.rows[:at]
			return false
		}
		v.note(e.MapKey, at)
		at = len(v.rows) - len(rest)
	}
	return true
}

// note makes the entry at a place the last of its key.
func (v *View) note(k store.MapKey, at int) {
	if 4*(v.used+1) > 3*len(v.table) {
		old := v.table
		v.table = make([]uint32, max(64, 2*len(old)))
		for _, place := range old {
			if place > 0 {
				e, _, _ := nextEntry(v.rows[place-1:])
				v.table[v.slot(e.MapKey)] = place
			}
		}
	}
	s := v.slot(k)
	if v.table[s] == 0 {
		v.used++
	}
	v.table[s] = uint32(at) + 1
}

// slot is where a key is in the table, or has its place.
func (v *View) slot(k store.MapKey) int {
	mask := len(v.table) - 1
	for i := int((k.Hash^uint64(k.Part)<<40)*0x9e3779b97f4a7c15>>33) & mask; ; i = (i + 1) & mask {
		if v.table[i] == 0 {
			return i
		}
		if e, _, _ := nextEntry(v.rows[v.table[i]-1:]); e.MapKey == k {
			return i
		}
	}
}

// Find returns the last change of an entry, nil for its deletion. The value is a part
// of the view.
func (v *View) Find(k store.MapKey) (value []byte, known bool) {
	if len(v.table) == 0 {
		return nil, false
	}
	place := v.table[v.slot(k)]
	if place == 0 {
		return nil, false
	}
	e, _, _ := nextEntry(v.rows[place-1:])
	return e.Value, true
}

// Bytes is how long the rows that have been read are.
func (v *View) Bytes() int { return len(v.rows) }

func (v *View) bytes() int { return cap(v.rows) + 4*cap(v.table) + 200 }

// Views keeps views, those that were used last. A user takes one out.
type Views struct {
	mu    sync.Mutex // protects what follows
	views map[store.Generation]*View
	bytes int
	clock uint64
}

// Len is how many views are kept.
func (s *Views) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.views)
}

// Take takes out the view of a generation, or makes one of an empty map.
func (s *Views) Take(gen store.Generation) *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[gen]
	if v == nil {
		return &View{State: State{Text: newMap}}
	}
	delete(s.views, gen)
	s.bytes -= v.bytes()
	return v
}

// Put keeps a view, in so many bytes as all of them may take.
func (s *Views) Put(gen store.Generation, v *View, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.views[gen]; old != nil {
		s.bytes -= old.bytes() // two have read at a time
	}
	if s.views == nil {
		s.views = map[store.Generation]*View{}
	}
	s.clock++
	v.seen = s.clock
	s.views[gen] = v
	s.bytes += v.bytes()
	for s.bytes > limit {
		oldest := gen
		for g, o := range s.views {
			if o.seen < s.views[oldest].seen {
				oldest = g
			}
		}
		s.bytes -= s.views[oldest].bytes()
		delete(s.views, oldest)
		if oldest == gen {
			return
		}
	}
}
