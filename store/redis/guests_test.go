package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// named is a store.Folder that notes whom each block is held by.
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

// Pods that a query names count for texts though they are not registered: for that query,
// and not while a life has ended that is not swept.
func TestGuests(t *testing.T) {
	for name, url := range map[string]string{"standalone": redistest.Start(t).URL(), "cluster": redistest.StartCluster(t, 3, false).URL()} {
		t.Run(name, func(t *testing.T) {
			x := open(t, Config{URL: url, NoSweep: true, SweepDuty: 1})
			texts := []string{"10.0.0.1:8000", "10.0.0.1", "10.0.0.2:8000", ",10.0.0.1:8000,10.0.0.9:8000", "decode-0", "10.0.0.9"}
			var keys []blockkey.Key
			write := func() {
				for i, text := range texts {
					put(t, x, x.client, blockkey.Key(i), text)
				}
			}
			for i := range texts {
				keys = append(keys, blockkey.Key(i))
			}
			write()
			want := func(what string, pods []string, want ...string) {
				t.Helper()
				f := &named{}
				if err := x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: f, Named: pods}); err != nil {
					t.Fatal(err)
				}
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
			if _, err := x.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if ttl := x.client.PTTL(t.Context(), nameOf(x, 0)).Val(); ttl <= 0 {
				t.Errorf("a text of nobody lives for %v", ttl)
			}
			want("after a sweep", []string{"10.0.0.1:8000"}, one, one, "", both(one, nine), "", nine)
			// 10.0.0.1:8000 was registered, and its life has ended: what it had is nobody's.
			register(t, x, store.Pod{Name: "10.0.0.1:8000"})
			apply(t, x, batchOf("10.0.0.1:8000", store.Add, 100))
			if _, err := x.Retire(t.Context(), "10.0.0.1:8000"); err != nil {
				t.Fatal(err)
			}
			want("a life has ended", []string{"10.0.0.1:8000", "decode-0"}, "", "", "", nine, "", nine)
			if _, err := x.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			want("and is swept", []string{"10.0.0.1:8000", "decode-0"}, "", "", "", "", "", nine)
			write()
			want("what is written then", []string{"10.0.0.1:8000"}, one, one, "", both(one, nine), "", nine)
		})
	}
}

func both(one, nine string) string { return one + " " + nine }
