package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
)

// The map of a generation is written with every event and hardly ever read: its owner
// has most of it in memory. So a write is an element more at the end of a list of
// changes, whatever it changes. From time to time the owner folds the list into pages
// (fold.go), strings that each hold a part of all entries in order. What an entry is, is
// its last change in the list, or else what the page says.
//
// As the field of a hash a change took 2.3 to 6.2 us of the server, more the more entries
// there were; in the list it takes 0.03, and folding it 0.3 to 0.4.

// mapEdit are changes of one map in one run of apply.lua.
type mapEdit struct {
	gen        store.Generation
	sets, dels string // rows of entries
}

// joinMaps adds changes to those of a call.
func (c *call) joinMaps(maps []mapEdit) {
	for _, m := range maps {
		i := slices.IndexFunc(c.maps, func(have mapEdit) bool { return have.gen == m.gen })
		if i < 0 {
			c.maps = append(c.maps, m)
			continue
		}
		c.maps[i].sets += m.sets
		c.maps[i].dels += m.dels
	}
}

// mapCalls makes the runs of apply.lua that change maps: first those that set
// entries, then those that delete some. They have no head yet.
func (x *Index) mapCalls(guards []*guardPlan) (sets, dels []*call) {
	place := atRegistry
	if x.cluster {
		place = atMap
	}
	for _, g := range guards {
		bytes := 0
		for i := range g.ops {
			bytes += 12 + len(g.ops[i].Value)
		}
		all := mapChanges{rows: make([]byte, 0, bytes), list: make([]mapChange, 0, len(g.ops))}
		for _, op := range g.ops {
			all.add(mapEntry{op.MapKey, op.Value})
		}
		changes := all.last()
		g.entries = len(changes.list)
		var del []byte
		set := make([]byte, 0, min(len(all.rows), callBytes))
		flush := func() {
			if len(set) > 0 {
				sets = append(sets, &call{place: place, parts: []guardPart{{guard: g}}, maps: []mapEdit{{gen: g.Generation, sets: string(set)}}})
			}
			if len(del) > 0 {
				dels = append(dels, &call{place: place, parts: []guardPart{{guard: g}}, maps: []mapEdit{{gen: g.Generation, dels: string(del)}}})
			}
			set, del = set[:0], del[:0]
		}
		for _, m := range changes.list {
			if m.del {
				del = append(del, changes.row(m)...)
			} else {
				set = append(set, changes.row(m)...)
			}
			if max(len(set), len(del)) > callBytes/2 {
				flush()
			}
		}
		flush()
	}
	return sets, dels
}

// mapState is what is known of the pages of a map: how often they have been folded, how
// many they are, a power of 2 or 0, and about how many entries they hold. The text is
// the first element of the list, so that neither can be lost without the other.
type mapState struct {
	folds          uint64
	pages, entries int
	text           string
}

// newMap is the state of a map that nothing has been folded of.
const newMap = "0,0,0"

// maxPages is more pages than any map has: of 64 entries each, a billion.
const maxPages = 1 << 24

// parseMapState reads the state that a list begins with.
func parseMapState(list []string) (mapState, error) {
	if len(list) == 0 {
		return mapState{}, fmt.Errorf("%w: the server has lost the list of its map", store.ErrEnded)
	}
	s := mapState{text: list[0]}
	if s.text == newMap {
		return s, nil
	}
	if n, err := fmt.Sscanf(s.text, "%d,%d,%d", &s.folds, &s.pages, &s.entries); err != nil || n != 3 || s.pages < 1 || s.pages > maxPages || s.pages&(s.pages-1) != 0 || s.entries < 0 {
		return mapState{}, fmt.Errorf("%w: the list of its map begins with %q", store.ErrEnded, redisx.Clip(s.text))
	}
	return s, nil
}

// after is the state after a fold.
func (s mapState) after(pages, entries int) mapState {
	next := mapState{folds: s.folds + 1, pages: pages, entries: max(0, entries)}
	next.text = fmt.Sprintf("%d,%d,%d", next.folds, next.pages, next.entries)
	return next
}

// beginMap makes the list of a generation that has begun.
func (x *Index) beginMap(ctx context.Context, gen store.Generation) error {
	_, err := x.run(ctx, &call{script: mapScript, keys: []string{x.names.mapRecords(gen, x.cluster), x.names.changes(gen)}})
	return err
}

// takeMap forgets what is known of a map that others have written.
func (x *Index) takeMap(gen store.Generation, fence uint64) {
	x.views.take(gen)
	x.lists.open(gen, fence, -1)
}

// readTries is how often ReadMap begins anew because the map is being folded.
const readTries = 16

