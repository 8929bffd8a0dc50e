package ingest

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// TestRing adds messages of all sizes and asks for all kinds of ranges.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &Config{RelayMessages: rapid.IntRange(1, 100).Draw(t, "messages"), RelayBytes: int64(rapid.IntRange(200, 20_000).Draw(t, "bytes"))}
		r := newRing(c)
		var all []zmq.Message
		first := uint64(rapid.IntRange(0, 5).Draw(t, "first"))
		for range rapid.IntRange(0, 400).Draw(t, "added") {
			m := zmq.Message{Seq: first + uint64(len(all)), Payload: make([]byte, rapid.IntRange(0, 400).Draw(t, "size"))}
			all = append(all, m)
			r.add(m)
		}
		// What must be kept: the newest that fit.
		kept, size := 0, int64(0)
		for i := len(all) - 1; i >= 0 && kept < c.RelayMessages && size+sizeOf(&all[i]) <= c.RelayBytes; i-- {
			kept++
			size += sizeOf(&all[i])
		}
		from, to := first+uint64(rapid.IntRange(0, 410).Draw(t, "from")), first+uint64(rapid.IntRange(0, 410).Draw(t, "to"))
		if rapid.Bool().Draw(t, "to the newest") {
			to = math.MaxUint64
		}
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		got, err := r.read(from, to, limit)
		newest := first + uint64(len(all)) - 1
		oldest := newest + 1 - uint64(kept)
		switch {
		case from > to:
			if !errors.Is(err, ErrRange) {
				t.Fatalf("%d to %d: %v", from, to, err)
			}
		case kept == 0, from > newest:
			if !errors.Is(err, ErrTooNew) {
				t.Fatalf("%d to %d of %d to %d: %v", from, to, oldest, newest, err)
			}
		case from < oldest:
			if !errors.Is(err, ErrTooOld) || got.First != oldest || got.Last != newest {
				t.Fatalf("%d to %d of %d to %d: %v, %+v", from, to, oldest, newest, err, got)
			}
		default:
			want := min(to, newest) - from + 1
			if err != nil || uint64(len(got.Messages)) != min(want, uint64(limit)) || got.Messages[0].Seq != from || got.First != oldest || got.Last != newest {
				t.Fatalf("%d to %d of %d to %d: %d messages, %v", from, to, oldest, newest, len(got.Messages), err)
			}
		}
	})
}

func TestRingLargeMessage(t *testing.T) {
	r := newRing(&Config{RelayMessages: 10, RelayBytes: 1000})
	r.add(zmq.Message{Seq: 1})
	r.add(zmq.Message{Seq: 2, Payload: make([]byte, 2000)})
	if got, err := r.read(1, 2, 10); !errors.Is(err, ErrTooNew) {
		t.Errorf("a hole was kept: %+v, %v", got, err)
	}
	r.add(zmq.Message{Seq: 3})
	if got, err := r.read(3, 3, 10); err != nil || len(got.Messages) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	r.reset()
	if _, err := r.read(3, 3, 10); !errors.Is(err, ErrTooNew) {
		t.Errorf("%v after a reset", err)
	}
	none := newRing(&Config{RelayMessages: -1, RelayBytes: 1000})
	none.add(zmq.Message{Seq: 1})
	if _, err := none.read(1, 1, 10); !errors.Is(err, ErrTooNew) {
		t.Errorf("%v of a ring that keeps nothing", err)
	}
}
