package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store"
)

const (
	// callKeys is how many blocks one run of apply.lua changes at most, and
	// callBytes how many bytes of values it may meet, so that it keeps the server
	// from others for less than 2 ms.
	callKeys  = 512
	callBytes = 64 << 10
	// tripCalls is how many runs go in one round trip at most.
	tripCalls = 64
	// applyTries is how often Apply begins anew because others have ended the
	// lives of the holders that it was about to write under.
	applyTries = 32
)

// What apply.lua returns instead of the bytes that it has looked at.
const (
	applied     int64 = 0 // or more
	outdated    int64 = -1
	leaseRunOut int64 = -2
	// incomplete is for the guards that parts are missing of.
	incomplete int64 = -3
)

// Apply implements store.Index.
//
// The writer believes that certain holders have certain ids; the server checks
// that in the call that writes (on a cluster: beside it), so that
//
//	A: looks up that pod/0/gpu is holder 17
//	B: clears the pod, whose next life is holder 18
//	A: writes blocks of 17
//
// does not lose A's blocks to a life that is over: A is told, asks for the ids
// again and writes as 18.
func (x *Index) Apply(ctx context.Context, batches ...store.Batch) error {
	if err := x.begin(ctx, "apply"); err != nil {
		return err
	}
	for i := range batches {
		if err := batches[i].Validate(); err != nil {
			return fmt.Errorf("batch %d: %w", i, err)
		}
	}
	var refused store.RefusedError
	for _, round := range store.Rounds(batches) {
		if err := x.applyRound(ctx, round, &refused); err != nil {
			if refused.Generations != nil {
				err = errors.Join(err, &refused)
			}
			return err
		}
	}
	if refused.Generations != nil {
		return &refused
	}
	return nil
}

// applyRound applies batches that can be applied at once. Those whose guards
// refuse go to refused.
func (x *Index) applyRound(ctx context.Context, batches []store.Batch, refused *store.RefusedError) error {
	p := newPlan(batches)
	for _, g := range p.guards {
		// What came before it in this call was refused.
		g.err = refused.Generations[g.Generation]
	}
	defer func() {
		for _, g := range p.guards {
			if g.dup {
				x.duplicates.Add(g.batches)
			}
			if g.err != nil {
				if refused.Generations == nil {
					refused.Generations = map[store.Generation]error{}
				}
				refused.Generations[g.Generation] = g.err
			}
		}
	}()
	for try := range applyTries {
		status, err := x.carryOut(ctx, p)
		if err != nil {
			return failed(ctx, "apply", err)
		}
		if status == applied {
			return nil
		}
		for _, pod := range p.pods {
			x.holders.drop(pod.name)
		}
		if status == leaseRunOut {
			if err := x.retireAllLate(ctx); err != nil {
				return failed(ctx, "apply", err)
			}
		}
		// Writers who end each other's holders in turn get out of step.
		if try > 2 {
			if err := sleep(ctx, rand.N(time.Millisecond<<min(try, 6))); err != nil {
				return failed(ctx, "apply", err)
			}
		}
	}
	return fmt.Errorf("%w: apply: the holders of pod %s ended %d times while their blocks were being written, or its blocks are moving between nodes", store.ErrUnavailable, p.pods[0].name, applyTries)
}

// retireAllLate retires the pods whose leases have run out.
func (x *Index) retireAllLate(ctx context.Context) error {
	a, err := x.ask(ctx, x.registry.current.Load().roster.epoch)
	if err == nil {
		err = x.retireLate(ctx, a.late)
	}
	return err
}

