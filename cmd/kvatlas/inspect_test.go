package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/sim/encode"
)

// engine publishes what an engine with the seed 0 would.
func engine(t *testing.T, replay string) (*zmq.Publisher, string) {
	t.Helper()
	endpoint := redistest.FreeEndpoint(t, 1)
	p := must.Get(zmq.NewPublisher(zmq.PublisherConfig{Endpoint: endpoint, Replay: replay}))(t)
	must.End(t, p.Close)
	return p, endpoint
}

// steps are the messages of an engine.
func steps() []zmq.Message {
	stored := event.Event{Kind: event.Stored, BlockSize: 4, Medium: "GPU", Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, LoRA: "", Salt: ""}
	c := blockkey.NewVLLMChain(blockkey.VLLMSHA256, "7", 4)
	for _, d := range c.Append(nil, stored.Tokens) {
		stored.Hashes = append(stored.Hashes, event.Hash(d.VLLMWire()))
	}
	child := event.Event{Kind: event.Stored, BlockSize: 4, Medium: "CPU", Tokens: []uint32{9, 10, 11, 12}, Hashes: []event.Hash{77},
		Parent: stored.Hashes[1], HasParent: true, LoRA: "l\x1b[2J"}
	var out []zmq.Message
	for i, events := range [][]event.Event{
		{stored},
		{child, {Kind: event.Removed, Hashes: stored.Hashes[:1], Medium: "GPU"}},
		{{Kind: event.Cleared}},
	} {
		b := event.Batch{Time: 1700000000 + float64(i), Rank: 2, Events: events}
		out = append(out, zmq.Message{Topic: "kv@pod", Seq: uint64(i), Payload: encode.Append(nil, &b, encode.VLLM33)})
	}
	return out
}

// inspecting runs kvatlas inspect events until it ends.
func inspecting(t *testing.T, args ...string) (end func() (status int, stdout, stderr string)) {
	t.Helper()
	type result struct {
		status         int
		stdout, stderr string
	}
	done := make(chan result, 1)
	go func() {
		var out, errs output
		p := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Name: "kvatlas"}}
		status := p.run(t.Context(), append([]string{"inspect", "events"}, args...))
		done <- result{status, out.String(), errs.String()}
	}()
	return func() (int, string, string) {
		t.Helper()
		select {
		case r := <-done:
			return r.status, r.stdout, r.stderr
		case <-time.After(patience):
			t.Fatal("it does not end")
			return 0, "", ""
		}
	}
}

