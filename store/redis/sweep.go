package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redisx"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/blocks"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/lua"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

const (
	// sweepStep is the COUNT of the sweeper's SCAN, cleanStep the number of blocks
	// that one of its scripts cleans at most. Blocks that have not been read lately
	// are in none of the processor's caches. In an index of a million with 10 holders
	// each, a script for 512 of them keeps the server for 3.6 ms. A SCAN for 512
	// keeps it for 2.7. One for 128 keeps it for 0.84, but for more than 2 once in 80
	// times.
	sweepStep = 128
	cleanStep = 48
	// agedParts is how a text's age is cut: a quarter may pass until the sweeper
	// sees it, the others are its time to live.
	agedParts = 4
	// sweepLease is how long the right to sweep outlives its owner.
	sweepLease = 30 * time.Second
)

// errOtherSweeps says that another process has the right to sweep.
var errOtherSweeps = errors.New("redis: another process is sweeping")

// sweepLoop sweeps from time to time when holders have ended.
func (x *Index) sweepLoop() {
	told := false
	for {
		// Processes that began together do not ask together.
		every := x.config.SweepInterval
		if keyspace.Sleep(x.space.Life, every/2+mathrand.N(every)) != nil {
			return
		}
		if x.readOnly.now() || !x.dueSweep() {
			continue
		}
		err := x.unasked("sweeping", func() error { _, err := x.Sweep(redisx.Unasked(x.space.Life)); return err })
		switch {
		case err == nil || errors.Is(err, errOtherSweeps) || x.space.Life.Err() != nil:
			told = false
		case !told: // once until it works again: the server may be down for long
			told = true
			x.space.Log(fmt.Sprintf("sweeping: %v", err))
		}
	}
}

// dueSweep reports whether there is something to sweep.
func (x *Index) dueSweep() bool {
	ctx, cancel := context.WithTimeout(x.space.Life, x.config.Timeout)
	defer cancel()
	x.space.Trips.Add(1)
	pipe := x.space.Client.Pipeline()
	count := pipe.HMGet(ctx, x.space.Names.Count, "ended", "swept", "swept_at")
	clock := pipe.Eval(ctx, "return redis.call('TIME')[1]", []string{x.space.Names.Epoch})
	_, err := pipe.Exec(ctx)
	vals := count.Val()
	return err == nil && (keyspace.Counter(vals, 0) > keyspace.Counter(vals, 1) || x.textsDue(float64(keyspace.Counter(vals, 2)), keyspace.Number(clock.Val())*1000))
}

// Sweep removes the ids of ended holders from the values of all blocks, and
// values that cannot be read. It works in small steps and rests between them, so
// that it takes no more of a server than Config.SweepDuty. On an index of
// millions of blocks it takes minutes. Only one process sweeps at a time; to the
// others it is an error. Nothing depends on it but memory, since ended holders
// count for nothing, and Open's background sweeper does it unless NoSweep.
func (x *Index) Sweep(ctx context.Context) (SweepProgress, error) {
	if err := x.space.Check(ctx, "sweep"); err != nil {
		return SweepProgress{}, err
	}
	s := &sweeper{x: x, token: rand.Text()}
	err := s.run(ctx)
	return s.progress, keyspace.Failed(ctx, "sweep", err)
}

// sweeper is one sweep.
type sweeper struct {
	x        *Index
	token    string
	held     time.Time // when the right to sweep was last renewed
	progress SweepProgress

	// Ids up to last that are not in alive belong to ended lives.
	last  store.HolderID
	alive map[store.HolderID]bool
	// lives are the generations that have records at the registry.
	lives map[store.Generation]bool
	// snap has the texts that count.
	snap *roster.Snapshot
	// fresh says that no life has ended since the last sweep: a text that names no pod
	// is of no life that has.
	fresh bool
}

func (s *sweeper) run(ctx context.Context) error {
	if err := s.hold(ctx, ""); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	if err := s.renewLost(ctx); err != nil {
		return err
	}
	if s.x.space.Cluster {
		if err := s.sweepRecords(ctx); err != nil {
			return err
		}
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if err := s.sweepNode(ctx, node); err != nil {
			return err
		}
	}
	if err := s.hold(ctx, strconv.FormatUint(s.progress.Ended, 10)); err != nil {
		return err
	}
	if s.progress.Texts > 0 {
		s.x.textsThere.Store(true)
	}
	s.progress.Done = true
	s.tell()
	return nil
}

func (s *sweeper) tell() {
	if told := s.x.config.Observer.Swept; told != nil {
		told(s.progress)
	}
}

