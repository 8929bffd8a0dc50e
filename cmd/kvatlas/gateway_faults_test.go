package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/interop"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	simtokens "github.com/kvatlas/kvatlas/sim/tokens"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/tokenpool"
)

// seeing is a model's tokenizer that takes an image for tokens that a text cannot have.
type seeing struct{ *simtokens.Tokenizer }

func (s seeing) Chat(ctx context.Context, body []byte) ([]uint32, error) {
	out, err := s.Tokenizer.Chat(ctx, body)
	if !errors.Is(err, simtokens.ErrMedia) {
		return out, err
	}
	var chat struct{ Messages json.RawMessage }
	if err := json.Unmarshal(body, &chat); err != nil {
		return nil, err
	}
	out, err = s.Text(ctx, string(chat.Messages), true)
	return append(out, make([]uint32, 64)...), err
}

// openaiPython is a Python with OpenAI's client.
func openaiPython(t *testing.T) string {
	t.Helper()
	python := must.Get(filepath.Abs(filepath.Join("..", "..", ".cache", "venv-openai", "bin", "python")))(t)
	return interop.Python(t, python, "scripts/venv.sh openai sim/wire/testdata/requirements.txt")
}

// startSeeing starts engines that have the tokenizer of the demo's model.
func startSeeing(t *testing.T, dir string, n int) *simFleet {
	t.Helper()
	origin := must.Get(tokenpool.NewDirectory(dir))(t)
	tok := must.Get(simtokens.Open(t.Context(), origin, demo.Model, simengine.VLLM))(t)
	t.Cleanup(func() { _ = tok.Close() })
	return startEngines(t, n, func(c *wire.Config) { c.Model, c.Tokenizer = demo.Model, seeing{tok} })
}

// OpenAI's client makes the same of answers that come through a gateway as of the engine's own.
func TestGatewayOpenAIClient(t *testing.T) {
	python, dir := openaiPython(t), tokenizers(t)
	direct, behind := startSeeing(t, dir, 1), startSeeing(t, dir, 1)
	g := startGateway(t, 1, behind.setting(), "--tokenizers="+dir)
	ask := func(url string) (out map[string]any) {
		cmd := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "gateway_client.py"), "once", demo.Model, url)
		cmd.Stderr = os.Stderr
		b := must.Get(cmd.Output())(t)
		must.OK(t, json.Unmarshal(b, &out))
		return out
	}
	want, got := ask("http://"+direct.pods[0].Address()), ask(g.gateway)
	if len(want) != 14 || !reflect.DeepEqual(got, want) {
		t.Errorf("through the gateway:\n%v\nfrom an engine:\n%v", got, want)
	}
}

