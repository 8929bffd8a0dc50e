package replica

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

// logOf is the name of the only log of an index on a single server.
func logOf(prefix string) string { return prefix + "{reg}:log" }

// again waits until the replica has read one more snapshot than before.
func again(t *testing.T, r *Replica, before uint64) {
	t.Helper()
	eventually.NoError(t, "a new snapshot", func() error {
		if s := r.Status(); s.Snapshots <= before || s.Mode != Memory {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// TestTrimmed cuts the log behind a replica that cannot follow.
func TestTrimmed(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p, func(c *Config) { c.MaxLag = 50 * time.Millisecond })
	keys := keysOf(1, 2000)
	write(t, x, "a", store.Add, keys[:10]...)
	same(t, r, x, keys...)
	before := r.Status()

	r.table.mu.Lock() // the replica stands still
	for i := range 1500 {
		write(t, x, "b", store.Add, keys[i])
	}
	eventually.NoError(t, "the lag is noticed", func() error {
		if r.Status().Mode != Redis {
			return fmt.Errorf("%+v", r.Status())
		}
		return nil
	})
	got, err := find(t, r, keys...)
	want, _ := find(t, x, keys...)
	if err != nil || !got.Equal(want) || len(want[1400]) != 1 {
		t.Errorf("a replica that lags does not answer as Redis does: %v", err)
	}
	if why := r.Status().Why; why == nil || !strings.Contains(why.Error(), "lags") {
		t.Errorf("the replica says %v", why)
	}
	must.OK(t, s.Client().XTrimMaxLen(t.Context(), logOf(p), 1).Err())
	r.table.mu.Unlock()
	again(t, r, before.Snapshots)
	same(t, r, x, keys...)
	if s := r.Status(); s.Gaps == 0 {
		t.Errorf("no gap was seen: %+v", s)
	}
	write(t, x, "a", store.Remove, keys[:5]...)
	same(t, r, x, keys...)
}

// TestFlushAll empties the server.
func TestFlushAll(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	before := r.Status()
	must.OK(t, s.Client().FlushAll(t.Context()).Err())
	again(t, r, before.Snapshots)
	same(t, r, x, keys...)
	if n := r.Status().Blocks; n != 0 {
		t.Errorf("%d blocks are left", n)
	}
	write(t, x, "b", store.Add, keys[:50]...)
	same(t, r, x, keys...)
}

// TestLostWrites restarts the server with less than it had, as a failover does to a
// replica that lagged.
func TestLostWrites(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 300)
	write(t, x, "a", store.Add, keys[:100]...)
	must.OK(t, s.Client().Save(t.Context()).Err())
	write(t, x, "a", store.Add, keys[100:200]...)
	write(t, x, "a", store.Remove, keys[:50]...)
	same(t, r, x, keys...)
	before := r.Status()
	s.Kill()
	s.Run()
	again(t, r, before.Snapshots)
	same(t, r, x, keys...)
	if n := r.Status().Blocks; n != 100 {
		t.Errorf("%d blocks, want the 100 that were saved", n)
	}
	write(t, x, "a", store.Add, keys[200:]...)
	same(t, r, x, keys...)
}

// TestGoesOn restarts the server with all that it had: no snapshot is needed.
func TestGoesOn(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 300)
	write(t, x, "a", store.Add, keys[:100]...)
	same(t, r, x, keys...)
	before := r.Status()
	must.OK(t, s.Client().Save(t.Context()).Err())
	s.Kill()
	s.Run()
	eventually.NoError(t, "apply", func() error {
		return x.Apply(t.Context(), store.Batch{Pod: "b", Model: model, Ops: []store.Op{{Kind: store.Add, Keys: keys[100:]}}})
	})
	same(t, r, x, keys...)
	if s := r.Status(); s.Snapshots != before.Snapshots || s.Gaps != before.Gaps {
		t.Errorf("%+v, before %+v", s, before)
	}
}

// TestGarbledEntry puts entries into the log that no writer of ours writes.
func TestGarbledEntry(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	next := func() uint64 {
		_, n := loggedUpTo(t, plain, p)
		return n + 1
	}
	for name, values := range map[string][]any{
		"no number":      {"x", "y"},
		"a wrong number": {"n", "7", "=1", "12345678"},
		"a cut name":     {"n", next(), "=1", "1234567"},
		"a strange one":  {"n", next(), "what", "12345678"},
		"no epoch":       {"n", next(), "e", "-"},
	} {
		before := r.Status()
		must.OK(t, plain.XAdd(t.Context(), &goredis.XAddArgs{Stream: logOf(p), Values: values}).Err())
		again(t, r, before.Snapshots)
		write(t, x, "b", store.Add, keys[:10]...)
		same(t, r, x, keys...)
		if s := r.Status(); s.Gaps == before.Gaps {
			t.Errorf("%s: no gap was seen", name)
		}
	}
}

// TestGarbledValue: a value in an entry that cannot be read counts for no pod.
func TestGarbledValue(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 10)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	// A writer that keeps the log's rules, with a value that breaks those of values.
	script := `local n = string.match(redis.call('GET', KEYS[1]), ' (%d+)$')
		n = string.format('%.0f', n + 1)
		redis.call('XADD', KEYS[2], '*', 'n', n, '=1,,2', ARGV[1])
		redis.call('SET', KEYS[1], '10000 ' .. n)`
	if err := plain.Eval(t.Context(), script, []string{p + "{reg}:logged", logOf(p)}, "12345678").Err(); err != nil && !errors.Is(err, goredis.Nil) {
		t.Fatal(err)
	}
	same(t, r, x, keys...)
	if g := r.Stats().Garbled; g == 0 {
		t.Error("the value was not counted")
	}
	if s := r.Status(); s.Gaps != 0 || s.Blocks != 10 {
		t.Errorf("%+v", s)
	}
}

