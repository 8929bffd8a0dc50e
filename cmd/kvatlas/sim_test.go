package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// startSim runs kvatlas sim and returns the setting that a server reads its events with,
// and the address of the control page.
func startSim(t *testing.T, args ...string) (pods, control string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var out, errs output
	p := &program{&cli.Program{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Name: "kvatlas"}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if status := p.run(ctx, append([]string{"sim", "--control=127.0.0.1:0"}, args...)); status != cli.ExitOK {
			t.Errorf("kvatlas sim ended with %d: %s", status, errs.String())
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	r := &running{t: t, stdout: &out, stderr: &errs, done: done}
	said := regexp.MustCompile(`control at http://(\S+)/pods[^\n]*\nkvatlas serve --pods '([^']+)'(?: --tokenizers '[^']+')?\n`)
	found := r.await(func() map[string]any {
		if m := said.FindStringSubmatch(out.String()); m != nil {
			return map[string]any{"control": m[1], "pods": m[2]}
		}
		return nil
	})
	return found["pods"].(string), found["control"].(string)
}

// A server that is started as kvatlas sim says follows the simulated engines: what a prompt
// is scored is what the engine reuses.
func TestSim(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		ports := [3]int{redistest.FreePort(t), redistest.FreePort(t), redistest.FreePort(t)}
		pods, control := startSim(t, "--pods=1", "--engine="+engine, "--model=m", "--blocks=500", "--speed=1000",
			fmt.Sprintf("--port=%d", ports[0]), fmt.Sprintf("--events-port=%d", ports[1]), fmt.Sprintf("--replay-port=%d", ports[2]))
		r := start(t, "--pods="+pods, "--block-size=16")
		tokens := make([]uint32, 100)
		name := fmt.Sprintf("127.0.0.1:%d", ports[0])
		body := map[string]any{"model": "m", "prompt": tokens, "max_tokens": 3}
		var answer struct {
			Usage struct {
				Details *struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		post(t, "http://"+name+"/v1/completions", body, &answer)
		c := must.Get(client.New(client.Config{URL: r.url}))(t)
		t.Cleanup(c.Close)
		r.await(func() map[string]any {
			s := must.Get(c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens}))(t)
			if s.Scores[name] == 6 {
				return map[string]any{}
			}
			return nil
		})
		post(t, "http://"+name+"/v1/completions", body, &answer)
		if answer.Usage.Details == nil || answer.Usage.Details.Cached != 96 {
			t.Errorf("%s: %+v was cached, 6 blocks were scored", engine, answer.Usage.Details)
		}
		// The engine ends and begins anew: nothing that it held is scored.
		post(t, "http://"+control+"/pods/sim-0/faults", map[string]any{"fault": "restart"}, nil)
		r.await(func() map[string]any {
			s := must.Get(c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens}))(t)
			if s.Scores[name] == 0 {
				return map[string]any{}
			}
			return nil
		})
	}
}

// post posts JSON and reads the answer.
func post(t *testing.T, url string, body, out any) {
	t.Helper()
	b := must.Get(json.Marshal(body))(t)
	req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(string(b))))(t)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	must.OK(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	if out != nil {
		must.OK(t, json.NewDecoder(resp.Body).Decode(out))
	}
}

// What is wrong with a call is said before anything is started.
func TestSimUsage(t *testing.T) {
	for _, x := range []struct {
		args string
		says string
	}{
		{"--engine tgi", "vllm, sglang, trtllm"}, {"--engine-version 0.9.0", "0.10.2 to 0.33.0"}, {"--engine-version x", "no version"},
		{"--engine sglang --engine-version 0.5.9", "0.5.18"}, {"--pods 0", "--pods"}, {"--pods 2000", "--pods"}, {"--ranks 0", "--ranks"},
		{"--port 65535 --pods 2", "--port"}, {"--events-port 65535 --ranks 2", "--events-port"}, {"--speed -1", "speed"},
		{"--blocks 99999999", "--blocks"}, {"--disk-blocks 3", "HostBlocks"}, {"--engine trtllm --window 100", "Window"}, {"--engine sglang --states", "State"},
		{"--states --retention some", "all, ends"}, {"--states --retention 0", "all, ends"}, {"--states --retention 17", "BlockSize"}, {"now", "flags only"},
		{"--block-size -4", "BlockSize"},
	} {
		status, _, errs := call(t, "", append([]string{"sim"}, strings.Fields(x.args)...)...)
		if status != cli.ExitUsage || !strings.Contains(errs, x.says) {
			t.Errorf("kvatlas sim %s: %d %s", x.args, status, errs)
		}
	}
	if status, out, _ := call(t, "", "sim", "--help"); status != cli.ExitOK || !strings.Contains(out, "simulated engines") {
		t.Errorf("help: %d %s", status, out)
	}
}

// TestSimPortTaken says which port is taken, and which flags choose others.
func TestSimPortTaken(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	for _, command := range []string{"sim", "up"} {
		status, _, errs := call(t, "", command, fmt.Sprintf("--events-port=%d", taken), fmt.Sprintf("--port=%d", freeRow(t, 16)), fmt.Sprintf("--replay-port=%d", freeRow(t, 16)))
		if status != cli.ExitFailed || !strings.Contains(errs, l.Addr().String()) || !strings.Contains(errs, "--events-port") {
			t.Errorf("%s: %d %q", command, status, errs)
		}
	}
}
