package ingest

import (
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// TestQueue puts and takes at random, beside a slice.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var total atomic.Int64
		other := int64(rapid.IntRange(0, 3000).Draw(t, "bytes of others"))
		total.Store(other)
		c := &Config{QueueMessages: rapid.IntRange(1, 200).Draw(t, "messages"), QueueBytes: int64(rapid.IntRange(100, 40_000).Draw(t, "bytes")), TotalBytes: 30_000}
		q := newQueue(c, &total)
		var model []entry
		size, seq, dropped, epoch := int64(0), uint64(0), false, uint64(0)
		for range rapid.IntRange(0, 600).Draw(t, "steps") {
			switch n := rapid.IntRange(0, 9).Draw(t, "step"); {
			case n == 0:
				epoch++
				q.connected()
				if l := len(model); l == 0 || !model[l-1].connected {
					model = append(model, entry{connected: true})
				}
			case n == 1:
				if got := q.takeDropped(); got != dropped {
					t.Fatalf("dropped %v, not %v", got, dropped)
				}
				dropped = false
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
				room := len(model) < c.QueueMessages && (size+sizeOf(&m) <= c.QueueBytes || size == 0) && other+size+sizeOf(&m) <= c.TotalBytes
				if got := q.put(m); got != room {
					t.Fatalf("room %v, not %v, with %d waiting of %d bytes", got, room, len(model), size)
				}
				if room {
					model = append(model, entry{Message: m})
					size += sizeOf(&m)
				} else {
					dropped = true
				}
			}
			if n, bytes := q.depth(); n != len(model) || bytes != size || total.Load() != other+size {
				t.Fatalf("depth %d, %d bytes, %d in all, not %d, %d, %d", n, bytes, total.Load(), len(model), size, other+size)
			}
			if e, _ := q.connection(); e != epoch {
				t.Fatalf("connection %d, not %d", e, epoch)
			}
		}
		q.drain()
		if total.Load() != other {
			t.Fatalf("%d bytes stay", total.Load()-other)
		}
	})
}
