package redis

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// run is one run of apply.lua: what it changes, and which parts of which guards it is.
type run struct {
	keyspace.Call
	edits   []edit
	maps    []mapEdit
	attempt uint64
	parts   []guardPart
}

func newRun(place int, edits []edit) *run {
	return &run{Call: keyspace.Call{Place: place}, edits: edits}
}

// callsOf are the runs as the server gets them.
func callsOf(runs []*run) []*keyspace.Call {
	out := make([]*keyspace.Call, len(runs))
	for i, r := range runs {
		out[i] = &r.Call
	}
	return out
}

// editPlaces are where the runs change blocks.
func editPlaces(runs []*run) (places []int) {
	for _, r := range runs {
		if len(r.edits) > 0 {
			places = append(places, r.Place)
		}
	}
	return places
}

// unchecked is what a run of apply.lua has for a check when it has none.
var unchecked = &run{Call: keyspace.Call{Args: []string{"0"}}}

// applyCalls makes the runs of apply.lua that a plan takes, in phases of which each
// must be acknowledged before the next.
//
// On a single server there is one, and each run checks the holders. On a cluster,
// where blocks lie in other slots than the registry, a run of its own does that.
// Entries of maps are there before the blocks that need them, and go after them.
func (x *Index) applyCalls(p *plan, guards []*guardPlan, steps []step) (phases [][]*run) {
	list, all := edits(steps, len(guards) > 1)
	if x.space.Cluster {
		slices.SortStableFunc(list, func(a, b edit) int { return a.key.Partition() - b.key.Partition() })
	}
	check := x.checkCall(p)
	sets, dels := x.mapCalls(guards)
	blocks := x.blockCalls(list, all)
	if x.space.Cluster {
		x.number(sets, blocks, dels)
		x.finish(unchecked, all, sets, blocks, dels)
		look := x.guardCall(check, guards, 0)
		return [][]*run{sets, append([]*run{look}, blocks...), dels}
	}
	calls := slices.Concat(sets, blocks, dels)
	if len(calls) == 0 {
		calls = []*run{newRun(keyspace.AtRegistry, nil)}
	}
	bytes := 0
	for _, c := range slices.Concat(sets, dels) {
		for i := range c.maps {
			bytes += len(c.maps[i].sets) + len(c.maps[i].dels)
		}
	}
	if len(list) <= x.pace.keys() && bytes <= callBytes {
		// All in one.
		for _, c := range calls[1:] {
			calls[0].edits = append(calls[0].edits, c.edits...)
			calls[0].joinMaps(c.maps)
			for _, p := range c.parts {
				calls[0].under(p.guard)
			}
		}
		calls = calls[:1]
	}
	// Guards that change nothing go with the others.
	for _, g := range guards {
		if !slices.ContainsFunc(calls, func(c *run) bool {
			return slices.ContainsFunc(c.parts, func(p guardPart) bool { return p.guard == g })
		}) {
			calls[len(calls)-1].under(g)
		}
	}
	x.number(calls)
	x.finish(check, all, calls)
	return [][]*run{calls}
}

// guardCall is a run of apply.lua at the registry that changes nothing else.
func (x *Index) guardCall(check *run, guards []*guardPlan, parts int) *run {
	c := newRun(keyspace.AtRegistry, nil)
	for _, g := range guards {
		c.parts = append(c.parts, guardPart{guard: g, parts: parts})
	}
	x.head(c, check)
	return c
}

// under adds a guard to a call.
func (c *run) under(g *guardPlan) {
	if !slices.ContainsFunc(c.parts, func(p guardPart) bool { return p.guard == g }) {
		c.parts = append(c.parts, guardPart{guard: g})
	}
}

// head begins a run of apply.lua: with the check, the guards and the maps of c.
func (x *Index) head(c, check *run) {
	c.Script = lua.Apply
	c.Keys = append(make([]string, 0, len(check.Keys)+1+len(c.maps)+len(c.edits)+2), check.Keys...)
	c.Args = append(make([]string, 0, len(check.Args)+2+8*len(c.parts)+3*len(c.maps)+2), check.Args[0], strconv.Itoa(len(c.parts)), strconv.Itoa(len(c.maps)))
	c.Args = append(c.Args, check.Args[1:]...)
	if c.Guarded = len(c.parts) > 0; !c.Guarded {
		return
	}
	records := x.space.Names.Records
	switch c.Place {
	case keyspace.AtRegistry:
	case keyspace.AtMap:
		records = x.space.Names.MapRecords(c.parts[0].guard.Generation, true)
	default:
		records = x.space.Names.Guards(c.Place)
	}
	c.Keys = append(c.Keys, records)
	c.Args = x.guardArgs(c.Args, c.Place, c.attempt, c.parts)
	for i := range c.maps {
		m := &c.maps[i]
		c.Keys = append(c.Keys, x.space.Names.Changes(m.gen))
		c.Args = append(c.Args, strconv.FormatUint(uint64(m.gen), 10), m.sets, m.dels)
	}
}

// number numbers the parts of each guard in each place.
func (x *Index) number(lists ...[]*run) {
	type where struct {
		guard *guardPlan
		place int
	}
	attempt := x.attempts.Add(1)
	counts := map[where]int{}
	calls := slices.Concat(lists...)
	for _, c := range calls {
		c.attempt = attempt
		for i := range c.parts {
			p := &c.parts[i]
			p.n = counts[where{p.guard, c.Place}]
			counts[where{p.guard, c.Place}]++
		}
	}
	for _, c := range calls {
		for i := range c.parts {
			c.parts[i].parts = counts[where{c.parts[i].guard, c.Place}]
		}
	}
}

