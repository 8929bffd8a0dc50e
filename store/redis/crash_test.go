package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// errDead is what a writer gets for each command that it is too dead to send.
var errDead = errors.New("the writer is dead")

// lifeline lets a writer send so many commands and no more. Of a pipeline the
// rest is not sent, as when a process dies while it writes to its connection. On
// a cluster it sits in each node's client, where pipelines of several nodes go on
// side by side.
type lifeline struct {
	mu    sync.Mutex // protects all below
	bound bool
	left  int
	// deaf makes the last command's reply get lost: the command is sent, and its
	// error is errDead all the same.
	deaf bool
}

// limit lets n more commands through; below 0 any number.
func (l *lifeline) limit(n int, deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bound, l.left, l.deaf = n >= 0, n, deaf
}

// take says how many of the commands may be sent, and whether the reply to the
// last one gets lost.
func (l *lifeline) take(cmds []redis.Cmder) (n int, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range cmds {
		switch c.Name() {
		case "evalsha", "eval", "get", "hmget", "hgetall", "hget", "zrange", "hscan", "hlen":
			if l.bound && l.left == 0 {
				return n, lost
			}
			l.left--
			lost = l.bound && l.left == 0 && l.deaf
		}
		n++
	}
	return n, lost
}

func (l *lifeline) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (l *lifeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n, lost := l.take([]redis.Cmder{cmd})
		if n == 0 {
			cmd.SetErr(errDead)
			return errDead
		}
		err := next(ctx, cmd)
		if lost {
			cmd.SetErr(errDead)
			return errDead
		}
		return err
	}
}

func (l *lifeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n, lost := l.take(cmds)
		var err error
		if n > 0 {
			err = next(ctx, cmds[:n])
		}
		if lost {
			n--
		}
		if n == len(cmds) {
			return err
		}
		for _, c := range cmds[n:] {
			c.SetErr(errDead)
		}
		return errDead
	}
}

// mortal opens an index whose writer can be killed.
func mortal(tb testing.TB, c Config) (*Index, *lifeline) {
	tb.Helper()
	c.NoSweep = true
	x := open(tb, c)
	l := &lifeline{}
	if cluster, ok := x.space.Client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(l) })
	} else {
		x.space.Client.AddHook(l)
	}
	return x, l
}

// rank is a (pod, rank) whose engine tells its life from the first event on.
type rank struct {
	pod  string
	rank int
	gen  store.Generation
	// told are the batches of its events; that of seq is told[seq-1].
	told [][]store.Op
}

// batch is the ops of the sequences first to last as one batch.
func (r *rank) batch(fence, first, last uint64) store.Batch {
	var ops []store.Op
	for _, o := range r.told[first-1 : last] {
		ops = append(ops, o...)
	}
	var entries []store.MapOp
	for seq := first; seq <= last; seq++ {
		entries = append(entries, r.entries(seq)...)
	}
	return store.Batch{Pod: r.pod, Rank: r.rank, Model: "m", Ops: ops, Map: entries, Guard: &store.Guard{Generation: r.gen, Fence: fence, Seq: last}}
}

// entries are the map ops of a sequence: some come, some of those before change and
// some go.
func (r *rank) entries(seq uint64) (ops []store.MapOp) {
	for i := range uint64(20) {
		h := seq*10 + i
		op := store.MapOp{MapKey: store.MapKey{Hash: h % 24 << (h % 3 * 7)}, Value: fmt.Appendf(nil, "%d/%d", seq, i)}
		if (h+seq)%4 == 0 {
			op.Value = nil
		}
		ops = append(ops, op)
	}
	return ops
}

// wantMap fails the test when the rank's map is not what its whole story says.
func (r *rank) wantMap(t *testing.T, x *Index) {
	t.Helper()
	want := map[store.MapKey]string{}
	for seq := range uint64(len(r.told)) {
		for _, op := range r.entries(seq + 1) {
			want[op.MapKey] = string(op.Value)
		}
	}
	keys := slices.Collect(maps.Keys(want))
	got := must.Get(x.ReadMap(t.Context(), r.gen, keys...))(t)
	for i, k := range keys {
		if string(got[i]) != want[k] {
			t.Fatalf("entry %v of %s/%d is %q, want %q", k, r.pod, r.rank, got[i], want[k])
		}
	}
}

