package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// lossRoundsVariable sets how many rounds TestLossesAgainstAModel runs, and lossSeedVariable
// the first of their seeds.
const (
	lossRoundsVariable = "KVATLAS_TEST_LOSS_ROUNDS"
	lossSeedVariable   = "KVATLAS_TEST_LOSS_SEED"
)

// TestLossesAgainstAModel lets two processes write and read while a hand deletes, garbles and
// replaces keys of the registry between any two of their commands. No pod may be credited with a block that
// is not its own by the acknowledged writes; to lose credit is allowed.
func TestLossesAgainstAModel(t *testing.T) {
	s := redistest.Start(t)
	rounds, seed := 200, rand.Uint64N(1<<40)
	if n, err := strconv.Atoi(os.Getenv(lossRoundsVariable)); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv(lossSeedVariable), 10, 64); err == nil {
		seed = n
	}
	var done lossCounts
	plain := s.Client()
	for i := range rounds {
		if !t.Run("", func(t *testing.T) {
			r := newLossRound(t, s, plain, seed+uint64(i))
			r.play()
			done.add(r.lossCounts)
		}) {
			t.Fatalf("round %d fails; %s=1 %s=%d runs it again", i, lossRoundsVariable, lossSeedVariable, seed+uint64(i))
		}
	}
	t.Logf("%d rounds from seed %d: %d losses, %d operations of which %d were refused, %d lookups of which %d failed, %d credits, 0 of them false",
		rounds, seed, done.spoils, done.ops, done.refused, done.lookups, done.failed, done.credits)
	if rounds > 100 && (done.credits < done.lookups/2 || done.refused > done.ops/2 || done.spoils < rounds) {
		t.Error("there was hardly anything to see")
	}
}

// lossCounts say what there was in rounds.
type lossCounts struct{ spoils, ops, refused, lookups, failed, credits int }

func (c *lossCounts) add(d lossCounts) {
	c.spoils += d.spoils
	c.ops += d.ops
	c.refused += d.refused
	c.lookups += d.lookups
	c.failed += d.failed
	c.credits += d.credits
}

const (
	lossPods   = 3
	lossBlocks = 4
)

// lossHolding is a block of a pod in a tier.
type lossHolding struct {
	pod   string
	tier  store.Tier
	block int
}

// lossRound is one history.
type lossRound struct {
	*testing.T
	plain *redis.Client
	names *keyspace.Names
	keys  []blockkey.Key
	both  []*Index

	mu    sync.Mutex // protects what follows
	rng   *rand.Rand
	wrong []string // keys of another type
	story []string
	// may are the blocks that may be credited.
	may map[lossHolding]bool
	// odds is how likely a loss is before a command, out of 100.
	odds int
	lossCounts

	gens [lossPods]lossGen
}

// lossGen is a generation that batches are written under.
type lossGen struct {
	gen   store.Generation
	fence uint64
	seq   uint64
}

func newLossRound(t *testing.T, s *redistest.Server, plain *redis.Client, seed uint64) *lossRound {
	r := &lossRound{T: t, plain: plain, rng: rand.New(rand.NewPCG(seed, 1)), may: map[lossHolding]bool{}, keys: manyKeys(lossBlocks)}
	must.OK(t, plain.FlushAll(t.Context()).Err())
	c := Config{URL: s.URL(), NoSweep: true, SweepDuty: 1}
	for range 2 {
		x := open(t, c)
		x.space.Client.AddHook(r)
		r.both = append(r.both, x)
	}
	r.names = r.both[0].space.Names
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(r.story, "\n"))
		}
	})
	return r
}

func (r *lossRound) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (r *lossRound) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.perhaps(ctx)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook cuts a pipeline in two at times: what others do comes in between.
func (r *lossRound) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.perhaps(ctx)
		r.mu.Lock()
		at := r.rng.IntN(len(cmds) + 1)
		r.mu.Unlock()
		if at == 0 || at == len(cmds) {
			return next(ctx, cmds)
		}
		err := next(ctx, cmds[:at])
		r.perhaps(ctx)
		return errors.Join(err, next(ctx, cmds[at:]))
	}
}

// say writes down what happens. The caller holds mu.
func (r *lossRound) say(format string, args ...any) {
	r.story = append(r.story, fmt.Sprintf(format, args...))
}

// perhaps spoils something, or mends what is of another type.
func (r *lossRound) perhaps(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rng.IntN(100) >= r.odds {
		return
	}
	if len(r.wrong) > 0 && r.rng.IntN(2) == 0 {
		i := r.rng.IntN(len(r.wrong))
		r.say("    delete %s, of another type", r.wrong[i])
		r.plain.Del(ctx, r.wrong[i])
		r.wrong = slices.Delete(r.wrong, i, i+1)
		return
	}
	r.spoils++
	n := r.names
	all := []string{n.Meta, n.Pods, n.Live, n.Gen, n.Epoch, n.Count, n.Records, n.Own("p0"), n.Own("p1"), n.High(r.rng.IntN(blockkey.Partitions))}
	key := all[r.rng.IntN(len(all))]
	switch r.rng.IntN(4) {
	case 0, 1:
		r.say("    delete %s", key)
		r.plain.Del(ctx, key)
	case 2:
		r.say("    %s becomes a set", key)
		r.plain.Del(ctx, key)
		r.plain.SAdd(ctx, key, "x")
		r.wrong = append(r.wrong, key)
	case 3:
		r.garble(ctx, key)
	}
}

