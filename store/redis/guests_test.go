package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

// named is a store.Folder that notes the holders of each block.
type named struct {
	reg  *store.Registry
	held []string
}

func (f *named) Begin(reg *store.Registry) { f.reg, f.held = reg, nil }

func (f *named) Run(n int, holders []store.HolderID) bool {
	var pods []string
	for _, id := range holders {
		if slot, tier, ok := f.reg.Holder(id); ok {
			pods = append(pods, f.reg.Pods[f.reg.Slots[slot].Pod].Name+"/"+tier.String())
		}
	}
	slices.Sort(pods)
	f.held = append(f.held, slices.Repeat([]string{strings.Join(pods, " ")}, n)...)
	return true
}

// putTexts puts texts as the values of blocks, and returns their keys.
func putTexts(t *testing.T, x *Index, texts []string) (keys []blockkey.Key) {
	t.Helper()
	for i, text := range texts {
		keys = append(keys, blockkey.Key(i))
		put(t, x, x.space.Client, keys[i], text)
	}
	return keys
}

// Pods that a query names count for texts though they are not registered. They do for that
// query, and not while a life has ended that is not swept.
func TestGuests(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		x := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
		texts := []string{"10.0.0.1:8000", "10.0.0.1", "10.0.0.2:8000", ",10.0.0.1:8000,10.0.0.9:8000", "decode-0", "10.0.0.9"}
		keys := putTexts(t, x, texts)
		want := func(what string, pods []string, want ...string) {
			t.Helper()
			f := &named{}
			must.OK(t, x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: f, Named: pods}))
			if fmt.Sprint(f.held) != fmt.Sprint(want) {
				t.Errorf("%s:\n%q, want\n%q", what, f.held, want)
			}
		}
		const one = "10.0.0.1:8000/gpu"
		want("nobody is named", nil, "", "", "", "", "", "")
		for range 2 {
			want("one", []string{"10.0.0.1:8000", "x y", "a,b", "", "17"}, one, one, "", one, "", "")
		}
		want("by host", []string{"10.0.0.1"}, "", "10.0.0.1/gpu", "", "", "", "")
		want("two of a host", []string{"10.0.0.1:8000", "10.0.0.1:8001"}, one, "", "", one, "", "")
		want("a name", []string{"decode-0"}, "", "", "", "", "decode-0/gpu", "")
		register(t, x, store.Pod{Name: "10.0.0.9:8000"})
		const nine = "10.0.0.9:8000/gpu"
		want("beside one that is registered", []string{"10.0.0.1:8000", "10.0.0.9:8000"}, one, one, "", both(one, nine), "", nine)
		want("a registered one alone", nil, "", "", "", nine, "", nine)
		if r, err := x.Registry(t.Context()); err != nil || len(r.Pods) != 1 {
			t.Errorf("registered are %v, %v", r.Pods, err)
		}
		// A sweep without lives to sweep leaves them to age.
		must.Get(x.Sweep(t.Context()))(t)
		if ttl := x.space.Client.PTTL(t.Context(), nameOf(x, 0)).Val(); ttl <= 0 {
			t.Errorf("a text of nobody lives for %v", ttl)
		}
		want("after a sweep", []string{"10.0.0.1:8000"}, one, one, "", both(one, nine), "", nine)
		// 10.0.0.1:8000 was registered, and its life has ended: what it had counts for no pod.
		register(t, x, store.Pod{Name: "10.0.0.1:8000"})
		apply(t, x, batchOf("10.0.0.1:8000", store.Add, 100))
		must.Get(x.Retire(t.Context(), "10.0.0.1:8000"))(t)
		want("a life has ended", []string{"10.0.0.1:8000", "decode-0"}, "", "", "", nine, "", nine)
		must.Get(x.Sweep(t.Context()))(t)
		want("and is swept", []string{"10.0.0.1:8000", "decode-0"}, "", "", "", "", "", nine)
		putTexts(t, x, texts)
		want("what is written then", []string{"10.0.0.1:8000"}, one, one, "", both(one, nine), "", nine)
	})
}

func both(one, nine string) string { return one + " " + nine }

// letIn sets whether texts of a model count for unregistered pods.
func letIn(t *testing.T, x *Index, model string, on bool) {
	t.Helper()
	must.Get(x.SetUnregistered(t.Context(), store.ModelInfo{Name: model, BlockSize: 16, Scheme: store.SchemeNative, Unregistered: on}))(t)
}

// heldBy looks a chain up that names no pods, by default of model m.
func heldBy(t *testing.T, x *Index, keys []blockkey.Key, model ...string) (held []string, reg *store.Registry) {
	t.Helper()
	f := &named{}
	q := &store.Query{Model: blockkey.ModelOf(strings.Join(append(model, "m")[:1], "")), Keys: keys, Fold: f}
	must.OK(t, x.Lookup(t.Context(), q))
	return f.held, f.reg
}