func TestInspectEvents(t *testing.T) {
	p, endpoint := engine(t, "")
	file := filepath.Join(t.TempDir(), "r.jsonl")
	end := inspecting(t, endpoint, "--count=4", "--explain", "--seed=0", "--media=cpu=disk", "--record", file)
	machine := inspecting(t, endpoint, "--json", "--topic=kv@", "--count=4")
	other := inspecting(t, endpoint, "--topic=other", "--timeout=1s")
	eventually.True(t, "subscribers", func() bool { return p.Subscribers() == 3 })
	for i, m := range steps() {
		if i == 1 {
			p.Publish(zmq.Message{Topic: m.Topic, Seq: 1, Payload: []byte("\xc1")})
		}
		if m.Seq > 0 {
			m.Seq += 5
		}
		p.Publish(m)
	}
	status, stdout, stderr := end()
	want := `0 rank 2 stored  2 blocks of 4 tokens in gpu (GPU) at the start: HASH to HASH
6 rank 2 stored  1 blocks of 4 tokens in disk (CPU) behind HASH: 000000000000004d adapter l?[2J
6 rank 2 removed 1 blocks in gpu (GPU): HASH
7 rank 2 cleared
`
	first := steps()[0]
	var b event.Batch
	must.OK(t, new(event.Decoder).Decode(first.Payload, &b))
	for _, h := range []event.Hash{b.Events[0].Hashes[0], b.Events[0].Hashes[1], b.Events[0].Hashes[1], b.Events[0].Hashes[0]} {
		want = strings.Replace(want, "HASH", fmt.Sprintf("%016x", uint64(h)), 1)
	}
	if status != cli.ExitOK || stdout != want {
		t.Errorf("ends with %d\n%swant\n%s%s", status, stdout, want, stderr)
	}
	for _, note := range []string{
		"# connected to ", "# message 1: event: not a message of events", "# 4 messages are missing before 6\n",
		"# hashes: vLLM's sha256 with the seed \"7\": your seed differs\n",
	} {
		if !strings.Contains(stderr, note) {
			t.Errorf("%q is not in\n%s", note, stderr)
		}
	}
	status, stdout, _ = machine()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if status != cli.ExitOK || len(lines) != 4 {
		t.Fatalf("ends with %d\n%s", status, stdout)
	}
	var line struct {
		Seq   uint64
		Topic string
		Time  float64
		Rank  *int
		Event struct {
			Type     string
			TokenIDs []uint32 `json:"token_ids"`
			LoRA     string   `json:"lora_name"`
		}
	}
	if err := json.Unmarshal([]byte(lines[1]), &line); err != nil || line.Seq != 6 || line.Topic != "kv@pod" || line.Time != 1700000001 ||
		*line.Rank != 2 || line.Event.Type != "BlockStored" || len(line.Event.TokenIDs) != 4 || line.Event.LoRA != "l\x1b[2J" {
		t.Errorf("%s: %+v %v", lines[1], line, err)
	}
	if status, _, stderr := other(); status != cli.ExitFailed || !strings.Contains(stderr, "no event came from "+endpoint) {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	if text, err := os.ReadFile(file); err != nil || bytes.Count(text, []byte("\n")) != 4 {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestInspectReplay(t *testing.T) {
	replay := redistest.FreeEndpoint(t, 1)
	p, endpoint := engine(t, replay)
	for _, m := range steps() {
		p.Publish(m)
	}
	status, stdout, stderr := inspecting(t, endpoint, "--replay", replay, "--from=1", "--count=3")()
	if status != cli.ExitOK || strings.Count(stdout, "\n") != 3 || !strings.HasPrefix(stdout, "1 rank 2 stored") {
		t.Errorf("ends with %d\n%s%s", status, stdout, stderr)
	}
	// What comes live goes on where the replay ends.
	var out, errs output
	done := make(chan int)
	go func() {
		prog := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Name: "kvatlas"}}
		done <- prog.run(t.Context(), []string{"inspect", "events", endpoint, "--replay", replay, "--count=5", "--timeout=5m"})
	}()
	eventually.True(t, "replay", func() bool { return strings.Contains(out.String(), "2 rank 2 cleared\n") && p.Subscribers() == 1 })
	more := steps()[2]
	for _, more.Seq = range []uint64{2, 3} { // it has the first already
		p.Publish(more)
	}
	status = <-done
	if lines := strings.Split(out.String(), "\n"); status != cli.ExitOK || len(lines) != 6 || !strings.HasPrefix(lines[4], "3 ") ||
		strings.Contains(errs.String(), "missing") || strings.Contains(errs.String(), "back") {
		t.Errorf("ends with %d\n%s%s", status, out.String(), errs.String())
	}
}

// A record that is played is what was recorded.
func TestInspectPlay(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "r.jsonl")
	w := must.Get(record.Create(record.Config{Path: file, MaxBytes: 300, MaxFiles: 9}))(t)
	for _, m := range steps() {
		must.OK(t, w.Write(m))
	}
	must.OK(t, w.Close())
	endpoint := redistest.FreeEndpoint(t, 1)
	again := filepath.Join(dir, "again")
	end := inspecting(t, endpoint, "--record", again, "--count=4")
	status, _, stderr := call(t, "", "inspect", "play", file, "--bind", endpoint, "--speed=0")
	if status != cli.ExitOK || !strings.HasSuffix(stderr, "'HOST:PORT?model=MODEL&events="+endpoint+"'\n# 3 entries of the record are sent\n") {
		t.Fatalf("ends with %d\n%s", status, stderr)
	}
	if status, stdout, stderr := end(); status != cli.ExitOK || strings.Count(stdout, "\n") != 4 {
		t.Fatalf("ends with %d\n%s%s", status, stdout, stderr)
	}
	payloads := func(path string) (out []string) {
		files := must.Get(record.Files(path))(t)
		for _, f := range files {
			text := must.Get(os.ReadFile(f))(t)
			for line := range strings.Lines(string(text)) {
				_, line, _ = strings.Cut(line, ",")
				out = append(out, line)
			}
		}
		return out
	}
	if got, want := payloads(again), payloads(file); len(want) != 3 || strings.Join(got, "") != strings.Join(want, "") {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

// A record of Dynamo's goes into an index by its block keys.
func TestInspectPlayDynamo(t *testing.T) {
	r := start(t, "--block-size=4")
	file := filepath.Join(t.TempDir(), "dynamo.jsonl")
	const stored = `{"timestamp":0,"event":{"worker_id":7,"storage_tier":"%s","event":{"event_id":3,"data":{"stored":{"parent_hash":%s,"blocks":[{"block_hash":%d,"tokens_hash":%d}]}},"dp_rank":1}}}` + "\n"
	text := fmt.Sprintf(stored, "device", "null", 1, uint64(14643705804678351452)) + fmt.Sprintf(stored, "host_pinned", "1", 2, uint64(16777012769546811212)) +
		fmt.Sprintf(stored, "device", "99", 3, 5) // whose parent is unknown
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	play := func() {
		t.Helper()
		if status, _, stderr := call(t, "", "inspect", "play", file, "--server", r.url, "--model=m", "--speed=0"); status != cli.ExitOK {
			t.Fatalf("ends with %d\n%s", status, stderr)
		}
	}
	score := func() string {
		t.Helper()
		resp := must.Get(r.client().Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}}))(t)
		return fmt.Sprint(resp.Scores)
	}
	play()
	if got := score(); !strings.Contains(got, "worker-7") || !strings.Contains(got, "1.8") {
		t.Error(got)
	}
	text += `{"timestamp":9,"event":{"worker_id":7,"storage_tier":"host_pinned","event":{"event_id":4,"data":{"removed":{"block_hashes":[2,5]}},"dp_rank":1}}}` + "\n"
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	if play(); !strings.Contains(score(), "1") || strings.Contains(score(), "1.8") {
		t.Error(score())
	}
	text += `{"timestamp":9,"event":{"worker_id":7,"storage_tier":"device","event":{"event_id":5,"data":"cleared","dp_rank":1}}}` + "\n"
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	if play(); strings.Contains(score(), "worker-7") {
		t.Error(score())
	}
	// It has no tokens to publish.
	endpoint := redistest.FreeEndpoint(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if s, err := zmq.NewSubscriber(zmq.Config{Endpoint: endpoint}, &zmq.Feed{To: make(chan zmq.Heard, 10), Done: ctx.Done()}); err == nil {
			_ = s.Run(ctx)
		}
	}()
	if status, _, stderr := call(t, "", "inspect", "play", file, "--bind", endpoint); status != cli.ExitFailed || !strings.Contains(stderr, "has no tokens") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}

