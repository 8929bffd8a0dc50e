package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// engineMessage is a message of an engine of some name.
func engineMessage(engine string, seq uint64) zmq.Message {
	return zmq.Message{Seq: seq, Payload: fmt.Appendf(nil, "%s %d", engine, seq)}
}

// messagesOf are those of an engine from one number to before another.
func messagesOf(engine string, from, to uint64) (out []zmq.Message) {
	for ; from < to; from++ {
		out = append(out, engineMessage(engine, from))
	}
	return out
}

// answer is what a replay socket says to a question. It says how long that takes (0 is until it
// is given up), and with which error it ends.
type answer struct {
	messages []zmq.Message
	took     time.Duration
	err      error
}

// clocked are a follower's actions on a clock of its own. It has what a rank is credited
// with.
type clocked struct {
	clock  time.Time
	answer func(from uint64) answer
	taken  []zmq.Message // of the generation
	began  []Reason
	doubts int
	asked  int
	stale  bool // each pause finds the connection gone
}

func (c *clocked) now() time.Time         { return c.clock }
func (c *clocked) replayable() bool       { return true }
func (c *clocked) gap(_, _ uint64)        {}
func (c *clocked) doubt(_, _ uint64)      { c.doubts++ }
func (c *clocked) elapse(d time.Duration) { c.clock = c.clock.Add(d) }

func (c *clocked) replay(_ context.Context, from uint64, limit time.Duration, _ bool) ([]zmq.Message, time.Duration, error) {
	if c.asked++; c.asked > 1000 {
		return nil, 0, errors.New("it asks for ever")
	}
	a := c.answer(from)
	switch {
	case a.took == 0 && limit == 0:
		a.took = maxReplay
	case a.took == 0 || limit > 0 && a.took > limit:
		a.took, a.err = limit, zmq.ErrCut
	}
	c.elapse(a.took)
	return a.messages, a.took, a.err
}

func (c *clocked) accept(_ context.Context, m zmq.Message, _ uint64) error {
	c.taken = append(c.taken, m)
	return nil
}

func (c *clocked) begin(_ context.Context, r Reason) error {
	c.taken = nil
	c.began = append(c.began, r)
	return nil
}

func (c *clocked) pause(_ context.Context, n int, limit time.Duration) error {
	d := 100 * time.Millisecond << (n - 1)
	if limit > 0 {
		d = min(d, limit)
	}
	c.elapse(d)
	if c.stale {
		return errStale
	}
	return nil
}

const patience = 1500 * time.Millisecond

func newClocked() (*follower, *clocked) {
	c := &clocked{answer: func(uint64) answer { return answer{took: 1} }}
	return &follower{act: c, tries: 5, patience: patience}, c
}

// follow gives a follower live messages of an engine, apart in time.
func follow(t *testing.T, f *follower, c *clocked, engine string, from, to uint64, apart time.Duration) {
	t.Helper()
	for _, m := range messagesOf(engine, from, to) {
		must.OK(t, f.receive(t.Context(), m))
		c.elapse(apart)
	}
}

// credited checks that what is credited is a stretch of an engine's stream that ends before
// a number, and that nothing of another is.
func (c *clocked) credited(t *testing.T, engine string, end uint64) {
	t.Helper()
	n := uint64(len(c.taken))
	if n == 0 || n > end {
		t.Fatalf("%d messages are credited", n)
	}
	for i, want := range messagesOf(engine, end-n, end) {
		if got := c.taken[i]; got.Seq != want.Seq || !bytes.Equal(got.Payload, want.Payload) {
			t.Fatalf("credited with %q, want %q", got.Payload, want.Payload)
		}
	}
}

