package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/external"
)

// holdings is a folder that writes down the holders of each block, as pod/rank/tier.
type holdings struct {
	reg    *store.Registry
	blocks []string
	stop   int // when so many blocks have been told; 0 is never
}

func (f *holdings) Begin(r *store.Registry) { *f = holdings{reg: r, stop: f.stop} }

func (f *holdings) Run(n int, holders []store.HolderID) bool {
	var names []string
	for _, id := range holders {
		if id == store.Everyone {
			names = append(names, "everyone")
			continue
		}
		slot, tier, live := f.reg.Holder(id)
		if !live {
			names = append(names, fmt.Sprintf("dead %d", id))
			continue
		}
		s := f.reg.Slots[slot]
		names = append(names, fmt.Sprintf("%s/%d/%v", f.reg.Pods[s.Pod].Name, s.Rank, tier))
	}
	for range n {
		f.blocks = append(f.blocks, strings.Join(names, " "))
	}
	return f.stop == 0 || len(f.blocks) < f.stop
}

func lookEntries(t *testing.T, x *Index, form lmcache.EntryKind, parts int, names ...string) []string {
	t.Helper()
	f := &holdings{}
	before := x.Stats()
	q := &store.Query{Model: blockkey.ModelOf("m"), Fold: f, Beside: &lmcache.EntryNames{Kind: form, Names: names, Parts: parts}}
	must.OK(t, x.Lookup(t.Context(), q))
	if trips := x.Stats().RoundTrips - before.RoundTrips; trips != 1 {
		t.Errorf("%d round trips, want 1", trips)
	}
	return f.blocks
}