// carryOut makes one try at a plan.
func (x *Index) carryOut(ctx context.Context, p *plan) (status int64, err error) {
	if err := x.resolve(ctx, p); err != nil {
		return 0, err
	}
	guards := openGuards(p.guards)
	if x.cluster && slices.ContainsFunc(guards, x.acks.doubtful) {
		// The watermark decides, before any block is written.
		c := x.guardCall(x.checkCall(p), guards, 0)
		if status, _, err := x.runPhase(ctx, []*call{c}, true); err != nil || status < applied {
			return status, err
		}
		guards = openGuards(p.guards)
		for _, g := range guards {
			g.tried = g.tried || x.acks.doubtful(g)
		}
	}
	steps := p.steps()
	switch {
	case len(guards) > 0:
	case len(p.guards) > 0:
		return applied, nil
	case len(steps) == 0 && !slices.ContainsFunc(p.pods, func(pod *podPlan) bool { return !pod.resolved }):
		return applied, nil
	}
	phases := x.applyCalls(p, guards, steps)
	for _, g := range guards {
		g.tried = true
		x.acks.try(g)
	}
	bytes := int64(0)
	for _, calls := range phases {
		status, met, err := x.runPhase(ctx, calls, len(guards) > 0)
		if err != nil || status < applied {
			return status, err
		}
		bytes += met
	}
	x.pace.learn(len(steps), bytes)
	return applied, x.commit(ctx, p)
}

// runPhase makes runs of apply.lua.
func (x *Index) runPhase(ctx context.Context, calls []*call, guarded bool) (status, bytes int64, err error) {
	for len(calls) > 0 {
		n := min(len(calls), tripCalls)
		cmds, err := x.run(ctx, calls[:n]...)
		if x.cluster && redis.HasErrorPrefix(err, "TRYAGAIN") {
			if guarded || x.logs(ctx, calls[:n]) {
				// The record, or the log, and the blocks are on different nodes for a
				// moment.
				return incomplete, 0, nil
			}
			cmds, err = x.runSingly(ctx, calls[:n])
		}
		if err != nil {
			return 0, 0, err
		}
		for i, c := range cmds {
			s, met, err := x.heard(calls, i, c)
			if err != nil {
				return 0, 0, err
			}
			status, bytes = min(status, s), bytes+met
		}
		if status < applied && !guarded {
			break
		}
		calls = calls[n:]
	}
	return status, bytes, nil
}

// heard takes in the reply to calls[i]; the reply to a call that has been made
// block by block has none.
func (x *Index) heard(calls []*call, i int, c *redis.Cmd) (status, bytes int64, err error) {
	switch v := c.Val().(type) {
	case int64:
		return min(v, applied), max(v, 0), nil
	case []any:
		parts := calls[i].parts
		if len(v) != 1+len(parts) {
			break
		}
		bytes, _ = v[0].(int64)
		for j, p := range parts {
			verdict, _ := v[1+j].(int64)
			switch {
			case verdict == verdictGap:
				status = incomplete
			case verdict == verdictApplied:
				if last := p.parts > 0 && p.n == p.parts-1; last {
					x.acks.learn(p.guard, calls[i].place, x.config.MaxHolders)
					p.guard.done = p.guard.done || calls[i].place == atRegistry
				}
			case verdict == verdictDuplicate && calls[i].place != atRegistry:
				// This partition has it from an earlier try.
			case !p.guard.done:
				p.guard.hear(verdict)
			}
		}
		return status, bytes, nil
	}
	return 0, 0, fmt.Errorf("redis: apply.lua returned %v", c.Val())
}

// commit writes the watermarks on a cluster. On a single server they are written
// with the blocks.
func (x *Index) commit(ctx context.Context, p *plan) error {
	guards := openGuards(p.guards)
	if len(guards) == 0 {
		return nil
	}
	c := x.guardCall(unchecked, guards, 1)
	cmds, err := x.run(ctx, c)
	if err == nil {
		_, _, err = x.heard([]*call{c}, 0, cmds[0])
	}
	return err
}