// lies are replay sockets as they should not be. An engine P that is at 111 has lost message
// 110 on the way, and 109 is the last that was taken.
var lies = map[string]func(n int, from uint64) answer{
	"silence":        func(int, uint64) answer { return answer{err: zmq.ErrCut} },
	"garbage":        func(int, uint64) answer { return answer{took: time.Millisecond, err: zmq.ErrProtocol} },
	"a slow refusal": func(int, uint64) answer { return answer{took: 700 * time.Millisecond, err: zmq.ErrProtocol} },
	"a hole": func(int, uint64) answer {
		return answer{messages: append(messagesOf("P", 109, 110), messagesOf("P", 111, 112)...), took: time.Millisecond}
	},
	"the last alone": func(int, uint64) answer { return answer{messages: messagesOf("P", 109, 110), took: time.Millisecond} },
	"END first":      func(int, uint64) answer { return answer{took: time.Millisecond} },
	"too many": func(int, uint64) answer {
		return answer{messages: messagesOf("Q", 109, 20_000), took: 100 * time.Millisecond}
	},
	"another, ahead": func(_ int, from uint64) answer {
		return answer{messages: messagesOf("Q", from, 2000), took: time.Millisecond}
	},
	"another, behind": func(_ int, from uint64) answer {
		return answer{messages: messagesOf("Q", min(from, 50), 50), took: time.Millisecond}
	},
	"another, as far": func(_ int, from uint64) answer {
		return answer{messages: messagesOf("Q", from, 112), took: time.Millisecond}
	},
	"another, younger": func(_ int, from uint64) answer {
		return answer{messages: messagesOf("Q", max(from, 111), 2000), took: time.Millisecond}
	},
	"all, from lower": func(int, uint64) answer { return answer{messages: messagesOf("P", 100, 110), took: time.Millisecond} },
	"lower":           func(int, uint64) answer { return answer{messages: messagesOf("P", 3, 9), took: time.Millisecond} },
	"a far number": func(int, uint64) answer {
		return answer{messages: messagesOf("P", 1<<62, 1<<62+1), took: time.Millisecond}
	},
	"the last, a far number": func(int, uint64) answer {
		return answer{messages: append(messagesOf("P", 109, 110), engineMessage("P", 1<<62)), took: time.Millisecond}
	},
	"the last number there is": func(int, uint64) answer {
		return answer{messages: messagesOf("P", 1<<64-2, 1<<64-1), took: time.Millisecond}
	},
	"a trickle of old ones": func(int, uint64) answer { return answer{messages: messagesOf("P", 100, 101)} },
	"a trickle of others":   func(n int, _ uint64) answer { return answer{messages: messagesOf("Q", uint64(100*n), uint64(100*n)+1)} },
	"closed at once":        func(int, uint64) answer { return answer{took: time.Millisecond, err: errDown} },
	"different ones each time": func(n int, from uint64) answer {
		return answer{messages: messagesOf(fmt.Sprint("Q", n), from, 300), took: time.Millisecond}
	},
	"two at one number": func(_ int, from uint64) answer {
		return answer{messages: append(messagesOf("P", 109, 110), engineMessage("Q", 110), engineMessage("R", 110), engineMessage("Q", 111)), took: time.Millisecond}
	},
}

// TestCaseReplayThatNeverAnswers: once a message is known to be missing, what is credited is right
// again before 2 s are over. That holds whatever the replay socket does, and stays so.
func TestCaseReplayThatNeverAnswers(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			f, c := newClocked()
			must.OK(t, f.connect(t.Context()))
			follow(t, f, c, "P", 0, 110, 0)
			c.credited(t, "P", 110)
			c.answer = func(from uint64) answer { return lie(c.asked, from) }
			lost := c.clock
			follow(t, f, c, "P", 111, 112, 0)
			if took := c.clock.Sub(lost); took > 2*time.Second {
				t.Errorf("it took %v, and %d questions", took, c.asked)
			}
			c.credited(t, "P", 112)
			// And then the live stream is followed, through silences.
			follow(t, f, c, "P", 112, 120, 0)
			for seq := uint64(120); seq < 130; seq++ {
				before := c.clock
				must.OK(t, f.probe(t.Context()))
				if took := c.clock.Sub(before); took > 2*time.Second {
					t.Errorf("the stream stands still for %v", took)
				}
				follow(t, f, c, "P", seq, seq+1, patience)
			}
			follow(t, f, c, "P", 130, 132, 0)
			c.credited(t, "P", 132)
			if c.doubts > 1 {
				t.Errorf("told of %d doubts", c.doubts)
			}
			// An honest replay is used again.
			c.answer = func(from uint64) answer { return answer{messages: messagesOf("P", from, 134), took: 1} }
			began := len(c.began)
			follow(t, f, c, "P", 133, 134, 0)
			if c.credited(t, "P", 134); len(c.began) != began {
				t.Errorf("a replay that is honest again is not believed: %v", c.began)
			}
		})
	}
}

// TestCaseReplayOfAnotherEngine begins with a replay that lies, in all the ways. Credit for what
// another engine has ends when the engine itself has been heard for some time.
func TestCaseReplayOfAnotherEngine(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			f, c := newClocked()
			c.answer = func(from uint64) answer { return lie(c.asked, from) }
			must.OK(t, f.connect(t.Context()))
			heard := c.clock
			follow(t, f, c, "P", 300, 308, 250*time.Millisecond)
			c.credited(t, "P", 308)
			if took := c.clock.Sub(heard); took > 4*time.Second {
				t.Errorf("the stream has stood still for %v", took)
			}
			if c.doubts > 1 {
				t.Errorf("told of %d doubts", c.doubts)
			}
			// After a new connection it is no more believed than before.
			doubted := f.doubted
			must.OK(t, f.connect(t.Context()))
			follow(t, f, c, "P", 308, 309, 250*time.Millisecond)
			if doubted {
				c.credited(t, "P", 309)
			}
			follow(t, f, c, "P", 309, 317, 250*time.Millisecond)
			c.credited(t, "P", 317)
		})
	}
}

