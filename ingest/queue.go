package ingest

import (
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// overhead is what a message costs beside its payload, about.
const overhead = 96

func sizeOf(m *zmq.Message) int64 { return int64(len(m.Payload)) + overhead }

// entry is what waits in a queue: a message, or a new connection.
type entry struct {
	zmq.Message
	connected bool
}

// queue is what has been received of a rank and not been followed yet. What finds no
// room is dropped: nothing that puts waits.
type queue struct {
	limit int
	bytes int64         // limit
	total *atomic.Int64 // bytes in all queues
	all   int64         // limit of total
	wake  chan struct{} // has a token after each put

	mu      sync.Mutex // protects all below
	entries []entry
	head    int
	size    int64 // bytes
	dropped bool  // something was, since the last look
	epoch   uint64
	online  bool
}

func newQueue(c *Config, total *atomic.Int64) *queue {
	return &queue{limit: c.QueueMessages, bytes: c.QueueBytes, total: total, all: c.TotalBytes, wake: make(chan struct{}, 1)}
}

// put adds a message; false when there is no room.
func (q *queue) put(m zmq.Message) bool {
	n := sizeOf(&m)
	q.mu.Lock()
	ok := len(q.entries)-q.head < q.limit && (q.size+n <= q.bytes || q.size == 0)
	if ok && q.total.Add(n) > q.all {
		q.total.Add(-n)
		ok = false
	}
	if ok {
		q.push(entry{Message: m})
		q.size += n
	} else {
		q.dropped = true
	}
	q.mu.Unlock()
	q.signal()
	return ok
}

// connected notes a new connection. What the last one has left stays before it.
func (q *queue) connected() {
	q.mu.Lock()
	q.epoch++
	q.online = true
	// Connections that brought nothing are one: they take no room.
	if n := len(q.entries); n == q.head || !q.entries[n-1].connected {
		q.push(entry{connected: true})
	}
	q.mu.Unlock()
	q.signal()
}

// disconnected notes that the connection has ended.
func (q *queue) disconnected() {
	q.mu.Lock()
	q.online = false
	q.mu.Unlock()
}

// connection returns the number of the connection and whether it stands.
func (q *queue) connection() (epoch uint64, online bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.epoch, q.online
}

// push appends under the lock.
func (q *queue) push(e entry) {
	if q.head > 64 && q.head > len(q.entries)/2 {
		n := copy(q.entries, q.entries[q.head:])
		clear(q.entries[n:])
		q.entries, q.head = q.entries[:n], 0
	}
	q.entries = append(q.entries, e)
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop takes the first entry.
func (q *queue) pop() (e entry, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.entries) {
		if cap(q.entries) > 256 {
			q.entries = nil // a burst is over
		}
		q.entries, q.head = q.entries[:0], 0
		return entry{}, false
	}
	e = q.entries[q.head]
	q.entries[q.head] = entry{}
	q.head++
	if !e.connected {
		n := sizeOf(&e.Message)
		q.size -= n
		q.total.Add(-n)
	}
	return e, true
}

// takeDropped tells whether something was dropped since it was asked last.
func (q *queue) takeDropped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.dropped
	q.dropped = false
	return d
}

// depth is what waits.
func (q *queue) depth() (messages int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) - q.head, q.size
}

// drain gives all room back.
func (q *queue) drain() {
	for ok := true; ok; _, ok = q.pop() {
	}
}
