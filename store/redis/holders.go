package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// holderCache remembers the ids of holders that this process writes under. What
// it knows may be outdated; the server checks it.
type holderCache struct {
	mu   sync.Mutex // protects pods
	pods map[string]*knownPod
}

// knownPod is what is known of a pod: its holders, and what its ranks' engines can reuse.
type knownPod struct {
	holders map[place]held
	reuse   map[int]heldReuse
	// predicts is set while there may be holders in tier Predicted.
	predicts bool
}

// heldReuse is what the server knows of a rank's engine, and under which guard it was
// told.
type heldReuse struct {
	store.Reuse
	life  store.Generation
	fence uint64
}

// knows reports whether the server knows what is to be said of the pod's engines. Without
// a guard another writer may have said something else since.
func (k *knownPod) knows(pod *podPlan) bool {
	for _, r := range pod.said() {
		if r.guard == nil || k.reuse[r.rank] != (heldReuse{r.reuse, r.guard.Generation, r.guard.Fence}) {
			return false
		}
	}
	return true
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
// server must be asked. So it is for an unknown pod, and for a holder that
// needs an id or whose generation is not known to be the guard's. It is false
// too when no holder has an id, since nothing then shows that the pod is still
// registered.
func (h *holderCache) fill(pod *podPlan) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.pods[pod.name]
	if known == nil || !known.knows(pod) {
		return false
	}
	some := false
	for _, r := range pod.order {
		if r.dropped() {
			continue
		}
		at := known.holders[r.place]
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
			h.pods = map[string]*knownPod{}
		}
		known = &knownPod{holders: map[place]held{}, reuse: map[int]heldReuse{}}
		h.pods[pod.name] = known
	}
	for _, r := range pod.said() {
		if r.guard != nil {
			known.reuse[r.rank] = heldReuse{r.reuse, r.guard.Generation, r.guard.Fence}
		} else {
			delete(known.reuse, r.rank) // what was told under a guard is replaced
		}
	}
	for at := range known.holders {
		for i := range pod.clears {
			if pod.clears[i].covers(at) {
				delete(known.holders, at)
			}
		}
	}
	known.forgetPredicted(time.Now().Add(-predictedKept).UnixMilli())
	for _, r := range pod.order {
		known.predicts = known.predicts || r.tier == store.Predicted
		switch now := (held{id: r.id}); {
		case r.dropped():
		case r.id == 0:
			delete(known.holders, r.place)
		case r.guard != nil:
			now.life = r.guard.Generation
			known.holders[r.place] = now
		case known.holders[r.place].id != r.id:
			known.holders[r.place] = now
		}
	}
}

// predictedKept is how long a holder in tier Predicted is remembered after its end, by the
// local clock. The server has taken it away by then, and says so if it is asked.
const predictedKept = time.Minute

// forgetPredicted forgets the holders in tier Predicted that ended before.
func (k *knownPod) forgetPredicted(before int64) {
	if !k.predicts {
		return
	}
	k.predicts = false
	for at := range k.holders {
		if at.tier == store.Predicted && at.until < before {
			delete(k.holders, at)
		}
		k.predicts = k.predicts || at.tier == store.Predicted
	}
}

// predicted returns the ends of the holders of a rank in tier Predicted.
func (h *holderCache) predicted(pod string, rank int) (ends []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.pods[pod]; known != nil && known.predicts {
		for at := range known.holders {
			if at.tier == store.Predicted && at.rank == rank {
				ends = append(ends, at.until)
			}
		}
	}
	slices.Sort(ends)
	return ends
}

// drop forgets a pod.
func (h *holderCache) drop(pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, pod)
}

// resolve gives the refs of the plan their ids. They come from the cache where
// it knows the pod, else from the server, which makes the clears as well.
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
		calls := make([]*keyspace.Call, n)
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
		if r := lua.Result(verdict); r != lua.Applied {
			g.refuse(r)
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
			return false, fmt.Errorf("redis: holders.lua returned the id %q: %w", redisx.Clip(text), err)
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
func (x *Index) runReserving(ctx context.Context, calls ...*keyspace.Call) ([]*redis.Cmd, error) {
	cmds, err := x.space.Run(ctx, calls...)
	// Once is enough, unless others take thousands of ids in between.
	for range applyTries {
		next, ok := reserveNeeded(err)
		if !ok {
			break
		}
		if err = x.reserve(ctx, next); err == nil {
			cmds, err = x.space.Run(ctx, calls...)
		}
	}
	return cmds, err
}

func (x *Index) holdersCall(pod *podPlan) (*keyspace.Call, error) {
	var text []byte
	if pod.enrols {
		var err error
		if text, err = json.Marshal(store.Pod{Name: pod.name, Model: pod.model}); err != nil {
			return nil, fmt.Errorf("redis: the registration of %s: %w", pod.name, err)
		}
	}
	guards, refs := openGuards(pod.guards), pod.open()
	var clears []clearance
	for _, c := range pod.clears {
		if c.guard == nil || !c.guard.over() {
			clears = append(clears, c)
		}
	}
	args := make([]string, 0, 7+6*len(guards)+2*len(clears)+3*len(refs)+1+2*len(pod.reuse))
	args = append(args, pod.name, string(text), strconv.Itoa(x.config.MaxPods), strconv.Itoa(x.config.MaxHolders), strconv.Itoa(len(guards)))
	for _, g := range guards {
		args = append(args, strconv.Itoa(g.rank))
		for _, v := range []uint64{uint64(g.Generation), g.Fence, g.Seq, x.acks.after(g, keyspace.AtRegistry)} {
			args = append(args, strconv.FormatUint(v, 10))
		}
		args = append(args, keyspace.Flag(slices.ContainsFunc(clears, func(c clearance) bool { return c.guard == g })))
	}
	args = append(args, strconv.Itoa(len(clears)))
	for _, c := range clears {
		args = append(args, c.rank, c.tier)
	}
	args = append(args, strconv.Itoa(len(refs)))
	for _, r := range refs {
		args = append(args, strconv.Itoa(r.rank), r.tierText(), keyspace.Flag(r.give))
	}
	said := pod.said()
	args = append(args, strconv.Itoa(len(said)))
	for _, r := range said {
		args = append(args, strconv.Itoa(r.rank), r.reuse.String())
	}
	return x.space.RegistryCall(lua.Holders, x.space.Names.Own(pod.name), args...), nil
}
