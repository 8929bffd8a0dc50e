package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/gateway"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

const model = "sim/model"

// fleet is a gateway with engines.
type fleet struct {
	t      testing.TB
	index  *memory.Index
	router *route.Router
	g      *gateway.Gateway
	url    string
	served chan gateway.Served
}

// newFleet starts a gateway in front of engines at these addresses. They tell no events, so
// what was sent there counts as held.
func newFleet(t testing.TB, c gateway.Config, addresses ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, served: make(chan gateway.Served, 4096)}
	var err error
	if f.index, err = memory.New(memory.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.index.Close() })
	must.Get(f.index.EnsureModel(t.Context(), store.ModelInfo{Name: model, BlockSize: 16, Scheme: store.SchemeNative}))(t)
	for _, a := range addresses {
		f.register(store.Pod{Name: a, Model: model, Approximate: true})
	}
	sc := must.Get(scorer.New(scorer.Config{Index: f.index, Tokenizer: scorer.TokenizerFunc(tokenize), Budget: time.Minute}))(t)
	f.router = must.Get(route.New(route.Config{Scorer: sc, Pods: f.index, Loads: loads.NewMemory(nil), Index: f.index, Notes: notes.NewMemory(nil), Seed: 1}))(t)
	if c.Router == nil {
		c.Router = f.router
	}
	c.Index = f.index
	served := c.Observer.Served
	c.Observer.Served = func(s *gateway.Served) {
		select {
		case f.served <- *s:
		default: // a benchmark reads none
		}
		if served != nil {
			served(s)
		}
	}
	if f.g, err = gateway.New(c); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(f.g)
	f.url = server.URL
	t.Cleanup(func() {
		server.Close()
		if err := f.g.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// unread is a text that no tokenizer reads in time.
const unread = "a text of a model whose tokenizer is not there yet"

// tokenize makes a token of each byte, as the engines do, and none of unread.
func tokenize(ctx context.Context, r prompt.Request) (prompt.Result, error) {
	if r.Text == unread {
		return prompt.Result{Source: prompt.FromTokenizer, Behind: prompt.BehindBudget}, nil
	}
	tokens, err := wire.Bytes{}.Text(ctx, r.Text, false)
	if r.Chat != nil {
		var body []byte
		if body, err = json.Marshal(r.Chat); err == nil {
			tokens, err = wire.Bytes{}.Chat(ctx, body)
		}
	}
	return prompt.Result{Tokens: tokens, Source: prompt.FromTokenizer, Exact: true}, err
}

func (f *fleet) register(p store.Pod) {
	f.t.Helper()
	must.Get(f.index.Register(f.t.Context(), p))(f.t)
}

// requests is how many requests are booked at a pod.
func (f *fleet) requests(pod string) int64 {
	p := must.Get(f.router.Loads(f.t.Context(), model))(f.t)
	l := p.Loads[store.RankRef{Pod: pod}]
	return l.Requests
}

// idle waits until nothing is booked anywhere.
func (f *fleet) idle() {
	f.t.Helper()
	eventually.True(f.t, "end of all reservations", func() bool {
		p := must.Get(f.router.Loads(f.t.Context(), model))(f.t)
		for _, l := range p.Loads {
			if l.Requests != 0 {
				return false
			}
		}
		return true
	})
}

// last is what became of the last request.
func (f *fleet) last() gateway.Served {
	f.t.Helper()
	select {
	case s := <-f.served:
		return s
	case <-time.After(time.Minute):
		f.t.Fatal("no request has ended")
		return gateway.Served{}
	}
}

// reply is an answer with all of its body.
type reply struct {
	status          int
	header, trailer http.Header
	body            string
}

// post sends a body to the gateway.
func (f *fleet) post(path, body string, headers ...string) reply {
	f.t.Helper()
	return f.send(http.MethodPost, path, strings.NewReader(body), headers...)
}

func (f *fleet) send(method, path string, body io.Reader, headers ...string) reply {
	f.t.Helper()
	req := must.Get(http.NewRequestWithContext(f.t.Context(), method, f.url+path, body))(f.t)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	must.OK(f.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatalf("%v after %q", err, b)
	}
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(b)}
}

// number reads a header that is one, -1 where it is missing.
func number(h http.Header, name string) int {
	n, err := strconv.Atoi(h.Get(name))
	if err != nil {
		return -1
	}
	return n
}

// startSims starts simulated engines that take no time.
func startSims(t *testing.T, n int, c wire.Config) (pods []*wire.Pod, addresses []string) {
	t.Helper()
	c.Model = model
	c.Engine.Blocks = 4000
	if c.Engine.Timing == (engine.Timing{}) {
		c.Engine.Timing = engine.Timing{Prefill: -1, Decode: -1, Host: -1, Disk: -1}
	}
	for range n {
		c.Listen = "127.0.0.1:0"
		c.Events = redistest.FreeEndpoint(t, 1)
		p, err := wire.NewPod(c)
		if err == nil {
			err = p.Start()
		}
		must.OK(t, err)
		must.End(t, p.Kill)
		pods, addresses = append(pods, p), append(addresses, p.Address())
	}
	return pods, addresses
}

// fake is an engine of a test's own.
func fake(t *testing.T, h http.HandlerFunc) (address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// chat is the body of a chat with a text of so many words.
func chat(words int, more string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":4%s}`, model, strings.Repeat("word ", words), more)
}

// events are the data of a stream's events.
func events(body string) (out []string) {
	s := bufio.NewScanner(bytes.NewReader([]byte(body)))
	for s.Scan() {
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}
