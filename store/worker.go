package store

import (
	"strconv"
	"strings"
)

// Worker says what a slot counts for whose pod is a cache worker (Pod.PartOf).
type Worker struct {
	// For is the slot of the (pod, rank) that the worker works for. It is -1 when the worker counts for no
	// pod: that pod is not registered, or another worker has the same number.
	For int
	// Instance is a dense number of the worker's instance. All workers of an instance
	// work for one (pod, rank), which may have several instances. Those of one instance
	// have names that differ only in the worker's number at their end.
	Instance int
	// Workers is how many workers the instance has: the most that any of them says.
	Workers int
}

// Worker returns what a slot counts for that is a cache worker's. ok is false for the
// slots of pods that serve requests.
func (r *Registry) Worker(slot int) (w Worker, ok bool) {
	if len(r.workers) == 0 || r.workers[slot].Workers == 0 {
		return Worker{}, false
	}
	return r.workers[slot], true
}

// Instances returns the number of instances of cache workers: Worker.Instance is below
// it. 0 means that no slot is a cache worker's.
func (r *Registry) Instances() int { return r.instances }

// withTargets appends a holder without an id for each rank that a cache worker works
// for. So the rank has a slot also when the pod itself holds nothing.
func withTargets(pods []Pod, holders []Holder) []Holder {
	for i := range pods {
		if p := pods[i].PartOf; p != nil {
			holders = append(holders, Holder{Pod: p.Pod, Rank: p.Rank})
		}
	}
	return holders
}

// instance is what is alike of the workers of one instance.
type instance struct {
	pod  string
	rank int
	name string // without the worker's number
}

func instanceOf(p *Pod) instance {
	return instance{p.PartOf.Pod, p.PartOf.Rank, strings.TrimSuffix(p.Name, strconv.Itoa(p.PartOf.Worker))}
}

// findWorkers fills workers and instances in. The slots are complete by then.
func (r *Registry) findWorkers() {
	type member struct {
		instance int
		worker   int
	}
	var (
		numbers map[instance]int
		most    []int // workers of each instance
	)
	for i := range r.Pods { // also those that hold nothing yet
		p := &r.Pods[i]
		if p.PartOf == nil {
			continue
		}
		if numbers == nil {
			numbers = map[instance]int{}
		}
		n, known := numbers[instanceOf(p)]
		if !known {
			n = len(numbers)
			numbers[instanceOf(p)] = n
			most = append(most, 0)
		}
		// A writer of registrations may learn of further workers one by one.
		most[n] = max(most[n], p.PartOf.Workers)
	}
	if numbers == nil {
		return
	}
	r.instances = len(numbers)
	r.workers = make([]Worker, len(r.Slots))
	taken := map[member]bool{}
	for i := range r.Slots {
		p := &r.Pods[r.Slots[i].Pod]
		if p.PartOf == nil {
			continue
		}
		n := numbers[instanceOf(p)]
		w := Worker{For: -1, Instance: n, Workers: most[n]}
		// A worker has rank 0 alone.
		if m := (member{n, p.PartOf.Worker}); r.Slots[i].Rank == 0 && !taken[m] {
			taken[m] = true
			w.For = r.target(p.PartOf)
		}
		r.workers[i] = w
	}
}

// target returns the slot of a worker's (pod, rank), -1 when there is none. A worker
// cannot work for another worker.
func (r *Registry) target(p *PartOf) int {
	pod, known := r.PodIndex(p.Pod)
	if !known || r.Pods[pod].PartOf != nil || r.Pods[pod].CheckRank(p.Rank) != nil {
		return -1
	}
	if at, found := r.Slot(pod, p.Rank); found {
		return at
	}
	return -1
}