// ReadMap implements store.Index.
func (x *Index) ReadMap(ctx context.Context, gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	if err := x.begin(ctx, "map"); err != nil {
		return nil, err
	}
	if gen == 0 || len(keys) > store.MaxMapOps {
		return nil, fmt.Errorf("%w: %d keys of generation %d; there can be %d, of a generation", store.ErrInvalid, len(keys), gen, store.MaxMapOps)
	}
	v := x.views.take(gen)
	for range readTries {
		out, next, err := x.readMap(ctx, gen, v, keys)
		switch {
		case err != nil:
			return nil, err
		case out != nil:
			x.views.put(gen, next, x.config.MapCache)
			return out, nil
		}
		v = next
	}
	return nil, fmt.Errorf("%w: map: the map of generation %d was folded %d times while it was being read", store.ErrUnavailable, gen, readTries)
}

// see takes in what is new of a list.
func (x *Index) see(v *mapView, elements []string) {
	for _, element := range elements {
		if !v.add(element) {
			x.garbled.Add(1)
		}
	}
}

// catchUp reads on in a list that is too long for one command, up to its end. If it is
// folded meanwhile the view is wrong, which whoever looks at the state again sees.
func (x *Index) catchUp(ctx context.Context, gen store.Generation, v *mapView) error {
	for {
		step := listStep(v.elements, len(v.rows))
		x.roundTrips.Add(1)
		part, err := x.client.LRange(ctx, x.names.changes(gen), int64(v.elements)+1, int64(v.elements+step)).Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil // which is noticed with the state, too
		}
		if err != nil {
			return failed(ctx, "map", err)
		}
		x.see(v, part)
		if len(part) < step {
			return nil
		}
	}
}

// readMap reads entries by what is known of the map, and what is new of it. Without
// values and an error that was wrong, and the view that it returns is better.
func (x *Index) readMap(ctx context.Context, gen store.Generation, v *mapView, keys []store.MapKey) ([][]byte, *mapView, error) {
	byPage := map[int][]int{}
	if v.state.pages > 0 {
		for i, k := range keys {
			if _, known := v.find(k); !known {
				p := pageOf(k.Hash, v.state.pages)
				byPage[p] = append(byPage[p], i)
			}
		}
	}
	// Pages and list belong together when the state is the same before and after.
	// A page may have changes already that are in the list too, which does not matter.
	pipe := x.client.Pipeline()
	record := pipe.HGet(ctx, x.names.records, strconv.FormatUint(uint64(gen), 10))
	before := pipe.LRange(ctx, x.names.changes(gen), 0, 0)
	step := listStep(v.elements, len(v.rows))
	changes := pipe.LRange(ctx, x.names.changes(gen), int64(v.elements)+1, int64(v.elements+step))
	pages := make(map[int]*redis.StringCmd, len(byPage))
	for p := range byPage {
		pages[p] = pipe.Get(ctx, x.names.page(gen, v.state.pages, p))
	}
	after := pipe.LRange(ctx, x.names.changes(gen), 0, 0)
	x.roundTrips.Add(1)
	_, err := pipe.Exec(ctx)
	switch {
	case errors.Is(record.Err(), redis.Nil):
		return nil, nil, store.ErrEnded
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, nil, fmt.Errorf("map: %w: somebody else has written what is kept of its map", store.ErrEnded)
	case err != nil && !errors.Is(err, redis.Nil):
		return nil, nil, failed(ctx, "map", err)
	}
	state, err := parseMapState(after.Val())
	if err != nil {
		return nil, nil, fmt.Errorf("map: %w", err)
	}
	if state != v.state || !slices.Equal(before.Val(), after.Val()) {
		return nil, &mapView{state: state}, nil
	}
	x.see(v, changes.Val())
	if len(changes.Val()) == step {
		return nil, v, x.catchUp(ctx, gen, v)
	}
	out := make([][]byte, len(keys))
	for p, list := range byPage {
		wanted := make(map[store.MapKey][]int, len(list))
		for _, i := range list {
			wanted[keys[i]] = append(wanted[keys[i]], i)
		}
		rows, err := openPage(pages[p].Val())
		if err != nil {
			return nil, nil, fmt.Errorf("map: page %d of %d of generation %d: %w", p, v.state.pages, gen, err)
		}
		ok := eachEntry(rows, func(e mapEntry) {
			for _, i := range wanted[e.MapKey] {
				out[i] = slices.Clone(e.value)
			}
		})
		if !ok {
			x.garbled.Add(1)
		}
	}
	for i, k := range keys {
		if value, known := v.find(k); known {
			out[i] = slices.Clone(value)
		}
	}
	return out, v, nil
}
