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
)

// op is an admission or an eviction.
type op struct {
	kind store.OpKind
	key  blockkey.Key
	// seq is 1 + its number, 0 when it has none.
	seq uint64
}

// put queues an item. Operations that find no room are dropped, and all that wait with
// them: what is left would have a hole.
func (w *worker) put(it item) {
	c := w.c
	n := int64(len(it.ops))
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case n > 0 && c.count.queueKeys.Add(n) > int64(c.config.QueueKeys):
		dropped := n
		kept := w.queue[:0]
		for _, q := range w.queue {
			if dropped += int64(len(q.ops)); q.kind != doOps {
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
