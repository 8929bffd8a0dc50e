package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/enginemap"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// The map of a generation is written with every event and hardly ever read: its owner
// has most of it in memory. So a write is an element more at the end of a list of
// changes, whatever it changes. From time to time the owner compacts the list into pages
// (compact.go), strings that each hold a part of all entries in order. What an entry is, is
// its last change in the list, or else what the page says.
//
// As the field of a hash a change took 2.3 to 6.2 us of the server, more the more entries
// there were. In the list it takes 0.03, and compacting it 0.3 to 0.4.

// mapEdit are changes of one map in one run of apply.lua.
type mapEdit struct {
	gen        store.Generation
	sets, dels string // rows of entries
}

// joinMaps adds changes to those of a call.
func (c *run) joinMaps(maps []mapEdit) {
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

// mapRun is a run that changes a map alone.
func mapRun(place int, g *guardPlan, m mapEdit) *run {
	return &run{Call: keyspace.Call{Place: place}, parts: []guardPart{{guard: g}}, maps: []mapEdit{m}}
}

// mapCalls makes the runs of apply.lua that change maps: first those that set
// entries, then those that delete some. They have no head yet.
func (x *Index) mapCalls(guards []*guardPlan) (sets, dels []*run) {
	place := keyspace.AtRegistry
	if x.space.Cluster {
		place = keyspace.AtMap
	}
	for _, g := range guards {
		bytes, removed := 0, 0
		for i := range g.ops {
			bytes += 12 + len(g.ops[i].Value)
			if g.ops[i].Value == nil {
				removed++
			}
		}
		if bytes <= callBytes/2 && (removed == 0 || removed == len(g.ops)) {
			// They go behind the list as they come, in one run, and the last one of a key counts there:
			// nothing needs to be sorted.
			g.entries = len(g.ops)
			m := mapEdit{gen: g.Generation}
			switch rows := rowsOf(g.ops, bytes); {
			case len(g.ops) == 0:
			case removed == 0:
				m.sets = rows
				sets = append(sets, mapRun(place, g, m))
			default:
				m.dels = rows
				dels = append(dels, mapRun(place, g, m))
			}
			continue
		}
		all := enginemap.NewChanges(len(g.ops), bytes)
		for _, op := range g.ops {
			all.Add(enginemap.Entry{MapKey: op.MapKey, Value: op.Value})
		}
		changes := all.Last()
		g.entries = changes.Len()
		var del []byte
		set := make([]byte, 0, min(all.Bytes(), callBytes))
		flush := func() {
			if len(set) > 0 {
				sets = append(sets, mapRun(place, g, mapEdit{gen: g.Generation, sets: string(set)}))
			}
			if len(del) > 0 {
				dels = append(dels, mapRun(place, g, mapEdit{gen: g.Generation, dels: string(del)}))
			}
			set, del = set[:0], del[:0]
		}
		for row, deletes := range changes.All() {
			if deletes {
				del = append(del, row...)
			} else {
				set = append(set, row...)
			}
			if max(len(set), len(del)) > callBytes/2 {
				flush()
			}
		}
		flush()
	}
	return sets, dels
}

// rowsOf are the rows of changes, which take at most so many bytes.
func rowsOf(ops []store.MapOp, most int) string {
	rows := make([]byte, 0, most)
	for i := range ops {
		e := enginemap.Entry{MapKey: ops[i].MapKey, Value: ops[i].Value}
		rows = e.AppendTo(rows)
	}
	return string(rows)
}

// beginMap makes the list of a generation that has begun.
func (x *Index) beginMap(ctx context.Context, gen store.Generation) error {
	_, err := x.space.Run(ctx, &keyspace.Call{Script: lua.Map, Keys: []string{x.space.Names.MapRecords(gen, x.space.Cluster), x.space.Names.Changes(gen)}})
	return err
}

// takeMap forgets what is known of a map that others have written.
func (x *Index) takeMap(gen store.Generation, fence uint64) {
	x.views.Take(gen)
	x.lists.open(gen, fence, -1)
}

// readTries is how often ReadMap begins anew because the map is being compacted.
const readTries = 16

// ReadMap implements store.Index.
func (x *Index) ReadMap(ctx context.Context, gen store.Generation, keys ...store.MapKey) ([][]byte, error) {
	if err := x.space.Check(ctx, "map"); err != nil {
		return nil, err
	}
	if gen == 0 || len(keys) > store.MaxMapOps {
		return nil, fmt.Errorf("%w: %d keys of generation %d; there can be %d, of a generation", store.ErrInvalid, len(keys), gen, store.MaxMapOps)
	}
	v := x.views.Take(gen)
	for range readTries {
		out, next, err := x.readMap(ctx, gen, v, keys)
		switch {
		case err != nil:
			return nil, err
		case out != nil:
			x.views.Put(gen, next, x.config.MapCache)
			return out, nil
		}
		v = next
	}
	return nil, fmt.Errorf("%w: map: the map of generation %d was compacted %d times while it was being read", store.ErrUnavailable, gen, readTries)
}

// see takes in what is new of a list.
func (x *Index) see(v *enginemap.View, elements []string) {
	for _, element := range elements {
		if !v.Add(element) {
			x.space.Garbled.Add(1)
		}
	}
}

// catchUp reads on in a list that is too long for one command, up to its end. If it is
// compacted meanwhile the view is wrong, which the next look at the state shows.
func (x *Index) catchUp(ctx context.Context, gen store.Generation, v *enginemap.View) error {
	for {
		step := listStep(v.Elements, v.Bytes())
		x.space.Trips.Add(1)
		part, err := x.space.Client.LRange(ctx, x.space.Names.Changes(gen), int64(v.Elements)+1, int64(v.Elements+step)).Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil // which is noticed with the state, too
		}
		if err != nil {
			return keyspace.Failed(ctx, "map", err)
		}
		x.see(v, part)
		if len(part) < step {
			return nil
		}
	}
}