// TestPatienceOutlivesConnections loses the connection again and again while a message is
// missing: the time of all of them counts.
func TestPatienceOutlivesConnections(t *testing.T) {
	f, c := newClocked()
	must.OK(t, f.connect(t.Context()))
	follow(t, f, c, "P", 0, 110, 0)
	c.answer = func(uint64) answer { return answer{took: 200 * time.Millisecond, err: zmq.ErrProtocol} }
	c.stale = true
	lost := c.clock
	err := f.receive(t.Context(), engineMessage("P", 111))
	for n := 0; errors.Is(err, errStale) && n < 100; n++ {
		err = f.connect(t.Context())
	}
	if took := c.clock.Sub(lost); err != nil || len(c.taken) > 0 || took > 2*time.Second {
		t.Errorf("%d messages are credited after %v: %v", len(c.taken), took, err)
	}
}

// TestReviewOfOneMessage hears a single message that contradicts the replay, and no more.
func TestReviewOfOneMessage(t *testing.T) {
	f, c := newClocked()
	c.answer = func(from uint64) answer { return answer{messages: messagesOf("Q", from, 2000), took: 1} }
	must.OK(t, f.connect(t.Context()))
	follow(t, f, c, "P", 5, 6, patience-1)
	if err := f.review(t.Context()); err != nil || len(c.taken) != 2000 {
		t.Fatalf("too early: %d, %v", len(c.taken), err)
	}
	c.elapse(1)
	if err := f.review(t.Context()); err != nil || len(c.taken) > 0 || !slices.Equal(c.began, []Reason{Contradicted}) || c.doubts != 1 {
		t.Fatalf("%d are credited, began %v, %d doubts, %v", len(c.taken), c.began, c.doubts, err)
	}
	follow(t, f, c, "P", 6, 7, 0)
	c.credited(t, "P", 7)
}

// TestHonestOverlap reads late what a replay has told already: that is no contradiction.
func TestHonestOverlap(t *testing.T) {
	f, c := newClocked()
	c.answer = func(from uint64) answer { return answer{messages: messagesOf("P", max(from, 40), 100), took: 1} }
	must.OK(t, f.connect(t.Context()))
	follow(t, f, c, "P", 20, 110, patience/90)
	c.elapse(time.Hour)
	if err := f.review(t.Context()); err != nil || len(c.began) > 0 || c.doubts > 0 || len(c.taken) != 70 {
		t.Errorf("%d taken, began %v, %d doubts, %v", len(c.taken), c.began, c.doubts, err)
	}
}

// TestReplayOfAnotherEngine has the replay socket of another publisher, which is ahead.
func TestReplayOfAnotherEngine(t *testing.T) {
	s := newStage(t, newIndex(t), false, Config{ReplayPatience: 20 * time.Millisecond})
	dir := t.TempDir()
	other := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: "ipc://" + filepath.Join(dir, "e"), Replay: "ipc://" + filepath.Join(dir, "r")}))(t)
	t.Cleanup(func() { other.Close() })
	s.source.Replay = "ipc://" + filepath.Join(dir, "r")
	// Its blocks would be credited.
	own := s.pub
	s.pub = other
	for range 300 {
		s.publish()
	}
	s.publisher0(own)
	s.read(1)
	for !s.heard("began contradicted") {
		s.publish()
		s.until("the message", func() bool { return s.in.Stats().Ranks[0].QueueMessages == 0 })
	}
	s.publish()
	s.settled()
	if r := s.in.Stats().Ranks[0]; r.Doubts != 1 || r.Begun[Contradicted] == 0 || !s.heard("doubted") {
		t.Errorf("%+v", r)
	}
}

// TestReplayThatHangs has a replay socket that takes connections and says nothing.
func TestReplayThatHangs(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	s := newStage(t, newIndex(t), false, Config{ReplayPatience: 50 * time.Millisecond, Wire: zmq.Config{ConnectTimeout: time.Second}, ReplayTries: 1})
	s.source.Replay = "tcp://" + l.Addr().String()
	s.read(1)
	for range 20 {
		s.publish()
	}
	s.settled()
	s.seq++
	s.log = append(s.log, nil)
	s.publish()
	s.settled()
	s.hears("gap 20 21", "began no_replay", "started 21")
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.told, func(t string) bool { return strings.HasPrefix(t, "replayed 19 ") }); i < 0 {
		t.Errorf("told: %q", s.told)
	}
}

// TestFarNumbers has odd numbers in the replay and in the live stream. The index has no place
// for them, or they are far from those which come.
func TestFarNumbers(t *testing.T) {
	for _, far := range []uint64{1 << 50, store.MaxSequence - 1, store.MaxSequence, 1 << 62, 1<<64 - 2, 1<<64 - 1} {
		t.Run(fmt.Sprint(far), func(t *testing.T) {
			s := newStage(t, newIndex(t), true, Config{ReplayPatience: 20 * time.Millisecond, ReplayTries: 1})
			s.pub.Publish(zmq.Message{Seq: far, Payload: []byte("x")}) // before a listener is there
			s.read(1)
			taken := func() bool {
				s.publish()
				life, err := s.x.Life(t.Context(), "pod", 0)
				return err == nil && life.Seq > 1 && life.Seq <= s.seq
			}
			s.until("the live stream", taken)
			if far >= store.MaxSequence {
				s.pub.Publish(zmq.Message{Seq: far, Payload: []byte("x")})
			}
			s.publish()
			s.settled()
		})
	}
}