func wantHoldings(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestEntries(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		ctx := t.Context()
		x := open(t, Config{URL: url, NoSweep: true, Entries: true})
		plain := x.space.Client
		register(t, x,
			store.Pod{Name: "10.0.0.1:8000"}, store.Pod{Name: "10.0.0.2:8000"}, store.Pod{Name: "[fd00::1]:8000"},
			store.Pod{Name: "llama-0", Address: "http://10.0.0.3:8000"},
			store.Pod{Name: "10.0.0.4:8000"}, store.Pod{Name: "10.0.0.4:8001"}, // two of a host
			store.Pod{Name: "10.0.0.5:8000"}, store.Pod{Name: "10.0.0.5:9000", Model: "other"}, // two of which one has the model
			store.Pod{Name: "10.0.0.6:8000", Model: "other"},
			store.Pod{Name: "10.0.0.1:8000/lmcache/0", PartOf: &store.PartOf{Pod: "10.0.0.1:8000", Workers: 1}},
		)
		must.Get(x.Registry(ctx))(t)
		owners := []struct{ text, want string }{
			{"10.0.0.1:8200", "10.0.0.1:8000/0/cpu"},
			{"10.0.0.1:8000", "10.0.0.1:8000/0/cpu"},
			{"10.0.0.2", "10.0.0.2:8000/0/cpu"},
			{"[fd00::1]:8200", "[fd00::1]:8000/0/cpu"},
			{"fd00::1", "[fd00::1]:8000/0/cpu"},
			{"[fd00::1]", "[fd00::1]:8000/0/cpu"},
			{"10.0.0.3:17800", "llama-0/0/cpu"},
			{"llama-0", "llama-0/0/cpu"},
			{"10.0.0.4:8200", ""}, {"10.0.0.4:8001", "10.0.0.4:8001/0/cpu"},
			{"10.0.0.5:8200", "10.0.0.5:8000/0/cpu"},
			{"10.0.0.6:8200", ""}, {"10.0.0.99:8200", ""},
			{"10.0.0.1:8000/lmcache/0", ""},
			{"10.0.0.1:8200,10.0.0.2:8200", ""}, {"a b", ""}, {strings.Repeat("a", 300), ""}, {"17", ""},
		}

		t.Run("owner", func(t *testing.T) {
			var names, want []string
			for i, c := range owners {
				name := fmt.Sprintf("vllm@m@1@0@%x", i)
				must.OK(t, plain.Set(ctx, name, c.text, 0).Err())
				names, want = append(names, name), append(want, c.want)
			}
			must.OK(t, plain.HSet(ctx, "vllm@m@1@0@hash", "10.0.0.1", "x").Err())
			must.OK(t, plain.Set(ctx, "vllm@m@1@0@last", "10.0.0.1:8200", 0).Err())
			names, want = append(names, "vllm@m@1@0@none", "vllm@m@1@0@hash", "vllm@m@1@0@last"), append(want, "", "", "10.0.0.1:8000/0/cpu")
			before := x.Stats()
			wantHoldings(t, lookEntries(t, x, lmcache.OwnerString, 1, names...), want...)
			after := x.Stats()
			garbled := uint64(3)
			if x.space.Cluster {
				garbled++ // GET reports the type, MGET does not
			}
			if n := after.Garbled - before.Garbled; n != garbled {
				t.Errorf("%d garbled, want %d", n, garbled)
			}
			if n := after.UnknownTexts - before.UnknownTexts; n != 5 {
				t.Errorf("%d unknown, want 5", n)
			}
		})

		t.Run("owner of two workers", func(t *testing.T) {
			both := func(i int, a, b string) []string {
				names := []string{fmt.Sprintf("vllm@m@2@0@%x", i), fmt.Sprintf("vllm@m@2@1@%x", i)}
				for k, v := range []string{a, b} {
					if v != "" {
						must.OK(t, plain.Set(ctx, names[k], v, 0).Err())
					}
				}
				return names
			}
			names := slices.Concat(
				both(0, "10.0.0.1:8200", "10.0.0.1:8201"), both(1, "10.0.0.1:8200", ""), both(2, "", "10.0.0.1:8200"),
				both(3, "10.0.0.1:8200", "10.0.0.2:8200"), both(4, "10.0.0.2:8200", "10.0.0.2:8200"))
			wantHoldings(t, lookEntries(t, x, lmcache.OwnerString, 2, names...), "10.0.0.1:8000/0/cpu", "", "", "", "10.0.0.2:8000/0/cpu")
		})

		t.Run("owners", func(t *testing.T) {
			must.OK(t, plain.HSet(ctx, "m@0", "10.0.0.2", "vllm@1@0@1.5", "10.0.0.1:8200", "", "nobody", "x").Err())
			must.OK(t, plain.HSet(ctx, "m@1", "fd00::1", "vllm@1@0@1.5", "[fd00::1]:8200", "x").Err())
			must.OK(t, plain.Set(ctx, "m@2", "10.0.0.1", 0).Err())
			must.OK(t, plain.LPush(ctx, "m@3", "10.0.0.1").Err())
			must.OK(t, plain.HSet(ctx, "m@5", "a b", "x", "10.0.0.1", "x").Err())
			before := x.Stats().Garbled
			wantHoldings(t, lookEntries(t, x, lmcache.OwnerHash, 1, "m@0", "m@1", "m@2", "m@3", "m@4", "m@5"),
				"10.0.0.1:8000/0/cpu 10.0.0.2:8000/0/cpu", "[fd00::1]:8000/0/cpu", "", "", "", "10.0.0.1:8000/0/cpu")
			if n := x.Stats().Garbled - before; n != 3 {
				t.Errorf("%d garbled, want 3: two of a wrong type, and one field", n)
			}
		})

		// A hash of too many fields counts for no pod, and the others in its round trip count.
		t.Run("owners of many fields", func(t *testing.T) {
			fill := func(name string, n int) {
				args := []any{"10.0.0.1:8200", "vllm@1@0@1.5"}
				for i := 1; i < n; i++ {
					args = append(args, fmt.Sprintf("10.1.%d.%d", i>>8, i&255), "vllm@1@0@1.5")
				}
				must.OK(t, plain.HSet(ctx, name, args...).Err())
			}
			fill("m@d", external.MaxFields)
			fill("m@e", external.MaxFields+1)
			fill("m@f", 60_000)
			must.OK(t, plain.HSet(ctx, "m@g", "10.0.0.2", "vllm@1@0@1.5").Err())
			aged := open(t, Config{URL: url, NoSweep: true, Entries: true, EntryAge: 100 * 365 * 24 * time.Hour})
			must.Get(aged.Registry(ctx))(t)
			for _, by := range []*Index{x, aged} {
				before := by.Stats().Garbled
				wantHoldings(t, lookEntries(t, by, lmcache.OwnerHash, 1, "m@d", "m@e", "m@f", "m@g"), "10.0.0.1:8000/0/cpu", "", "", "10.0.0.2:8000/0/cpu")
				if n := by.Stats().Garbled - before; n != 2 {
					t.Errorf("%d garbled, want 2", n)
				}
			}
		})

		t.Run("age", func(t *testing.T) {
			old := open(t, Config{URL: url, NoSweep: true, Entries: true, EntryAge: time.Hour})
			must.Get(old.Registry(ctx))(t)
			at := func(age time.Duration) string {
				return fmt.Sprintf("vllm@2@1@%.7f", float64(time.Now().Add(-age).UnixNano())/1e9)
			}
			must.OK(t, plain.HSet(ctx, "m@a", "10.0.0.1", at(30*time.Minute), "10.0.0.2", at(2*time.Hour), "llama-0", "vllm@1@0@soon").Err())
			must.OK(t, plain.HSet(ctx, "m@b", "10.0.0.1", at(2*time.Hour), "10.0.0.2", at(-time.Minute)).Err())
			must.OK(t, plain.LPush(ctx, "m@c", "10.0.0.1").Err())
			must.OK(t, plain.HSet(ctx, "m@h", "10.0.0.1", "vllm@1@0@inf", "10.0.0.2", at(-2*time.Hour), "llama-0", "vllm@1@0@nan").Err())
			wantHoldings(t, lookEntries(t, old, lmcache.OwnerHash, 1, "m@a", "m@b", "m@c", "m@h"), "10.0.0.1:8000/0/cpu", "10.0.0.2:8000/0/cpu", "", "")
			wantHoldings(t, lookEntries(t, x, lmcache.OwnerHash, 1, "m@a"), "10.0.0.1:8000/0/cpu 10.0.0.2:8000/0/cpu llama-0/0/cpu")
			if n := old.Stats().Garbled; n != 5 {
				t.Errorf("%d garbled, want 5: four times, a type", n)
			}
		})

		t.Run("present", func(t *testing.T) {
			for _, name := range []string{"m@2@0@0metadata", "m@2@1@0metadata", "m@2@0@1metadata", "m@2@1@2metadata"} {
				must.OK(t, plain.Set(ctx, name, "\x00\x08", 0).Err())
			}
			must.OK(t, plain.LPush(ctx, "m@2@0@3metadata", "any type").Err())
			must.OK(t, plain.LPush(ctx, "m@2@1@3metadata", "any type").Err())
			var names []string
			for i := range 5 {
				names = append(names, fmt.Sprintf("m@2@0@%dmetadata", i), fmt.Sprintf("m@2@1@%dmetadata", i))
			}
			wantHoldings(t, lookEntries(t, x, lmcache.Tensors, 2, names...), "everyone", "", "", "everyone", "")
		})

		t.Run("a pod that is gone", func(t *testing.T) {
			must.Get(x.Retire(ctx, "10.0.0.2:8000"))(t)
			f := &holdings{}
			q := &store.Query{Model: blockkey.ModelOf("m"), Fold: f, Beside: &lmcache.EntryNames{Kind: lmcache.OwnerHash, Names: []string{"m@0"}}}
			must.OK(t, x.Lookup(ctx, q))
			wantHoldings(t, f.blocks, "10.0.0.1:8000/0/cpu")
		})
	})
}