// readMap reads entries by what is known of the map, and what is new of it. Without
// values and an error that was wrong, and the view that it returns is better.
func (x *Index) readMap(ctx context.Context, gen store.Generation, v *enginemap.View, keys []store.MapKey) ([][]byte, *enginemap.View, error) {
	byPage := map[int][]int{}
	if v.State.Pages > 0 {
		for i, k := range keys {
			if _, known := v.Find(k); !known {
				p := enginemap.PageOf(k.Hash, v.State.Pages)
				byPage[p] = append(byPage[p], i)
			}
		}
	}
	// Pages and list belong together when the state is the same before and after.
	// A page may have changes already that are in the list too, which does not matter.
	pipe := x.space.Client.Pipeline()
	record := pipe.HGet(ctx, x.space.Names.Records, strconv.FormatUint(uint64(gen), 10))
	before := pipe.LRange(ctx, x.space.Names.Changes(gen), 0, 0)
	step := listStep(v.Elements, v.Bytes())
	changes := pipe.LRange(ctx, x.space.Names.Changes(gen), int64(v.Elements)+1, int64(v.Elements+step))
	pages := make(map[int]*redis.StringCmd, len(byPage))
	for p := range byPage {
		pages[p] = pipe.Get(ctx, x.space.Names.Page(gen, v.State.Pages, p))
	}
	after := pipe.LRange(ctx, x.space.Names.Changes(gen), 0, 0)
	x.space.Trips.Add(1)
	_, err := pipe.Exec(ctx)
	switch {
	case errors.Is(record.Err(), redis.Nil):
		return nil, nil, store.ErrEnded
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, nil, fmt.Errorf("map: %w: another process has written what is kept of its map", store.ErrEnded)
	case err != nil && !errors.Is(err, redis.Nil):
		return nil, nil, keyspace.Failed(ctx, "map", err)
	}
	state, err := enginemap.ParseState(after.Val())
	if err != nil {
		return nil, nil, fmt.Errorf("map: %w", err)
	}
	if state != v.State || !slices.Equal(before.Val(), after.Val()) {
		return nil, &enginemap.View{State: state}, nil
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
		rows, err := enginemap.OpenPage(pages[p].Val())
		if err != nil {
			return nil, nil, fmt.Errorf("map: page %d of %d of generation %d: %w", p, v.State.Pages, gen, err)
		}
		ok := enginemap.Each(rows, func(e enginemap.Entry) {
			for _, i := range wanted[e.MapKey] {
				out[i] = slices.Clone(e.Value)
			}
		})
		if !ok {
			x.space.Garbled.Add(1)
		}
	}
	for i, k := range keys {
		if value, known := v.Find(k); known {
			out[i] = slices.Clone(value)
		}
	}
	return out, v, nil
}
