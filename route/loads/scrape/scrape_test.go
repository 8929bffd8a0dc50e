package scrape

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/loadstest"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// fleet is a registry of pods, with loads and what went wrong.
type fleet struct {
	*testing.T
	index store.Index
	clock *loadstest.Clock
	loads *loads.Memory

	mu     sync.Mutex // protects failed and read
	failed map[string]error
	read   map[string]int
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	index := must.Get(memory.New(memory.Config{}))(t)
	t.Cleanup(func() { _ = index.Close() })
	f := &fleet{T: t, index: index, clock: loadstest.NewClock(), failed: map[string]error{}, read: map[string]int{}}
	f.loads = loads.NewMemory(f.clock.Now)
	return f
}

func (f *fleet) register(pods ...store.Pod) {
	f.Helper()
	for _, p := range pods {
		p.Model = "m"
		must.Get(f.index.Register(f.Context(), p))(f)
	}
	if _, err := f.index.Registry(f.Context()); err != nil { // as the router has seen it
		f.Fatal(err)
	}
}

func (f *fleet) scraper() *Scraper {
	f.Helper()
	s := must.Get(New(Config{
		Client: (*access.Networks)(nil).Client(), Loads: f.loads, Pods: f.index.Cached, Models: func() []string { return []string{"m", "none"} },
		Failed: func(pod string, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed[pod] = err
		},
		Read: func(pod string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.read[pod]++
		},
	}))(f)
	f.Cleanup(s.c.Client.CloseIdleConnections)
	return s
}

// round lets a scraper take all turns that there are, and waits for what comes of it.
func (s *Scraper) round(ctx context.Context) {
	s.look(ctx)
	s.reading.Wait()
}

func (f *fleet) engines() map[store.RankRef]loads.Engine {
	f.Helper()
	p := must.Get(f.loads.Loads(f.Context(), "m"))(f)
	return p.Engines
}

// TestSimulatedEngines reads the metrics of each kind of engine while it runs requests.
func TestSimulatedEngines(t *testing.T) {
	for _, c := range []struct {
		kind    engine.Kind
		version string
		ranks   int
	}{{engine.VLLM, "0.10.2", 1}, {engine.VLLM, "0.33.0", 2}, {engine.SGLang, "0.5.23", 1}, {engine.SGLang, "0.5.23", 2}, {engine.TRTLLM, "1.3.0", 1}} {
		t.Run(fmt.Sprint(c.kind, c.version, c.ranks), func(t *testing.T) {
			// More requests come than run at once, and all the time some end, as the numbers of
			// TensorRT-LLM move only then.
			p := must.Get(wire.NewPod(wire.Config{
				Name: "sim", Model: "m", Version: c.version, Ranks: c.ranks, Listen: "127.0.0.1:0",
				Events: redistest.FreeEndpoint(t, c.ranks), Replay: redistest.FreeEndpoint(t, c.ranks),
				Engine: engine.Config{Kind: c.kind, BatchRequests: 2, Blocks: 100_000},
			}))(t)
			must.OK(t, p.Start())
			t.Cleanup(func() { _ = p.Kill() })
			f := newFleet(t)
			f.register(store.Pod{Name: p.Address(), Engine: c.kind.String(), Ranks: c.ranks})
			s := f.scraper()
			post := func(ctx context.Context, tokens int) error {
				b, err := json.Marshal(map[string]any{"model": "m", "prompt": strings.Repeat("z", 200), "max_tokens": tokens, "ignore_eos": true})
				if err != nil {
					return err
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.Address()+"/v1/completions", bytes.NewReader(b))
				if err != nil {
					return err
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					return err
				}
				return resp.Body.Close()
			}
			must.OK(t, post(t.Context(), 1))
			ctx, cancel := context.WithCancel(t.Context())
			var busy sync.WaitGroup
			for range 5 * c.ranks {
				busy.Go(func() {
					for post(ctx, 50) == nil {
					}
				})
			}
			t.Cleanup(func() { cancel(); busy.Wait(); http.DefaultClient.CloseIdleConnections() })
			for deadline := time.Now().Add(20 * time.Second); ; {
				s.round(t.Context())
				got := f.engines()
				running, waiting := int64(0), int64(0)
				for at, e := range got {
					running, waiting = running+e.Running, waiting+e.Waiting
					if e.KVTokens == 0 || e.KVUsage < 0 || e.KVUsage > 1 || e.WaitingTokens < 0 || e.Waiting > 0 && e.WaitingTokens == 0 && c.kind != engine.TRTLLM {
						t.Fatalf("%v: %+v", at, e)
					}
				}
				if len(got) == c.ranks && running >= 2 && waiting >= 1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%+v, failed: %v", got, f.failed)
				}
				f.clock.Advance(loads.EngineEvery)
			}
		})
	}
}