// TestEntriesGoAlong holds what goes along with a chain of blocks to its windows.
func TestEntriesGoAlong(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		ctx := t.Context()
		x := open(t, Config{URL: url, NoSweep: true, Entries: true, Windows: []int{8, 16}})
		register(t, x, store.Pod{Name: "10.0.0.1:8000"})
		must.Get(x.Registry(ctx))(t)
		const blocks = 64 // of 4 tokens: chunks of 16 are 16, of 3 tokens 86
		keys := benchChain(blocks)
		big, small := benchChain(16), benchChain(86)
		names := make([]string, 2*16)
		for i := range names {
			names[i] = fmt.Sprintf("vllm@m@2@%d@%x", i%2, i/2)
			must.OK(t, x.space.Client.Set(ctx, names[i], "10.0.0.1:8200", 0).Err())
		}
		look := func(stop int) (trips, read uint64, folds [4]*holdings) {
			m := blockkey.ModelOf("m")
			for i := range folds {
				folds[i] = &holdings{}
			}
			folds[3].stop = stop
			lead := &store.Query{Model: m, Keys: keys, Fold: folds[3], Span: 4}
			before := x.Stats()
			must.OK(t, x.Lookup(ctx,
				&store.Query{Model: m, Keys: big, Fold: folds[0], Span: 16, Lead: lead},
				&store.Query{Model: m, Keys: small, Fold: folds[1], Span: 3, Lead: lead},
				&store.Query{Model: m, Beside: &lmcache.EntryNames{Kind: lmcache.OwnerString, Names: names, Parts: 2}, Fold: folds[2], Span: 16, Lead: lead},
				lead))
			after := x.Stats()
			return after.RoundTrips - before.RoundTrips, after.KeysRead - before.KeysRead, folds
		}
		// One window of 8 blocks is 32 tokens: 2 chunks of 16 and 11 of 3.
		trips, read, f := look(1)
		if trips != 1 || read != 8+2+11+2*2 {
			t.Errorf("a lookup that stops at once: %d round trips, %d keys", trips, read)
		}
		for i, want := range []int{2, 11, 2, 8} {
			if n := len(f[i].blocks); n != want {
				t.Errorf("query %d was told of %d blocks, want %d", i, n, want)
			}
		}
		trips, read, f = look(0)
		if trips != 4 || read != 64+16+86+2*16 { // windows of 8, 16, 16 and 24
			t.Errorf("a lookup that sees all: %d round trips, %d keys", trips, read)
		}
		for i, want := range []int{16, 86, 16, 64} {
			if n := len(f[i].blocks); n != want {
				t.Errorf("query %d was told of %d blocks, want %d", i, n, want)
			}
		}
		for i, who := range f[2].blocks {
			if who != "10.0.0.1:8000/0/cpu" {
				t.Errorf("chunk %d: %q", i, who)
			}
		}
	})
}

