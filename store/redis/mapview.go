package redis

import (
	"sync"

	"github.com/kvatlas/kvatlas/store"
)

// mapView is the list of changes of a map as far as it has been read, with a table of
// the last change of each entry: 20 to 40 bytes an entry together.
type mapView struct {
	state    mapState // that the list belongs to
	elements int      // of the list, without the state
	rows     []byte
	table    []uint32 // places in rows + 1, 0 for none; its length is a power of 2
	used     int
	seen     uint64 // when it was put back last
}

// add takes in the next element of the list, and reports whether it could be read.
func (v *mapView) add(element string) bool {
	v.elements++
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
func (v *mapView) note(k store.MapKey, at int) {
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
func (v *mapView) slot(k store.MapKey) int {
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

// find returns the last change of an entry, nil for its deletion. The value is a part
// of the view.
func (v *mapView) find(k store.MapKey) (value []byte, known bool) {
	if len(v.table) == 0 {
		return nil, false
	}
	place := v.table[v.slot(k)]
	if place == 0 {
		return nil, false
	}
	e, _, _ := nextEntry(v.rows[place-1:])
	return e.value, true
}

func (v *mapView) bytes() int { return cap(v.rows) + 4*cap(v.table) + 200 }

// mapViews keeps views, those that were used last. Who uses one takes it out.
type mapViews struct {
	mu    sync.Mutex // protects what follows
	views map[store.Generation]*mapView
	bytes int
	clock uint64
}

// take takes out the view of a generation, or makes one of an empty map.
func (s *mapViews) take(gen store.Generation) *mapView {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[gen]
	if v == nil {
		return &mapView{state: mapState{text: newMap}}
	}
	delete(s.views, gen)
	s.bytes -= v.bytes()
	return v
}

// put keeps a view, in so many bytes as all of them may take.
func (s *mapViews) put(gen store.Generation, v *mapView, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.views[gen]; old != nil {
		s.bytes -= old.bytes() // two have read at a time
	}
	if s.views == nil {
		s.views = map[store.Generation]*mapView{}
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
