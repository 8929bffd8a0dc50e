package notes

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// Memory keeps notes in one process.
type Memory struct {
	now func() time.Time

	mu       sync.Mutex // protects all below
	ranks    map[rankOf][]slice
	sessions map[string]*sessions
	demand   map[string]map[string]told // by model and process
	swept    int64                      // when ranks were last looked through, in ms
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty Memory. now is its clock; nil is time.Now.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	return &Memory{now: now, ranks: map[rankOf][]slice{}, sessions: map[string]*sessions{}, demand: map[string]map[string]told{}}
}

type rankOf struct {
	model string
	store.RankRef
}

// slice is how many blocks are predicted under an end, in ms of the Unix epoch.
type slice struct {
	until, blocks int64
}

// sweepEvery is how often ranks without predictions are forgotten, in ms.
const sweepEvery = 60_000

// Slice implements Store.
func (m *Memory) Slice(_ context.Context, s Slice) (Sliced, error) {
	if err := s.Validate(); err != nil {
		return Sliced{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMilli()
	m.sweep(now)
	at := rankOf{s.Model, s.RankRef}
	var out Sliced
	list, over := addSlice(live(m.ranks[at], now), &s, now)
	m.ranks[at] = list
	out.Until = time.UnixMilli(list[len(list)-1].until)
	for _, until := range over {
		out.Over = append(out.Over, time.UnixMilli(until))
	}
	return out, nil
}

// live returns the slices that are not over.
func live(list []slice, now int64) []slice {
	for len(list) > 0 && list[0].until <= now {
		list = list[1:]
	}
	return list
}

// addSlice counts blocks in the last slice of a list, which it begins if need be. It
// returns the list with the ends of the slices that are over with it. The last of the list
// is the one for the blocks.
func addSlice(list []slice, s *Slice, now int64) (_ []slice, over []int64) {
	step := s.Step()
	until := (now/step+1)*step + s.TTL.Milliseconds()
	if n := len(list); n > 0 && list[n-1].until >= until {
		until = list[n-1].until
	} else {
		list = append(list, slice{until: until})
	}
	total := s.Blocks
	for _, x := range list {
		total += x.blocks
	}
	if total > s.Max {
		for len(list) > 0 && total-s.Blocks > 0 && total > s.Keep {
			total -= list[0].blocks
			if list[0].blocks > 0 {
				over = append(over, list[0].until)
			}
			if len(list) == 1 { // the present one: the next ends a moment later
				list = []slice{{until: until + 1}}
				break
			}
			list = list[1:]
		}
	}
	list[len(list)-1].blocks += s.Blocks
	return list, over
}

// sweep forgets ranks of which nothing is predicted.
func (m *Memory) sweep(now int64) {
	if now-m.swept < sweepEvery {
		return
	}
	m.swept = now
	for at, list := range m.ranks {
		if len(live(list, now)) == 0 {
			delete(m.ranks, at)
		}
	}
}

// sessions are those of a model.
type sessions struct {
	byKey map[[16]byte]*session
	ends  ends
}

type session struct {
	key   [16]byte
	at    store.RankRef
	until int64 // in us of the Unix epoch
	place int   // in ends
}

// Session implements Store.
func (m *Memory) Session(_ context.Context, model, name string) (Bound, error) {
	if err := CheckSession(name); err != nil {
		return Bound{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.sessions[model]
	if all == nil {
		return Bound{}, nil
	}
	now := m.now().UnixMicro()
	x := all.byKey[SessionKey(name)]
	if x == nil || x.until <= now {
		return Bound{}, nil
	}
	return Bound{x.at, time.Duration(x.until-now) * time.Microsecond}, nil
}

// Bind implements Store.
func (m *Memory) Bind(_ context.Context, model, name string, at store.RankRef, lease time.Duration) error {
	if err := CheckBind(name, at, lease); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.sessions[model]
	if all == nil {
		all = &sessions{byKey: map[[16]byte]*session{}}
		m.sessions[model] = all
	}
	now := m.now().UnixMicro()
	key := SessionKey(name)
	x := all.byKey[key]
	if x == nil {
		for n := 0; len(all.ends) > 0 && (all.ends[0].until <= now && n < 8 || len(all.ends) >= MaxSessions); n++ {
			delete(all.byKey, all.ends[0].key)
			heap.Pop(&all.ends)
		}
		x = &session{key: key}
		all.byKey[key] = x
		heap.Push(&all.ends, x)
	}
	x.at, x.until = at, now+lease.Microseconds()
	heap.Fix(&all.ends, x.place)
	return nil
}

// ends is a heap of sessions by the ends of their leases.
type ends []*session

func (h *ends) Len() int           { return len(*h) }
func (h *ends) Less(i, j int) bool { return (*h)[i].until < (*h)[j].until }
func (h *ends) Swap(i, j int) {
	(*h)[i], (*h)[j] = (*h)[j], (*h)[i]
	(*h)[i].place, (*h)[j].place = i, j
}

// Push implements heap.Interface.
func (h *ends) Push(x any) {
	if s, ok := x.(*session); ok {
		s.place = len(*h)
		*h = append(*h, s)
	}
}

// Pop implements heap.Interface.
func (h *ends) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}
