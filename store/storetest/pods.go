package storetest

import (
	"errors"
	"reflect"
	"strings"
	"sync"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

var podCases = []testCase{
	{"a registration is read back as it was given", func(b *bench) {
		want := []store.Pod{
			{Name: "10.0.0.1:8000", Model: model, Address: "10.0.0.1:8001", Role: "prefill", Ranks: 4, Engine: "vllm", Aliases: []string{"nick"}, Adapters: []string{"sql", "chat"},
				Events: "tcp://10.0.0.1:5557", Replay: "tcp://10.0.0.1:5558", BlockSize: 16, Labels: map[string]string{"zone": "a", "gpu": "h100"}},
			{Name: "10.0.0.2:8000", Model: "other"},
		}
		for i := range want {
			// Names come back ascending, in whatever order they went in.
			b.failIf(!b.register(want[len(want)-1-i]), "created is false for a new pod")
		}
		r := b.registry()
		b.failIf(!reflect.DeepEqual(r.Pods, want), "got\n%+v, want\n%+v", r.Pods, want)
		b.failIf(!r.ValidUntil.IsZero(), "valid until %v although no pod has a lease", r.ValidUntil)
	}},
	{"the index keeps its own copy of a registration", func(b *bench) {
		p := store.Pod{Name: "a", Model: model, Labels: map[string]string{"zone": "a"}}
		b.register(p)
		p.Labels["zone"] = "b"
		if got := b.registry().Pods[0].Labels["zone"]; got != "a" {
			b.Fatalf("the label became %q when the caller's map changed", got)
		}
	}},
	{"ranks that a renewal does not have end at once", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a", Ranks: 3})
		b.register(store.Pod{Name: "b", Ranks: 3})
		gen := b.begin("a", 2, 1)
		b.guarded(gen, "a", 2, 1, 1, adds(store.GPU, k...))
		for rank := range 3 {
			b.add("a", rank, store.GPU, k...)
			b.add("a", rank, store.CPU, k[0])
		}
		b.add("b", 2, store.GPU, k...)
		b.register(store.Pod{Name: "a", Ranks: 1})
		b.want(b.find(k...), by(on("a", store.GPU), on("a", store.CPU), At{"b", 2, store.GPU, 0}), by(on("a", store.GPU), At{"b", 2, store.GPU, 0}))
		b.refused(gen, store.ErrEnded, b.tryGuarded(gen, "a", 2, 1, 2, adds(store.GPU, k...)))
		if life, err := b.peer().Life(b.ctx, "a", 2); err != nil || life.Generation != 0 {
			b.Fatalf("the rank has %+v, %v", life, err)
		}
		// They do not come back with the next one that has them.
		b.register(store.Pod{Name: "a", Ranks: 3})
		b.want(b.find(k...), by(on("a", store.GPU), on("a", store.CPU), At{"b", 2, store.GPU, 0}), by(on("a", store.GPU), At{"b", 2, store.GPU, 0}))
		b.add("a", 2, store.GPU, k[1])
		b.want(b.find(k...), by(on("a", store.GPU), on("a", store.CPU), At{"b", 2, store.GPU, 0}), by(on("a", store.GPU), At{"a", 2, store.GPU, 0}, At{"b", 2, store.GPU, 0}))
	}},
	{"ranks that a registration does not have take nothing", func(b *bench) {
		k := chain(1, 1)
		b.register(store.Pod{Name: "a", Ranks: 2})
		b.register(store.Pod{Name: "one", Ranks: 1})
		b.register(store.Pod{Name: "any"})
		for _, x := range []store.Index{b.Index, b.peer()} {
			for name, err := range map[string]error{
				"Apply": x.Apply(b.ctx, batch("a", 2, adds(store.GPU, k...))), "Apply beyond 0": x.Apply(b.ctx, batch("one", 1, adds(store.GPU, k...))),
				"Begin": errorOf(x.Begin(b.ctx, "a", 7, 1)),
			} {
				if !errors.Is(err, store.ErrNoRank) {
					b.Errorf("%s: got %v, want ErrNoRank", name, err)
				}
			}
		}
		if err := b.Index.Apply(b.ctx, batch("a", 2, adds(store.GPU, k...))); err == nil || !strings.Contains(err.Error(), "rank is 2, a has ranks 0 to 1") {
			b.Errorf("the error says %q", err)
		}
		// What takes away has nothing to do there.
		b.apply(batch("a", 2, removes(store.GPU, k...)), batch("a", 2, store.Op{Kind: store.Clear, Tier: store.AllTiers}))
		b.add("a", 1, store.GPU, k...)
		b.add("any", 700, store.GPU, k...)
		b.want(b.find(k...), by(At{"a", 1, store.GPU, 0}, At{"any", 700, store.GPU, 0}))
	}},
	{"a renewal replaces what is known and keeps the blocks", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a", Labels: map[string]string{"zone": "a"}})
		b.add("a", 0, store.GPU, k...)
		b.failIf(b.register(store.Pod{Name: "a", Role: "decode"}), "created is true for a renewal")
		b.want(b.find(k...), times(2, on("a", store.GPU))...)
		b.register(store.Pod{Name: "a", Role: "decode", Aliases: []string{"nick"}})
		b.register(store.Pod{Name: "a", Role: "decode", Aliases: []string{"nick"}, Adapters: []string{"sql"}})
		want := []store.Pod{{Name: "a", Model: model, Role: "decode", Aliases: []string{"nick"}, Adapters: []string{"sql"}}}
		if got := b.registry().Pods; !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}
	}},
	{"a renewal changes whatever field it changes", func(b *bench) {
		values := map[string]any{
			"Address": "10.0.0.1:8001", "Role": "prefill", "Ranks": 2, "Engine": "vllm", "Events": "tcp://10.0.0.1:5557", "Replay": "tcp://10.0.0.1:5558",
			"BlockSize": 16, "KVTokens": 1000, "Approximate": true, "Aliases": []string{"nick"}, "Adapters": []string{"sql"}, "Labels": map[string]string{"zone": "a"},
		}
		for field := range reflect.TypeFor[store.Pod]().Fields() {
			value, ok := values[field.Name]
			if !ok {
				switch field.Name {
				case "Name", "Model", "PartOf", "Lease": // have cases of their own
					continue
				}
				b.Fatalf("%s is not tried", field.Name)
			}
			p := store.Pod{Name: "a", Model: model}
			b.register(p)
			reflect.ValueOf(&p).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(value))
			b.register(p)
			if got := b.registry().Pods[0]; !reflect.DeepEqual(got, p) {
				b.Fatalf("%s: got %+v, want %+v", field.Name, got, p)
			}
		}
	}},
	{"a registration for another model ends what the pod was", func(b *bench) {
		k := chain(1, 2)
		b.register(store.Pod{Name: "a", Ranks: 2})
		b.add("a", 0, store.GPU, k...)
		gen := b.begin("a", 1, 1)
		b.guarded(gen, "a", 1, 1, 1, adds(store.CPU, k...))
		b.add("b", 0, store.GPU, k...)
		for _, renamed := range []string{"other", model} { // and back
			b.failIf(!b.register(store.Pod{Name: "a", Model: renamed, Ranks: 2}), "created is false with another model, %s", renamed)
			b.want(b.find(k...), times(2, on("b", store.GPU))...)
			b.refused(gen, store.ErrEnded, b.tryGuarded(gen, "a", 1, 1, 2, adds(store.GPU, k...)))
			if life, err := b.peer().Life(b.ctx, "a", 1); err != nil || life.Generation != 0 {
				b.Fatalf("the rank has %+v, %v", life, err)
			}
			want := []store.Pod{{Name: "a", Model: renamed, Ranks: 2}, {Name: "b", Model: model}}
			if got := b.registry().Pods; !reflect.DeepEqual(got, want) {
				b.Fatalf("got %+v, want %+v", got, want)
			}
		}
		b.add("a", 0, store.GPU, k...)
		b.failIf(b.register(store.Pod{Name: "a", Ranks: 2}), "created is true for a renewal")
		b.want(b.find(k...), times(2, on("a", store.GPU), on("b", store.GPU))...)
	}},
	{"a batch registers a pod that is not known", func(b *bench) {
		b.apply(store.Batch{Pod: "a", Model: "other", Rank: 2, Ops: []store.Op{adds(store.Disk, chain(1, 1)...)}})
		r := b.registry()
		if want := []store.Pod{{Name: "a", Model: "other"}}; !reflect.DeepEqual(r.Pods, want) {
			b.Fatalf("got %+v, want %+v", r.Pods, want)
		}
		h := r.Holders()
		b.failIf(len(h) != 1 || h[0].Pod != "a" || h[0].Rank != 2 || h[0].Tier != store.Disk, "holders %+v, want a/2/disk", h)
		b.failIf(b.register(store.Pod{Name: "a", Model: "other"}), "created is true for a pod that a batch has registered")
	}},
	{"a batch without ops registers too", func(b *bench) {
		b.apply(batch("a", 0))
		if _, ok := b.registry().PodIndex("a"); !ok {
			b.Fatal("the pod is not known")
		}
	}},
	{"a batch of a registered pod changes nothing in its registration", func(b *bench) {
		p := store.Pod{Name: "a", Model: model, Role: "both"}
		b.register(p)
		b.apply(store.Batch{Pod: "a", Model: "adapter", Ops: []store.Op{adds(store.GPU, chain(1, 1)...)}})
		if got := b.registry().Pods; !reflect.DeepEqual(got, []store.Pod{p}) {
			b.Fatalf("got %+v, want %+v", got, p)
		}
	}},
	{"a retired pod's blocks are gone at the next lookup", func(b *bench) {
		k := chain(1, 100)
		b.add("a", 0, store.GPU, k...)
		b.add("a", 3, store.CPU, k...)
		b.add("b", 0, store.GPU, k[:50]...)
		b.want(b.find(k[:1]...), by(on("a", store.GPU), At{"a", 3, store.CPU, 0}, on("b", store.GPU)))
		b.failIf(!b.retire("a"), "known is false")
		b.want(b.find(k...), append(times(50, on("b", store.GPU)), times(50)...)...)
		r := b.registry()
		if _, ok := r.PodIndex("a"); ok || len(r.Holders()) != 1 {
			b.Fatalf("the registry still has the pod: %+v %+v", r.Pods, r.Holders())
		}
	}},
	{"retiring what is not known says so", func(b *bench) {
		b.failIf(b.retire("a"), "known is true for a pod that never was")
		b.register(store.Pod{Name: "a"})
		b.failIf(!b.retire("a") || b.retire("a"), "want known once and then no more")
	}},
	{"a pod that comes back under its name inherits nothing", func(b *bench) {
		k := chain(1, 4)
		b.add("a", 0, store.GPU, k...)
		old := b.ids(k...)
		b.retire("a")
		b.failIf(!b.register(store.Pod{Name: "a"}), "created is false for a pod that comes back")
		b.want(b.find(k...), times(4)...)
		b.add("a", 0, store.GPU, k[3])
		b.want(b.find(k...), nil, nil, nil, by(on("a", store.GPU)))
		if ids := b.ids(k...); len(ids) != 1 || ids[0] <= old[0] {
			b.Fatalf("holder ids %v after %v", ids, old)
		}
		// Removing in the new life touches the old life's entries, if they are
		// still there, in no visible way.
		b.remove("a", 0, store.AllTiers, k...)
		b.want(b.find(k...), times(4)...)
	}},
	{"many lives of many pods end without a trace", func(b *bench) {
		k := chain(1, 64)
		names := []string{"a", "b", "c", "d", "e"}
		for life := range 20 {
			for i, name := range names {
				b.add(name, life%3, store.GPU, k[:10*(i+1)]...)
			}
			for i, name := range names {
				if (life+i)%2 == 0 {
					b.retire(name)
				} else {
					b.clear(name, life%3, store.GPU)
				}
			}
			b.want(b.find(k...), times(64)...)
		}
	}},
	{"the epoch moves when who is who changes", func(b *bench) {
		last := b.registry().Epoch
		moved := func(what string) {
			b.Helper()
			if e := b.registry().Epoch; e <= last {
				b.Fatalf("%s: epoch %d after %d", what, e, last)
			} else {
				last = e
			}
		}
		b.register(store.Pod{Name: "a"})
		moved("register")
		b.add("a", 0, store.GPU, chain(1, 1)...)
		moved("a new holder")
		b.clear("a", 0, store.GPU)
		moved("clear")
		b.retire("a")
		moved("retire")
	}},
}