// crashKeys returns n keys in few partitions, so that a cluster's pipelines are
// short.
func crashKeys(n int) []blockkey.Key {
	var keys []blockkey.Key
	for i := range blockkey.Key(n) {
		k := blockkey.StoreKey(i*0x9e3779b97f4a7c15&^63 | i%5*13)
		keys = append(keys, blockkey.Key(uint64(k)^uint64(blockkey.ModelOf("m"))))
	}
	return keys
}

// crashStory is what the engines of three ranks tell: adds in several parts,
// removals, clears before, after and between them.
func crashStory() []*rank {
	k := crashKeys(90)
	add := func(t store.Tier, k ...blockkey.Key) store.Op { return store.Op{Kind: store.Add, Tier: t, Keys: k} }
	remove := func(t store.Tier, k ...blockkey.Key) store.Op { return store.Op{Kind: store.Remove, Tier: t, Keys: k} }
	forget := func(t store.Tier) store.Op { return store.Op{Kind: store.Clear, Tier: t} }
	return []*rank{
		{pod: "a", rank: 0, told: [][]store.Op{
			{add(store.GPU, k[:40]...)},
			{remove(store.GPU, k[:15]...), add(store.CPU, k[5:15]...)},
			{add(store.GPU, k[40:60]...), remove(store.AllTiers, k[10:14]...)},
		}},
		{pod: "a", rank: 1, told: [][]store.Op{
			{add(store.GPU, k[20:50]...), add(store.CPU, k[:5]...)},
			{add(store.GPU, k[50]), forget(store.GPU), add(store.GPU, k[30:45]...)},
			{forget(store.AllTiers), add(store.Disk, k[:12]...)},
		}},
		{pod: "b", rank: 0, told: [][]store.Op{
			{add(store.GPU, k[30:70]...)},
			{remove(store.GPU, k[30:60]...)},
			{add(store.GPU, k[:20]...), add(store.Shared, k[60:90]...)},
		}},
	}
}

// states returns the model after each number of windows.
func states(tb testing.TB, ranks []*rank) []*storetest.Model {
	tb.Helper()
	var out []*storetest.Model
	for n := range len(ranks[0].told) + 1 {
		m := storetest.NewModel()
		for _, pod := range []string{"a", "b"} {
			m.Register(store.Pod{Name: pod, Model: "m"})
		}
		for _, r := range ranks {
			for seq := range n {
				must.OK(tb, m.Apply(store.Batch{Pod: r.pod, Rank: r.rank, Model: "m", Ops: r.told[seq]}))
			}
		}
		out = append(out, m)
	}
	return out
}

// answer has the holders of the keys of the story.
func answer(tb testing.TB, x *Index) storetest.Answer {
	tb.Helper()
	k := crashKeys(90)
	c := &storetest.Collector{Keys: len(k)}
	if err := x.Lookup(tb.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: k, Fold: c}); err != nil {
		tb.Fatalf("Lookup: %v", err)
	}
	must.OK(tb, c.Err())
	return c.Answer
}

// begin begins the generations that the ranks do not have yet.
func begin(ctx context.Context, x *Index, fence uint64, ranks []*rank) error {
	for _, r := range ranks {
		if r.gen != 0 {
			continue
		}
		gen, err := x.Begin(ctx, r.pod, r.rank, fence)
		if err != nil {
			return err
		}
		r.gen = gen
	}
	return nil
}

// tell writes the windows of all ranks, and returns how many are applied. Few
// blocks go in one call.
func tell(ctx context.Context, x *Index, fence uint64, ranks []*rank) (applied int, err error) {
	for seq := range uint64(len(ranks[0].told)) {
		var batches []store.Batch
		for _, r := range ranks {
			batches = append(batches, r.batch(fence, seq+1, seq+1))
		}
		x.pace.bytes.Store(callBytes / 8)
		if err := x.Apply(ctx, batches...); err != nil {
			return int(seq), err
		}
	}
	return len(ranks[0].told), nil
}

