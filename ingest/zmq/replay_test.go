package zmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// collect asks for a replay and returns what came.
func collect(ctx context.Context, c ReplayConfig, from uint64) (seqs []uint64, err error) {
	err = Replay(ctx, c, from, func(m Message) error {
		if len(m.Payload) == 0 {
			return errors.New("a message without payload")
		}
		seqs = append(seqs, m.Seq)
		return nil
	})
	return seqs, err
}

func checkRun(t *testing.T, seqs []uint64, from, to uint64) {
	t.Helper()
	if len(seqs) != int(to-from) {
		t.Fatalf("%d messages, not %d", len(seqs), to-from)
	}
	for i, s := range seqs {
		if s != from+uint64(i) {
			t.Fatalf("message %d has sequence %d, not %d", i, s, from+uint64(i))
		}
	}
}

func TestReplayWithLibzmq(t *testing.T) {
	server, secret := curveKeys(t)
	own, ownSecret := curveKeys(t)
	for name, o := range map[string]enginetest.Options{
		"new form": {Topic: "kv"}, "old form": {Topic: "kv", OldReplay: true}, "CURVE": {CurveSecret: z85(secret)},
	} {
		t.Run(name, func(t *testing.T) {
			port, replay := redistest.FreePort(t), redistest.FreePort(t)
			o.Endpoint, o.Replay = endpoint4("*", port), endpoint4("*", replay)
			p := enginetest.Start(t, o)
			// The publisher shares a busy machine with its reader.
			c := ReplayConfig{Endpoint: endpoint4("127.0.0.1", replay), Idle: 20 * time.Second}
			if o.CurveSecret != "" {
				c.Curve = &Curve{Server: server, Public: own, Secret: ownSecret}
			}
			seqs, err := collect(t.Context(), c, 0)
			if err != nil || len(seqs) != 0 {
				t.Fatalf("of an empty buffer: %v, %v", seqs, err)
			}
			for range 3000 {
				p.Publish(1)
			}
			p.Flush()
			for _, from := range []uint64{0, 1, 2999, 3000, 1 << 40} {
				seqs = must.Get(collect(t.Context(), c, from))(t)
				checkRun(t, seqs, min(from, 3000), 3000)
			}
			// Cut: it ends as if it were whole.
			p.Cut(100, false)
			if seqs, err = collect(t.Context(), c, 500); err != nil {
				t.Fatal(err)
			}
			checkRun(t, seqs, 500, 600)
			// And without an end.
			p.Cut(100, true)
			c.Idle = 500 * time.Millisecond
			if seqs, err = collect(t.Context(), c, 500); !errors.Is(err, ErrCut) || len(seqs) > 100 {
				t.Fatalf("a replay without an end: %d messages, %v", len(seqs), err)
			}
			checkRun(t, seqs, 500, 500+uint64(len(seqs)))
			p.Cut(-1, false)
			c.Idle, c.Timeout = 100*time.Millisecond, 100*time.Millisecond
			if seqs, err = collect(t.Context(), c, 2000); err == nil {
				checkRun(t, seqs, 2000, 3000)
			}
			c.Idle, c.Timeout = 20*time.Second, time.Minute
			n := 0
			if err := Replay(t.Context(), c, 0, func(Message) error { n++; return ErrStop }); err != nil || n != 1 {
				t.Errorf("enough after %d: %v", n, err)
			}
			mine := errors.New("mine")
			if err := Replay(t.Context(), c, 0, func(Message) error { return mine }); !errors.Is(err, mine) {
				t.Errorf("the function's error became %v", err)
			}
		})
	}
}

// TestReplayOfReleases asks each engine's own code.
func TestReplayOfReleases(t *testing.T) {
	for _, release := range enginetest.Releases {
		t.Run(release.String(), func(t *testing.T) {
			port, replay := redistest.FreePort(t), redistest.FreePort(t)
			r := run(t, Config{Endpoint: endpoint4("127.0.0.1", port), Topic: "kv"})
			p := enginetest.Start(t, enginetest.Options{Release: release, Endpoint: endpoint4("*", port), Replay: endpoint4("*", replay), Topic: "kv@1", BufferSteps: 2000})
			tellOne(t, p, r)
			p.Generate(500, 2, 16, 0)
			want := p.Flush()
			r.until(t, "the last", func() bool { return r.seqs[len(r.seqs)-1] == want-1 })
			seqs := must.Get(collect(t.Context(), ReplayConfig{Endpoint: endpoint4("127.0.0.1", replay), Idle: 20 * time.Second}, 7))(t)
			checkRun(t, seqs, 7, want)
		})
	}
}

func TestReplayOfNobody(t *testing.T) {
	port := redistest.FreePort(t)
	if _, err := collect(t.Context(), ReplayConfig{Endpoint: endpoint4("127.0.0.1", port)}, 0); err == nil || errors.Is(err, ErrCut) {
		t.Errorf("nobody there: %v", err)
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	// It accepts and says nothing.
	c := ReplayConfig{Endpoint: "tcp://" + l.Addr().String(), ConnectTimeout: 50 * time.Millisecond}
	if _, err := collect(t.Context(), c, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent peer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := collect(ctx, c, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestReplayMalformed(t *testing.T) {
	for name, frames := range map[string][]string{
		"two frames": {"", "12345678"}, "short sequence": {"", "1234", "x"}, "five frames": {"", "", "", "12345678", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer l.Close()
			go func() {
				peer, err := l.Accept()
				if err != nil {
					return
				}
				defer peer.Close()
				out := appendFrame(greeting("NULL"), flagCommand, appendMetadata(newCommand("READY"), "ROUTER"))
				for i, f := range frames {
					flags := byte(flagMore)
					if i == len(frames)-1 {
						flags = 0
					}
					out = appendFrame(out, flags, []byte(f))
				}
				peer.Write(out)
				io.Copy(io.Discard, peer)
			}()
			_, err := collect(t.Context(), ReplayConfig{Endpoint: "tcp://" + l.Addr().String()}, 0)
			if !errors.Is(err, ErrProtocol) || !strings.Contains(fmt.Sprint(err), "a reply of") {
				t.Errorf("%v", err)
			}
		})
	}
}