// Where the model allows it, each text without a registered pod is a pod of that name.
func TestMetGuests(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		x := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
		peer := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
		texts := []string{"10.0.0.1:8000", "10.0.0.1", ",10.0.0.1:8000,10.0.0.2:8000", "llama-0", "10.0.0.8", "10.0.0.8:8001", "x y", "17"}
		keys := putTexts(t, x, texts)
		want := func(what string, want ...string) {
			t.Helper()
			for _, x := range []*Index{x, peer, x} {
				before := x.Stats()
				got, _ := heldBy(t, x, keys)
				if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
					t.Errorf("%s:\n%q, want\n%q", what, got, want)
				}
				if now := x.Stats(); now.RoundTrips-before.RoundTrips-(now.RegistryLoads-before.RegistryLoads) != 1 {
					t.Errorf("%s: %d round trips, %d loads", what, now.RoundTrips-before.RoundTrips, now.RegistryLoads-before.RegistryLoads)
				}
			}
		}
		const one = "10.0.0.1:8000/gpu"
		all := []string{one, "10.0.0.1/gpu", one + " 10.0.0.2:8000/gpu", "llama-0/gpu", "10.0.0.8/gpu", "10.0.0.8:8001/gpu", "", ""}
		want("not allowed", make([]string, 8)...)
		letIn(t, x, "other", true)
		want("another model is", make([]string, 8)...)
		letIn(t, peer, "m", true)
		want("allowed", all...)
		letIn(t, x, "m", false)
		want("not any more", make([]string, 8)...)
		letIn(t, x, "m", true)
		want("again", all...)
		epoch := x.Cached().Epoch
		letIn(t, x, "m", true)
		if r, err := x.Registry(t.Context()); err != nil || r.Epoch != epoch {
			t.Errorf("what changes nothing moves the epoch: %d, %d, %v", epoch, r.Epoch, err)
		}
		if got, reg := heldBy(t, x, keys[:1], "nobody"); got[0] != "" || len(reg.Pods) != 0 {
			t.Errorf("of another model %q, with %v", got, reg.Pods)
		}
		if reg, err := x.Registry(t.Context()); err != nil || len(reg.Pods) != 0 {
			t.Errorf("registered are %v, %v", reg.Pods, err)
		}

		// What a registered pod has is no other's: by name, address or host, of one pod or of
		// several.
		register(t, x, store.Pod{Name: "llama-0", Address: "http://10.0.0.2:8000"}, store.Pod{Name: "10.0.0.8:8000"}, store.Pod{Name: "10.0.0.8:8009"})
		claimed := slices.Clone(all)
		claimed[2], claimed[4] = one+" llama-0/gpu", ""
		want("some are registered", claimed...)

		// Nor is that of one whose lease is over, and nothing is while lives have ended.
		register(t, x, store.Pod{Name: "late", Address: "10.0.0.1:8000", Lease: store.Seconds(time.Hour)})
		claimed[0], claimed[1], claimed[2] = "late/gpu", "late/gpu", "late/gpu llama-0/gpu"
		want("one has a lease", claimed...)
		apply(t, x, batchOf("late", store.Add, 100))
		must.Get(x.Retire(t.Context(), "late"))(t)
		got, _ := heldBy(t, x, keys)
		if got[0] != "" || got[1] != "" || got[5] != "" {
			t.Errorf("a life has ended: %q", got)
		}
		must.Get(x.Sweep(t.Context()))(t)
		if got, _ = heldBy(t, x, keys); got[0] != "" || got[5] != "" {
			t.Errorf("what was written before is swept: %q", got)
		}
		putTexts(t, x, texts)
		claimed[0], claimed[1], claimed[2] = all[0], all[1], one+" llama-0/gpu"
		want("what is written then", claimed...)
	})
}

