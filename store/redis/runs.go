package redis

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// flag is how scripts take a bool.
func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// unchecked is what a run of apply.lua has for a check when it has none.
var unchecked = &call{args: []string{"0"}}

// applyCalls makes the runs of apply.lua that a plan takes, in phases of which each
// must be acknowledged before the next.
//
// On a single server there is one, and each run checks the holders. On a cluster,
// where blocks lie in other slots than the registry, a run of its own does that;
// and entries of maps are there before the blocks that need them, and go after
// them.
func (x *Index) applyCalls(p *plan, guards []*guardPlan, steps []step) (phases [][]*call) {
	list, all := edits(steps, len(guards) > 1)
	if x.cluster {
		slices.SortStableFunc(list, func(a, b edit) int { return a.key.Partition() - b.key.Partition() })
	}
	check := x.checkCall(p)
	sets, dels := x.mapCalls(guards)
	blocks := x.blockCalls(list, all)
	if x.cluster {
		x.number(sets, blocks, dels)
		x.finish(unchecked, all, sets, blocks, dels)
		look := x.guardCall(check, guards, 0)
		return [][]*call{sets, append([]*call{look}, blocks...), dels}
	}
	calls := slices.Concat(sets, blocks, dels)
	if len(calls) == 0 {
		calls = []*call{{place: atRegistry}}
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
		if !slices.ContainsFunc(calls, func(c *call) bool {
			return slices.ContainsFunc(c.parts, func(p guardPart) bool { return p.guard == g })
		}) {
			calls[len(calls)-1].under(g)
		}
	}
	x.number(calls)
	x.finish(check, all, calls)
	return [][]*call{calls}
}

// guardCall is a run of apply.lua at the registry that changes nothing else.
func (x *Index) guardCall(check *call, guards []*guardPlan, parts int) *call {
	c := &call{place: atRegistry}
	for _, g := range guards {
		c.parts = append(c.parts, guardPart{guard: g, parts: parts})
	}
	x.head(c, check)
	return c
}

// under adds a guard to a call.
func (c *call) under(g *guardPlan) {
	if !slices.ContainsFunc(c.parts, func(p guardPart) bool { return p.guard == g }) {
		c.parts = append(c.parts, guardPart{guard: g})
	}
}

// head begins a run of apply.lua: with the check, the guards and the maps of c.
func (x *Index) head(c, check *call) {
	c.script = applyScript
	c.keys = append(make([]string, 0, len(check.keys)+1+len(c.maps)+len(c.edits)+2), check.keys...)
	c.args = append(make([]string, 0, len(check.args)+2+8*len(c.parts)+3*len(c.maps)+2), check.args[0], strconv.Itoa(len(c.parts)), strconv.Itoa(len(c.maps)))
	c.args = append(c.args, check.args[1:]...)
	if len(c.parts) == 0 {
		return
	}
	records := x.names.records
	switch c.place {
	case atRegistry:
	case atMap:
		records = x.names.mapRecords(c.parts[0].guard.Generation, true)
	default:
		records = x.names.guards(c.place)
	}
	c.keys = append(c.keys, records)
	c.args = x.guardArgs(c.args, c.place, c.attempt, c.parts)
	for i := range c.maps {
		m := &c.maps[i]
		c.keys = append(c.keys, x.names.changes(m.gen))
		c.args = append(c.args, strconv.FormatUint(uint64(m.gen), 10), m.sets, m.dels)
	}
}

// number numbers the parts of each guard in each place.
func (x *Index) number(lists ...[]*call) {
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
			p.n = counts[where{p.guard, c.place}]
			counts[where{p.guard, c.place}]++
		}
	}
	for _, c := range calls {
		for i := range c.parts {
			c.parts[i].parts = counts[where{c.parts[i].guard, c.place}]
		}
	}
}

// editCalls makes runs of apply.lua that have no guards and no check. The list
// ascends by partition.
func (x *Index) editCalls(list []edit, all []ops) []*call {
	calls := x.blockCalls(list, all)
	x.finish(unchecked, all, calls)
	return calls
}

// blockCalls cuts edits, which ascend by partition, into runs of apply.lua that
// are not numbered and finished yet.
func (x *Index) blockCalls(list []edit, all []ops) []*call {
	cut := parts(list, x.pace.keys(), x.cluster)
	calls := make([]*call, len(cut))
	for i, edits := range cut {
		c := &call{place: atRegistry, edits: edits}
		if x.cluster {
			c.place = edits[0].key.Partition()
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
func (x *Index) finish(check *call, all []ops, lists ...[]*call) {
	blocks := 0
	for _, calls := range lists {
		for _, c := range calls {
			blocks += len(c.edits)
		}
	}
	// All names of blocks are parts of one string.
	names := make([]byte, 0, blocks*x.names.blockLen())
	for _, calls := range lists {
		for _, c := range calls {
			for _, e := range c.edits {
				names = x.names.appendBlock(names, e.key)
			}
		}
	}
	text := string(names)
	for _, calls := range lists {
		for _, c := range calls {
			x.head(c, check)
			for range c.edits {
				c.keys = append(c.keys, text[:x.names.blockLen()])
				text = text[x.names.blockLen():]
			}
			if len(c.edits) > 0 {
				l := &x.names.logs[c.place]
				c.keys = append(c.keys, l.logged, l.log)
			}
			for i := 0; i < len(c.edits); {
				j := i
				for j < len(c.edits) && c.edits[j].ops == c.edits[i].ops {
					j++
				}
				c.args = append(c.args, all[c.edits[i].ops].text, strconv.Itoa(j-i))
				i = j
			}
		}
	}
}

// runSingly makes the runs of a cluster again, each block in a run of its own.
// While a slot moves from one node to another, a script can only be run where
// all of its keys are, which for a single key is one node or the other.
func (x *Index) runSingly(ctx context.Context, calls []*call) ([]*redis.Cmd, error) {
	var all []*redis.Cmd
	for _, c := range calls {
		if c.args[0] != "0" { // the check, which has no blocks
			cmds, err := x.run(ctx, c)
			if err != nil {
				return nil, err
			}
			all = append(all, cmds...)
			continue
		}
		keys := c.keys
		var single []*call
		for i := 3; i < len(c.args); i += 2 {
			n, err := strconv.Atoi(c.args[i+1])
			if err != nil {
				return nil, err
			}
			for range n {
				single = append(single, &call{script: c.script, place: c.place, keys: keys[:1], args: []string{"0", "0", "0", c.args[i], "1"}})
				keys = keys[1:]
			}
		}
		cmds, err := x.run(ctx, single...)
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

// checkCall is the check that runs of apply.lua begin with: the first of its args
// is the number of pods, then comes what is believed of them.
func (x *Index) checkCall(p *plan) *call {
	c := &call{keys: []string{x.names.live}, args: []string{""}}
	var buf []byte
	pods := 0
	for _, pod := range p.pods {
		guards, refs := openGuards(pod.guards), pod.open()
		if len(pod.guards) > 0 && len(guards) == 0 {
			continue
		}
		pods++
		c.keys = append(c.keys, x.names.own(pod.name))
		c.args = append(c.args, strconv.Itoa(len(refs)+len(guards)))
		for _, r := range refs {
			buf = appendHolderField(buf[:0], r.place)
			id := ""
			if r.id != 0 {
				id = strconv.FormatUint(uint64(r.id), 10)
			}
			c.args = append(c.args, string(buf), id)
		}
		for _, g := range guards {
			c.args = append(c.args, strconv.Itoa(g.rank), strconv.FormatUint(uint64(g.Generation), 10))
		}
	}
	c.args[0] = strconv.Itoa(pods)
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
