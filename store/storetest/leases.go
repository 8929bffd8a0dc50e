package storetest

import (
	"reflect"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

var leaseCases = []testCase{
	{"a pod without renewal is gone when its lease has run out", func(b *bench) {
		k := chain(1, 3)
		b.add("b", 0, store.GPU, k[0])
		begin := time.Now()
		b.register(store.Pod{Name: "a", Lease: store.Seconds(b.Lease)})
		b.add("a", 0, store.GPU, k...)
		got := b.findBy(b.Index, mask, k...)
		valid := b.registry().ValidUntil
		if b.inTime(begin) {
			b.want(got, by(on("a", store.GPU), on("b", store.GPU)), by(on("a", store.GPU)), by(on("a", store.GPU)))
			b.failIf(valid.IsZero(), "the registry says that it is valid for ever")
		}
		b.pass(b.Lease + b.Lease/5)
		b.want(b.find(k...), by(on("b", store.GPU)), nil, nil)
		r := b.registry()
		if _, ok := r.PodIndex("a"); ok || !r.ValidUntil.IsZero() {
			b.Fatalf("the registry still has the pod, or is valid until %v only", r.ValidUntil)
		}
		b.failIf(b.retire("a"), "known is true for a pod that is gone")
		b.failIf(!b.register(store.Pod{Name: "a"}), "created is false for a pod that was gone")
		b.want(b.find(k...), by(on("b", store.GPU)), nil, nil)
	}},
	{"a pod that returns too late is created anew, without its blocks", func(b *bench) {
		k := chain(1, 3)
		b.register(store.Pod{Name: "a", Lease: store.Seconds(b.Lease)})
		b.add("a", 0, store.GPU, k...)
		b.pass(b.Lease + b.Lease/5)
		// No lookup was made in between.
		b.failIf(!b.register(store.Pod{Name: "a"}), "created is false for a pod whose lease had run out")
		b.want(b.find(k...), times(3)...)
	}},
	{"a batch of a pod whose lease has run out registers it anew", func(b *bench) {
		k := chain(1, 3)
		b.register(store.Pod{Name: "a", Role: "prefill", Lease: store.Seconds(b.Lease)})
		b.add("a", 0, store.GPU, k...)
		b.pass(b.Lease + b.Lease/5)
		b.add("a", 0, store.GPU, k[1])
		b.want(b.find(k...), nil, by(on("a", store.GPU)), nil)
		if got, want := b.registry().Pods, []store.Pod{{Name: "a", Model: model}}; !reflect.DeepEqual(got, want) {
			b.Fatalf("got %+v, want %+v", got, want)
		}
	}},
	{"retire of a pod whose lease has run out does not know it", func(b *bench) {
		b.register(store.Pod{Name: "a", Lease: store.Seconds(b.Lease)})
		b.pass(b.Lease + b.Lease/5)
		b.failIf(b.retire("a"), "known is true")
	}},
	{"a renewal in time keeps pod and blocks", func(b *bench) {
		k := chain(1, 3)
		b.patiently(func() bool {
			b.retire("a")
			begin := time.Now()
			b.register(store.Pod{Name: "a", Lease: store.Seconds(b.Lease)})
			b.add("a", 0, store.GPU, k...)
			for range 3 {
				b.pass(b.Lease * 6 / 10)
				created := b.register(store.Pod{Name: "a", Lease: store.Seconds(b.Lease)})
				if !b.inTime(begin) {
					return false
				}
				begin = time.Now()
				b.failIf(created, "created is true for a renewal in time")
			}
			got := b.findBy(b.Index, mask, k...)
			if !b.inTime(begin) {
				return false
			}
			b.want(got, times(3, on("a", store.GPU))...)
			return true
		})
		b.pass(b.Lease + b.Lease/5)
		b.want(b.find(k...), times(3)...)
	}},
	{"a renewal without lease lives until it is deleted", func(b *bench) {
		k := chain(1, 3)
		b.patiently(func() bool {
			b.retire("a")
			begin := time.Now()
			b.register(store.Pod{Name: "a", Lease: store.Seconds(b.Lease)})
			b.add("a", 0, store.GPU, k...)
			b.register(store.Pod{Name: "a"})
			return b.inTime(begin)
		})
		b.pass(b.Lease + b.Lease/5)
		b.want(b.find(k...), times(3, on("a", store.GPU))...)
		if r := b.registry(); !r.ValidUntil.IsZero() {
			b.Fatalf("valid until %v although no pod has a lease", r.ValidUntil)
		}
	}},
	{"the first lease to run out takes only its own pod", func(b *bench) {
		k := chain(1, 1)
		begin := time.Now()
		b.register(store.Pod{Name: "long", Lease: store.Seconds(100 * b.Lease)})
		b.register(store.Pod{Name: "short", Lease: store.Seconds(b.Lease)})
		b.add("long", 0, store.GPU, k...)
		b.add("short", 0, store.GPU, k...)
		got := b.findBy(b.Index, mask, k...)
		if b.inTime(begin) {
			b.want(got, by(on("long", store.GPU), on("short", store.GPU)))
		}
		b.pass(b.Lease + b.Lease/5)
		b.want(b.find(k...), by(on("long", store.GPU)))
	}},
}

// inTime reports whether a lease that began at begin cannot have run out yet. It
// always is so where the test moves the clock.
func (b *bench) inTime(begin time.Time) bool {
	return b.Advance != nil || time.Since(begin) < b.Lease*9/10
}