// resolve gives the refs of the plan their ids: from the cache where it knows
// the pod, else from the server, which makes the clears as well.
func (x *Index) resolve(ctx context.Context, p *plan) error {
	var asked []*podPlan
	for _, pod := range p.pods {
		pod.resolved = false
		if len(pod.guards) > 0 && len(openGuards(pod.guards)) == 0 {
			continue
		}
		if len(pod.clears) > 0 || !x.holders.fill(pod) {
			asked = append(asked, pod)
		}
	}
	for len(asked) > 0 {
		n := min(len(asked), tripCalls)
		calls := make([]*call, n)
		for i, pod := range asked[:n] {
			var err error
			if calls[i], err = x.holdersCall(pod); err != nil {
				return err
			}
		}
		cmds, err := x.runReserving(ctx, calls...)
		if err != nil {
			return err
		}
		var again []*podPlan
		for i, pod := range asked[:n] {
			refused, err := x.resolved(pod, cmds[i])
			if err != nil {
				return err
			}
			if refused && len(openGuards(pod.guards)) > 0 {
				again = append(again, pod)
			}
		}
		asked = append(again, asked[n:]...)
	}
	return nil
}

// resolved reads the reply of holders.lua. refused is true when guards refuse,
// and then nothing has been done.
func (x *Index) resolved(pod *podPlan, c *redis.Cmd) (refused bool, err error) {
	reply, err := c.Slice()
	if err != nil {
		return false, fmt.Errorf("redis: holders.lua: %w", err)
	}
	guards, refs := openGuards(pod.guards), pod.open()
	if len(reply) < len(guards) {
		return false, fmt.Errorf("redis: holders.lua returned %d values for %d guards", len(reply), len(guards))
	}
	for i, g := range guards {
		verdict, _ := reply[i].(int64)
		if verdict != verdictApplied {
			g.hear(verdict)
			refused = true
		}
	}
	if refused {
		return true, nil
	}
	ids := reply[len(guards):]
	if len(ids) != len(refs) {
		return false, fmt.Errorf("redis: holders.lua returned %d ids for %d holders", len(ids), len(refs))
	}
	for j, r := range refs {
		text, _ := ids[j].(string)
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return false, fmt.Errorf("redis: holders.lua returned the id %q: %w", clip(text), err)
		}
		r.id = store.HolderID(id)
	}
	x.holders.learn(pod, x.config.MaxPods)
	pod.resolved, pod.clears = true, nil
	return false, nil
}

// open are the refs of a pod that are to be written.
func (pod *podPlan) open() []*holderRef {
	return slices.DeleteFunc(slices.Clone(pod.order), (*holderRef).dropped)
}

// runReserving is run for calls that may need more ids than are reserved.
func (x *Index) runReserving(ctx context.Context, calls ...*call) ([]*redis.Cmd, error) {
	cmds, err := x.run(ctx, calls...)
	// Once is enough, unless others take thousands of ids in between.
	for range applyTries {
		next, ok := reserveNeeded(err)
		if !ok {
			break
		}
		if err = x.reserve(ctx, next); err == nil {
			cmds, err = x.run(ctx, calls...)
		}
	}
	return cmds, err
}