// The guests of a lookup are bounded, those of the first blocks come first, and what
// earlier lookups have met gives way.
func TestMetGuestsAreBounded(t *testing.T) {
	x := open(t, Config{URL: redistest.Start(t).URL(), NoSweep: true})
	letIn(t, x, "m", true)
	const blocks, addresses = 100, 10_000
	pipe := x.space.Client.Pipeline()
	var keys, flood []blockkey.Key
	text := func(n int) string { return fmt.Sprintf("10.%d.%d.%d:8000", n>>16, n>>8&0xff, n&0xff) }
	for i := range blocks {
		var value []string
		for n := range addresses / blocks {
			value = append(value, text(i*addresses/blocks+n))
		}
		flood = append(flood, blockkey.Key(1000+i))
		pipe.Set(t.Context(), nameOf(x, flood[i]), strings.Join(value, ","), 0)
		keys = append(keys, blockkey.Key(i))
		pipe.Set(t.Context(), nameOf(x, keys[i]), "192.168.0.1:8000,192.168.0.2:8000", 0)
	}
	must.Get(pipe.Exec(t.Context()))(t)
	const both = "192.168.0.1:8000/gpu 192.168.0.2:8000/gpu"
	for i := range blocks {
		held, reg := heldBy(t, x, append(slices.Clone(flood[i:]), keys...))
		if n := len(strings.Fields(held[0])); n != addresses/blocks {
			t.Fatalf("the first block of flood %d is of %d pods", i, n)
		}
		if len(reg.Pods) > 1024 {
			t.Fatalf("%d guests", len(reg.Pods))
		}
		if held, _ := heldBy(t, x, keys); held[0] != both || held[blocks-1] != both {
			t.Fatalf("after flood %d: %q", i, held[0])
		}
	}
	// The first blocks of all chains come before the second ones.
	var queries []*store.Query
	var folds []*named
	for i := range 5 {
		folds = append(folds, &named{})
		queries = append(queries, &store.Query{Model: blockkey.ModelOf("m"), Keys: flood[10*i : 10*i+10], Fold: folds[i]})
	}
	x = open(t, x.config) // which has met none
	must.OK(t, x.Lookup(t.Context(), queries...))
	for i, f := range folds {
		if n := len(strings.Fields(f.held[0])); n != addresses/blocks {
			t.Errorf("the first block of chain %d is of %d pods", i, n)
		}
	}
	if n := len(folds[0].reg.Pods); n != roster.MaxMet {
		t.Errorf("one lookup meets %d", n)
	}
	// A later window's count for no pod, until a lookup has met them in its first one.
	long := make([]blockkey.Key, 400)
	for i := range long {
		long[i] = keys[0]
	}
	long[300] = flood[99]
	x = open(t, x.config) // which has met none
	if held, _ := heldBy(t, x, long); held[299] != both || held[300] != "" || held[301] != both {
		t.Errorf("in another window: %q", held[299:302])
	}
	// The same registry serves lookups that meet the same in turn.
	_, first := heldBy(t, x, flood[:1])
	_, second := heldBy(t, x, keys[:1])
	if _, again := heldBy(t, x, flood[:1]); again != first && again != second {
		t.Error("a registry is made for each lookup")
	}
}

// Entries of LMCache name unregistered pods, by the same setting.
func TestMetOwners(t *testing.T) {
	topologies(t, func(t *testing.T, url string) {
		x := open(t, Config{URL: url, NoSweep: true, Entries: true})
		ctx := t.Context()
		texts := []string{"10.0.0.1:8200", "10.0.0.2:8200", "10.0.0.3:8200", "10.0.0.4", "a,b", "17"}
		var names, hashes []string
		for i, text := range texts {
			names, hashes = append(names, fmt.Sprint("owner-", i)), append(hashes, fmt.Sprint("owners-", i))
			must.OK(t, errors.Join(x.space.Client.Set(ctx, names[i], text, 0).Err(), x.space.Client.HSet(ctx, hashes[i], text, "fmt@1@0@1", "10.0.0.9:8200", "fmt@1@0@1").Err()))
		}
		register(t, x, store.Pod{Name: "10.0.0.2:8000"}, store.Pod{Name: "10.0.0.3:8000", Model: "other"})
		must.Get(x.Registry(ctx))(t)
		const nine = "10.0.0.9:8200/0/cpu"
		two := "10.0.0.2:8000/0/cpu"
		wantHoldings(t, lookEntries(t, x, lmcache.OwnerString, 1, names...), "", two, "", "", "", "")
		letIn(t, x, "m", true)
		must.Get(x.Registry(ctx))(t)
		wantHoldings(t, lookEntries(t, x, lmcache.OwnerString, 1, names...), "10.0.0.1:8200/0/cpu", two, "", "10.0.0.4/0/cpu", "", "")
		got := lookEntries(t, x, lmcache.OwnerHash, 1, hashes...)
		for i, block := range got {
			held := strings.Fields(block)
			slices.Sort(held)
			got[i] = strings.Join(held, " ")
		}
		wantHoldings(t, got, "10.0.0.1:8200/0/cpu "+nine, two+" "+nine, nine, "10.0.0.4/0/cpu "+nine, nine, nine)
		letIn(t, x, "m", false)
		must.Get(x.Registry(ctx))(t)
		wantHoldings(t, lookEntries(t, x, lmcache.OwnerString, 1, names...), "", two, "", "", "", "")
	})
}
