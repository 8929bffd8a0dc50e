package store

import (
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
)

func TestRegistryWorkers(t *testing.T) {
	part := func(pod string, rank, worker, workers int) *PartOf {
		return &PartOf{Pod: pod, Rank: rank, Worker: worker, Workers: workers}
	}
	pods := []Pod{
		{Name: "a"}, {Name: "b"},
		{Name: "a/x/0", PartOf: part("a", 1, 0, 2)}, {Name: "a/x/1", PartOf: part("a", 1, 1, 2)},
		{Name: "a/y/0", PartOf: part("a", 1, 0, 2)}, // another instance of that rank
		{Name: "a/x/00", PartOf: part("a", 1, 0, 2)},
		{Name: "c/x/0", PartOf: part("c", 0, 0, 1)},     // no pod of that name
		{Name: "d/x/0", PartOf: part("a/x/0", 0, 0, 1)}, // works for a worker
		{Name: "e/x/0", PartOf: part("b", 0, 0, 1)},     // holds nothing yet
		{Name: "z/11", PartOf: part("b", 0, 1, 2)}, {Name: "z/1", PartOf: part("b", 0, 1, 2)},
	}
	holders := []Holder{{ID: 1, Pod: "b", Rank: 0, Tier: GPU}}
	id := HolderID(2)
	for _, p := range pods {
		if p.PartOf != nil && p.Name != "e/x/0" {
			holders = append(holders, Holder{ID: id, Pod: p.Name, Tier: CPU})
			id++
		}
	}
	holders = append(holders, Holder{ID: id, Pod: "a/y/0", Rank: 3, Tier: CPU})
	r := NewRegistry(1, pods, holders, nil, time.Time{})

	slot := func(pod string, rank int) int {
		for i, s := range r.Slots {
			if r.Pods[s.Pod].Name == pod && s.Rank == rank {
				return i
			}
		}
		t.Fatalf("no slot of %s/%d in %v", pod, rank, r.Slots)
		return -1
	}
	worker := func(pod string, rank int) Worker {
		w, ok := r.Worker(slot(pod, rank))
		if !ok {
			t.Fatalf("%s/%d is no worker", pod, rank)
		}
		return w
	}
	for _, pod := range []string{"b"} {
		if w, ok := r.Worker(slot(pod, 0)); ok {
			t.Errorf("%s is a worker: %+v", pod, w)
		}
	}
	a1 := slot("a", 1) // has a slot although a itself holds nothing
	x0, x1, y0 := worker("a/x/0", 0), worker("a/x/1", 0), worker("a/y/0", 0)
	if x0.For != a1 || x1.For != a1 || y0.For != a1 || x0.Workers != 2 {
		t.Errorf("%+v %+v %+v, want all of slot %d", x0, x1, y0, a1)
	}
	if x0.Instance != x1.Instance || x0.Instance == y0.Instance {
		t.Errorf("instances %d, %d, %d", x0.Instance, x1.Instance, y0.Instance)
	}
	for _, c := range []struct {
		pod  string
		rank int
		want int
	}{{"c/x/0", 0, -1}, {"d/x/0", 0, -1}, {"a/y/0", 3, -1}} {
		if w := worker(c.pod, c.rank); w.For != c.want {
			t.Errorf("%s/%d works for %d, want %d", c.pod, c.rank, w.For, c.want)
		}
	}
	if one, eleven := worker("z/1", 0), worker("z/11", 0); one.Instance == eleven.Instance {
		t.Error("z/1 and z/11 are two workers 1, of different instances z/ and z/1")
	}
	if n := r.Instances(); n != 8 {
		t.Errorf("%d instances, want 8", n)
	}
	if _, _, live := r.Holder(0); live {
		t.Error("id 0 is a holder")
	}
	if n := len(r.Holders()); n != len(holders) {
		t.Errorf("%d holders, want %d", n, len(holders))
	}

	// An instance whose workers were learnt of one by one has as many as the last says.
	grown := NewRegistry(1, []Pod{{Name: "a"}, {Name: "w/0", PartOf: part("a", 0, 0, 1)}, {Name: "w/1", PartOf: part("a", 0, 1, 2)}},
		[]Holder{{ID: 1, Pod: "w/0"}}, nil, time.Time{})
	slot1, _, _ := grown.Holder(1)
	if w, _ := grown.Worker(slot1); w.Instance != 0 || w.Workers != 2 {
		t.Errorf("%+v, want one of two workers", w)
	}

	// Two registrations of one worker: the first counts.
	two := NewRegistry(1, []Pod{{Name: "a"}, {Name: "w", PartOf: part("a", 0, 0, 1)}, {Name: "w0", PartOf: part("a", 0, 0, 1)}},
		[]Holder{{ID: 1, Pod: "w"}, {ID: 2, Pod: "w0"}}, nil, time.Time{})
	s1, _, _ := two.Holder(1)
	s2, _, _ := two.Holder(2)
	w1, _ := two.Worker(s1)
	w2, _ := two.Worker(s2)
	if w1.For < 0 || w2.For != -1 || w1.Instance != w2.Instance {
		t.Errorf("%+v, %+v", w1, w2)
	}

	if none := NewRegistry(1, []Pod{{Name: "a"}}, []Holder{{ID: 1, Pod: "a"}}, nil, time.Time{}); none.Instances() != 0 {
		t.Error("instances without workers")
	} else if _, ok := none.Worker(0); ok {
		t.Error("a worker without workers")
	}
}

// others is a list of another program's blocks.
type others int

func (n others) Len() int { return int(n) }

func TestQueryLen(t *testing.T) {
	for _, c := range []struct {
		q    Query
		want int
	}{
		{Query{}, 0},
		{Query{Keys: make([]blockkey.Key, 3)}, 3},
		{Query{Keys: make([]blockkey.Key, 3), Beside: others(2)}, 2},
	} {
		if n := c.q.Len(); n != c.want {
			t.Errorf("%+v: %d, want %d", c.q, n, c.want)
		}
	}
}
