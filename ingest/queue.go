package ingest

import (
	"container/list"
	"sync"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// overhead is what a message costs beside its payload, about.
const overhead = 96

func sizeOf(m *zmq.Message) int64 { return int64(len(m.Payload)) + overhead }

// budget is the room that the queues of all ranks share. Queues that wait for it stand in
// line, so that a busy rank does not starve the others.
type budget struct {
	limit int64 // bytes

	mu   sync.Mutex // protects all below, and queue.place
	used int64
	line list.List // of *queue
}

// take reserves n bytes for a queue, or puts the queue in line and returns false. force
// takes them in any case.
func (b *budget) take(q *queue, n int64, force bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.line.Front()
	if !force && (b.used+n > b.limit || first != nil && first != q.place) {
		if q.place == nil {
			q.place = b.line.PushBack(q)
		}
		return false
	}
	b.used += n
	b.leave(q)
	return true
}

// give returns n bytes.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	b.wakeFirst()
}

// leave takes a queue out of the line; b.mu is held.
func (b *budget) leave(q *queue) {
	if q.place != nil {
		b.line.Remove(q.place)
		q.place = nil
		b.wakeFirst()
	}
}

// wakeFirst lets the first in line try again; b.mu is held.
func (b *budget) wakeFirst() {
	if first := b.line.Front(); first != nil && b.used < b.limit {
		if q, ok := first.Value.(*queue); ok {
			q.wakePut()
		}
	}
}

// bytes is what all queues hold.
func (b *budget) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// entry is what waits in a queue: a message, or a new connection.
type entry struct {
	zmq.Message
	connected bool
}

// queue holds what a rank's publisher has sent and the reader has not followed yet. One
// goroutine puts and one pops.
type queue struct {
	limit  int     // messages
	bytes  int64   // limit
	shared *budget // which the queues of other ranks take from, too
	wake   chan struct{}
	room   chan struct{} // has a token when put is to try again
	place  *list.Element // in the line for the budget, nil for none

	mu      sync.Mutex // protects all below
	entries []entry
	head    int
	size    int64  // bytes
	paused  bool   // put waits
	pauses  uint64 // how often it has
	closed  bool
	epoch   uint64
	online  bool
}

func newQueue(c *Config, shared *budget) *queue {
	return &queue{limit: c.QueueMessages, bytes: c.QueueBytes, shared: shared, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put adds a message, and waits while there is no room for it. It returns early, without
// adding it, when the queue is closed.
func (q *queue) put(m zmq.Message) {
	for {
		q.mu.Lock()
		if q.closed || q.add(m) {
			q.paused = false
			q.mu.Unlock()
			q.signal()
			return
		}
		if !q.paused {
			q.paused = true
			q.pauses++
		}
		q.mu.Unlock()
		<-q.room
	}
}

// add adds a message if there is room. An empty queue always has room for one, so that no
// rank stands still because of what waits of others. q.mu is held.
func (q *queue) add(m zmq.Message) bool {
	n := sizeOf(&m)
	if len(q.entries)-q.head >= q.limit || q.size > 0 && q.size+n > q.bytes || !q.shared.take(q, n, q.size == 0) {
		return false
	}
	q.push(entry{Message: m})
	q.size += n
	return true
}

// wakePut lets a put that waits try again.
func (q *queue) wakePut() {
	select {
	case q.room <- struct{}{}:
	default:
	}
}

// close lets put return. What is queued stays.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.shared.mu.Lock()
	q.shared.leave(q)
	q.shared.mu.Unlock()
	q.wakePut()
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

// pop takes the first entry. A put that waits goes on once half of the queue is free.
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
		q.shared.give(n)
	}
	if q.paused && len(q.entries)-q.head <= q.limit/2 && q.size <= q.bytes/2 {
		q.wakePut()
	}
	return e, true
}

// depth is what waits.
func (q *queue) depth() (messages int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) - q.head, q.size
}

// pausing reports whether put waits, and how often it has.
func (q *queue) pausing() (paused bool, times uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.paused, q.pauses
}

// drain gives all room back.
func (q *queue) drain() {
	for ok := true; ok; _, ok = q.pop() {
	}
}
