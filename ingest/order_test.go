package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
)

// wire is an engine, and the way to it, as a follower sees them: it loses, repeats and
// mixes up what it likes.
type wire struct {
	t      *rapid.T
	life   int
	sent   []zmq.Message // of this life, by sequence; without payload where burnt
	buffer int           // how many can be replayed
	up     bool          // the replay socket answers
	cuts   int           // how many of the next replays are cut

	// What the follower has made of it.
	taken   []zmq.Message // of the generation
	began   []Reason
	pauses  int
	stale   bool // the next pause finds the connection gone
	refuses bool // there is no replay socket
}

func (w *wire) publish(burnt bool) zmq.Message {
	m := zmq.Message{Seq: uint64(len(w.sent)), Payload: fmt.Appendf(nil, "life %d message %d", w.life, len(w.sent))}
	if burnt {
		m.Payload = nil
	}
	w.sent = append(w.sent, m)
	return m
}

func (w *wire) restart() { w.life, w.sent = w.life+1, nil }

func (w *wire) replayable() bool { return !w.refuses }

var errDown = errors.New("nobody there")

func (w *wire) now() time.Time { return time.Time{} }

func (w *wire) doubt(_, _ uint64) {}

func (w *wire) replay(_ context.Context, from uint64, _ time.Duration, _ bool) ([]zmq.Message, time.Duration, error) {
	out, err := w.answer(from)
	return out, 0, err
}

func (w *wire) answer(from uint64) ([]zmq.Message, error) {
	if w.refuses {
		w.t.Fatal("a replay was asked for that there is not")
	}
	if !w.up {
		return nil, errDown
	}
	var out []zmq.Message
	for _, m := range w.sent[max(0, len(w.sent)-w.buffer):] {
		if m.Seq >= from && m.Payload != nil {
			out = append(out, m)
		}
	}
	if w.cuts > 0 && len(out) > 0 {
		w.cuts--
		switch keep := rapid.IntRange(0, len(out)).Draw(w.t, "kept of a replay"); rapid.IntRange(0, 2).Draw(w.t, "way of cutting") {
		case 0: // the tail
			out = out[:keep]
		case 1: // one in the middle; the first always finds room in a new connection's queue
			if 0 < keep && keep < len(out) {
				out = slices.Delete(slices.Clone(out), keep, keep+1)
			}
		case 2: // the tail and the end
			return out[:keep], zmq.ErrCut
		}
	}
	return out, nil
}

func (w *wire) accept(_ context.Context, m zmq.Message, mark uint64) error {
	if mark != fingerprint(m.Payload) {
		w.t.Fatal("a mark of another message")
	}
	w.taken = append(w.taken, m)
	return nil
}

func (w *wire) begin(_ context.Context, r Reason) error {
	w.taken = nil
	w.began = append(w.began, r)
	return nil
}

func (w *wire) gap(first, next uint64) {
	if first >= next {
		w.t.Fatalf("a gap from %d to %d", first, next)
	}
}

func (w *wire) pause(_ context.Context, n int, _ time.Duration) error {
	if n < 1 {
		w.t.Fatalf("pause %d", n)
	}
	if w.pauses++; w.pauses > 1000 {
		w.t.Fatal("it asks for ever")
	}
	if w.stale {
		return errStale
	}
	return nil
}

// check holds what was taken against what was sent. It must be the messages of one life from
// some point on without a hole, a repetition or a strange one between.
func (w *wire) check(f *follower) {
	for i, m := range w.taken {
		if i > 0 && m.Seq != w.taken[i-1].Seq+1 {
			w.t.Fatalf("message %d was taken behind %d", m.Seq, w.taken[i-1].Seq)
		}
	}
	if n := len(w.taken); f.known != (n > 0) || n > 0 && f.next != w.taken[n-1].Seq+1 {
		w.t.Fatalf("known %v, next %d, %d taken", f.known, f.next, n)
	}
}

