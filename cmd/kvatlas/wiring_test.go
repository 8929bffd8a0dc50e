package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// storedEvent announces tokens as blocks of 16 with hashes from first on.
func storedEvent(tokens []uint32, first int, medium any) enginetest.Event {
	hashes := []int{}
	for i := range len(tokens) / 16 {
		hashes = append(hashes, first+i)
	}
	return enginetest.Event{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": 16, "lora_id": nil, "medium": medium}
}

// keyPair is a pair of keys for CURVE in Z85.
func keyPair(t *testing.T) (public, secret string) {
	t.Helper()
	k := must.Get(ecdh.X25519().GenerateKey(rand.Reader))(t)
	z85 := func(key []byte) string {
		const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
		var out []byte
		for ; len(key) > 0; key = key[4:] {
			v := binary.BigEndian.Uint32(key)
			for d := uint32(85 * 85 * 85 * 85); d > 0; d /= 85 {
				out = append(out, digits[v/d%85])
			}
		}
		return string(out)
	}
	return z85(k.PublicKey().Bytes()), z85(k.Bytes())
}

// serveEngine is a server with a pod that is an engine, and the settings beside it.
func serveEngine(t *testing.T, pod client.Pod, args ...string) *served {
	t.Helper()
	r := start(t, append([]string{"--block-size=16"}, args...)...)
	s := &served{url: r.url, log: r.stderr, c: r.client()}
	pod.Name, pod.Model = "pod", "m"
	must.OK(t, s.c.RegisterPod(t.Context(), pod))
	return s
}

// publishUntil publishes a prompt again and again until the server has it: what is sent
// before a subscription is lost where there is no replay.
func (s *served) publishUntil(t *testing.T, p *enginetest.Publisher, prompt []uint32) {
	t.Helper()
	awaitThat(t, "blocks", s.log, func() bool {
		p.Publish(1, storedEvent(prompt, 1, "GPU"))
		p.Flush()
		resp := must.Get(s.c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: prompt}))(t)
		return resp.Scores["pod"] == float64(len(prompt)/16)
	})
}