// TestLogOff switches the log off and on under a replica.
func TestLogOff(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	must.OK(t, x.SetLog(t.Context(), 0))
	eventually.NoError(t, "off is noticed", func() error {
		if s := r.Status(); s.Mode != Redis || !errors.Is(s.Why, changelog.ErrOff) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	write(t, x, "a", store.Remove, keys[:50]...)
	if got, err := find(t, r, keys...); err != nil || len(got[0]) != 0 || len(got[99]) != 1 {
		t.Errorf("found %v, %v", got, err)
	}
	if n := s.Client().Exists(t.Context(), logOf(p), p+"{reg}:logged").Val(); n != 0 {
		t.Errorf("%d keys of the log are there", n)
	}
	if n, err := x.EnsureLog(t.Context(), 100); n != 0 || err != nil {
		t.Errorf("EnsureLog overrides SetLog(0): %d, %v", n, err)
	}
	must.OK(t, x.SetLog(t.Context(), 100))
	same(t, r, x, keys...)
	if n := r.Status().Blocks; n != 50 {
		t.Errorf("%d blocks", n)
	}
	// Another length goes on with the same numbers.
	before := r.Status()
	must.OK(t, x.SetLog(t.Context(), 200))
	write(t, x, "b", store.Add, keys...)
	same(t, r, x, keys...)
	if s := r.Status(); s.Gaps != before.Gaps || s.Snapshots != before.Snapshots {
		t.Errorf("%+v, before %+v", s, before)
	}
	for _, n := range []int{-1, changelog.MinEntries - 1, changelog.MaxEntries + 1} {
		if err := x.SetLog(t.Context(), n); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("SetLog(%d): %v", n, err)
		}
	}
}

// TestRedisIsDown kills the server under a replica, which goes on for a time.
func TestRedisIsDown(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	const stale = 6 * time.Second // the test must come to ask within it
	r := openReplica(t, s.URL(), p, func(c *Config) { c.MaxLag, c.MaxStale = 100*time.Millisecond, stale })
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	want, _ := find(t, x, keys...)
	s.Kill()
	eventually.NoError(t, "the answer is called stale", func() error {
		got, err := find(t, r, keys...)
		var old *store.StaleError
		if !errors.As(err, &old) {
			return fmt.Errorf("found %d blocks, %w", len(got), err)
		}
		if !got.Equal(want) {
			t.Fatalf("found\n%v, want\n%v", got, want)
		}
		if old.Age <= 0 || old.Age > stale || !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("%v, of %v", err, old.Age)
		}
		return nil
	})
	eventually.NoError(t, "it ends", func() error {
		got, err := find(t, r, keys...)
		var old *store.StaleError
		if errors.As(err, &old) || !errors.Is(err, store.ErrUnavailable) || len(got) != 0 {
			return fmt.Errorf("found %d blocks, %w", len(got), err)
		}
		return nil
	})
	s.Run() // empty
	again(t, r, 1)
	write(t, x, "b", store.Add, keys[:10]...)
	same(t, r, x, keys...)
	if r.Ready() != nil {
		t.Errorf("not ready: %v", r.Ready())
	}
}

