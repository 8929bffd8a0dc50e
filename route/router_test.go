package route_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	tokens "github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// world is a router with what it works on.
type world struct {
	*testing.T
	index store.Index
	loads loads.Store
	clock time.Time
	*route.Router
}

func newWorld(t *testing.T, with func(*route.Config)) *world {
	t.Helper()
	w := &world{T: t, clock: time.UnixMicro(1_800_000_000_000_000)}
	index, err := memory.New(memory.Config{})
	must.OK(t, err)
	t.Cleanup(func() { _ = index.Close() })
	w.index = index
	s := must.Get(scorer.New(scorer.Config{Index: index, BlockSize: 16, Budget: 10 * time.Second}))(t)
	now := func() time.Time { w.clock = w.clock.Add(time.Microsecond); return w.clock }
	w.loads = loads.NewMemory(now)
	c := route.Config{Scorer: s, Pods: index, Loads: w.loads, Now: now, Seed: 1}
	if with != nil {
		with(&c)
	}
	if w.Router, err = route.New(c); err != nil {
		t.Fatal(err)
	}
	must.Get(index.EnsureModel(t.Context(), store.ModelInfo{Name: "m", BlockSize: 16, Scheme: store.SchemeNative}))(t)
	return w
}

func (w *world) register(pods ...store.Pod) {
	w.Helper()
	for _, p := range pods {
		p.Model = "m"
		must.Get(w.index.Register(w.Context(), p))(w)
	}
}

// hold lets a rank hold the first n tokens of a prompt.
func (w *world) hold(pod string, rank int, tier store.Tier, prompt []uint32, n int) {
	w.Helper()
	keys := blockkey.AppendNative(nil, prompt[:n], 16, blockkey.NativeSeed("", ""))
	must.OK(w, w.index.Apply(w.Context(), store.Batch{Pod: pod, Rank: rank, Model: "m", Ops: []store.Op{{Kind: store.Add, Tier: tier, Keys: keys}}}))
}

func prompt(seed uint32, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = seed + uint32(i)
	}
	return p
}

func ask(p []uint32) route.Request {
	return route.Request{Score: scorer.Request{Model: "m", Input: scorer.Tokens(p)}}
}

// reserving is the request that is booked.
func reserving(q route.Request) route.Request {
	q.Reserve = true
	return q
}

func (w *world) route(q route.Request) *route.Decision {
	w.Helper()
	return must.Get(w.Route(w.Context(), q))(w)
}

func TestRouteToTheHolder(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a", Ranks: 2}, store.Pod{Name: "b", Address: "10.0.0.2:8000"})
	p := prompt(1, 1000)
	w.hold("b", 0, store.GPU, p, 800)
	w.hold("a", 1, store.CPU, p, 160)
	d := w.route(ask(p))
	if d.RankRef != (store.RankRef{Pod: "b"}) || d.Address != "10.0.0.2:8000" || d.Cached() != 800 || d.Best != 800 || d.Tokens != 1000 || d.Policy != "eta" {
		t.Errorf("%+v", d)
	}
	if want := []store.RankRef{{Pod: "a", Rank: 1}, {Pod: "a"}}; !slices.Equal(d.Fallbacks, want) {
		t.Errorf("fallbacks %v, expected %v", d.Fallbacks, want)
	}
	if d.Reservation != "" || d.Local {
		t.Errorf("a query has booked: %+v", d)
	}
	if l, err := w.Loads(t.Context(), "m"); err != nil || len(l.Loads) > 0 {
		t.Errorf("%v, %v", l, err)
	}
	if d.Costs != nil {
		t.Error("costs that nobody asked for")
	}
}