var lossGarbage = []string{"", "garbage", "-1", "1e9", "0x7", "99999999999999999999", "9007199254740993", "a b c", "{}", "0\n0 a\n", "\xff\x00"}

// garble writes something into a key that no script writes. The caller holds mu.
func (r *lossRound) garble(ctx context.Context, key string) {
	value := lossGarbage[r.rng.IntN(len(lossGarbage))]
	switch r.plain.Type(ctx, key).Val() {
	case "string":
		r.say("    %s becomes %q", key, value)
		r.plain.Set(ctx, key, value, 0)
	case "zset":
		r.say("    %s gets %q", key, value)
		r.plain.ZAdd(ctx, key, redis.Z{Score: float64(r.rng.IntN(5)), Member: value})
	case "hash":
		fields := r.plain.HKeys(ctx, key).Val()
		if len(fields) == 0 {
			return
		}
		slices.Sort(fields)
		field := fields[r.rng.IntN(len(fields))]
		if key == r.names.Count && r.rng.IntN(2) == 0 {
			value = strconv.Itoa(r.rng.IntN(2))
			if field == "reserved" {
				value = "0" // more than its last value cannot be told from that
			}
		}
		// That there was a pod, gen alone knows when pods and own are lost.
		if r.rng.IntN(4) == 0 && (key != r.names.Gen || !strings.HasPrefix(field, "@p")) {
			r.say("    %s loses %q", key, field)
			r.plain.HDel(ctx, key, field)
			return
		}
		r.say("    %s of %s becomes %q", field, key, value)
		r.plain.HSet(ctx, key, field, value)
	}
}

// dice returns one of n numbers.
func (r *lossRound) dice(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(n)
}

func (r *lossRound) play() {
	for range 4 + r.dice(4) {
		r.operate() // something is there when the first loss comes
	}
	r.check()
	for range 2 + r.dice(3) {
		r.odds = []int{0, 5, 15, 40}[r.dice(4)]
		for range 2 + r.dice(6) {
			r.operate()
			r.check()
		}
		r.odds = 0
		if r.dice(2) == 0 {
			r.perhapsOnce()
		}
		r.check()
	}
	r.mend()
	for range 3 {
		r.operate()
		r.check()
	}
	// A later reader sees the same.
	r.both = append(r.both, open(r.T, Config{URL: r.both[0].config.URL, NoSweep: true}))
	r.check()
	r.check()
}

// perhapsOnce spoils something between two operations.
func (r *lossRound) perhapsOnce() {
	r.mu.Lock()
	r.odds = 100
	r.mu.Unlock()
	r.perhaps(r.Context())
	r.odds = 0
}

// mend deletes what is of another type.
func (r *lossRound) mend() {
	r.say("mend")
	for _, key := range r.wrong {
		r.plain.Del(r.Context(), key)
	}
	r.wrong = nil
}

// operate makes one write, or two at a time.
func (r *lossRound) operate() {
	first := r.write(r.both[r.dice(2)], nil)
	if r.dice(4) != 0 {
		first.end(first.do(), nil)
		return
	}
	second := r.write(r.both[r.dice(2)], first)
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { err = second.do() })
	// A lookup beside them may see all that was there, and what is being written.
	r.check()
	firstErr := first.do()
	wg.Wait()
	first.end(firstErr, second.adds)
	second.end(err, first.adds)
}

// lossWrite is a write under way: adds are what it adds, takes what it takes away.
type lossWrite struct {
	r    *lossRound
	what string
	do   func() error
	// guard is under what it is made, nil for nothing.
	guard       *lossGen
	adds, takes map[lossHolding]bool
}

// end takes in how the write went. beside is what another one was adding meanwhile.
func (w *lossWrite) end(err error, beside map[lossHolding]bool) {
	r := w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops++
	if err != nil {
		r.refused++
		if w.guard != nil && errors.Is(err, store.ErrEnded) {
			w.guard.gen = 0
		}
		r.say("%s: %v", w.what, err)
		return
	}
	r.say("%s: done", w.what)
	for h := range w.takes {
		if !beside[h] && !w.adds[h] {
			delete(r.may, h)
		}
	}
}