// hold takes, renews or with done ends the right to sweep.
func (s *sweeper) hold(ctx context.Context, done string) error {
	c := s.x.space.RegistryCall(lua.Sweep, s.x.space.Names.Own(""), s.token, strconv.FormatInt(sweepLease.Milliseconds(), 10), done)
	c.Keys = append(c.Keys, s.x.space.Names.Sweep)
	cmds, err := s.x.space.Run(ctx, c)
	if err != nil {
		return err
	}
	if !keyspace.IsOne(cmds[0].Val()) {
		return errOtherSweeps
	}
	s.held = time.Now()
	return nil
}

// look finds out which holders are alive. The counters are read before the holders. An id
// up to the counter that is then not among the holders has ended and will never be given
// again. One that is given in between is above it.
func (s *sweeper) look(ctx context.Context) error {
	n := s.x.space.Names
	pipe := s.x.space.Client.Pipeline()
	count := pipe.HMGet(ctx, n.Count, "holder", "ended", "swept")
	gen := pipe.HKeys(ctx, n.Gen)
	records := pipe.HKeys(ctx, n.Records)
	s.x.space.Trips.Add(1)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	// The pods are read after the number of lives that have ended. Of a pod that is born
	// since, former texts may be met where the sweep has been already.
	var err error
	if s.snap, _, err = s.x.roster.Read(ctx, s.x.roster.Current()); err != nil {
		return err
	}
	s.x.textsThere.Store(false)
	s.last = store.HolderID(min(keyspace.Counter(count.Val(), 0), 1<<32-1))
	s.progress.Ended = keyspace.Counter(count.Val(), 1)
	s.fresh = s.progress.Ended == keyspace.Counter(count.Val(), 2)
	s.alive = make(map[store.HolderID]bool, len(gen.Val()))
	for _, id := range gen.Val() {
		if v, err := strconv.ParseUint(id, 10, 32); err == nil {
			s.alive[store.HolderID(v)] = true
		}
	}
	s.lives = make(map[store.Generation]bool, len(records.Val()))
	for _, gen := range records.Val() {
		if v, err := strconv.ParseUint(gen, 10, 32); err == nil {
			s.lives[store.Generation(v)] = true
		}
	}
	return nil
}

// renewLost gives leases again to pods that should have one. All of them may have been
// evicted, and those of pods that live come back by themselves: the others' pods
// would never die.
func (s *sweeper) renewLost(ctx context.Context) error {
	var args []string
	s.snap.EachPod(func(name, text string, lease time.Duration) {
		if lease > 0 {
			args = append(args, name, text, strconv.FormatInt(max(lease.Milliseconds(), 1), 10))
		}
	})
	for part := range slices.Chunk(args, 3*sweepStep) {
		if _, err := s.x.space.Run(ctx, s.x.space.RegistryCall(lua.Renew, s.x.space.Names.Own(""), part...)); err != nil {
			return err
		}
	}
	return nil
}