// TestFollower loses, repeats, mixes up and cuts at random. After each step what was
// taken must be a stretch of the stream. When the faults are over, it must be the end
// of the present life.
func TestFollower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		w := &wire{t: t, up: true, buffer: rapid.SampledFrom([]int{1, 5, 1000}).Draw(t, "buffer")}
		w.refuses = rapid.Bool().Draw(t, "no replay")
		f := &follower{act: w, tries: rapid.IntRange(1, 4).Draw(t, "tries"), patience: time.Hour}
		do := func(what string, step func() error) {
			w.pauses = 0
			err := step()
			if errors.Is(err, errStale) {
				// The next connection is sure to come before anything else.
				w.stale = false
				if rapid.Bool().Draw(t, "restarted") {
					w.restart()
				}
				err = f.connect(ctx)
			}
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		connect := func() { do("connect", func() error { return f.connect(ctx) }) }
		receive := func(m zmq.Message) { do("receive", func() error { return f.receive(ctx, m) }) }
		connect()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			w.cuts = rapid.IntRange(0, 3).Draw(t, "cuts")
			w.up = rapid.IntRange(0, 9).Draw(t, "up") > 0
			w.stale = rapid.IntRange(0, 9).Draw(t, "stale") == 0
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0: // lost on the way
				w.publish(false)
			case 1: // lost in the engine
				w.publish(true)
			case 2: // the link
				connect()
			case 3: // the process
				w.restart()
				for range rapid.IntRange(0, 60).Draw(t, "published before the reconnection") {
					w.publish(false)
				}
				connect()
			case 4: // again, or late
				if n := len(w.sent); n > 0 {
					if m := w.sent[rapid.IntRange(0, n-1).Draw(t, "again")]; m.Payload != nil {
						receive(m)
					}
				}
			case 5:
				do("probe", func() error { return f.probe(ctx) })
			case 6: // another process has ended the generation
				do("resync", func() error { return f.resync(ctx, Ended) })
			default:
				receive(w.publish(false))
			}
			w.check(f)
		}
		// From here on nothing goes wrong.
		w.cuts, w.up, w.stale = 0, true, false
		connect()
		receive(w.publish(false))
		receive(w.publish(false))
		do("probe", func() error { return f.probe(ctx) })
		w.check(f)
		n := len(w.taken)
		if n == 0 {
			t.Fatal("nothing was taken")
		}
		for i, m := range w.taken {
			want := w.sent[len(w.sent)-n+i]
			if m.Seq != want.Seq || !bytes.Equal(m.Payload, want.Payload) {
				t.Fatalf("taken %d %q, not %d %q", m.Seq, m.Payload, want.Seq, want.Payload)
			}
		}
	})
}

// TestFollowerSameLife goes through faults that a replay makes good: no generation must
// end for them.
func TestFollowerSameLife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		w := &wire{t: t, up: true, buffer: 1 << 20}
		f := &follower{act: w, tries: 50, patience: time.Hour}
		try := func(err error) {
			w.pauses = 0
			must.OK(t, err)
		}
		try(f.connect(ctx))
		try(f.receive(ctx, w.publish(false)))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			// A cut that leaves nothing looks like another process when it comes twice
			// in a row, so one at a time.
			w.cuts = rapid.IntRange(0, 1).Draw(t, "cuts")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				w.publish(false)
			case 1:
				try(f.connect(ctx))
			case 2:
				try(f.probe(ctx))
			default:
				try(f.receive(ctx, w.publish(false)))
			}
			w.check(f)
		}
		w.cuts = 0
		try(f.probe(ctx))
		if len(w.taken) != len(w.sent) || len(w.began) > 0 {
			t.Fatalf("%d of %d taken, generations ended by %v", len(w.taken), len(w.sent), w.began)
		}
	})
}

// TestFollowerRestartAhead is a process that is restarted while no reader is connected and has come beyond
// the old one's numbers before one is.
func TestFollowerRestartAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &wire{t: t, up: true, buffer: 1 << 20}
		f := &follower{act: w, tries: 2, patience: time.Hour}
		must.OK(t, f.connect(t.Context()))
		for range 3 {
			must.OK(t, f.receive(t.Context(), w.publish(false)))
		}
		w.restart()
		ahead := rapid.IntRange(0, 8).Draw(t, "ahead")
		for range ahead {
			w.publish(false)
		}
		must.OK(t, f.connect(t.Context()))
		if !slices.Equal(w.began, []Reason{Restarted}) || len(w.taken) != ahead {
			t.Fatalf("%d published: %d taken, %v", ahead, len(w.taken), w.began)
		}
	})
}