func (x *Index) holdersCall(pod *podPlan) (*call, error) {
	text, err := json.Marshal(store.Pod{Name: pod.name, Model: pod.model})
	if err != nil {
		return nil, fmt.Errorf("redis: the registration of %s: %w", pod.name, err)
	}
	guards, refs := openGuards(pod.guards), pod.open()
	var clears []clearance
	for _, c := range pod.clears {
		if c.guard == nil || !c.guard.over() {
			clears = append(clears, c)
		}
	}
	args := make([]string, 0, 7+6*len(guards)+2*len(clears)+3*len(refs))
	args = append(args, pod.name, string(text), strconv.Itoa(x.config.MaxPods), strconv.Itoa(x.config.MaxHolders), strconv.Itoa(len(guards)))
	for _, g := range guards {
		args = append(args, strconv.Itoa(g.rank))
		for _, v := range []uint64{uint64(g.Generation), g.Fence, g.Seq, x.acks.after(g, atRegistry)} {
			args = append(args, strconv.FormatUint(v, 10))
		}
		args = append(args, flag(slices.ContainsFunc(clears, func(c clearance) bool { return c.guard == g })))
	}
	args = append(args, strconv.Itoa(len(clears)))
	for _, c := range clears {
		args = append(args, c.rank, c.tier)
	}
	args = append(args, strconv.Itoa(len(refs)))
	for _, r := range refs {
		args = append(args, strconv.Itoa(r.rank), r.tier.String(), flag(r.give))
	}
	return x.registryCall(holdersScript, x.names.own(pod.name), args...), nil
}

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
	changes := len(list)
	for _, c := range slices.Concat(sets, dels) {
		for i := range c.buckets {
			changes += c.buckets[i].fields()
		}
	}
	if changes <= x.pace.keys() {
		// All in one.
		for _, c := range calls[1:] {
			calls[0].edits = append(calls[0].edits, c.edits...)
			calls[0].buckets = append(calls[0].buckets, c.buckets...)
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

// head begins a run of apply.lua: with the check, the guards and the buckets of c.
func (x *Index) head(c, check *call) {
	c.script = applyScript
	c.keys = append(make([]string, 0, len(check.keys)+1+len(c.buckets)+len(c.edits)+2), check.keys...)
	c.args = append(make([]string, 0, len(check.args)+2+8*len(c.parts)+2), check.args[0], strconv.Itoa(len(c.parts)), strconv.Itoa(len(c.buckets)))
	c.args = append(c.args, check.args[1:]...)
	if len(c.parts) == 0 {
		return
	}
	records := x.names.records
	switch c.place {
	case atRegistry:
	case atMap:
		records = x.names.life(c.parts[0].guard.Generation) + "s"
	default:
		records = x.names.guards(c.place)
	}
	c.keys = append(c.keys, records)
	c.args = x.guardArgs(c.args, c.place, c.attempt, c.parts)
	for i := range c.buckets {
		b := &c.buckets[i]
		c.keys = append(c.keys, x.names.bucketName(b.gen, b.n))
		c.args = b.appendArgs(c.args)
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
				single = append(single, &call{script: c.script, keys: keys[:1], args: []string{"0", "0", "0", c.args[i], "1"}})
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
			buf = appendHolderField(buf[:0], r.rank, r.tier)
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

// holderCache remembers the ids of holders that this process writes under. What
// it knows may be outdated; the server checks it.
type holderCache struct {
	mu   sync.Mutex // protects pods
	pods map[string]map[place]held
}

// held is a holder's id and the generation under whose guard it was given, 0 for
// none. On a cluster, where the check goes beside the blocks, it keeps a writer
// whose generation has ended from writing for the next one:
//
//	A: owns generation 3, which ends; its records in the partitions are still there
//	B: writes for the rank without a guard: its holder is 18 now
//	A: must not take 18 for one of generation 3
type held struct {
	id   store.HolderID
	life store.Generation
}

// fill gives the refs of a pod the ids that are known. It is false when the
// server must be asked: for a pod that is not known, for a holder that needs an
// id, for one that is not known to be of the guard's generation, and when no
// holder has one, since nothing then shows that the pod is still registered.
func (h *holderCache) fill(pod *podPlan) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.pods[pod.name]
	some := false
	for _, r := range pod.order {
		if r.dropped() {
			continue
		}
		at := known[r.place]
		if r.guard != nil && at.id != 0 && at.life != r.guard.Generation {
			return false
		}
		r.id = at.id
		if r.id == 0 && r.give {
			return false
		}
		some = some || r.id != 0
	}
	return some
}

// learn remembers what the server has told about the refs of a pod, and forgets
// what the pod's clears have ended.
func (h *holderCache) learn(pod *podPlan, limit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.pods[pod.name]
	if known == nil {
		if h.pods == nil || len(h.pods) >= limit {
			h.pods = map[string]map[place]held{}
		}
		known = map[place]held{}
		h.pods[pod.name] = known
	}
	for at := range known {
		for i := range pod.clears {
			if pod.clears[i].covers(at) {
				delete(known, at)
			}
		}
	}
	for _, r := range pod.order {
		switch now := (held{id: r.id}); {
		case r.dropped():
		case r.id == 0:
			delete(known, r.place)
		case r.guard != nil:
			now.life = r.guard.Generation
			known[r.place] = now
		case known[r.place].id != r.id:
			known[r.place] = now
		}
	}
}

// drop forgets a pod.
func (h *holderCache) drop(pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, pod)
}

// sleep waits for d or the context's end, which is then its error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