// sweepRecords removes the records of ended generations from the partitions of a
// cluster. Those of the registry go when the lives end.
func (s *sweeper) sweepRecords(ctx context.Context) error {
	for p := range blockkey.Partitions {
		name := s.x.space.Names.Guards(p)
		for cursor := uint64(0); ; {
			s.x.space.Trips.Add(1)
			fields, next, err := s.x.space.Client.HScan(ctx, name, cursor, "*", sweepStep).Result()
			if err != nil {
				return err
			}
			var gone []string
			for i := 0; i < len(fields); i += 2 {
				gen, err := strconv.ParseUint(fields[i], 10, 32)
				if err != nil || s.over(store.Generation(gen)) {
					gone = append(gone, fields[i])
				}
			}
			if len(gone) > 0 {
				s.x.space.Trips.Add(1)
				if err := s.x.space.Client.HDel(ctx, name, gone...).Err(); err != nil {
					return err
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return nil
}

// over reports whether a generation has ended. As with holders, the counter was read
// before those that are alive.
func (s *sweeper) over(gen store.Generation) bool {
	return store.HolderID(gen) <= s.last && !s.lives[gen]
}

func (s *sweeper) ended(id store.HolderID) bool { return id <= s.last && !s.alive[id] }

// nodes are the masters to scan.
func (s *sweeper) nodes(ctx context.Context) ([]*redis.Client, error) {
	var nodes []*redis.Client
	var mu sync.Mutex // protects nodes and s.progress.Keys
	add := func(ctx context.Context, c *redis.Client) error {
		keys, err := c.DBSize(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, c)
		s.progress.Keys += uint64(max(keys, 0))
		return err
	}
	err := s.x.space.EachMaster(ctx, add)
	return nodes, err
}

func (s *sweeper) sweepNode(ctx context.Context, node *redis.Client) error {
	duty := s.x.config.SweepDuty
	for cursor := uint64(0); ; {
		if time.Since(s.held) > sweepLease/4 {
			if err := s.hold(ctx, ""); err != nil {
				return err
			}
		}
		begin := time.Now()
		s.x.space.Trips.Add(1)
		names, next, err := node.Scan(ctx, cursor, s.x.space.Names.Prefix+"{*", sweepStep).Result()
		if err != nil {
			return err
		}
		s.progress.Scanned += uint64(len(names))
		if err := s.sweepKeys(ctx, names); err != nil {
			return err
		}
		s.tell()
		if cursor = next; cursor == 0 {
			return nil
		}
		// A step that was slow because the server is busy makes a longer rest.
		rest := time.Duration(float64(time.Since(begin)) * (1 - duty) / duty)
		if err := keyspace.Sleep(ctx, rest); err != nil {
			return err
		}
	}
}

// sweepKeys cleans the blocks among the keys.
func (s *sweeper) sweepKeys(ctx context.Context, names []string) error {
	var keys []blockkey.StoreKey
	pipe := s.x.space.Client.Pipeline()
	for _, name := range names {
		if k, ok := s.x.space.Names.ParseBlock(name); ok {
			keys = append(keys, k)
		} else if gen, ok := s.x.space.Names.ParseLife(name); ok && s.over(gen) {
			pipe.Unlink(ctx, name)
		}
	}
	if pipe.Len() > 0 {
		s.x.space.Trips.Add(1)
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	// The same may come twice, and SCAN may return many more than COUNT.
	slices.SortFunc(keys, blocks.ByPartition)
	keys = slices.Compact(keys)
	for part := range slices.Chunk(keys, cleanStep) {
		if err := s.sweepBlocks(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (s *sweeper) sweepBlocks(ctx context.Context, keys []blockkey.StoreKey) error {
	batch, err := blocks.Fetch(ctx, s.x.space, keys)
	defer batch.Free()
	if err != nil {
		return err
	}
	var held []store.HolderID
	var steps []step
	var garbled []string
	var where, aging []blockkey.StoreKey
	for i, k := range keys {
		v, there := batch.Value(i)
		if !there {
			s.progress.Foreign++
			continue
		}
		ids, ok := keyspace.AppendHolders(held[:0], v)
		if !ok && s.x.config.TextAge >= 0 && keyspace.IsText(v) {
			if held, ok = s.snap.AppendTexts(held[:0], v); ok || s.fresh {
				s.progress.Texts++
				aging = append(aging, k)
				continue
			}
		}
		if !ok {
			garbled, where = append(garbled, "="+string(v)), append(where, k)
			continue
		}
		n := len(steps)
		for _, id := range ids {
			if s.ended(id) {
				steps = append(steps, step{key: k, id: id})
			}
		}
		if len(steps) > n {
			s.progress.Cleaned++
		}
		held = ids
	}
	if err := s.age(ctx, aging); err != nil {
		return err
	}
	list, all := edits(steps, false)
	for i, g := range garbled {
		list = append(list, edit{where[i], len(all)})
		all = append(all, ops{text: g})
	}
	slices.SortFunc(list, func(a, b edit) int { return blocks.ByPartition(a.key, b.key) })
	if len(list) == 0 {
		return nil
	}
	s.progress.Cleaned += uint64(len(garbled))
	calls := s.x.editCalls(list, all)
	for range applyTries {
		var status lua.Result
		if status, _, err = s.x.runPhase(ctx, calls, false); err != nil || !status.Refused() {
			return err
		}
		// Slots are on the move.
		if err := keyspace.Sleep(ctx, blocks.MoveRest); err != nil {
			return err
		}
	}
	return fmt.Errorf("redis: blocks have been moving between nodes all the while")
}

// textsDue reports whether texts that this process knows of have to be looked after.
// Argument at is when the last sweep was complete, by the server's time.
func (x *Index) textsDue(at, now float64) bool {
	return x.config.TextAge >= 0 && x.textsThere.Load() &&
		now-at >= float64(x.config.TextAge/agedParts/time.Millisecond)
}

// age gives values of texts a time to live, unless they have one. The keys ascend
// by partition.
func (s *sweeper) age(ctx context.Context, keys []blockkey.StoreKey) error {
	ttl := s.x.config.TextAge / agedParts * (agedParts - 1)
	var calls []*keyspace.Call
	for len(keys) > 0 {
		n := len(keys)
		if s.x.space.Cluster {
			if i := slices.IndexFunc(keys, func(k blockkey.StoreKey) bool { return k.Partition() != keys[0].Partition() }); i > 0 {
				n = i
			}
		}
		c := &keyspace.Call{Script: lua.Text, Args: []string{strconv.FormatInt(max(ttl.Milliseconds(), 1), 10)}}
		for _, k := range keys[:n] {
			c.Keys = append(c.Keys, string(s.x.space.Names.AppendBlock(nil, k)))
		}
		calls = append(calls, c)
		keys = keys[n:]
	}
	if len(calls) == 0 {
		return nil
	}
	_, err := s.x.space.Run(ctx, calls...)
	return err
}
