package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store"
)

// snapshot is a registry, and whether it has been read.
type snapshot struct {
	registry *store.Registry
	// loaded is false for the empty registry that an Index begins with.
	loaded bool
}

// fresh tells whether the snapshot is right for an index at this epoch.
func (s *snapshot) fresh(epoch uint64) bool {
	return s.loaded && s.registry.Epoch == epoch && !s.stale()
}

// stale tells whether a lease has run out since.
func (s *snapshot) stale() bool {
	until := s.registry.ValidUntil
	return !until.IsZero() && !time.Now().Before(until)
}

// registryCache holds the last registry, and makes one load serve all who wait
// for it.
type registryCache struct {
	current atomic.Pointer[snapshot]

	mu     sync.Mutex // protects flight
	flight *flight    // the load that is running, if any
}

// flight is a running load. Its results may be read when done is closed.
type flight struct {
	done chan struct{}
	snap *snapshot
	err  error
}

// Cached implements store.Index.
func (x *Index) Cached() *store.Registry { return x.registry.current.Load().registry }

// Registry implements store.Index.
func (x *Index) Registry(ctx context.Context) (*store.Registry, error) {
	if err := x.begin(ctx, "registry"); err != nil {
		return nil, err
	}
	s, err := x.load(ctx, func(*snapshot) bool { return false })
	if err != nil {
		return nil, err
	}
	return s.registry, nil
}

// load returns a snapshot that is either enough for the caller or has been
// loaded wholly after the call began.
//
// A load that was under way when the caller came may have read before whatever
// made him come:
//
//	A: starts a load, which reads epoch 7
//	B: registers a pod: epoch 8
//	C: reads epoch 8 and wants the registry
//
// so C takes A's result only if it is enough, and else waits for the next.
func (x *Index) load(ctx context.Context, enough func(*snapshot) bool) (*snapshot, error) {
	s, mine, err := x.await(ctx)
	if mine || ctx.Err() != nil || (err == nil && enough(s)) {
		return s, err
	}
	// The next one begins after this call did, whoever starts it.
	s, _, err = x.await(ctx)
	return s, err
}

// await waits for the running load, or starts one, which makes it mine.
func (x *Index) await(ctx context.Context) (s *snapshot, mine bool, err error) {
	f, mine := x.join()
	if f == nil {
		return nil, mine, store.ErrClosed
	}
	select {
	case <-f.done:
		return f.snap, mine, f.err
	case <-ctx.Done():
		return nil, mine, failed(ctx, "registry", ctx.Err())
	}
}

// join returns the running load, or starts one, which makes it mine; nil when
// the index is closed.
func (x *Index) join() (f *flight, mine bool) {
	c := &x.registry
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight != nil {
		return c.flight, false
	}
	f = &flight{done: make(chan struct{})}
	if !x.spawn(func() { x.fly(f) }) {
		return nil, false
	}
	c.flight = f
	return f, true
}

// fly makes the load of f. It has a deadline of its own: whoever waits may
// leave without harm to the others.
func (x *Index) fly(f *flight) {
	ctx, cancel := context.WithTimeout(x.life, x.config.Timeout)
	defer cancel()
	begin := time.Now()
	snap, late, err := x.read(ctx)
	f.snap, f.err = snap, failed(ctx, "loading the registry", err)
	x.registry.mu.Lock()
	if err == nil {
		x.registry.current.Store(snap)
	}
	x.registry.flight = nil
	x.registry.mu.Unlock()
	close(f.done)

	x.registryLoads.Add(1)
	if told := x.config.Observer.RegistryLoaded; told != nil {
		r := x.Cached()
		told(time.Since(begin), len(r.Pods), len(r.Slots), f.err)
	}
	// Nobody waits for this: the late pods are not in the snapshot already.
	if err := x.retireLate(ctx, late); err != nil {
		x.log(fmt.Sprintf("retiring %d pods whose leases have run out: %v", len(late), err))
	}
}

// pageSize is how many entries of the registry one command reads at most, so
// that none keeps the server from others for long.
const pageSize = 500