// takeOver makes a writer the owner of all ranks and brings the index to the end of
// the story. It does so window by window, or with all that is missing in one batch.
func takeOver(ctx context.Context, x *Index, fence uint64, ranks []*rank, atOnce bool) error {
	from := make([]uint64, len(ranks))
	for i, r := range ranks {
		l, err := x.Life(ctx, r.pod, r.rank)
		if err == nil && l.Generation == 0 {
			l.Generation, err = x.Begin(ctx, r.pod, r.rank, fence)
		} else if err == nil {
			from[i], err = x.TakeOver(ctx, l.Generation, fence)
		}
		if err != nil {
			return fmt.Errorf("taking over %s/%d: %w", r.pod, r.rank, err)
		}
		r.gen = l.Generation
	}
	last := uint64(len(ranks[0].told))
	for seq := range last {
		var batches []store.Batch
		for i, r := range ranks {
			switch {
			case atOnce && seq == 0 && from[i] < last:
				batches = append(batches, r.batch(fence, from[i]+1, last))
			case !atOnce && seq >= from[i]:
				batches = append(batches, r.batch(fence, seq+1, seq+1))
			}
		}
		x.pace.bytes.Store(callBytes / 11)
		if err := x.Apply(ctx, batches...); err != nil {
			return err
		}
	}
	return nil
}

// noFalseCredit holds a crashed state to what was before and what was to be.
func noFalseCredit(t *testing.T, got storetest.Answer, before, after *storetest.Model) {
	t.Helper()
	was, will := before.Lookup(blockkey.ModelOf("m"), crashKeys(90)), after.Lookup(blockkey.ModelOf("m"), crashKeys(90))
	for i, at := range got {
		for _, a := range at {
			if !slices.Contains(was[i], a) && !slices.Contains(will[i], a) {
				t.Fatalf("block %d is credited to %v, which held it neither before nor after the window under way", i, a)
			}
		}
		for _, a := range was[i] {
			// Rank 1 of a is the one that clears, which may take what comes back.
			if a.Rank == 0 && slices.Contains(will[i], a) && !slices.Contains(at, a) {
				t.Fatalf("block %d has lost its credit to %v, which the window under way leaves alone", i, a)
			}
		}
	}
}

// TestWriterDies kills a writer before each of the commands that it sends, and
// its successor somewhere, and lets a third finish. The dead come back in the end.
func TestWriterDies(t *testing.T) {
	topologies := map[string]func() string{
		"standalone": func() string { return redistest.Start(t).URL() },
		"cluster":    func() string { return redistest.StartCluster(t, 3, false).URL() },
	}
	for name, start := range topologies {
		t.Run(name, func(t *testing.T) {
			url := start()
			all := states(t, crashStory())
			final := all[len(all)-1].Lookup(blockkey.ModelOf("m"), crashKeys(90))
			runs := 0
			for n := 0; ; n++ {
				if dies(t, url, n, all, final) {
					break
				}
				runs++
			}
			t.Logf("the writer was killed before each of %d commands", runs)
			if runs < 20 {
				t.Errorf("the writer sends %d commands only", runs)
			}
		})
	}
}