// editCalls makes runs of apply.lua that have no guards and no check. The list
// ascends by partition.
func (x *Index) editCalls(list []edit, all []ops) []*run {
	calls := x.blockCalls(list, all)
	x.finish(unchecked, all, calls)
	return calls
}

// blockCalls cuts edits, which ascend by partition, into runs of apply.lua that
// are not numbered and finished yet.
func (x *Index) blockCalls(list []edit, all []ops) []*run {
	cut := parts(list, x.pace.keys(), x.space.Cluster)
	calls := make([]*run, len(cut))
	for i, edits := range cut {
		c := newRun(keyspace.AtRegistry, edits)
		if x.space.Cluster {
			c.Place = edits[0].key.Partition()
		}
		// Blocks that change alike stand together.
		slices.SortStableFunc(edits, func(a, b edit) int { return a.ops - b.ops })
		last := -1
		for _, e := range edits {
			if e.ops != last {
				last = e.ops
				for _, g := range all[e.ops].guards {
					c.under(g)
				}
			}
		}
		calls[i] = c
	}
	return calls
}

// finish writes the keys and args of calls.
func (x *Index) finish(check *run, all []ops, lists ...[]*run) {
	blocks := 0
	for _, calls := range lists {
		for _, c := range calls {
			blocks += len(c.edits)
		}
	}
	// All names of blocks are parts of one string.
	names := make([]byte, 0, blocks*x.space.Names.BlockLen())
	for _, calls := range lists {
		for _, c := range calls {
			for _, e := range c.edits {
				names = x.space.Names.AppendBlock(names, e.key)
			}
		}
	}
	text := string(names)
	for _, calls := range lists {
		for _, c := range calls {
			x.head(c, check)
			for range c.edits {
				c.Keys = append(c.Keys, text[:x.space.Names.BlockLen()])
				text = text[x.space.Names.BlockLen():]
			}
			if len(c.edits) > 0 {
				l := &x.space.Names.Logs[c.Place]
				c.Keys = append(c.Keys, l.Logged, l.Log)
			}
			for i := 0; i < len(c.edits); {
				j := i
				for j < len(c.edits) && c.edits[j].ops == c.edits[i].ops {
					j++
				}
				c.Args = append(c.Args, all[c.edits[i].ops].text, strconv.Itoa(j-i))
				i = j
			}
		}
	}
}

// runSingly makes the runs of a cluster again, each block in a run of its own.
// While a slot moves from one node to another, a script can only be run where all
// of its keys are. For a single key that is one node or the other.
func (x *Index) runSingly(ctx context.Context, calls []*run) ([]*redis.Cmd, error) {
	var all []*redis.Cmd
	for _, c := range calls {
		if c.Args[0] != "0" { // the check, which has no blocks
			cmds, err := x.space.Run(ctx, &c.Call)
			if err != nil {
				return nil, err
			}
			all = append(all, cmds...)
			continue
		}
		keys := c.Keys
		var single []*keyspace.Call
		for i := 3; i < len(c.Args); i += 2 {
			n, err := strconv.Atoi(c.Args[i+1])
			if err != nil {
				return nil, err
			}
			for range n {
				single = append(single, &keyspace.Call{Script: c.Script, Place: c.Place, Keys: keys[:1], Args: []string{"0", "0", "0", c.Args[i], "1"}})
				keys = keys[1:]
			}
		}
		cmds, err := x.space.Run(ctx, single...)
		if err != nil {
			return nil, err
		}
		all = append(all, cmds...)
	}
	return all, nil
}

// parts cuts a list of edits, which ascends by partition, into those of one run.
func parts(list []edit, size int, byPartition bool) [][]edit {
	var out [][]edit
	for len(list) > 0 {
		n := min(len(list), size)
		if byPartition {
			p := list[0].key.Partition()
			for i, e := range list[:n] {
				if e.key.Partition() != p {
					n = i
					break
				}
			}
		}
		out = append(out, list[:n])
		list = list[n:]
	}
	return out
}

// checkCall is the check that runs of apply.lua begin with. The first of its args
// is the number of pods, then comes what is believed of them.
func (x *Index) checkCall(p *plan) *run {
	c := &run{Call: keyspace.Call{Keys: []string{x.space.Names.Live}, Args: []string{""}}}
	var buf []byte
	pods := 0
	for _, pod := range p.pods {
		guards, refs := openGuards(pod.guards), pod.open()
		if len(pod.guards) > 0 && len(guards) == 0 {
			continue
		}
		pods++
		c.Keys = append(c.Keys, x.space.Names.Own(pod.name))
		c.Args = append(c.Args, strconv.Itoa(len(refs)+len(guards)))
		for _, r := range refs {
			buf = appendHolderField(buf[:0], r.place)
			id := ""
			if r.id != 0 {
				id = strconv.FormatUint(uint64(r.id), 10)
			}
			c.Args = append(c.Args, string(buf), id)
		}
		for _, g := range guards {
			c.Args = append(c.Args, strconv.Itoa(g.rank), strconv.FormatUint(uint64(g.Generation), 10))
		}
	}
	c.Args[0] = strconv.Itoa(pods)
	return c
}

// pace is how many blocks one run of apply.lua should change: fewer where many
// hold each of them.
type pace struct {
	// bytes is what the values have been long lately, on average.
	bytes atomic.Int64
}

// learn takes in what a call has met.
func (p *pace) learn(blocks int, bytes int64) {
	if blocks == 0 {
		return
	}
	// Up at once, down slowly: a run that is too short costs little.
	now, last := bytes/int64(blocks), p.bytes.Load()
	if now < last {
		now = last - (last-now+15)/16
	}
	p.bytes.Store(now)
}

// keys is how many blocks the next run should change.
func (p *pace) keys() int {
	return int(min(callKeys, max(8, callBytes/max(1, p.bytes.Load()))))
}