// strange is a list of blocks in a form that the index does not know.
type strange struct{}

func (strange) Len() int { return 1 }

func TestEntriesRefused(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	x := open(t, Config{URL: s.URL(), NoSweep: true})
	err := x.Lookup(ctx, &store.Query{Fold: &all{}, Beside: &lmcache.EntryNames{Kind: lmcache.OwnerString, Names: []string{"a"}}})
	if !errors.Is(err, store.ErrInvalid) {
		t.Errorf("entries without Config.Entries: %v", err)
	}
	// What another index may know is refused for what it is.
	with := open(t, Config{URL: s.URL(), NoSweep: true, Entries: true})
	err = with.Lookup(ctx, &store.Query{Fold: &all{}, Beside: strange{}})
	if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "query 0 is about a redis.strange") {
		t.Errorf("a form that is not known: %v", err)
	}
	if _, err := Open(Config{URL: s.URL(), EntryAge: -1}); err == nil {
		t.Error("a negative age was taken")
	}

	// A user that may read the index alone: blocks count, entries do not, and the log
	// says so once.
	register(t, x, store.Pod{Name: "10.0.0.1:8000"})
	apply(t, x, batchOf("10.0.0.1:8000", store.Add, 1, 2))
	admin := s.Client()
	must.OK(t, admin.Do(ctx, "ACL", "SETUSER", "reader", "on", ">secret", "~kva*", "+@all").Err())
	must.OK(t, admin.Set(ctx, "theirs", "10.0.0.1:8200", 0).Err())
	var logged []string
	reader := open(t, Config{URL: strings.Replace(s.URL(), "redis://", "redis://reader:secret@", 1), NoSweep: true, Entries: true,
		Observer: Observer{Log: func(msg string) { logged = append(logged, msg) }}})
	for range 2 {
		for form := lmcache.OwnerString; form <= lmcache.Tensors; form++ {
			blocks, entries := &holdings{}, &holdings{}
			m := blockkey.ModelOf("m")
			must.OK(t, reader.Lookup(ctx, &store.Query{Model: m, Fold: entries, Beside: &lmcache.EntryNames{Kind: form, Names: []string{"theirs"}}},
				&store.Query{Model: m, Keys: []blockkey.Key{1, 2}, Fold: blocks}))
			wantHoldings(t, blocks.blocks, "10.0.0.1:8000/0/gpu", "10.0.0.1:8000/0/gpu")
			wantHoldings(t, entries.blocks, "")
		}
	}
	said := map[string]int{}
	for _, line := range logged {
		what, why, _ := strings.Cut(line, ": NOPERM")
		if said[what]++; why == "" || said[what] > 1 {
			t.Errorf("log %q", logged)
		}
	}
	if n := reader.Stats().Garbled; n != 6 || said["entries of LMCache cannot be read and count for no pod"] != 1 {
		t.Errorf("%d garbled, log %q", n, logged)
	}

	// docs/operations.md says what lets the user read them, and nothing else of others.
	must.OK(t, admin.Do(ctx, "ACL", "SETUSER", "reader", "reset", "on", ">secret", "~kva{*", "%R~*@*", "+client|setname", "+mget", "+get", "+eval", "+time",
		"+hgetall", "+hmget", "+hscan", "+zrange", "+hlen", "+hrandfield", "+exists").Err())
	for _, args := range [][]any{{"SET", "vllm@m@1@0@0", "10.0.0.1:8200"}, {"HSET", "m@0", "10.0.0.1", "vllm@1@0@1.5"}} {
		must.OK(t, admin.Do(ctx, args...).Err())
	}
	wantHoldings(t, lookEntries(t, reader, lmcache.OwnerString, 1, "vllm@m@1@0@0"), "10.0.0.1:8000/0/cpu")
	wantHoldings(t, lookEntries(t, reader, lmcache.OwnerHash, 1, "m@0"), "10.0.0.1:8000/0/cpu")
	wantHoldings(t, lookEntries(t, reader, lmcache.Tensors, 1, "m@0"), "everyone")

	// A server that is gone is an error, as ever.
	s.Stop()
	err = reader.Lookup(ctx, &store.Query{Fold: &all{}, Beside: &lmcache.EntryNames{Kind: lmcache.OwnerString, Names: []string{"a"}}})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

