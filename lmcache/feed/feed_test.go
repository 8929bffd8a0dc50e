package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What is wrong with an id is said of the instance and the worker, which is what the caller has
// given. It is not said of the name that is made of them.
func TestIDValidate(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		id   ID
		want string // "" is nothing
	}{
		{ID{"10.0.0.1:8000", 1023}, ""},
		{ID{"\u00e4/b c", 0}, ""},
		{ID{long(243), 9}, ""},
		{ID{long(240), 1023}, ""},
		{ID{long(244), 0}, "instance has 244 bytes, the limit is 243"},
		{ID{long(243), 10}, "instance has 243 bytes, the limit is 242"},
		{ID{long(5000), 0}, "instance has 5000 bytes, the limit is 243"},
		{ID{"ab\n", 0}, "instance has the control character U+000A at byte 2"},
		{ID{"a\xff", 0}, "instance is not UTF-8"},
		{ID{"", 0}, "no instance"},
		{ID{"a", -1}, "worker is -1, it can be 0 to 1023"},
		{ID{"a", 1024}, "worker is 1024, it can be 0 to 1023"},
	} {
		err := c.id.Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%.20q/%d: %v", c.id.Instance, c.id.Worker, err)
		case c.want != "" && (!errors.Is(err, store.ErrInvalid) || err.Error() != store.ErrInvalid.Error()+": "+c.want):
			t.Errorf("%.20q/%d: %v, want %s", c.id.Instance, c.id.Worker, err, c.want)
		}
	}
}

func TestParseMap(t *testing.T) {
	m := must.Get(ParseMap([]string{"a=10.0.0.1:8000", "b=p#3", "c=x=y", "a=q#0"}))(t)
	if got, want := fmt.Sprint(m), "map[a:[{10.0.0.1:8000 0 } {q 0 }] b:[{p 3 }] c:[{x=y 0 }]]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, bad := range [][]string{{"a"}, {"=b"}, {"a="}, {"a=#1"}, {"a=b#x"}, {"a=b#-1"}, {"a=b#1024"}, {"a=b", "a=b#0"}, {"a=b\n"}} {
		if _, err := ParseMap(bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestFind(t *testing.T) {
	reg := store.NewRegistry(1, []store.Pod{
		{Name: "10.0.0.1:8000", Model: "m"},
		{Name: "inst", Model: "other", Address: "http://10.0.0.2:80/v1"},
		{Name: "p", Model: "m", Address: "[fd00::1]:8000"},
		{Name: "q1", Model: "m", Address: "10.0.0.9:1"},
		{Name: "q2", Model: "other", Address: "10.0.0.9:2"},
		{Name: "w/lmcache/0", Model: "m", Address: "10.0.0.4:1", PartOf: &store.PartOf{Pod: "p", Workers: 1}},
	}, nil, nil, time.Time{})
	pods := Pods{Map: map[string][]Target{"set": {{Pod: "p", Rank: 2}, {Pod: "q1"}}, "gone": {{Pod: "nowhere"}}}}
	for _, c := range []struct{ model, instance, ip, want string }{
		{"", "set", "10.0.0.1", "[{p 2 m} {q1 0 m}]"},
		{"", "gone", "10.0.0.1", "nowhere, which is not registered"},
		{"", "inst", "10.0.0.1", "[{inst 0 other}]"},
		{"m", "inst", "10.0.0.1", "[{10.0.0.1:8000 0 m}]"},
		{"", "x", "10.0.0.2", "[{inst 0 other}]"},
		{"", "x", "fd00::1", "[{p 0 m}]"},
		{"", "x", "10.0.0.9", "there are 2 pods at 10.0.0.9, such as q1 and q2"},
		{"m", "x", "10.0.0.9", "[{q1 0 m}]"},
		{"", "x", "10.0.0.4", "none is at 10.0.0.4"}, // a worker is no pod
		{"", "w/lmcache/0", "", "no pod is called so"},
	} {
		pods.Model = c.model
		got, err := pods.Find(reg, c.instance, c.ip)
		text := fmt.Sprint(got)
		if err != nil {
			text = err.Error()
			if !errors.Is(err, ErrUnmapped) {
				t.Error(err)
			}
		}
		if !strings.Contains(text, c.want) {
			t.Errorf("%s at %s: %s, want %s", c.instance, c.ip, text, c.want)
		}
	}
}

// A takeover goes on where the other writer was, and shuts it out; two fences are never the same.
func TestTakeOver(t *testing.T) {
	x := must.Get(memory.New(memory.Config{}))(t)
	defer x.Close()
	c := Config{Index: x, Lease: time.Minute, Timeout: time.Minute}
	id, target := ID{"i", 0}, Target{Pod: "p", Model: "m"}
	a, b := NewWorker(c, id, target, false), NewWorker(c, id, target, false)
	must.OK(t, a.Begin(t.Context()))
	var ops Ops
	ops.Key(store.Add, store.CPU, 1)
	ops.Key(store.Add, store.CPU, 2)
	ops.Key(store.Remove, store.CPU, 1)
	if len(ops.List) != 2 {
		t.Errorf("%v", ops.List)
	}
	must.OK(t, a.Write(t.Context(), ops.List, Mark{1, 7}, Mark{2, 9}))
	marks, took, err := b.TakeOver(t.Context(), 2, 1, 3)
	if err != nil || !took || !slices.Equal(marks, []uint64{9, 7, 0}) {
		t.Fatal(marks, took, err)
	}
	if err := a.Write(t.Context(), ops.List); !errors.Is(err, store.ErrFenced) || a.Open() {
		t.Errorf("the first writer goes on: %v", err)
	}
	if err := b.Write(t.Context(), nil, Mark{1, 8}); err != nil {
		t.Error(err)
	}
	// A generation without the marks cannot be gone on with.
	if _, took, err := a.TakeOver(t.Context(), 5); err != nil || took {
		t.Error(took, err)
	}
	list, err := Prefixes(t.Context(), x, "m", []blockkey.Key{2})
	if err != nil || len(list) != 0 {
		t.Errorf("a new generation holds %v, %v", list, err)
	}
	fences := map[uint64]bool{}
	for range 100 {
		f := nextFence(5 << fenceBits)
		if f <= 5<<fenceBits|(1<<fenceBits-1) || store.CheckFence(f) != nil {
			t.Errorf("fence %d", f)
		}
		fences[f] = true
	}
	if len(fences) < 95 {
		t.Errorf("%d of 100 fences differ", len(fences))
	}
	if err := a.Retire(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestWhole(t *testing.T) {
	got := Whole([]Prefix{
		{Instance: "a", Worker: 0, Workers: 2, Chunks: 5}, {Instance: "b", Worker: 0, Workers: 2, Chunks: 4},
		{Instance: "a", Worker: 1, Workers: 2, Chunks: 2, Tier: store.Disk}, {Instance: "c", Worker: 0, Workers: 1, Chunks: 3},
		{Instance: "c", Worker: 0, Workers: 1, Chunks: 3},
	})
	want := []Prefix{{Instance: "c", Worker: 0, Workers: 1, Chunks: 3}, {Instance: "a", Worker: 0, Workers: 2, Chunks: 2, Tier: store.Disk}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
