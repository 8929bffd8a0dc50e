package redis

import (
	"context"
	"encoding/json"
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
	p := newPlan(batches)
	if len(p.pods) == 0 {
		return nil
	}
	for try := range applyTries {
		status, err := x.carryOut(ctx, p)
		if err != nil {
			return failed(ctx, "apply", err)
		}
		if status == applied {
			return nil
		}
		x.holders.drop(p.pods)
		if status == leaseRunOut {
			_, late, err := x.read(ctx)
			if err == nil {
				err = x.retireLate(ctx, late)
			}
			if err != nil {
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
	return fmt.Errorf("%w: apply: the holders of pod %s ended %d times while their blocks were being written", store.ErrUnavailable, p.pods[0].name, applyTries)
}

// carryOut makes one try at a plan.
func (x *Index) carryOut(ctx context.Context, p *plan) (status int64, err error) {
	if err := x.resolve(ctx, p); err != nil {
		return 0, err
	}
	steps := p.steps()
	if len(steps) == 0 && !slices.ContainsFunc(p.pods, func(pod *podPlan) bool { return !pod.resolved }) {
		return applied, nil
	}
	calls := x.applyCalls(p, steps)
	bytes := int64(0)
	for len(calls) > 0 {
		n := min(len(calls), tripCalls)
		cmds, err := x.run(ctx, calls[:n]...)
		if x.cluster && redis.HasErrorPrefix(err, "TRYAGAIN") {
			cmds, err = x.runSingly(ctx, calls[:n])
		}
		if err != nil {
			return 0, err
		}
		for _, c := range cmds {
			status, ok := c.Val().(int64)
			if !ok {
				return 0, fmt.Errorf("redis: apply.lua returned %v", c.Val())
			}
			if status < applied {
				return status, nil
			}
			bytes += status
		}
		calls = calls[n:]
	}
	x.pace.learn(len(steps), bytes)
	return applied, nil
}

// resolve gives the refs of the plan their ids: from the cache where it knows
// the pod, else from the server, which makes the clears as well.
func (x *Index) resolve(ctx context.Context, p *plan) error {
	var calls []*call
	var asked []*podPlan
	for _, pod := range p.pods {
		pod.resolved = false
		if len(pod.clears) == 0 && x.holders.fill(pod) {
			continue
		}
		c, err := x.holdersCall(pod)
		if err != nil {
			return err
		}
		calls, asked = append(calls, c), append(asked, pod)
	}
	for len(calls) > 0 {
		n := min(len(calls), tripCalls)
		cmds, err := x.run(ctx, calls[:n]...)
		// Once is enough, unless others take thousands of ids in between.
		for range applyTries {
			next, ok := reserveNeeded(err)
			if !ok {
				break
			}
			if err = x.reserve(ctx, next); err == nil {
				cmds, err = x.run(ctx, calls[:n]...)
			}
		}
		if err != nil {
			return err
		}
		for i, pod := range asked[:n] {
			ids, err := cmds[i].StringSlice()
			if err != nil {
				return fmt.Errorf("redis: holders.lua: %w", err)
			}
			if len(ids) != len(pod.order) {
				return fmt.Errorf("redis: holders.lua returned %d ids for %d holders", len(ids), len(pod.order))
			}
			for j, r := range pod.order {
				id, err := strconv.ParseUint(ids[j], 10, 32)
				if err != nil {
					return fmt.Errorf("redis: holders.lua returned the id %q: %w", clip(ids[j]), err)
				}
				r.id = store.HolderID(id)
			}
			x.holders.learn(pod, x.config.MaxPods)
			pod.resolved, pod.clears = true, nil
		}
		calls, asked = calls[n:], asked[n:]
	}
	return nil
}

func (x *Index) holdersCall(pod *podPlan) (*call, error) {
	text, err := json.Marshal(store.Pod{Name: pod.name, Model: pod.model})
	if err != nil {
		return nil, fmt.Errorf("redis: the registration of %s: %w", pod.name, err)
	}
	reserved := "0"
	if x.cluster {
		reserved = "1"
	}
	args := make([]string, 0, 7+2*len(pod.clears)+3*len(pod.order))
	args = append(args, pod.name, string(text), strconv.Itoa(x.config.MaxPods), strconv.Itoa(x.config.MaxHolders), reserved, strconv.Itoa(len(pod.clears)))
	for _, c := range pod.clears {
		args = append(args, c.rank, c.tier)
	}
	args = append(args, strconv.Itoa(len(pod.order)))
	for _, r := range pod.order {
		give := "0"
		if r.give {
			give = "1"
		}
		args = append(args, strconv.Itoa(r.rank), r.tier.String(), give)
	}
	return x.registryCall(holdersScript, x.names.own(pod.name), args...), nil
}

// unchecked is what a run of apply.lua has for a check when it has none.
var unchecked = &call{script: applyScript, args: []string{"0"}}

// applyCalls makes the runs of apply.lua that a plan takes. On a single server
// each of them checks the holders; on a cluster, where blocks lie in other slots
// than the registry, a run of its own does.
func (x *Index) applyCalls(p *plan, steps []step) []*call {
	list, ops := edits(steps)
	check := x.checkCall(p)
	if x.cluster || len(list) == 0 {
		return append([]*call{check}, x.editCalls(list, ops, unchecked)...)
	}
	return x.editCalls(list, ops, check)
}

// editCalls makes runs of apply.lua that begin with the check. The list ascends
// by partition.
func (x *Index) editCalls(list []edit, ops []string, check *call) []*call {
	var calls []*call
	cut := parts(list, x.pace.keys(), x.cluster)
	for _, part := range cut {
		// Blocks that change alike stand together.
		slices.SortStableFunc(part, func(a, b edit) int { return a.ops - b.ops })
	}
	// All names of blocks are parts of one string.
	names := make([]byte, 0, len(list)*x.names.blockLen())
	for _, e := range list {
		names = x.names.appendBlock(names, e.key)
	}
	all := string(names)
	for _, part := range cut {
		c := &call{script: applyScript}
		c.keys = append(make([]string, 0, len(check.keys)+len(part)), check.keys...)
		c.args = append(make([]string, 0, len(check.args)+2), check.args...)
		for range part {
			c.keys = append(c.keys, all[:x.names.blockLen()])
			all = all[x.names.blockLen():]
		}
		for i := 0; i < len(part); {
			j := i
			for j < len(part) && part[j].ops == part[i].ops {
				j++
			}
			c.args = append(c.args, ops[part[i].ops], strconv.Itoa(j-i))
			i = j
		}
		calls = append(calls, c)
	}
	return calls
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
		for i := 1; i < len(c.args); i += 2 {
			n, err := strconv.Atoi(c.args[i+1])
			if err != nil {
				return nil, err
			}
			for range n {
				single = append(single, &call{script: c.script, keys: keys[:1], args: []string{"0", c.args[i], "1"}})
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

// checkCall is a run of apply.lua that only checks the holders of the plan.
func (x *Index) checkCall(p *plan) *call {
	c := &call{script: applyScript, keys: []string{x.names.live}, args: []string{strconv.Itoa(len(p.pods))}}
	var buf []byte
	for _, pod := range p.pods {
		c.keys = append(c.keys, x.names.own(pod.name))
		c.args = append(c.args, strconv.Itoa(len(pod.order)))
		for _, r := range pod.order {
			buf = appendHolderField(buf[:0], r.rank, r.tier)
			id := ""
			if r.id != 0 {
				id = strconv.FormatUint(uint64(r.id), 10)
			}
			c.args = append(c.args, string(buf), id)
		}
	}
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
	pods map[string]map[place]store.HolderID
}

// fill gives the refs of a pod the ids that are known. It is false when the
// server must be asked: for a pod that is not known, for a holder that needs an
// id, and when no holder has one, since nothing then shows that the pod is
// still registered.
func (h *holderCache) fill(pod *podPlan) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.pods[pod.name]
	some := false
	for _, r := range pod.order {
		r.id = known[r.place]
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
			h.pods = map[string]map[place]store.HolderID{}
		}
		known = map[place]store.HolderID{}
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
		if r.id != 0 {
			known[r.place] = r.id
		} else {
			delete(known, r.place)
		}
	}
}

// drop forgets pods.
func (h *holderCache) drop(pods []*podPlan) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range pods {
		delete(h.pods, p.name)
	}
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