// Two gateways share loads in Redis, in front of four engines that are slow, killed, frozen and
// revived, while Redis freezes and dies. No request is lost that had not begun to be answered,
// and in the end no load is left.
func TestGatewayFaults(t *testing.T) {
	python, dir := openaiPython(t), tokenizers(t)
	redis := redistest.Start(t)
	f := startSeeing(t, dir, 4)
	var gateways []*gatewayProcess
	args := []string{python, filepath.Join("testdata", "gateway_client.py"), "storm", demo.Model}
	for range 2 {
		g := startGateway(t, 4, f.setting(), "--redis="+redis.URL(), "--tokenizers="+dir, "--preload="+demo.Model, "--gateway-idle-timeout=3s", "--score-budget=50ms")
		gateways = append(gateways, g)
		args = append(args, g.gateway)
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	stdin := must.Get(cmd.StdinPipe())(t)
	stdout := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	fault := func(pod int, kind wire.FaultKind) func() {
		return func() {
			if err := f.pods[pod].Apply(wire.Fault{Kind: kind}); err != nil {
				t.Error(err)
			}
		}
	}
	slow := func(pod int, factor float64) func() {
		return func() {
			if err := f.pods[pod].Apply(wire.Fault{Kind: wire.Throttle, Factor: factor}); err != nil {
				t.Error(err)
			}
		}
	}
	steps := []func(){
		slow(2, 10), fault(0, wire.Kill), slow(2, 1), fault(1, wire.Freeze), fault(0, wire.Revive), fault(2, wire.Restart), fault(1, wire.Thaw), fault(3, wire.Kill),
		redis.Freeze, fault(3, wire.Revive), redis.Thaw, redis.Kill, fault(2, wire.Freeze), redis.Run, fault(2, wire.Thaw), fault(0, wire.Restart),
		func() { _ = stdin.Close() },
	}
	const each = 60 // requests between two of them
	type ended struct {
		Kind    string
		Gateway int
		Begun   bool
		Error   string
	}
	n, lost, cut, kinds := 0, []ended{}, 0, map[string]int{}
	for s := bufio.NewScanner(stdout); s.Scan(); {
		var e ended
		must.OK(t, json.Unmarshal(s.Bytes(), &e))
		n++
		kinds[e.Kind]++
		switch {
		case e.Error != "" && e.Begun:
			cut++
		case e.Error != "":
			lost = append(lost, e)
		}
		if n%each == 0 && n/each <= len(steps) {
			steps[n/each-1]()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, %v, %d were cut in the midst of their answer", n, kinds, cut)
	if len(lost) > 0 {
		t.Errorf("%d requests are lost that had not begun, the first: %+v", len(lost), lost[0])
	}
	if n < each*len(steps) || len(kinds) != 4 {
		t.Errorf("%d requests, %v", n, kinds)
	}
	for _, g := range gateways {
		awaitThat(t, "all reservations end", g.log, func() bool { return g.bookedOf(t, demo.Model) == 0 })
		if retries := g.figure(t, "kvatlas_gateway_retries_total"); retries == "0" {
			t.Errorf("a gateway has sent nothing again")
		}
	}
}

// A gateway that is killed leaves no load once the lease is over; the other one sees it until
// then.
func TestGatewayIsKilled(t *testing.T) {
	redis := redistest.Start(t)
	f := startEngines(t, 2, func(c *wire.Config) { c.Speed = 0.2 })
	g, other := startGateway(t, 2, f.setting(), "--redis="+redis.URL()), startGateway(t, 2, f.setting(), "--redis="+redis.URL())
	must.OK(t, other.tell(t, http.MethodPut, "/v1/models/"+url.PathEscape(gatewayModel)+"/routing", map[string]any{"lease_s": 2}, &struct{}{}))
	const streams = 8
	begun := make(chan error, streams)
	for i := range streams {
		go func() {
			body := strings.Replace(ids(100*i, 300, `,"stream":true`), `"max_tokens":3`, `"max_tokens":5000`, 1)
			resp, err := http.Post(g.gateway+"/v1/completions", "application/json", strings.NewReader(body))
			if err == nil {
				defer resp.Body.Close()
				_, err = io.ReadFull(resp.Body, make([]byte, 10))
			}
			begun <- err
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body) // until it is cut
			}
		}()
	}
	for range streams {
		must.OK(t, <-begun)
	}
	if n := other.booked(t); n != streams {
		t.Errorf("%d requests are booked of %d", n, streams)
	}
	must.OK(t, g.cmd.Process.Kill())
	awaitThat(t, "the lease ends them", other.log, func() bool { return other.booked(t) == 0 })
}

// Two thousand streams at a time take memory once, however long they go on.
func TestGatewayStreams(t *testing.T) {
	const parts = 15
	// The race detector takes memory of its own for each stream, and more as it goes on.
	streams, growth := 2000, 1.15
	if raceDetector {
		streams, growth = 400, 1.5
	}
	next := make([]chan struct{}, parts)
	for i := range next {
		next[i] = make(chan struct{})
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
			return
		case "/v1/completions":
		default:
			http.NotFound(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range parts {
			select {
			case <-next[i]:
			case <-r.Context().Done():
				return
			}
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\""+strings.Repeat("word ", 20)+"\"}]}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(engine.Close)
	g := startGateway(t, 1, "--pods="+strings.TrimPrefix(engine.URL, "http://"), "--pods-metrics=false", "--gateway-connect-timeout=1m", "--log-level=info")
	memory := func() float64 {
		n := must.Get(strconv.ParseFloat(g.figure(t, "process_resident_memory_bytes"), 64))(t)
		return n / (1 << 20)
	}
	empty := memory()
	read := make(chan error, streams*parts)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}
	t.Cleanup(client.CloseIdleConnections)
	// So many wait for their first part at a time, and no more: to a gateway an engine that keeps two thousand waiting is ill.
	begin := make(chan struct{}, 64)
	close(next[0])
	for i := range streams {
		go func() {
			begin <- struct{}{}
			began := sync.OnceFunc(func() { <-begin })
			defer began()
			body := fmt.Sprintf(`{"model":"m","stream":true,"prompt":[%d%s]}`, i, strings.Repeat(",7", 500))
			resp, err := client.Post(g.gateway+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				read <- err
				return
			}
			defer resp.Body.Close()
			n, last := 0, ""
			for s := bufio.NewScanner(resp.Body); s.Scan(); {
				if last = cmp.Or(s.Text(), last); strings.Contains(last, `"text"`) {
					if s.Text() != "" {
						n++
						began()
						read <- nil
					}
				}
			}
			if n != parts || last != "data: [DONE]" {
				read <- fmt.Errorf("stream %d has ended after %d parts with %q", i, n, last)
			}
		}()
	}
	early := 0.0
	for i := range parts {
		if i > 0 {
			close(next[i])
		}
		for range streams {
			if err := <-read; err != nil {
				t.Fatalf("part %d: %v", i, err)
			}
		}
		switch i {
		case 4:
			early = memory()
		case parts - 2: // all streams are open still
			// A busy machine collects later, and gives memory back later: what the streams keep stays.
			eventually.NoError(t, "memory that does not grow with the streams' length", func() error {
				late := memory()
				if late > early*growth+8 {
					return fmt.Errorf("%.0f MiB after 5 parts, %.0f after %d", early, late, parts-1)
				}
				t.Logf("%.0f MiB before, %.0f with %d streams after 5 parts, %.0f after %d", empty, early, streams, late, parts-1)
				return nil
			})
		}
	}
	awaitThat(t, "all reservations end", g.log, func() bool { return g.bookedOf(t, "m") == 0 })
}