const fine = "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\n"

// TestBadEngines has engines that answer all that they should not, beside one that is fine.
func TestBadEngines(t *testing.T) {
	f := newFleet(t)
	release := make(chan struct{})
	var redirected atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Store(true) }))
	t.Cleanup(elsewhere.Close)
	var bomb bytes.Buffer // a megabyte in a kilobyte, as often as it is read
	z := gzip.NewWriter(&bomb)
	must.Get(z.Write(make([]byte, 1<<20)))(t)
	must.OK(t, z.Close())
	handlers := map[string]http.HandlerFunc{
		"fine":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(fine)) },
		"500":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"html":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"silent": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		},
		"slow": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(fine))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			for line := []byte(strings.Repeat("vllm:other 1\n", 4096)); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		},
		"bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			for {
				if _, err := w.Write(bomb.Bytes()); err != nil {
					return
				}
			}
		},
	}
	at := map[string]string{}
	for name, h := range handlers {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		f.register(store.Pod{Name: name, Address: srv.URL, Engine: "vllm"})
		at[name] = srv.URL
	}
	f.register(
		store.Pod{Name: "gone", Address: "127.0.0.1:1", Engine: "vllm"},
		store.Pod{Name: "no address", Engine: "vllm"}, store.Pod{Name: "who knows", Address: at["fine"]},
		store.Pod{Name: "part", Address: at["fine"], Engine: "vllm", PartOf: &store.PartOf{Pod: "fine", Workers: 1}},
	)
	defer close(release)
	s := f.scraper()
	s.round(t.Context())
	if got := f.engines(); len(got) != 1 || got[store.RankRef{Pod: "fine"}].Waiting != 2 {
		t.Errorf("%+v", got)
	}
	if len(f.failed) != len(handlers) || f.read["fine"] != 1 || redirected.Load() {
		t.Errorf("failed %v, read %v, redirected %v", f.failed, f.read, redirected.Load())
	}
	for _, name := range []string{"500", "redirect", "html", "endless", "bomb"} {
		// On a busy machine a page may meet the bound of time before that of bytes.
		late := (name == "endless" || name == "bomb") && errors.Is(f.failed[name], context.DeadlineExceeded)
		if !errors.Is(f.failed[name], errPage) && !late {
			t.Errorf("%s: %v", name, f.failed[name])
		}
	}
	// An engine that failed is left alone for longer than one that did not.
	clear(f.failed)
	f.clock.Advance(loads.EngineEvery + time.Millisecond)
	s.round(t.Context())
	if len(f.failed) != 0 || f.read["fine"] != 2 {
		t.Errorf("failed %v, read %v", f.failed, f.read)
	}
	if got := s.Stats(); got != (Stats{Read: 2, Failed: uint64(len(handlers))}) {
		t.Errorf("%+v", got)
	}
}

// TestOneAsks lets several scrapers that share nothing but the loads look at once, again and
// again. Each engine is asked once in the time of a turn, and never more at once than may be.
func TestOneAsks(t *testing.T) {
	const pods, scrapers, turns = 200, 4, 3
	f := newFleet(t)
	var asked, now, most atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		asked.Add(1)
		_, _ = w.Write([]byte(fine))
		now.Add(-1)
	}))
	t.Cleanup(srv.Close)
	for i := range pods {
		f.register(store.Pod{Name: fmt.Sprint("p", i), Address: fmt.Sprintf("%s/%d", srv.URL, i), Engine: "vllm"})
	}
	var all []*Scraper
	for range scrapers {
		all = append(all, f.scraper())
	}
	for turn := range turns {
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				for range pods/maxAtOnce + 1 {
					s.round(t.Context())
				}
			})
		}
		wg.Wait()
		if got := asked.Load(); got != int64(pods*(turn+1)) {
			t.Fatalf("after %d turns %d pages were read of %d pods", turn+1, got, pods)
		}
		f.clock.Advance(loads.EngineEvery + time.Second)
	}
	if m := most.Load(); m > scrapers*maxAtOnce {
		t.Errorf("%d were asked at once", m)
	}
	if got := len(f.engines()); got != pods {
		t.Errorf("%d engines have told", got)
	}
}

// TestRun ends with its context, in the middle of what it reads.
func TestRun(t *testing.T) {
	f := newFleet(t)
	asked := make(chan struct{}, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	f.register(store.Pod{Name: "p", Address: srv.URL, Engine: "vllm"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.scraper().Run(ctx) }()
	<-asked
	cancel()
	<-done
	if len(f.failed) != 0 {
		t.Errorf("what was called off has failed: %v", f.failed)
	}
}
