package controller

import (
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// push handles a message of a PUSH socket: each frame is one of LMCache's.
func (c *Controller) push(p *zmq.Peer, frames [][]byte) {
	for _, frame := range frames {
		m, err := decode(frame)
		if err != nil {
			c.malformed(p.Addr(), err)
			continue
		}
		c.count.messages.Add(1)
		if err := c.said(p, m); err != nil && !errors.Is(err, errStale) {
			c.refused(p.Addr(), err)
		}
	}
}

// errUnknown says that a type of message is unknown.
var errUnknown = errors.New("controller: unknown type of message")

// said takes a message in that needs no answer. It is errStale for one that does not count,
// which has been counted.
func (c *Controller) said(p *zmq.Peer, m *message) error {
	switch m.Type {
	case "RegisterMsg", "DeRegisterMsg", "HeartbeatMsg", "KVAdmitMsg", "KVEvictMsg", "BatchedKVOperationMsg", "FullSyncBatchMsg", "FullSyncEndMsg":
	default:
		return fmt.Errorf("%w: %.60q", errUnknown, m.Type)
	}
	w, err := c.worker(p, m)
	if err != nil {
		return err
	}
	switch m.Type {
	case "RegisterMsg":
		w.put(item{kind: doRegister})
	case "DeRegisterMsg":
		w.put(item{kind: doDeregister})
	case "KVAdmitMsg":
		return c.operations(w, m, []kvOp{{"admit", m.Key, m.Seq}})
	case "KVEvictMsg":
		return c.operations(w, m, []kvOp{{"evict", m.Key, m.Seq}})
	case "BatchedKVOperationMsg":
		return c.operations(w, m, m.Ops)
	case "FullSyncBatchMsg":
		return w.syncBatch(m)
	case "FullSyncEndMsg":
		return w.syncEnd(m)
	}
	return nil
}

// operations queues admissions and evictions.
func (c *Controller) operations(w *worker, m *message, ops []kvOp) error {
	at, ok := locationOf(m.Location)
	if !ok {
		c.count.unknown.Add(uint64(len(ops)))
		c.mu.Lock()
		tell := !c.told[m.Location] && len(c.told) < 256
		if tell {
			c.told[m.Location] = true
		}
		c.mu.Unlock()
		if tell {
			c.config.Observer.Location(m.Location)
		}
		return nil
	}
	var bad error
	it := item{location: at, ops: make([]op, 0, len(ops))}
	for i := range ops {
		o := &ops[i]
		var kind store.OpKind
		switch {
		case o.Key == nil:
			bad = fmt.Errorf("%w: operation %d has no key", errMalformed, i)
			continue
		case o.Op == "admit":
			kind = store.Add
		case o.Op == "evict":
			kind = store.Remove
		default:
			bad = fmt.Errorf("%w: operation %d is %.40q, neither admit nor evict", errMalformed, i, o.Op)
			continue
		}
		if c.config.Heard != nil && kind == store.Add {
			c.config.Heard(o.Key.Hash)
		}
		next := op{kind: kind, key: o.Key.ChunkKey()}
		if o.Seq != nil && *o.Seq < 1<<62 {
			next.seq = *o.Seq + 1
		}
		it.ops = append(it.ops, next)
	}
	if len(it.ops) > 0 {
		w.put(it)
	}
	return bad
}