// read reads the registry, small ones in one round trip. late are the pods whose
// leases have run out.
//
// The commands are separate, so that none blocks the server for long, and the
// epoch is the first of them: when something changes between two of them, the
// snapshot has an epoch that is over, and the next lookup loads again.
func (x *Index) read(ctx context.Context) (snap *snapshot, late []string, err error) {
	n := x.names
	pipe := x.client.Pipeline()
	epoch := pipe.Get(ctx, n.epoch)
	// TIME has no key, and a cluster's client would ask any node.
	clock := pipe.Eval(ctx, "return redis.call('TIME')", []string{n.epoch})
	meta := pipe.HGetAll(ctx, n.meta)
	livePage := pipe.ZScan(ctx, n.live, 0, "", pageSize)
	podPage := pipe.HScan(ctx, n.pods, 0, "", pageSize)
	genPage := pipe.HScan(ctx, n.gen, 0, "", pageSize)
	x.roundTrips.Add(1)
	sent := time.Now()
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, nil, err
	}
	// Exec's error is that of the first that failed, which an epoch that is not
	// there yet is.
	for _, c := range []redis.Cmder{clock, meta} {
		if err := c.Err(); err != nil {
			return nil, nil, err
		}
	}
	live, err := x.rest(ctx, x.client.ZScan, n.live, livePage)
	if err != nil {
		return nil, nil, err
	}
	pods, err := x.rest(ctx, x.client.HScan, n.pods, podPage)
	if err != nil {
		return nil, nil, err
	}
	gen, err := x.rest(ctx, x.client.HScan, n.gen, genPage)
	if err != nil {
		return nil, nil, err
	}

	snap = &snapshot{loaded: true}
	models, err := x.readMeta(meta.Val())
	if err != nil {
		return nil, nil, err
	}
	e, err := parseEpoch(epoch.Val())
	if err != nil {
		return nil, nil, err
	}

	now, err := clock.Slice()
	if err != nil || len(now) != 2 {
		return nil, nil, fmt.Errorf("redis: the server's time is %v", now)
	}
	sec, usec := number(now[0]), number(now[1])
	ms := sec*1000 + usec/1000
	var until time.Time
	gone := map[string]bool{}
	for pod, end := range live {
		till, err := strconv.ParseFloat(end, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("redis: the lease of pod %q ends at %q", pod, clip(end))
		}
		left := time.Duration(till-ms) * time.Millisecond
		if left <= 0 {
			gone[pod] = true
			late = append(late, pod)
			continue
		}
		// Counted from before the server told its time, so never too late.
		if end := sent.Add(left); until.IsZero() || end.Before(until) {
			until = end
		}
	}

	var list []store.Pod
	for name, text := range pods {
		if gone[name] {
			continue
		}
		var p store.Pod
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.Name != name {
			x.garbled.Add(1)
			x.log(fmt.Sprintf("the registration of pod %q cannot be read and counts as none: %v", name, err))
			continue
		}
		list = append(list, p)
	}
	holders := make([]store.Holder, 0, len(gen))
	for id, text := range gen {
		h, err := parseHolder(id, text)
		if err != nil {
			x.garbled.Add(1)
			x.log(fmt.Sprintf("holder %q cannot be read and counts as none: %v", clip(id), err))
			continue
		}
		holders = append(holders, h)
	}
	snap.registry = store.NewRegistry(e, list, holders, models, until)
	return snap, late, nil
}

// scan is HScan or ZScan.
type scan func(ctx context.Context, key string, cursor uint64, match string, count int64) *redis.ScanCmd

// rest reads what is left of a hash or a sorted set after its first page. What is
// there all the while is in it, in the state of some moment of it; that is why
// leases, which are renewed meanwhile, are not read by rank.
func (x *Index) rest(ctx context.Context, next scan, key string, page *redis.ScanCmd) (map[string]string, error) {
	list, cursor, err := page.Result()
	out := make(map[string]string, len(list)/2)
	for {
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(list); i += 2 {
			out[list[i]] = list[i+1]
		}
		if cursor == 0 {
			return out, nil
		}
		x.roundTrips.Add(1)
		list, cursor, err = next(ctx, key, cursor, "", pageSize).Result()
	}
}

// readMeta checks the schema and returns the models. An index that nobody has
// written to yet has neither.
func (x *Index) readMeta(meta map[string]string) (map[string]store.ModelInfo, error) {
	models := map[string]store.ModelInfo{}
	if len(meta) == 0 {
		return models, nil
	}
	if s, p := meta["schema"], meta["partitions"]; s != strconv.Itoa(Schema) || p != strconv.Itoa(len(tags)) {
		return nil, schemaError(strconv.Quote(clip(s)), strconv.Quote(clip(p)))
	}
	for field, text := range meta {
		name, ok := strings.CutPrefix(field, modelField)
		if !ok {
			continue
		}
		m, err := parseModel(name, text)
		if err != nil {
			x.garbled.Add(1)
			x.log(fmt.Sprintf("the settings of model %q cannot be read and count as none: %v", name, err))
			continue
		}
		models[name] = m
	}
	return models, nil
}

func parseEpoch(s string) (uint64, error) {
	if s == "" {
		return 0, nil // nobody has registered yet
	}
	e, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redis: the epoch %q is no number", clip(s))
	}
	return e, nil
}

// counter reads one number of an HMGET; what is not there is 0.
func counter(vals []any, i int) uint64 {
	if i >= len(vals) {
		return 0
	}
	s, _ := vals[i].(string)
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func number(v any) float64 {
	switch v := v.(type) {
	case string:
		f, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return math.NaN()
		}
		return f
	case int64:
		return float64(v)
	}
	return math.NaN()
}

// parseHolder reads an entry of gen: "tier rank generation since pod".
func parseHolder(id, text string) (store.Holder, error) {
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil || n == 0 {
		return store.Holder{}, fmt.Errorf("its id is none")
	}
	f := strings.SplitN(text, " ", 5)
	if len(f) != 5 {
		return store.Holder{}, fmt.Errorf("%q has %d of 5 words", clip(text), len(f))
	}
	tier, err := store.ParseTier(f[0])
	if err != nil {
		return store.Holder{}, err
	}
	rank, err := strconv.Atoi(f[1])
	if err != nil || rank < 0 || rank >= store.MaxRanks {
		return store.Holder{}, fmt.Errorf("%q is no rank", clip(f[1]))
	}
	return store.Holder{ID: store.HolderID(n), Pod: f[4], Rank: rank, Tier: tier}, nil
}
