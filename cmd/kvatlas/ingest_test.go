package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/encode"
)

// testEngine publishes events as an engine does, over ZMQ, with a replay socket.
type testEngine struct {
	pub            *zmq.Publisher
	events, replay string
	seq, block     uint64
}

func newTestEngine(t *testing.T) *testEngine {
	t.Helper()
	at := func() string { return redistest.FreeEndpoint(t, 1) }
	e := &testEngine{events: at(), replay: at()}
	var err error
	if e.pub, err = zmq.NewPublisher(zmq.PublisherConfig{Endpoint: e.events, Replay: e.replay}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.pub.Close() })
	return e
}

// store announces tokens in blocks of 16, in one message, as the whole of a prompt.
func (e *testEngine) store(tokens []uint32) {
	ev := event.Event{Kind: event.Stored, Tokens: tokens, BlockSize: 16, Medium: "GPU"}
	for range len(tokens) / 16 {
		e.block++
		ev.Hashes = append(ev.Hashes, event.Hash(e.block*0x9e3779b97f4a7c15))
	}
	b := event.Batch{Time: float64(time.Now().UnixNano()) / 1e9, Events: []event.Event{ev}}
	e.pub.Publish(zmq.Message{Seq: e.seq, Payload: encode.Append(nil, &b, encode.VLLM33)})
	e.seq++
}

// remove takes blocks back, from one that store has announced to another.
func (e *testEngine) remove(from, to uint64) {
	ev := event.Event{Kind: event.Removed, Medium: "GPU"}
	for n := from; n <= to; n++ {
		ev.Hashes = append(ev.Hashes, event.Hash(n*0x9e3779b97f4a7c15))
	}
	b := event.Batch{Events: []event.Event{ev}}
	e.pub.Publish(zmq.Message{Seq: e.seq, Payload: encode.Append(nil, &b, encode.VLLM33)})
	e.seq++
}

// served is kvatlas serve in a process of its own.
type served struct {
	cmd *exec.Cmd
	log *output
	c   *client.Client
	url string
}

func serveProcess(t *testing.T, args ...string) *served {
	t.Helper()
	s := &served{log: &output{}}
	s.cmd = exec.Command(os.Args[0], append([]string{"serve", "--listen=127.0.0.1:0", "--log-format=json", "--log-level=info", "--hub-offline", "--hub-cache=" + t.TempDir(), "--drain-delay=0s", "--score-budget=5s"}, args...)...)
	s.cmd.Env = []string{runAsProgram + "=1"}
	s.cmd.Stderr = s.log
	must.OK(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	awaitThat(t, "kvatlas serve listens", s.log, func() bool {
		for line := range strings.Lines(s.log.String()) {
			var v struct{ Message, Address string }
			if json.Unmarshal([]byte(line), &v) == nil && v.Message == "listening" {
				s.url = "http://" + v.Address
				return true
			}
		}
		return false
	})
	var err error
	if s.c, err = client.New(client.Config{URL: s.url, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.c.Close)
	return s
}

// awaitThat waits for what must come.
func awaitThat(t *testing.T, what string, log fmt.Stringer, ok func() bool) {
	t.Helper()
	eventually.NoError(t, what, func() error {
		if !ok() {
			return fmt.Errorf("it did not come\n%s", log)
		}
		return nil
	})
}

// figure reads one figure of a process without labels.
func (s *served) figure(t *testing.T, name string) string {
	t.Helper()
	_, body := get(t, s.url+"/metrics")
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// best asks for a ranking until it is that.
func (s *served) best(t *testing.T, tokens []uint32, want map[string]float64) {
	t.Helper()
	awaitThat(t, fmt.Sprint("the ranking ", want), s.log, func() bool {
		resp := must.Get(s.c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens}))(t)
		return fmt.Sprint(resp.Scores) == fmt.Sprint(want)
	})
}

// TestIngest is two replicas and two engines on a real Redis, all in processes or on
// sockets of their own. Each replica ranks by what the other reads, too; one is killed,
// and the other goes on where it was.
func TestIngest(t *testing.T) {
	redis := redistest.Start(t)
	long, short := newTestEngine(t), newTestEngine(t)
	// A replica that gets no processor for a while is to keep its ranks.
	args := []string{"--redis=" + redis.URL(), "--block-size=16", "--ingest-ttl=6s"}
	// One engine is in a list, the other registers over HTTP.
	first := serveProcess(t, append(args, "--pods=10.0.0.1:8000?model=m&events="+long.events+"&replay="+long.replay)...)
	second := serveProcess(t, args...)
	must.OK(t, second.c.RegisterPod(t.Context(), client.Pod{Name: "10.0.0.2:8000", Model: "m", Events: short.events, Replay: short.replay}))
	awaitThat(t, "each replica reads one rank", second.log, func() bool {
		return first.figure(t, "kvatlas_ingest_reading_ranks") == "1" && second.figure(t, "kvatlas_ingest_reading_ranks") == "1"
	})
	prompt := tokens(160)
	long.store(prompt[:96])
	short.store(prompt[:32])
	for _, s := range []*served{first, second} {
		s.best(t, prompt, map[string]float64{"10.0.0.1:8000": 6, "10.0.0.2:8000": 2})
	}
	awaitThat(t, "both replicas are counted", first.log, func() bool { return first.figure(t, "kvatlas_ingest_replicas") == "2" })

	// What is published while no replica reads comes by the replay.
	must.OK(t, first.cmd.Process.Kill())
	killed := time.Now()
	other := make([]uint32, 64)
	for i := range other {
		other[i] = uint32(i) + 7
	}
	long.store(other)
	short.store(other[:16])
	second.best(t, other, map[string]float64{"10.0.0.1:8000": 4, "10.0.0.2:8000": 1})
	t.Logf("a score has the events that came while nobody read %v after the kill", time.Since(killed).Round(10*time.Millisecond))
	second.best(t, prompt, map[string]float64{"10.0.0.1:8000": 6, "10.0.0.2:8000": 2}) // nothing was lost
	if strings.Count(second.log.String(), `"generation taken over"`) != 1 {
		t.Errorf("the generation was not taken over\n%s", second.log)
	}

	// An orderly end leaves nothing behind that others would have to wait for.
	third := serveProcess(t, args...)
	must.OK(t, second.cmd.Process.Signal(syscall.SIGTERM))
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, second.log)
	}
	awaitThat(t, "the third replica reads all", third.log, func() bool { return third.figure(t, "kvatlas_ingest_reading_ranks") == "2" })
	long.store(prompt[:32])
	third.best(t, prompt, map[string]float64{"10.0.0.1:8000": 6, "10.0.0.2:8000": 2})
}

// TestIngestInMemory reads an engine without Redis. The engine is asked for where its
// events are, and one that is healthy and silent is counted.
func TestIngestInMemory(t *testing.T) {
	e := newTestEngine(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"vllm","parent":null}]}`)
	})
	mux.HandleFunc("/kv_event_sources", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}}`, e.events, e.replay)
	})
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	engine := httptest.NewServer(mux)
	defer engine.Close()
	pod := strings.TrimPrefix(engine.URL, "http://")
	r := start(t, "--pods="+pod, "--pods-ask", "--ingest-silent=200ms", "--block-size=16")
	s := &served{url: r.url, log: r.stderr, c: r.client()}
	awaitThat(t, "a silent engine is counted", s.log, func() bool { return s.figure(t, "kvatlas_ingest_silent_engines") == "1" })
	e.store(tokens(64))
	s.best(t, tokens(64), map[string]float64{pod: 4})
	if status := r.end(); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, r.stderr)
	}
}