func TestReserve(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	p := prompt(1, 1000)
	w.hold("a", 0, store.GPU, p, 800)
	q := reserving(ask(p))
	q.ID = "r1"
	d := w.route(q)
	if d.Pod != "a" || d.Reservation != "r1" || d.Again {
		t.Errorf("%+v", d)
	}
	pic, err := w.Loads(t.Context(), "m")
	if l := pic.Loads[d.RankRef]; err != nil || l.Prefill != 200 || l.Blocks != 63 || l.Requests != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	if d := w.route(q); !d.Again || d.Pod != "a" || d.Cached() != 800 {
		t.Errorf("%+v", d)
	}
	for _, want := range []bool{true, false} {
		r, err := w.Done(t.Context(), "m", "r1", 800)
		if err != nil || !r.Known || r.First != want || r.Predicted != 800 || r.Tokens != 1000 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if r, err := w.Output(t.Context(), "m", "r1", 320); err != nil || !r.Known {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := w.End(t.Context(), "m", "r1"); err != nil || !r.Known {
		t.Errorf("%+v, %v", r, err)
	}
	if pic, err = w.Loads(t.Context(), "m"); err != nil || pic.Loads[d.RankRef].Requests != 0 {
		t.Errorf("%+v, %v", pic, err)
	}
	q.ID = ""
	if one, two := w.route(q), w.route(q); one.Reservation == "" || one.Reservation == two.Reservation {
		t.Errorf("reservations %q and %q", one.Reservation, two.Reservation)
	}
}

// TestEligible asks for each thing that a pod can lack.
func TestEligible(t *testing.T) {
	w := newWorld(t, nil)
	w.register(
		store.Pod{Name: "a", Labels: map[string]string{"zone": "1", "gpu": "h100"}},
		store.Pod{Name: "b", Labels: map[string]string{"zone": "2"}, Adapters: []string{"x"}},
		store.Pod{Name: "c", Role: "prefill", Ranks: 2},
		store.Pod{Name: "d", Role: "decode", Adapters: []string{"y"}},
		store.Pod{Name: "e", Role: "both", Adapters: []string{"y"}},
	)
	p := prompt(1, 100)
	for _, c := range []struct {
		what string
		with func(*route.Request)
		want string
	}{
		{"nothing", func(*route.Request) {}, "a/0 b/0 e/0"},
		{"prefill", func(q *route.Request) { q.Role = "prefill" }, "a/0 b/0 c/0 c/1 e/0"},
		{"decode", func(q *route.Request) { q.Role = "decode" }, "a/0 b/0 d/0 e/0"},
		{"names", func(q *route.Request) { q.Score.Pods = []string{"b", "zz", "a"} }, "a/0 b/0"},
		{"a label", func(q *route.Request) { q.Required = map[string]string{"zone": "1"} }, "a/0"},
		{"two labels", func(q *route.Request) { q.Required = map[string]string{"zone": "2", "gpu": "h100"} }, ""},
		{"an adapter", func(q *route.Request) { q.Score.LoRA = "x" }, "a/0 b/0"},
		{"a pod", func(q *route.Request) { q.Pinned = &store.RankRef{Pod: "b", Rank: -1} }, "b/0"},
		{"a rank", func(q *route.Request) { q.Role, q.Pinned = "prefill", &store.RankRef{Pod: "c", Rank: 1} }, "c/1"},
		{"a rank too many", func(q *route.Request) { q.Role, q.Pinned = "prefill", &store.RankRef{Pod: "c", Rank: 2} }, ""},
		{"another model", func(q *route.Request) { q.Score.Model = "n" }, ""},
	} {
		q := ask(p)
		q.Explain = true
		c.with(&q)
		d, err := w.Route(t.Context(), q)
		if c.want == "" {
			if !errors.Is(err, route.ErrNobody) {
				t.Errorf("%s: %+v, %v", c.what, d, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		var got []string
		for _, k := range d.Costs {
			got = append(got, k.String())
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, expected %s", c.what, got, c.want)
		}
	}
	must.Get(w.index.Retire(t.Context(), "a"))(t)
	for range 20 {
		if d := w.route(ask(p)); d.Pod == "a" {
			t.Fatal("a pod that has gone is chosen")
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"})
	for what, with := range map[string]func(*route.Request){
		"role":    func(q *route.Request) { q.Role = "both" },
		"id":      func(q *route.Request) { q.ID = "a\nb" },
		"output":  func(q *route.Request) { q.Expected = -1 },
		"label":   func(q *route.Request) { q.Preferred = map[string]float64{"zone": 1} },
		"weight":  func(q *route.Request) { q.Preferred = map[string]float64{"a=b": math.NaN()} },
		"setting": func(q *route.Request) { q.Overrides = []byte(`{"colour":"red"}`) },
		"policy":  func(q *route.Request) { q.Overrides = []byte(`{"policy":"nearest"}`) },
		"model":   func(q *route.Request) { q.Score.Model = "" },
	} {
		q := ask(prompt(1, 100))
		with(&q)
		if d, err := w.Route(t.Context(), q); err == nil {
			t.Errorf("%s: %+v", what, d)
		}
	}
}

// TestBusy fills two pods to their limits.
func TestBusy(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a", KVTokens: 1600}, store.Pod{Name: "b", KVTokens: 1600})
	for _, limit := range []string{`{"busy":{"requests":2}}`, `{"busy":{"prefill_tokens":150}}`, `{"busy":{"kv_fraction":0.11}}`} {
		var ids []string
		for range 4 {
			q := reserving(ask(prompt(uint32(1000*len(ids)), 100)))
			q.Overrides = []byte(limit)
			ids = append(ids, w.route(q).Reservation)
		}
		for _, reserve := range []bool{true, false} {
			w.clock = w.clock.Add(time.Second) // beyond the age of a picture
			q := ask(prompt(9000, 100))
			q.Reserve, q.Overrides = reserve, []byte(limit)
			if _, err := w.Route(t.Context(), q); !errors.Is(err, route.ErrBusy) {
				t.Errorf("%s, reserve %v: %v", limit, reserve, err)
			}
		}
		for _, id := range ids {
			must.Get(w.End(t.Context(), "m", id))(t)
		}
	}
}

// TestRestartVoidsLoad lets an engine restart under its requests.
func TestRestartVoidsLoad(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"})
	p := prompt(1, 160)
	live := func() {
		gen := must.Get(w.index.Begin(t.Context(), "a", 0, 1))(t)
		keys := blockkey.AppendNative(nil, p, 16, blockkey.NativeSeed("", ""))
		must.OK(t, w.index.Apply(t.Context(), store.Batch{Pod: "a", Model: "m", Guard: &store.Guard{Generation: gen, Fence: 1, Seq: 1}, Ops: []store.Op{{Kind: store.Add, Keys: keys}}}))
	}
	live()
	q := reserving(ask(p))
	q.Explain = true
	for want := range int64(3) {
		if d := w.route(q); d.Costs[0].Load.Requests != want {
			t.Errorf("%d requests, expected %d", d.Costs[0].Load.Requests, want)
		}
	}
	live()
	if d := w.route(q); d.Costs[0].Load.Requests != 0 {
		t.Errorf("after a restart %d requests run", d.Costs[0].Load.Requests)
	}
}

// TestSettingsAreSeen changes a model's settings under a second router that has a picture
// of before: its next booking goes by them.
func TestSettingsAreSeen(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	s := must.Get(scorer.New(scorer.Config{Index: w.index, BlockSize: 16, Budget: 10 * time.Second}))(t)
	other := must.Get(route.New(route.Config{Scorer: s, Pods: w.index, Loads: w.loads, Seed: 2}))(t)
	q := reserving(ask(prompt(1, 100)))
	if d := w.route(q); d.Policy != "eta" {
		t.Errorf("%+v", d)
	}
	must.Get(other.PutSettings(t.Context(), "m", []byte(`{"policy":"least_requests"}`)))(t)
	if d := w.route(q); d.Policy != "least_requests" {
		t.Errorf("the next booking goes by %s", d.Policy)
	}
	if got, err := w.Settings(t.Context(), "m"); err != nil || got.Policy != "least_requests" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := other.PutSettings(t.Context(), "m", []byte(`{"policy":"nearest"}`)); !errors.Is(err, route.ErrSettings) {
		t.Errorf("%v", err)
	}
	if d := w.route(q); d.Policy != "least_requests" {
		t.Errorf("settings that were refused are in force: %s", d.Policy)
	}
}

// away are loads that cannot be reached.
type away struct {
	loads.Store
	mu  sync.Mutex // protects off
	off bool
}

func (a *away) isOff() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.off }

func (a *away) set(off bool) { a.mu.Lock(); a.off = off; a.mu.Unlock() }

func (a *away) Book(ctx context.Context, c *loads.Call) (loads.Booked, error) {
	if a.isOff() {
		return loads.Booked{}, loads.ErrUnavailable
	}
	return a.Store.Book(ctx, c)
}

func (a *away) Loads(ctx context.Context, model string) (loads.Picture, error) {
	if a.isOff() {
		return loads.Picture{}, loads.ErrUnavailable
	}
	return a.Store.Loads(ctx, model)
}

// TestLoadsAway goes on by the last picture and by what was decided since, and spreads a
// burst even so.
func TestLoadsAway(t *testing.T) {
	var a *away
	w := newWorld(t, func(c *route.Config) { a = &away{Store: c.Loads}; c.Loads = a })
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"}, store.Pod{Name: "c"})
	a.set(true)
	n := map[string]int{}
	for i := range 30 {
		q := reserving(ask(prompt(uint32(i)*1000, 1000)))
		d := w.route(q)
		if !d.Local || d.Reservation != "" {
			t.Fatalf("%+v", d)
		}
		n[d.Pod]++
		w.clock = w.clock.Add(10 * time.Millisecond)
	}
	for pod, got := range n {
		if got < 8 || got > 12 {
			t.Errorf("%s has %d of 30", pod, got)
		}
	}
	a.set(false)
	w.clock = w.clock.Add(time.Second)
	q := reserving(ask(prompt(1, 100)))
	if d := w.route(q); d.Local || d.Reservation == "" {
		t.Errorf("%+v", d)
	}
}

// absent is an index that cannot be reached and was never read, or in time.
type absent struct {
	route.Scorer
	err error
}

func (a absent) Score(context.Context, scorer.Request) (*scorer.Response, error) {
	reason := scorer.IndexUnavailable
	if errors.Is(a.err, context.DeadlineExceeded) {
		reason = scorer.IndexTimeout
	}
	return &scorer.Response{Degraded: reason, BlockSize: 16}, nil
}

// TestCaseRouteBesideAnAbsentIndex asks for pods that are not known. While the index is away
// that is no fault of the request: they may have registered since.
func TestCaseRouteBesideAnAbsentIndex(t *testing.T) {
	pinned := &store.RankRef{Pod: "z", Rank: -1}
	for name, err := range map[string]error{"away": store.ErrUnavailable, "too late": context.DeadlineExceeded, "there": nil} {
		w := newWorld(t, func(c *route.Config) {
			if err != nil {
				c.Scorer = absent{err: err}
			}
		})
		w.register(store.Pod{Name: "p", Role: "prefill"}, store.Pod{Name: "d", Role: "decode"})
		for what, with := range map[string]func(*route.Request){
			"a model":       func(q *route.Request) { q.Score.Model = "n" },
			"blindly":       func(q *route.Request) { q.Score.Model, q.Overrides = "n", []byte(`{"policy":"least_requests"}`) },
			"a pod":         func(q *route.Request) { q.Pinned = pinned },
			"a pair":        func(q *route.Request) { q.Score.Model, q.Role = "n", route.RolePair },
			"one of a pair": func(q *route.Request) { q.PinnedPrefill, q.Role = pinned, route.RolePair },
			"labels in pairs": func(q *route.Request) {
				q.Role, q.Overrides = route.RolePair, []byte(`{"pair":{"require_same":["zone"],"local_tokens":0,"local_share":0,"local_fallback":false}}`)
			},
		} {
			q := ask(prompt(1, 100))
			with(&q)
			d, got := w.Route(t.Context(), q)
			if !errors.Is(got, route.ErrNobody) || errors.Is(got, route.ErrUnread) != (err != nil) {
				t.Errorf("%s, %s: %+v, %v", name, what, d, got)
			}
			if strings.Contains(fmt.Sprint(got), "-1") || strings.Contains(what, "pod") && !strings.Contains(fmt.Sprint(got), `"z"`) {
				t.Errorf("%s, %s: %v", name, what, got)
			}
		}
	}
}

// TestBurst routes cold prompts to many pods from several routers at once.
func TestBurst(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 16 {
		w.register(store.Pod{Name: fmt.Sprint("p", i)})
	}
	s := must.Get(scorer.New(scorer.Config{Index: w.index, BlockSize: 16, Budget: 10 * time.Second}))(t)
	shared := loads.NewMemory(func() time.Time { return time.UnixMicro(1) }) // no prefill goes on meanwhile
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for g := range 8 {
		r := must.Get(route.New(route.Config{Scorer: s, Pods: w.index, Loads: shared, Seed: uint64(g + 1)}))(t)
		wg.Go(func() {
			for i := range 100 {
				q := reserving(ask(prompt(uint32(g*100+i)*1000, 512)))
				if _, err := r.Route(t.Context(), q); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	must.OK(t, <-errs)
	p := must.Get(shared.Loads(t.Context(), "m"))(t)
	for at, l := range p.Loads {
		if l.Requests > 55 { // fewer may be: for 50 ms a router goes by one picture of the candidates worth weighing
			t.Errorf("%v has %d of 800 requests, an even share is 50", at, l.Requests)
		}
	}
}

// TestBlind routes without a lookup, by any of the policies that need none.
func TestBlind(t *testing.T) {
	for _, policy := range []string{"round_robin", "random", "least_requests", "least_tokens"} {
		w := newWorld(t, func(c *route.Config) { c.Scorer = noPrompt{c.Scorer} })
		w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
		q := ask(prompt(1, 100))
		q.Overrides, q.Reserve = []byte(`{"policy":"`+policy+`"}`), true
		if d := w.route(q); d.Tokens != 100 || d.Estimated || d.Reservation == "" || d.Score != nil {
			t.Errorf("%s: %+v", policy, d)
		}
		q.Score.Input = scorer.Prompt(strings.Repeat("word ", 100))
		if d := w.route(q); d.Tokens != 125 || !d.Estimated {
			t.Errorf("%s: %+v", policy, d)
		}
	}
}

// noPrompt is a scorer that is to be asked for no prompt.
type noPrompt struct{ route.Scorer }

func (s noPrompt) Score(ctx context.Context, r scorer.Request) (*scorer.Response, error) {
	if n, estimated := r.Input.Size(); n > 0 || estimated {
		return nil, errors.New("the prompt was looked up")
	}
	return s.Scorer.Score(ctx, r)
}

// TestOwnSelector routes by a policy that a user registers.
func TestOwnSelector(t *testing.T) {
	route.Register(route.Policy{Name: "test_last", Weigh: func(v *route.View) loads.Weights {
		for i := range v.Candidates {
			v.Candidates[i].Cost = route.Cost{Base: float64(-i), Factor: 1, Terms: []route.Term{{Name: "place", Value: float64(-i)}}}
		}
		return loads.Weights{}
	}})
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "z"}, store.Pod{Name: "k"})
	q := ask(prompt(1, 100))
	q.Overrides, q.Explain, q.Reserve = []byte(`{"policy":"test_last"}`), true, true
	d := w.route(q)
	if d.Pod != "z" || d.Costs[0].Total != -2 || d.Costs[0].Terms[0] != (route.Term{Name: "place", Value: -2}) {
		t.Errorf("%+v", d)
	}
}

// TestPinnedBeforeCost goes to a pod that is pinned, wherever the prompt is held.
func TestPinnedBeforeCost(t *testing.T) {
	w := newWorld(t, nil)
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	p := prompt(1, 1000)
	w.hold("a", 0, store.GPU, p, 992)
	q := ask(p)
	q.Pinned, q.Reserve = &store.RankRef{Pod: "b", Rank: -1}, true
	if d := w.route(q); d.Pod != "b" || len(d.Fallbacks) != 0 {
		t.Errorf("%+v", d)
	}
}

// A text that is not tokenized in time is booked by its length: otherwise a pod that works on
// many of them would look idle.
func TestNotTokenizedInTime(t *testing.T) {
	w := newWorld(t, func(c *route.Config) {
		late := scorer.TokenizerFunc(func(context.Context, tokens.Request) (tokens.Result, error) { return tokens.Result{}, nil })
		s := must.Get(scorer.New(scorer.Config{Index: c.Pods.(store.Index), Tokenizer: late, BlockSize: 16, Budget: 10 * time.Second}))(t)
		c.Scorer = s
	})
	w.register(store.Pod{Name: "a"}, store.Pod{Name: "b"})
	text := strings.Repeat("word ", 4000)
	for _, x := range []struct {
		what   string
		change func(q *route.Request)
		want   int64
	}{
		{"a text", func(*route.Request) {}, 5000},
		{"a text that is cut", func(q *route.Request) { q.Score.Truncation.Keep = 100 }, 100},
		{"a chat with an image", func(q *route.Request) {
			image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 40_000) + `"}}`
			q.Score.Input = scorer.Chat(tokens.Chat{Messages: []byte(`[{"role":"user","content":[{"type":"text","text":"` + text + `"},` + image + `]}]`)})
		}, 5020},
	} {
		q := route.Request{Score: scorer.Request{Model: "m", Input: scorer.Prompt(text)}, Reserve: true, ID: x.what}
		x.change(&q)
		d := w.route(q)
		p := must.Get(w.Loads(t.Context(), "m"))(t)
		if got := p.Loads[d.RankRef].Prefill; got < x.want || got > x.want+10 {
			t.Errorf("%s: %d tokens are booked, want %d", x.what, got, x.want)
		}
		if d.Tokens != 0 || d.Score.Exact {
			t.Errorf("%s: the answer says %d tokens, exact %v", x.what, d.Tokens, d.Score.Exact)
		}
		must.Get(w.End(t.Context(), "m", x.what))(t)
	}
}