var modelCases = []testCase{
	{"the first settings of a model are kept", func(b *bench) {
		want := store.ModelInfo{Name: model, BlockSize: 64, Scheme: store.SchemeNative}
		for _, x := range []store.Index{b.Index, b.peer(), b.Index} {
			got, err := x.EnsureModel(b.ctx, want)
			if err != nil || got != want {
				b.Fatalf("got %+v, %v", got, err)
			}
		}
		for _, other := range []store.ModelInfo{
			{Name: model, BlockSize: 16, Scheme: store.SchemeNative},
			{Name: model, BlockSize: 64, Scheme: "vllm"},
		} {
			got, err := b.peer().EnsureModel(b.ctx, other)
			b.failIf(!errors.Is(err, store.ErrModelConflict) || got != want, "got %+v, %v; want the first settings with ErrModelConflict", got, err)
		}
		second := store.ModelInfo{Name: "other", BlockSize: 16, Scheme: "vllm"}
		if got, err := b.Index.EnsureModel(b.ctx, second); err != nil || got != second {
			b.Fatalf("got %+v, %v", got, err)
		}
		all := map[string]store.ModelInfo{model: want, "other": second}
		if got := b.registry().Models; !reflect.DeepEqual(got, all) {
			b.Fatalf("got %+v, want %+v", got, all)
		}
	}},
	{"of many that come first one wins", func(b *bench) {
		got := make([]store.ModelInfo, 8)
		errs := make([]error, len(got))
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				x := b.Index
				if i%2 == 1 {
					x = b.peer()
				}
				got[i], errs[i] = x.EnsureModel(b.ctx, store.ModelInfo{Name: model, BlockSize: 1 + i, Scheme: store.SchemeNative})
			})
		}
		wg.Wait()
		won := 0
		for i := range got {
			b.failIf(errs[i] != nil && !errors.Is(errs[i], store.ErrModelConflict), "EnsureModel: %v", errs[i])
			b.failIf(got[i] != got[0], "two settings in force: %+v", got)
			if errs[i] == nil {
				won++
			} else if !errors.Is(errs[i], store.ErrModelConflict) {
				b.Fatal(errs[i])
			}
		}
		b.failIf(won != 1, "%d calls won: %v", won, errs)
	}},
	{"pods that are not registered are let in or not", func(b *bench) {
		x, peer := b.Unregistered, b.PeerUnregistered
		if x == nil {
			return // nothing names pods there
		}
		set := func(x store.UnregisteredSetter, m store.ModelInfo, want store.ModelInfo) {
			b.Helper()
			if got, err := x.SetUnregistered(b.ctx, m); err != nil || got != want {
				b.Fatalf("got %+v, %v, want %+v", got, err, want)
			}
			if got := b.registry().Models[m.Name]; got != want {
				b.Fatalf("the registry has %+v, want %+v", got, want)
			}
		}
		on := store.ModelInfo{Name: model, BlockSize: 64, Scheme: store.SchemeNative, Unregistered: true}
		off := on
		off.Unregistered = false
		set(x, on, on) // which fixes the rest
		set(x, on, on)
		for _, want := range []store.ModelInfo{on, off} {
			if got, err := b.Index.EnsureModel(b.ctx, want); err != nil || got != on {
				b.Fatalf("ensured is %+v, %v", got, err)
			}
		}
		set(peer, store.ModelInfo{Name: model, BlockSize: 16, Scheme: "vllm"}, off) // the keys stay
		set(x, on, on)
		if known, err := b.Index.Forget(b.ctx, model); err != nil || !known {
			b.Fatal(known, err)
		}
		if got, err := b.Index.EnsureModel(b.ctx, off); err != nil || got != off {
			b.Fatalf("after it was forgotten: %+v, %v", got, err)
		}
		b.wantErr(errorOf(x.SetUnregistered(b.ctx, store.ModelInfo{Name: model})), store.ErrInvalid, "settings that cannot be")
	}},
	{"models outlive their pods", func(b *bench) {
		want := store.ModelInfo{Name: model, BlockSize: 64, Scheme: store.SchemeNative}
		must.Get(b.Index.EnsureModel(b.ctx, want))(b)
		b.register(store.Pod{Name: "a"})
		b.retire("a")
		if got := b.registry().Models[model]; got != want {
			b.Fatalf("got %+v", got)
		}
	}},
	{"settings that cannot be right are refused", func(b *bench) {
		for _, bad := range []store.ModelInfo{
			{BlockSize: 64, Scheme: store.SchemeNative},
			{Name: model, Scheme: store.SchemeNative},
			{Name: model, BlockSize: -1, Scheme: store.SchemeNative},
			{Name: model, BlockSize: 64},
			{Name: string(make([]byte, store.MaxModelName+1)), BlockSize: 64, Scheme: store.SchemeNative},
		} {
			b.wantErr(errorOf(b.Index.EnsureModel(b.ctx, bad)), store.ErrInvalid, bad)
		}
		if n := len(b.registry().Models); n != 0 {
			b.Fatalf("%d models, want none", n)
		}
	}},
}