// BenchmarkEntries compares the shapes of entries with a block's value. One pod holds 128
// chunks, as 0.3.1 writes them, as the fork does, and with the fork's ages.
func BenchmarkEntries(b *testing.B) {
	s := redistest.Start(b)
	plain := s.Client()
	const chunks = 128
	var owner, owners []string
	for i := range chunks {
		owner, owners = append(owner, fmt.Sprintf("vllm@m@1@0@%064x", i)), append(owners, fmt.Sprintf("m@%064x", i))
	}
	must.Get(plain.Pipelined(b.Context(), func(p redis.Pipeliner) error {
		for i := range chunks {
			p.Set(b.Context(), owner[i], "10.0.0.1:8200", 0)
			p.HSet(b.Context(), owners[i], "10.0.0.1", fmt.Sprintf("vllm@1@0@%d.5", time.Now().Unix()))
		}
		return nil
	}))(b)
	for _, c := range []struct {
		name  string
		age   time.Duration
		form  lmcache.EntryKind
		names []string
	}{
		{"SET by MGET", 0, lmcache.OwnerString, owner}, {"HSET by HKEYS", 0, lmcache.OwnerHash, owners},
		{"HSET by HGETALL", time.Hour, lmcache.OwnerHash, owners}, {"EXISTS", 0, lmcache.Tensors, owner},
	} {
		b.Run(c.name, func(b *testing.B) {
			x := open(b, Config{URL: s.URL(), NoSweep: true, Entries: true, EntryAge: c.age})
			register(b, x, store.Pod{Name: "10.0.0.1:8000"})
			q := &store.Query{Model: blockkey.ModelOf("m"), Fold: &all{}, Beside: &lmcache.EntryNames{Kind: c.form, Names: c.names}}
			report := cpu(b, plain)
			b.ReportAllocs()
			for b.Loop() {
				must.OK(b, x.Lookup(b.Context(), q))
			}
			report()
		})
	}
}
