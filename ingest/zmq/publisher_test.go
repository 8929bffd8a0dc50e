package zmq

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

func newPublisher(t *testing.T, c PublisherConfig) *Publisher {
	t.Helper()
	p := must.Get(NewPublisher(c))(t)
	must.End(t, p.Close)
	return p
}

// What is published comes to the subscribers of its topic, in order, and
// can be asked for again.
func TestPublisher(t *testing.T) {
	live, again := endpoint4("127.0.0.1", redistest.FreePort(t)), endpoint4("127.0.0.1", redistest.FreePort(t))
	p := newPublisher(t, PublisherConfig{Endpoint: live, Replay: again, Keep: 100})
	all := run(t, Config{Endpoint: live})
	some := run(t, Config{Endpoint: live, Topic: "kv@b"})
	eventually.True(t, "subscribers", func() bool { return p.Subscribers() == 2 })
	const n = 300
	for i := range n {
		p.Publish(Message{Topic: []string{"kv@a", "kv@b"}[i%2], Seq: uint64(i), Payload: bytes.Repeat([]byte{byte(i)}, i*7)})
	}
	all.until(t, "all messages", func() bool { return len(all.seqs) == n })
	some.until(t, "half of the messages", func() bool { return len(some.seqs) == n/2 })
	for i := range n {
		if all.seqs[i] != uint64(i) || all.topics[i] != []string{"kv@a", "kv@b"}[i%2] {
			t.Fatalf("message %d is %d of %s", i, all.seqs[i], all.topics[i])
		}
	}
	if all.bytes != 7*n*(n-1)/2 || some.seqs[0] != 1 || p.Lost() != 0 || p.Waiting() != 0 {
		t.Errorf("%d bytes, first %d, %d lost, %d waiting", all.bytes, some.seqs[0], p.Lost(), p.Waiting())
	}
	for _, from := range []uint64{0, 250, n} {
		seqs := must.Get(collect(t.Context(), ReplayConfig{Endpoint: again}, from))(t)
		var want []uint64
		for i := max(from, n-100); i < n; i++ {
			want = append(want, i)
		}
		if !slices.Equal(seqs, want) {
			t.Errorf("from %d: %v", from, seqs)
		}
	}
}

// A subscriber that does not read loses messages, and does not hold others up.
func TestPublisherSlowSubscriber(t *testing.T) {
	live := endpoint4("127.0.0.1", redistest.FreePort(t))
	p := newPublisher(t, PublisherConfig{Endpoint: live, Queue: 2})
	to := must.Get(parseEndpoint(live, false))(t)
	slow := must.Get(dial(t.Context(), to, "SUB", publishers, nil, nil, 1<<20, 5*time.Second))(t)
	defer slow.net.Close()
	if err := slow.send(frame{0, []byte{1}}); err != nil { // as ZMTP 3.0 subscribes
		t.Fatal(err)
	}
	eventually.True(t, "subscriber", func() bool { return p.Subscribers() == 1 })
	payload := make([]byte, 1<<20)
	for i := uint64(0); p.Lost() == 0; i++ {
		p.Publish(Message{Seq: i, Payload: payload})
	}
	must.OK(t, slow.send(frame{0, []byte{0}}))
	eventually.True(t, "end of the subscription", func() bool { return p.Subscribers() == 0 })
}

func TestPublisherRefuses(t *testing.T) {
	for _, c := range []PublisherConfig{
		{Endpoint: "inproc://x"}, {Endpoint: "tcp://127.0.0.1:0"}, {}, {Endpoint: "tcp://127.0.0.1:1", Queue: -1},
		{Endpoint: "tcp://127.0.0.1:1", Keep: -1}, {Endpoint: "tcp://127.0.0.1:1", KeepBytes: -1}, {Endpoint: "tcp://127.0.0.1:1", Peers: -1},
	} {
		if p, err := NewPublisher(c); err == nil {
			t.Errorf("%+v is taken", c)
			_ = p.Close()
		}
	}
	// The port is taken; the first socket is closed again.
	port := redistest.FreePort(t)
	p := newPublisher(t, PublisherConfig{Endpoint: endpoint4("127.0.0.1", port)})
	if _, err := NewPublisher(PublisherConfig{Endpoint: endpoint4("127.0.0.1", redistest.FreePort(t)), Replay: endpoint4("127.0.0.1", port)}); err == nil {
		t.Error("a port twice")
	}
	// A peer that is no subscriber is sent away.
	to := must.Get(parseEndpoint(endpoint4("127.0.0.1", port), false))(t)
	c, err := dial(t.Context(), to, "PUSH", publishers, nil, nil, 1<<20, 5*time.Second)
	if err != nil {
		return
	}
	defer c.net.Close()
	if _, err := c.message(nil); err == nil {
		t.Error("a PUSH socket gets a message")
	}
	if p.Subscribers() != 0 {
		t.Error("a PUSH socket subscribes")
	}
}

// What is only kept is lost on its way, and can be asked for, in the old form of answers
// too.
func TestPublisherKeeps(t *testing.T) {
	for _, old := range []bool{false, true} {
		live, again := endpoint4("127.0.0.1", redistest.FreePort(t)), endpoint4("127.0.0.1", redistest.FreePort(t))
		p := newPublisher(t, PublisherConfig{Endpoint: live, Replay: again, OldReplay: old})
		all := run(t, Config{Endpoint: live})
		eventually.True(t, "subscriber", func() bool { return p.Subscribers() == 1 })
		for i := range uint64(5) {
			m := Message{Topic: "kv", Seq: i, Payload: []byte{byte(i)}}
			if i == 2 {
				p.Keep(m)
			} else {
				p.Publish(m)
			}
		}
		all.until(t, "the messages that were sent", func() bool { return len(all.seqs) == 4 })
		if !slices.Equal(all.seqs, []uint64{0, 1, 3, 4}) {
			t.Errorf("old %v: %v came", old, all.seqs)
		}
		seqs, err := collect(t.Context(), ReplayConfig{Endpoint: again}, 0)
		if err != nil || !slices.Equal(seqs, []uint64{0, 1, 2, 3, 4}) {
			t.Errorf("old %v: %v were answered, %v", old, seqs, err)
		}
	}
}