// A record is pushed to a server in order, with its numbers.
func TestInspectPlayToServer(t *testing.T) {
	var bodies []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/events" {
			t.Error(err, r.URL)
		}
		bodies = append(bodies, string(body))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"applied":1,"skipped":0}`)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "r.jsonl")
	w := must.Get(record.Create(record.Config{Path: file}))(t)
	for _, m := range steps() {
		must.OK(t, w.Write(m))
	}
	must.OK(t, w.Close())
	if status, _, stderr := call(t, "", "inspect", "play", file, "--server", srv.URL, "--pod=p", "--model=m", "--speed=0"); status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, stderr)
	}
	var d event.Decoder
	for i, body := range bodies {
		p, err := d.JSONPushes([]byte(body))
		if err != nil || p[0].Pod != "p" || p[0].Model != "m" || p[0].Rank != 2 || p[0].Seq != uint64(i) || !p[0].HasSeq || p[0].Skipped != 0 {
			t.Errorf("%s: %+v %v", body, p, err)
		}
	}
	if len(bodies) != 3 {
		t.Errorf("%d pushes", len(bodies))
	}
	if status, _, stderr := call(t, "", "inspect", "play", file, "--server", srv.URL, "--model=m"); status != cli.ExitFailed || !strings.Contains(stderr, "--pod is missing") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}

// TestInspectKeys prints the worked example of docs/redis-schema.md, and names that Redis
// has once a server has written the blocks.
func TestInspectKeys(t *testing.T) {
	const want = `17407f9d3c42e032 ; "kva{;}\x78\x07\x95\x01\xa1\x85\x57\x07"` + "\n" +
		`d21540b926828aff Q "kva{Q}\xbd\x52\xaa\x25\xbb\x45\x3d\xca"` + "\n"
	example := []string{"inspect", "keys", "--model=meta-llama/Llama-3.1-8B"}
	for _, args := range [][]string{
		{"--tokens=18038,95411,87593,48849,40269,54969,126870,44865,1", "--block-size=4"},
		{"--block-keys=17407f9d3c42e032,d21540b926828aff"},
	} {
		if status, stdout, stderr := call(t, "", append(example, args...)...); status != cli.ExitOK || stdout != want || stderr != "" {
			t.Errorf("%q: ends with %d\n%s%s\nwant\n%s", args, status, stdout, stderr, want)
		}
	}

	server := redistest.Start(t)
	r := start(t, "--redis="+server.URL(), "--redis-prefix=ours", "--block-size=2")
	var list []string
	const blocks = 200 // all partitions, and names with zeros
	for _, tok := range tokens(2 * blocks) {
		list = append(list, fmt.Sprint(tok))
	}
	must.Get(r.client().Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: "a", LoRA: "l", CacheSalt: "s", Tokens: tokens(2 * blocks)}))(t)
	status, stdout, stderr := call(t, "", "inspect", "keys", "--model=m", "--block-size=2", "--lora=l", "--cache-salt=s", "--redis-prefix=ours", "--tokens="+strings.Join(list, ","))
	if status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, stderr)
	}
	c := server.Client()
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	for _, line := range lines {
		fields := strings.Split(line, " ")
		if len(fields) != 3 {
			t.Fatalf("%q has %d words", line, len(fields))
		}
		name, err := strconv.Unquote(fields[2]) // as redis-cli does for these
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if n, err := c.Exists(t.Context(), name).Result(); n != 1 || err != nil {
			t.Errorf("Redis has no %s: %v", line, err)
		}
	}
	if len(lines) != blocks {
		t.Errorf("%d lines", len(lines))
	}
}

func TestInspectMisuse(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "kvatlas inspect looks at",
		"pods":                                  `"pods" is no command`,
		"events":                                "one ENDPOINT is needed",
		"events a b":                            "one ENDPOINT is needed",
		"events http://x":                       "ENDPOINT: ",
		"events tcp://a:1 --count=-1":           "--count is -1",
		"events tcp://a:1 --timeout=-1s":        "--timeout is -1s",
		"events tcp://a:1 --seed=0":             "are for --explain",
		"events tcp://a:1 --from=0":             "--from is for --replay",
		"events tcp://a:1 --replay=x":           "--replay: ",
		"events tcp://a:1 --record-files=2":     "are for --record",
		"events tcp://a:1 --nothing":            "nothing",
		"play":                                  "one FILE is needed",
		"play f":                                "either --bind or --server",
		"play f --bind tcp://*:1 --server x":    "either --bind or --server",
		"play f --bind tcp://*:1 --pod x":       "are for --server",
		"play f --server x --hold 1s --model m": "are for --bind",
		"play f --server x":                     "--model is missing",
		"play f --bind tcp://*:1 --speed=-1":    "--speed is -1",
		"play f --bind tcp://*:1 --speed=NaN":   "--speed is NaN",
		"play f --bind tcp://*:1 --wait=0s":     "--wait",
		"keys":                                  "--model is missing",
		"keys x --model=m --tokens=1":           "flags only",
		"keys --model=m":                        "either --tokens or --block-keys",
		"keys --model=m --tokens=1 --block-keys=0000000000000001":     "either --tokens or --block-keys",
		"keys --model=m --block-keys=0000000000000001 --lora=x":       "are for --tokens",
		"keys --model=m --block-keys=0000000000000001,12":             "--block-keys: number 2: ",
		"keys --model=m --tokens=1,x":                                 "--tokens: number 2",
		"keys --model=m --tokens=1,2 --block-size=3":                  "2 tokens are less than a block of 3 (--block-size)",
		"keys --model=m --tokens=1 --block-size=0":                    "--block-size is 0",
		"keys --model=m --tokens=1 --block-size=1 --redis-prefix=a{b": "--redis-prefix: ",
	} {
		if status, _, stderr := call(t, "", append([]string{"inspect"}, strings.Fields(args)...)...); status != cli.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: ends with %d\n%s\nwant %s", args, status, stderr, want)
		}
	}
	for _, args := range []string{"--help", "events --help", "play --help", "keys --help"} {
		if status, stdout, _ := call(t, "", append([]string{"inspect"}, strings.Fields(args)...)...); status != cli.ExitOK || !strings.Contains(stdout, "kvatlas inspect") {
			t.Errorf("%s: ends with %d\n%s", args, status, stdout)
		}
	}
	for args, want := range map[string]string{
		"events tcp://127.0.0.1:9 --record /no/such/file":                                         "no such file",
		"play ../../examples/events.jsonl --bind " + redistest.FreeEndpoint(t, 1) + " --wait 1ms": "no subscriber came",
		// A record that cannot be played waits for no subscriber.
		"play /no/such/file --bind " + redistest.FreeEndpoint(t, 1) + " --wait 24h":   "no such file",
		"play ../../README.md --bind " + redistest.FreeEndpoint(t, 1) + " --wait 24h": "README.md, line 1",
		"play /dev/null --bind " + redistest.FreeEndpoint(t, 1) + " --wait 24h":       "has no entries",
		"play /no/such/file --server 127.0.0.1:9 --model m":                           "no such file",
		"play ../../README.md --server 127.0.0.1:9 --model m":                         "README.md, line 1",
	} {
		if status, _, stderr := call(t, "", append([]string{"inspect"}, strings.Fields(args)...)...); status != cli.ExitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: ends with %d\n%s\nwant %s", args, status, stderr, want)
		}
	}
}
