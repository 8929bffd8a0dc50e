package controller

import (
	"iter"
	"slices"

	"github.com/kvatlas/kvatlas/lmcache/feed"
)

// roll is the workers that are heard. Of an id there is one, or one for each host where it
// is used.
type roll struct {
	of map[feed.ID][]*worker
	n  int
}

func newRoll() roll { return roll{of: map[feed.ID][]*worker{}} }

// add enters a worker.
func (r *roll) add(w *worker) {
	r.of[w.id] = append(r.of[w.id], w)
	r.n++
}

// drop takes a worker off, if it is there.
func (r *roll) drop(w *worker) {
	list := r.of[w.id]
	i := slices.Index(list, w)
	if i < 0 {
		return
	}
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(r.of, w.id)
	} else {
		r.of[w.id] = list
	}
	r.n--
}

// has reports whether a worker is there; nil is not.
func (r *roll) has(w *worker) bool { return w != nil && slices.Contains(r.of[w.id], w) }

// all are the workers, in any order.
func (r *roll) all() iter.Seq[*worker] {
	return func(yield func(*worker) bool) {
		for _, list := range r.of {
			for _, w := range list {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// instance are the workers of an instance.
func (r *roll) instance(name string) iter.Seq[*worker] {
	return func(yield func(*worker) bool) {
		for w := range r.all() {
			if w.id.Instance == name && !yield(w) {
				return
			}
		}
	}
}