// TestFrozen stops the server without ending it.
func TestFrozen(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p, func(c *Config) { c.MaxLag = 100 * time.Millisecond })
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	s.Freeze()
	eventually.NoError(t, "the answer is called stale", func() error {
		got, err := find(t, r, keys...)
		var old *store.StaleError
		if !errors.As(err, &old) || len(got) != 100 {
			return fmt.Errorf("found %d blocks, %w", len(got), err)
		}
		return nil
	})
	s.Thaw()
	eventually.NoError(t, "memory answers again", func() error {
		if s := r.Status(); s.Mode != Memory {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	same(t, r, x, keys...)
}

// TestDownAtStart begins with no server.
func TestDownAtStart(t *testing.T) {
	s := redistest.Prepare(t)
	p := newPrefix()
	r := openReplica(t, s.URL(), p)
	eventually.NoError(t, "it says why it is not ready", func() error {
		if err := r.Ready(); !errors.Is(err, store.ErrUnavailable) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if _, err := find(t, r, keysOf(1, 3)...); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Lookup: %v", err)
	}
	s.Run()
	eventually.NoError(t, "it is ready", r.Ready)
	x := openRedis(t, s.URL(), p)
	keys := keysOf(1, 10)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
}

// TestTooLarge copies an index that does not fit, until it does.
func TestTooLarge(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	keys := keysOf(1, 60_000)
	for at := 0; at < len(keys); at += 4000 {
		write(t, x, "a", store.Add, keys[at:at+4000]...)
	}
	r := openReplica(t, s.URL(), p, func(c *Config) { c.MaxBytes, c.Retry = 1<<20, 50*time.Millisecond })
	eventually.NoError(t, "it says so", func() error {
		if err := r.Ready(); !errors.Is(err, errFull) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if st := r.Status(); st.Mode != Redis || st.Bytes > 1<<20+1<<15 {
		t.Errorf("%+v", st)
	}
	if got, err := find(t, r, keys[:3]...); err != nil || len(got[0]) != 1 {
		t.Errorf("found %v, %v", got, err)
	}
	for at := 100; at < len(keys); at += 4000 {
		write(t, x, "a", store.Remove, keys[at:min(at+4000, len(keys))]...)
	}
	same(t, r, x, keys[:200]...)
	// And it grows too large again.
	for at := 0; at < len(keys); at += 4000 {
		write(t, x, "a", store.Add, keys[at:at+4000]...)
	}
	eventually.NoError(t, "it says so again", func() error {
		if st := r.Status(); st.Mode != Redis || !errors.Is(st.Why, errFull) {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// TestVerify changes blocks past the log, as an eviction does.
func TestVerify(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p, func(c *Config) { c.Verify = 30 * time.Millisecond })
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	var gone []string
	for _, name := range plain.Keys(t.Context(), p+"{?}????????").Val() {
		if len(gone) < 20 {
			gone = append(gone, name)
		}
	}
	if n := plain.Del(t.Context(), gone...).Val(); n != 20 {
		t.Fatalf("%d blocks deleted", n)
	}
	eventually.NoError(t, "the blocks are gone", func() error {
		if st := r.Status(); st.Blocks != 80 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	same(t, r, x, keys...)
	if st := r.Status(); st.Gaps != 0 {
		t.Errorf("%+v", st)
	}
}

// TestSweep retires a pod: its blocks count for nothing at once, and leave memory when
// Redis is swept.
func TestSweep(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 10_000)
	write(t, x, "a", store.Add, keys[:6000]...)
	write(t, x, "b", store.Add, keys[5000:]...)
	same(t, r, x, keys...)
	must.Get(x.Retire(t.Context(), "a"))(t)
	write(t, x, "c", store.Add, keys[:10]...)
	same(t, r, x, keys...)
	if st := r.Status(); st.Blocks != 10_000 {
		t.Errorf("before the sweep: %+v", st)
	}
	must.Get(x.Sweep(t.Context()))(t)
	same(t, r, x, keys...)
	if st := r.Status(); st.Blocks != 5010 || st.Snapshots != 1 {
		t.Errorf("after it: %+v", st)
	}
}

// TestTwoReplicas follow one index through random changes.
func TestTwoReplicas(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	keys := keysOf(1, 500)
	write(t, x, "a", store.Add, keys...)
	one, two := openReplica(t, s.URL(), p), openReplica(t, s.URL(), p)
	for i := range 20 {
		write(t, x, fmt.Sprint("p", i%5), store.Add, keys[i*20:i*20+60]...)
		write(t, one, fmt.Sprint("p", (i+2)%5), store.Remove, keys[i*10:i*20+40]...)
		if i%7 == 3 {
			must.Get(two.Retire(t.Context(), fmt.Sprint("p", i%5)))(t)
		}
		same(t, one, x, keys...)
		same(t, two, x, keys...)
	}
	if n := one.Status().Gaps + two.Status().Gaps; n != 0 {
		t.Errorf("%d gaps", n)
	}
}

// TestDeath: a retirement is seen without a lookup asking for it.
func TestDeath(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p, func(c *Config) { c.MaxLag = patience })
	keys := keysOf(1, 100)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	must.Get(x.Retire(t.Context(), "a"))(t)
	begin := time.Now()
	eventually.NoError(t, "the pod is nobody", func() error {
		got, err := find(t, r, keys[0])
		if err == nil && len(got[0]) > 0 {
			err = errors.New("it is alive")
		}
		return err
	})
	t.Logf("seen after %v", time.Since(begin))
	if st := r.Status(); st.Lookups[Redis] != 0 {
		t.Errorf("%+v", st)
	}
}

// TestTexts: a block that names a pod by text is written past the log, and no
// replica can know it.
func TestTexts(t *testing.T) {
	s := redistest.Start(t)
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	keys := keysOf(1, 10)
	write(t, x, "a", store.Add, keys...)
	name := ""
	for _, n := range s.Client().Keys(t.Context(), p+"{?}????????").Val() {
		name = n
	}
	s.Client().Set(t.Context(), name, "a", 0)
	r := openReplica(t, s.URL(), p, func(c *Config) { c.Retry = 20 * time.Millisecond })
	eventually.NoError(t, "it says so", func() error {
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "by text") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if got, err := find(t, r, keys...); err != nil || len(got) != 10 {
		t.Errorf("found %v, %v", got, err)
	}
	// Redis gets the pods that a query names, and the models that let others in.
	s.Client().Set(t.Context(), name, "b", 0)
	pods := func(named ...string) string {
		t.Helper()
		f := &begun{}
		must.OK(t, r.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf(model), Keys: keys, Fold: f, Named: named}))
		return fmt.Sprint(f.pods)
	}
	if got := pods(); got != "[a]" {
		t.Errorf("nobody is named: %s", got)
	}
	if got := pods("b", "c"); got != "[a b c]" {
		t.Errorf("two are named: %s", got)
	}
	for _, on := range []bool{true, false} {
		must.Get(r.SetUnregistered(t.Context(), store.ModelInfo{Name: model, BlockSize: 16, Scheme: store.SchemeNative, Unregistered: on}))(t)
		if got, want := pods(), map[bool]string{true: "[a b]", false: "[a]"}[on]; got != want {
			t.Errorf("others are let in is %v: %s", on, got)
		}
	}
	s.Client().Del(t.Context(), name)
	same(t, r, x, keys...)
}

// begun is a folder that notes the pods of the registry.
type begun struct{ pods []string }

func (f *begun) Begin(r *store.Registry) {
	f.pods = nil
	for _, p := range r.Pods {
		f.pods = append(f.pods, p.Name)
	}
}

func (*begun) Run(int, []store.HolderID) bool { return true }

// TestLostEntry: the last entry of the log goes before the replica has read it, and
// nothing comes after it.
func TestLostEntry(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	p := newPrefix()
	x := openRedis(t, s.URL(), p)
	r := openReplica(t, s.URL(), p)
	keys := keysOf(1, 10)
	write(t, x, "a", store.Add, keys...)
	same(t, r, x, keys...)
	before := r.Status()
	// As the server is after the entry of a write has been deleted.
	limit, n := loggedUpTo(t, plain, p)
	must.OK(t, plain.Set(t.Context(), p+"{reg}:logged", fmt.Sprint(limit, " ", n+1), 0).Err())
	again(t, r, before.Snapshots)
	if s := r.Status(); s.Gaps == before.Gaps {
		t.Errorf("no gap was seen: %+v", s)
	}
	write(t, x, "b", store.Add, keys[:5]...)
	same(t, r, x, keys...)
}

// loggedUpTo reads the length that the log is cut to, and the number of its last entry.
func loggedUpTo(t *testing.T, plain *goredis.Client, prefix string) (limit, n uint64) {
	t.Helper()
	must.Get(fmt.Sscan(plain.Get(t.Context(), prefix+"{reg}:logged").Val(), &limit, &n))(t)
	return limit, n
}