// TestBind is an engine that connects to kvatlas: vLLM's own publisher, and its replay
// socket. That is an engine's way when its endpoint has a host.
func TestBind(t *testing.T) {
	events, replay := redistest.FreePort(t), redistest.FreePort(t)
	pod := client.Pod{Address: "127.0.0.1:8000", Events: fmt.Sprintf("bind+tcp://*:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay)}
	s := serveEngine(t, pod, "--ingest-bind=127.0.0.1")
	p := enginetest.Start(t, enginetest.Options{
		Release: enginetest.Release{Engine: "vllm", Version: "0.33.0"}, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay),
	})
	p.Publish(1, storedEvent(tokens(64), 1, "GPU"))
	p.Flush()
	s.best(t, tokens(64), map[string]float64{"pod": 4}) // by the replay, if it was sent too early

	// Without the setting nothing listens.
	r := start(t)
	must.OK(t, r.client().RegisterPod(t.Context(), client.Pod{Name: "pod", Model: "m", Events: pod.Events}))
	line := r.await(func() map[string]any { return r.logged("the pod's events cannot be read") })
	if text := fmt.Sprint(line["error"]); !strings.Contains(text, "lets no engine connect") {
		t.Errorf("the log says %s", text)
	}
}

// TestCurve is a publisher of libzmq behind CURVE, with keys from files.
func TestCurve(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	server, serverSecret := keyPair(t)
	public, secret := keyPair(t)
	own := write("kvatlas.key_secret", "metadata\ncurve\n    public-key = \""+public+"\"\n    secret-key = \""+secret+"\"\n")
	engines := write("engines.key", "metadata\ncurve\n    public-key = \""+server+"\"\n")
	events, replay := redistest.FreePort(t), redistest.FreePort(t)
	args := []string{"--ingest-curve-keys=" + own, "--ingest-curve-server=" + engines}
	p := enginetest.Start(t, enginetest.Options{Endpoint: fmt.Sprintf("tcp://*:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay), CurveSecret: serverSecret})
	p.Publish(1, storedEvent(tokens(64), 1, "GPU"))
	p.Flush()
	s := serveEngine(t, client.Pod{Events: fmt.Sprintf("tcp://127.0.0.1:%d", events), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay)}, args...)
	s.best(t, tokens(64), map[string]float64{"pod": 4})

	// Neither log nor configuration has a key; without the keys nothing comes.
	_, config, _ := call(t, "", append([]string{"serve", "--print-config"}, args...)...)
	for _, text := range []string{config, s.log.String()} {
		if strings.Contains(text, secret) || strings.Contains(text, public) || strings.Contains(text, server) {
			t.Errorf("a key is in\n%s", text)
		}
	}
	if !strings.Contains(config, "\ningest-curve-keys: "+own+" ") {
		t.Errorf("the file is not in\n%s", config)
	}
	status, _, stderr := call(t, "", "serve", "--listen=127.0.0.1:0", "--ingest-curve-keys="+own, "--ingest-curve-server="+filepath.Join(dir, "none"))
	if status != cli.ExitFailed || !strings.Contains(stderr, "ingest-curve-keys, ingest-curve-server: ") || !strings.Contains(stderr, "no such file") {
		t.Errorf("ends with %d: %s", status, stderr)
	}
	status, _, stderr = call(t, "", "serve", "--listen=127.0.0.1:0", "--ingest-curve-keys="+engines, "--ingest-curve-server="+engines)
	if status != cli.ExitFailed || !strings.Contains(stderr, "has no secret-key") {
		t.Errorf("ends with %d: %s", status, stderr)
	}
}

// TestTopic reads one of two engines that publish at one endpoint's port, one after the
// other, by the topic.
func TestTopic(t *testing.T) {
	for topic, reads := range map[string]bool{"kv@127.0.0.1@m": true, "kv@127.0.0.2@m": false} {
		events := redistest.FreePort(t)
		p := enginetest.Start(t, enginetest.Options{Endpoint: fmt.Sprintf("tcp://*:%d", events), Topic: topic})
		s := serveEngine(t, client.Pod{Address: "127.0.0.1:8000", Events: fmt.Sprintf("tcp://127.0.0.1:%d", events)}, "--ingest-topic=kv@{host}@{model}")
		if reads {
			s.publishUntil(t, p, tokens(64))
			continue
		}
		awaitThat(t, "a connection", s.log, func() bool { return s.figure(t, `kvatlas_ingest_connected{pod="pod",rank="0"}`) == "1" })
		for range 20 {
			p.Publish(1, storedEvent(tokens(64), 1, "GPU"))
			p.Flush()
		}
		if n := s.figure(t, `kvatlas_ingest_messages_total{pod="pod",rank="0"}`); n != "0" {
			t.Errorf("%s messages of another topic", n)
		}
	}
}

// TestRechunkSettings pushes the same events to servers that take them differently.
func TestRechunkSettings(t *testing.T) {
	raw := func(kind, medium string, hashes string) client.Event {
		text := `{"type":"` + kind + `","block_hashes":[` + hashes + `],"medium":"` + medium + `"`
		if kind == "BlockStored" {
			var ids []string
			for _, n := range tokens(32) {
				ids = append(ids, fmt.Sprint(n))
			}
			text += `,"parent_block_hash":null,"block_size":16,"token_ids":[` + strings.Join(ids, ",") + `]`
		}
		return client.Event{Raw: []byte(text + "}")}
	}
	twice := []client.Event{raw("BlockStored", "GPU", "1,2"), raw("BlockStored", "GPU", "1,2"), raw("BlockRemoved", "GPU", "1,2")}
	behind := client.Event{Raw: []byte(`{"type":"BlockStored","block_hashes":[3],"parent_block_hash":2,"block_size":4,"token_ids":[1,2,3,4],"medium":"GPU"}`)}
	for _, c := range []struct {
		args   []string
		events []client.Event
		want   float64
	}{
		{nil, twice, 2},
		{nil, slices.Insert(slices.Clone(twice), 2, behind), 0}, // a request goes on behind a report, which is no copy
		{[]string{"--ingest-copies=all"}, twice, 2},
		{[]string{"--ingest-copies=none"}, twice, 0},
		{nil, []client.Event{raw("BlockStored", "tape", "1,2")}, 0},
		{[]string{"--ingest-media=tape=disk"}, []client.Event{raw("BlockStored", "tape", "1,2")}, 1}, // half a block's worth each
		{[]string{"--ingest-records=64"}, twice[:1], 2},
	} {
		r := start(t, append(c.args, "--block-size=16")...)
		x := r.client()
		must.Get(x.PushEvents(t.Context(), client.EventsRequest{Pod: "pod", Model: "m", Events: c.events}))(t)
		resp, err := x.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens(32), Pods: []string{"pod"}})
		if err != nil || resp.Scores["pod"] != c.want {
			t.Errorf("%v: got %+v, %v, want %v", c.args, resp, err, c.want)
		}
	}
}

// TestRecordsSetting reads with room for few blocks, and asks the index for the others.
func TestRecordsSetting(t *testing.T) {
	redis := redistest.Start(t)
	e := newTestEngine(t)
	s := serveEngine(t, client.Pod{Events: e.events, Replay: e.replay}, "--redis="+redis.URL(), "--ingest-records=64")
	prompts := make([][]uint32, 40)
	for i := range prompts { // 640 engine blocks
		prompts[i] = make([]uint32, 256)
		for j := range prompts[i] {
			prompts[i][j] = uint32(1000*i + j)
		}
		e.store(prompts[i])
	}
	for _, p := range prompts {
		s.best(t, p, map[string]float64{"pod": 16})
	}
	e.remove(1, 16) // of the first prompt, which went out of memory long ago
	s.best(t, prompts[0], map[string]float64{})
	s.best(t, prompts[1], map[string]float64{"pod": 16})
}

// TestUnknownMedium warns once of an engine's unknown word, and counts all of
// its blocks.
func TestUnknownMedium(t *testing.T) {
	events, replay := redistest.FreePort(t), redistest.FreePort(t)
	p := enginetest.Start(t, enginetest.Options{
		Release: enginetest.Release{Engine: "vllm", Version: "0.33.0"}, Endpoint: fmt.Sprintf("tcp://*:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay),
	})
	for i := range 3 {
		p.Publish(1, storedEvent(tokens(64), 10*i+1, "tape"))
	}
	p.Flush()
	s := serveEngine(t, client.Pod{Address: "127.0.0.1:8000", Events: fmt.Sprintf("tcp://127.0.0.1:%d", events), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay)})
	awaitThat(t, "twelve blocks are counted", s.log, func() bool {
		return s.figure(t, `kvatlas_ingest_skipped_blocks_total{pod="pod",rank="0",reason="unknown_medium"}`) == "12"
	})
	if n := strings.Count(s.log.String(), `"medium":"tape"`); n != 1 {
		t.Errorf("%d lines in\n%s", n, s.log)
	}
}

// TestOtherRank warns once when the events of a rank's port name another rank.
func TestOtherRank(t *testing.T) {
	events, replay := redistest.FreePort(t), redistest.FreePort(t)
	p := enginetest.Start(t, enginetest.Options{
		Release: enginetest.Release{Engine: "vllm", Version: "0.33.0"}, Endpoint: fmt.Sprintf("tcp://*:%d", events), Replay: fmt.Sprintf("tcp://*:%d", replay), Rank: 2,
	})
	// The engine's rank 2 binds two ports above the first.
	s := serveEngine(t, client.Pod{Address: "127.0.0.1:8000", Events: fmt.Sprintf("tcp://127.0.0.1:%d", events+2), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay+2)})
	prompt := tokens(64)
	s.publishUntil(t, p, prompt)
	p.Publish(1, storedEvent(prompt, 100, "GPU"))
	p.Flush()
	s.best(t, prompt, map[string]float64{"pod": 4})
	if n := strings.Count(s.log.String(), `"named":2`); n != 1 {
		t.Errorf("%d lines in\n%s", n, s.log)
	}
}
