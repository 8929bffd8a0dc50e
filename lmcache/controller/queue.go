package controller

import (
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

// item is something for run to do.
type item struct {
	kind     itemKind
	location int
	ops      []op
	syncID   string
}

type itemKind uint8

const (
	doOps itemKind = iota
	doRegister
	doDeregister
	doSyncEnd
	doRenew
	doReview
)

// op is an admission or an eviction.
type op struct {
	kind store.OpKind
	key  blockkey.Key
	// seq is 1 + its number, 0 when it has none.
	seq uint64
}

// size is what an item takes of Config.QueueKeys.
func (it *item) size() int64 {
	if it.kind == doSyncEnd {
		return 1
	}
	return int64(len(it.ops))
}

// put queues an item. Operations that find no room are dropped, and all that wait with
// them: what is left would have a hole. A full sync whose end finds none comes to nothing.
func (w *worker) put(it item) {
	c := w.c
	n := it.size()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended: // its room would never be given back
		return
	case it.kind == doRegister || it.kind == doDeregister:
		// What came before is of a life that ends with it.
		for i := range w.queue {
			n -= w.queue[i].size()
		}
		c.count.queueKeys.Add(n)
		clear(w.queue)
		w.queue, w.overflow = append(w.queue[:0], it), false
	case n > 0 && c.count.queueKeys.Add(n) > int64(c.config.QueueKeys):
		if it.kind == doSyncEnd {
			c.count.queueKeys.Add(-n)
			w.endSync(false)
			return
		}
		dropped := n
		kept := w.queue[:0]
		for _, q := range w.queue {
			switch {
			case q.kind == doOps:
				dropped += q.size()
			case q.kind != doRenew || len(kept) == 0 || kept[len(kept)-1].kind != doRenew:
				kept = append(kept, q)
			}
		}
		clear(w.queue[len(kept):])
		w.queue = kept
		c.count.queueKeys.Add(-dropped)
		c.count.dropped.Add(uint64(dropped))
		w.overflow = true
	case it.kind == doRenew && len(w.queue) > 0 && w.queue[len(w.queue)-1].kind == doRenew:
		return // one is enough
	default:
		w.queue = append(w.queue, it)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued.
func (w *worker) take() (list []item, overflow bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list, overflow = w.queue, w.overflow
	w.queue, w.overflow = nil, false
	return list, overflow
}