// write begins a write of x. Beside another one it is under another guard: a generation's
// batches come one after the other.
func (r *lossRound) write(x *Index, beside *lossWrite) *lossWrite {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx := r.Context()
	n := r.rng.IntN(lossPods)
	pod, tier := fmt.Sprint("p", n), store.Tier(r.rng.IntN(2))
	w := &lossWrite{r: r, adds: map[lossHolding]bool{}, takes: map[lossHolding]bool{}}
	var blocks []int
	var keys []blockkey.Key
	for b := range lossBlocks {
		if r.rng.IntN(2) == 0 {
			blocks, keys = append(blocks, b), append(keys, r.keys[b])
		}
	}
	take := func(tiers ...store.Tier) {
		for _, t := range tiers {
			for b := range lossBlocks {
				w.takes[lossHolding{pod, t, b}] = true
			}
		}
	}
	batch := func(kind store.OpKind) store.Batch {
		return store.Batch{Pod: pod, Model: "m", Ops: []store.Op{{Kind: kind, Tier: tier, Keys: keys}}}
	}
	g := &r.gens[n]
	guarded := func(b store.Batch) store.Batch {
		if g.gen != 0 && r.rng.IntN(2) == 0 && (beside == nil || beside.guard != g) {
			g.seq++
			w.guard = g
			b.Guard = &store.Guard{Generation: g.gen, Fence: g.fence, Seq: g.seq}
		}
		return b
	}
	send := func(b store.Batch) {
		w.do = func() error { return x.Apply(ctx, b) }
	}
	who := slices.Index(r.both, x)
	switch kind := r.rng.IntN(16); {
	case kind < 6:
		w.what = fmt.Sprintf("%d: %s adds %v in %v", who, pod, blocks, tier)
		for _, b := range blocks {
			w.adds[lossHolding{pod, tier, b}] = true
			r.may[lossHolding{pod, tier, b}] = true
		}
		send(guarded(batch(store.Add)))
	case kind < 9:
		w.what = fmt.Sprintf("%d: %s removes %v in %v", who, pod, blocks, tier)
		for _, b := range blocks {
			w.takes[lossHolding{pod, tier, b}] = true
		}
		send(guarded(batch(store.Remove)))
	case kind < 11:
		w.what = fmt.Sprintf("%d: %s clears %v", who, pod, tier)
		take(tier)
		keys = nil
		send(guarded(batch(store.Clear)))
	case kind < 13:
		w.what = fmt.Sprintf("%d: %s is retired", who, pod)
		take(0, 1)
		w.do = func() error { _, err := x.Retire(ctx, pod); return err }
	case kind < 14:
		g.fence++
		*g = lossGen{fence: g.fence}
		fence := g.fence
		w.what = fmt.Sprintf("%d: %s begins under %d", who, pod, fence)
		take(0, 1)
		w.do = func() error {
			gen, err := x.Begin(ctx, pod, 0, fence)
			r.mu.Lock()
			defer r.mu.Unlock()
			if err == nil && g.fence == fence {
				g.gen = gen
			}
			return err
		}
	case kind < 15:
		p := store.Pod{Name: pod, Model: "m", Engine: fmt.Sprint(r.rng.IntN(3))}
		w.what = fmt.Sprintf("%d: %s registers", who, pod)
		w.do = func() error { _, err := x.Register(ctx, p); return err }
	default:
		w.what = fmt.Sprintf("%d: sweeps", who)
		w.do = func() error { _, err := x.Sweep(ctx); return err }
	}
	return w
}

// show tells what Redis has of a pod. The caller holds mu.
func (r *lossRound) show(pod string) {
	ctx, n := r.Context(), r.names
	r.say("own %v, gen %q", r.plain.HGetAll(ctx, n.Own(pod)).Val(), r.plain.HGetAll(ctx, n.Gen).Val())
	r.say("epoch %s, count %v, pods %v", r.plain.Get(ctx, n.Epoch).Val(), r.plain.HGetAll(ctx, n.Count).Val(), r.plain.HGetAll(ctx, n.Pods).Val())
	for b, k := range r.keys {
		r.say("block %d: %q", b, r.plain.Get(ctx, nameOf(r.both[0], k)).Val())
	}
	for i, x := range r.both {
		r.say("%d: epoch %d, holders %v", i, x.Cached().Epoch, x.Cached().Holders())
	}
}

// check looks up all blocks with each process.
func (r *lossRound) check() {
	r.Helper()
	for i, x := range r.both {
		if r.dice(4) == 0 {
			continue // it may be asked after more has happened
		}
		r.mu.Lock()
		may := make(map[lossHolding]bool, len(r.may))
		for h := range r.may {
			may[h] = true
		}
		r.mu.Unlock()
		c := &storetest.Collector{Keys: len(r.keys)}
		err := x.Lookup(r.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: r.keys, Fold: c})
		r.mu.Lock()
		r.lookups++
		if err != nil {
			r.failed++
			r.say("%d: looks up: %v", i, err)
		}
		for b, at := range c.Answer {
			for _, a := range at {
				r.credits++
				if !may[lossHolding{a.Pod, a.Tier, b}] {
					r.show(a.Pod)
					r.say("%d: credits %s with block %d in %v", i, a.Pod, b, a.Tier)
					r.Errorf("%s is credited with block %d in %v by process %d, which is false", a.Pod, b, a.Tier, i)
				}
			}
		}
		r.mu.Unlock()
		if r.Failed() {
			r.FailNow()
		}
	}
}
