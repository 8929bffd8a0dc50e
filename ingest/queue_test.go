package ingest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// TestQueue puts and takes at random, beside a slice.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		other := int64(rapid.IntRange(0, 3000).Draw(t, "bytes of others"))
		shared := &budget{limit: 30_000, used: other}
		c := &Config{QueueMessages: rapid.IntRange(1, 200).Draw(t, "messages"), QueueBytes: int64(rapid.IntRange(100, 40_000).Draw(t, "bytes"))}
		q := newQueue(c, shared)
		var model []entry
		size, seq, epoch := int64(0), uint64(0), uint64(0)
		for range rapid.IntRange(0, 600).Draw(t, "steps") {
			switch n := rapid.IntRange(0, 9).Draw(t, "step"); {
			case n == 0:
				epoch++
				q.connected()
				if l := len(model); l == 0 || !model[l-1].connected {
					model = append(model, entry{connected: true})
				}
			case n < 4:
				e, ok := q.pop()
				if ok != (len(model) > 0) || ok && (e.connected != model[0].connected || e.Seq != model[0].Seq) {
					t.Fatalf("took %+v %v", e, ok)
				}
				if ok {
					if !e.connected {
						size -= sizeOf(&e.Message)
					}
					model = model[1:]
				}
			default:
				m := zmq.Message{Seq: seq, Payload: make([]byte, rapid.IntRange(0, 500).Draw(t, "size"))}
				seq++
				room := len(model) < c.QueueMessages && (size == 0 || size+sizeOf(&m) <= c.QueueBytes && other+size+sizeOf(&m) <= shared.limit)
				q.mu.Lock()
				got := q.add(m)
				q.mu.Unlock()
				if got != room {
					t.Fatalf("room %v, not %v, with %d waiting of %d bytes", got, room, len(model), size)
				}
				if room {
					model = append(model, entry{Message: m})
					size += sizeOf(&m)
				}
			}
			if n, bytes := q.depth(); n != len(model) || bytes != size || shared.bytes() != other+size {
				t.Fatalf("depth %d, %d bytes, %d in all, not %d, %d, %d", n, bytes, shared.bytes(), len(model), size, other+size)
			}
			if e, _ := q.connection(); e != epoch {
				t.Fatalf("connection %d, not %d", e, epoch)
			}
		}
		q.drain()
		if shared.bytes() != other {
			t.Fatalf("%d bytes stay", shared.bytes()-other)
		}
	})
}

// TestQueuesShareRoom puts into many queues at once more than they have room for. All of it
// comes out in order, and a queue without a reader holds no other up.
func TestQueuesShareRoom(t *testing.T) {
	const messages, size = 3000, 400
	shared := &budget{limit: 20 * (size + overhead)}
	c := &Config{QueueMessages: 16, QueueBytes: 1 << 20}
	put := func(q *queue) {
		for seq := range uint64(messages) {
			q.put(zmq.Message{Seq: seq, Payload: make([]byte, size)})
		}
	}
	// Two of them have most of the room between them and give nothing back.
	stuck := []*queue{newQueue(c, shared), newQueue(c, shared)}
	var putting, reading sync.WaitGroup
	for _, q := range stuck {
		putting.Go(func() { put(q) })
		for paused := false; !paused; paused, _ = q.pausing() {
			runtime.Gosched()
		}
	}
	var most atomic.Int64
	for range 8 {
		q := newQueue(c, shared)
		putting.Go(func() { put(q) })
		reading.Go(func() {
			for next := uint64(0); next < messages; {
				e, ok := q.pop()
				if !ok {
					<-q.wake
					continue
				}
				if e.Seq != next {
					t.Errorf("message %d, not %d", e.Seq, next)
					return
				}
				next++
				most.Store(max(most.Load(), shared.bytes()))
			}
		})
	}
	reading.Wait()
	// Each may have one message in any case.
	if n := most.Load(); n > shared.limit+8*(size+overhead) {
		t.Errorf("%d bytes in queues for %d", n, shared.limit)
	}
	for _, q := range stuck {
		q.close()
	}
	putting.Wait()
	for _, q := range stuck {
		q.drain()
	}
	if shared.bytes() != 0 || shared.line.Len() != 0 {
		t.Errorf("%d bytes and %d in line are left", shared.bytes(), shared.line.Len())
	}
}
