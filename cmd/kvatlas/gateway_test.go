package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	simengine "github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// gatewayModel has a tokenizer in the cache of tokenizers.
const gatewayModel = "Qwen/Qwen3-8B"

// simFleet are simulated engines of a test.
type simFleet struct {
	t    *testing.T
	pods []*wire.Pod
}

// startEngines starts engines whose prompts are bytes.
func startEngines(t *testing.T, n int, change func(c *wire.Config)) *simFleet {
	t.Helper()
	f := &simFleet{t: t}
	for range n {
		c := wire.Config{
			Model: gatewayModel, Listen: "127.0.0.1:0", Events: redistest.FreeEndpoint(t, 1), Replay: redistest.FreeEndpoint(t, 1),
			Engine: simengine.Config{Kind: simengine.VLLM, BlockSize: 16, Blocks: 20_000}, Speed: 20,
		}
		change(&c)
		p, err := wire.NewPod(c)
		if err == nil {
			err = p.Start()
		}
		must.OK(t, err)
		t.Cleanup(func() { _ = p.Kill() })
		f.pods = append(f.pods, p)
	}
	return f
}

// setting is what --pods says of them: their addresses alone.
func (f *simFleet) setting() string {
	var list []string
	for _, p := range f.pods {
		list = append(list, p.Address())
	}
	return "--pods=" + strings.Join(list, ",")
}

// gatewayProcess is kvatlas gateway in a process of its own.
type gatewayProcess struct {
	*served
	gateway string
}

// startGateway starts a gateway and waits until it has found so many pods.
func startGateway(t *testing.T, pods int, args ...string) *gatewayProcess {
	t.Helper()
	g := &gatewayProcess{served: &served{log: &output{}}}
	g.cmd = exec.Command(os.Args[0], append([]string{
		"gateway", "--listen=127.0.0.1:0", "--gateway-listen=127.0.0.1:0", "--log-format=json", "--hub-offline", "--hub-cache=" + t.TempDir(), "--drain-delay=0s",
		"--score-budget=5s", "--block-size=16",
	}, args...)...)
	g.cmd.Env = []string{runAsProgram + "=1"}
	g.cmd.Stderr = g.log
	must.OK(t, g.cmd.Start())
	t.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	})
	awaitThat(t, "the gateway listens", g.log, func() bool {
		for line := range strings.Lines(g.log.String()) {
			var v struct {
				Message, Address string
				Gateway          string `json:"gateway_address"`
			}
			if json.Unmarshal([]byte(line), &v) == nil && v.Message == "listening" {
				g.url, g.gateway = "http://"+v.Address, "http://"+v.Gateway
				return true
			}
		}
		return false
	})
	var err error
	if g.c, err = client.New(client.Config{URL: g.url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.c.Close)
	awaitThat(t, "the pods are found", g.log, func() bool {
		list, err := g.c.Pods(t.Context())
		return err == nil && len(list) >= pods
	})
	return g
}

// ask sends a body to the gateway and returns the answer.
func (g *gatewayProcess) ask(t *testing.T, body string) (http.Header, string) {
	t.Helper()
	resp, err := http.Post(g.gateway+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v\n%s", err, g.log)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s %v\n%s", resp.StatusCode, b, err, g.log)
	}
	for name, v := range resp.Trailer {
		resp.Header[name] = v
	}
	return resp.Header, string(b)
}

// booked is how many requests are booked anywhere.
func (g *gatewayProcess) booked(t *testing.T) (n int) { t.Helper(); return g.bookedOf(t, gatewayModel) }

func (g *gatewayProcess) bookedOf(t *testing.T, model string) (n int) {
	t.Helper()
	var out struct {
		Models map[string][]struct{ Requests int }
	}
	must.OK(t, g.tell(t, http.MethodGet, "/v1/loads?model="+url.QueryEscape(model), nil, &out))
	for _, pods := range out.Models {
		for _, p := range pods {
			n += p.Requests
		}
	}
	return n
}

// ids is a body with a prompt of tokens.
func ids(first, n int, more string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ",%d", first+i)
	}
	return fmt.Sprintf(`{"model":%q,"max_tokens":3,"prompt":[%s]%s}`, gatewayModel, b.String()[1:], more)
}

// A gateway that knows nothing but addresses asks the engines for all else. Of those with
// events it reads the events. Of the others it takes for held what it sent there.
func TestGatewayCommand(t *testing.T) {
	for _, x := range []struct {
		what   string
		events bool
	}{{"engines with events", true}, {"engines that do not tell of theirs", false}} {
		t.Run(x.what, func(t *testing.T) {
			f := startEngines(t, 3, func(c *wire.Config) {
				if !x.events {
					c.Version = "0.20.0" // before /kv_event_sources
				}
			})
			g := startGateway(t, 3, f.setting())
			list := must.Get(g.c.Pods(t.Context()))(t)
			for _, p := range list {
				if p.Model != gatewayModel || p.Engine != "vllm" || (p.Events != "") != x.events || p.Approximate == x.events {
					t.Errorf("registered is %+v", p)
				}
			}
			first, _ := g.ask(t, ids(1000, 400, ""))
			// Until an engine's events come, others may get the prompt as well.
			asked := []string{first.Get("X-Kvatlas-Pod")}
			var again http.Header
			awaitThat(t, "what the engine holds is known", g.log, func() bool {
				again, _ = g.ask(t, ids(1000, 400, `,"stream":true`))
				known := again.Get("X-Kvatlas-Predicted-Tokens") != "0"
				if !known {
					asked = append(asked, again.Get("X-Kvatlas-Pod"))
				}
				return known
			})
			if asked[0] == "" || !slices.Contains(asked, again.Get("X-Kvatlas-Pod")) || again.Get("X-Kvatlas-Delivered-Tokens") != "384" {
				t.Errorf("asked %v, then %v", asked, again)
			}
			awaitThat(t, "all reservations end", g.log, func() bool { return g.booked(t) == 0 })
			if n := g.figure(t, `kvatlas_gateway_requests_total{status="2xx"}`); n == "" || n == "0" {
				t.Errorf("%q requests are counted", n)
			}
		})
	}
}

// A gateway loads the tokenizers of its engines' models by itself, before the first request asks
// for one.
func TestGatewayLoadsTokenizers(t *testing.T) {
	dir := tokenizers(t)
	f := startSeeing(t, dir, 1)
	g := startGateway(t, 1, f.setting(), "--tokenizers="+dir, "--log-level=info")
	awaitThat(t, "the tokenizer is loaded", g.log, func() bool { return strings.Contains(g.log.String(), `"vocabulary":`) })
	if n := g.figure(t, `kvatlas_gateway_requests_total{status="2xx"}`); n != "" && n != "0" {
		t.Errorf("%s requests were sent", n)
	}
}