// dies is one run, in which the first writer dies after n commands. It returns
// true when it has lived.
func dies(t *testing.T, url string, n int, all []*storetest.Model, final storetest.Answer) (lived bool) {
	t.Helper()
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	c := Config{URL: url, Prefix: newPrefix()}
	ranks := crashStory()
	x, line := mortal(t, c)
	defer func() { _ = x.Close() }()
	for _, pod := range []string{"a", "b"} {
		must.Get(x.Register(ctx, store.Pod{Name: pod, Model: "m"}))(t)
	}
	// The first ids and generations but one are not what dies here.
	must.OK(t, begin(ctx, x, 1, ranks[:2]))
	line.limit(n, false)
	done := 0
	err := begin(ctx, x, 1, ranks)
	if err == nil {
		done, err = tell(ctx, x, 1, ranks)
	}
	lived = err == nil
	if !lived && !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("the writer that died after %d commands got %v", n, err)
	}
	zombies := []*rank{}
	for _, r := range ranks {
		z := *r
		zombies = append(zombies, &z)
	}

	y, second := mortal(t, c)
	defer func() { _ = y.Close() }()
	noFalseCredit(t, answer(t, y), all[done], all[min(done+1, len(all)-1)])

	second.limit(rng.IntN(40), rng.IntN(2) == 0)
	err = takeOver(ctx, y, 2, ranks, rng.IntN(2) == 0)
	if err != nil && !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("run %d: the second writer got %v", n, err)
	}
	second.limit(-1, false)
	z, _ := mortal(t, c)
	defer func() { _ = z.Close() }()
	if err := takeOver(ctx, z, 3, ranks, n%2 == 0); err != nil {
		t.Fatalf("run %d: the third writer got %v", n, err)
	}
	check := func(when string) {
		t.Helper()
		if got := answer(t, z); !got.Equal(final) {
			t.Fatalf("run %d, %s: found\n%v, want\n%v", n, when, got, final)
		}
		for _, r := range ranks {
			if l, err := z.Life(ctx, r.pod, r.rank); err != nil || l != (store.Life{Generation: r.gen, Fence: 3, Seq: uint64(len(r.told))}) {
				t.Fatalf("run %d, %s: the life of %s/%d is %+v, %v", n, when, r.pod, r.rank, l, err)
			}
			r.wantMap(t, z)
		}
	}
	check("after the takeover")

	// The first two were not dead but slow.
	line.limit(-1, false)
	for _, r := range zombies {
		if r.gen == 0 {
			continue
		}
		for seq := range uint64(len(r.told)) {
			if err := x.Apply(ctx, r.batch(1, seq+1, seq+1)); !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrEnded) {
				t.Fatalf("run %d: the first writer comes back and gets %v", n, err)
			}
		}
	}
	if err := takeOver(ctx, y, 2, ranks, true); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("run %d: the second writer comes back and gets %v", n, err)
	}
	check("after the dead came back")
	return lived
}

// TestWriterTriesAgain loses the connection of a writer at each of its commands,
// before the server gets it or after. The writer sends the same batch again.
func TestWriterTriesAgain(t *testing.T) {
	for name, start := range map[string]func() string{
		"standalone": func() string { return redistest.Start(t).URL() },
		"cluster":    func() string { return redistest.StartCluster(t, 3, false).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			url := start()
			ctx := t.Context()
			all := states(t, crashStory())
			final := all[len(all)-1].Lookup(blockkey.ModelOf("m"), crashKeys(90))
			for n := 1; ; n++ {
				ranks := crashStory()
				x, line := mortal(t, Config{URL: url, Prefix: newPrefix()})
				for _, pod := range []string{"a", "b"} {
					must.Get(x.Register(ctx, store.Pod{Name: pod, Model: "m"}))(t)
				}
				must.OK(t, begin(ctx, x, 1, ranks))
				failures := 0
				line.limit(n, n%2 == 0)
				for seq := uint64(1); seq <= uint64(len(ranks[0].told)); {
					var batches []store.Batch
					for _, r := range ranks {
						batches = append(batches, r.batch(1, seq, seq))
					}
					x.pace.bytes.Store(callBytes / int64(8+n%5))
					if err := x.Apply(ctx, batches...); err != nil {
						if failures++; failures > 1 {
							t.Fatal(err)
						}
						line.limit(-1, false)
						continue
					}
					seq++
				}
				line.limit(-1, false)
				if got := answer(t, x); !got.Equal(final) {
					t.Fatalf("failure at %d: found\n%v, want\n%v", n, got, final)
				}
				for _, r := range ranks {
					r.wantMap(t, x)
				}
				_ = x.Close()
				if failures == 0 {
					break
				}
			}
		})
	}
}
