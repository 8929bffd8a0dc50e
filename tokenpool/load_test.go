package tokenpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

func TestLoadBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.slow = time.Second
		p := f.pool(Config{Queue: 10, Workers: 2})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				text := fmt.Sprint(i)
				res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Sync})
				want(t, res, err, tokensOf(text), prompt.FromTokenizer, true, len(text), "")
			})
		}
		wg.Wait()
		if f.fetches.Load() != 1 {
			t.Errorf("loaded %d times", f.fetches.Load())
		}
		m := p.Models()
		if len(m) != 1 || m[0].Name != "m" || m[0].From != "fake" || m[0].FileBytes != 1 || m[0].Vocabulary != 2000 ||
			m[0].LoadTook != time.Second || m[0].Texts != 100 || len(m[0].Fingerprint) != 16 {
			t.Errorf("models %+v", m)
		}
	})
}

// TestFailedLoad: an unknown model is the same error in all modes, and neither
// a storm of requests nor a storm of loads.
func TestFailedLoad(t *testing.T) {
	for _, c := range []struct {
		name, content string
		down          error
		is            error
		says          string
		still         error // while it is tried again
	}{
		{"unknown", "", nil, ErrUnknownModel, `no tokenizer for model "m": no fake`, ErrUnknownModel},
		{"unreadable", "bad", nil, tokenfile.ErrBroken, `model "m": its tokenizer.json is not JSON from byte 1 on: fetch the file again`, tokenfile.ErrBroken},
		{"down", "1", errors.New("out of order"), tokenfile.ErrLoad, "out of order", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakes(t)
				f.remote = true // known after a load only
				f.slow = time.Second
				f.put("m", c.content)
				p := f.pool(Config{Store: &mapStore{}})
				if c.down != nil {
					p.cfg.Origin = fetchFails{f, c.down}
				}
				ask := func(mode prompt.Mode) (prompt.Result, error) {
					return p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: mode})
				}
				res, err := ask(prompt.Async)
				want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindAsync)
				res, err = ask(prompt.Wait)
				want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindBudget)
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						if _, err := ask(prompt.Sync); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
							t.Errorf("error %v, want %v with %q", err, c.is, c.says)
						}
					})
				}
				wg.Wait()
				start := time.Now()
				for _, mode := range []prompt.Mode{prompt.Wait, prompt.Async, prompt.Sync} {
					for range 100 {
						if _, err := ask(mode); !errors.Is(err, c.is) {
							t.Errorf("mode %d: error %v", mode, err)
						}
					}
				}
				if d := time.Since(start); d != 0 || f.fetches.Load() != 1 {
					t.Errorf("asked %d times for it, %v", f.fetches.Load(), d)
				}
				// After a while it is tried again. That there is no tokenizer holds until then.
				time.Sleep(p.cfg.FailureTTL)
				for _, mode := range []prompt.Mode{prompt.Async, prompt.Wait} {
					for _, r := range []prompt.Request{{Text: "abc"}, {Chat: &prompt.Chat{Messages: []byte("[]")}}} {
						r.Model, r.Mode = "m", mode
						if res, err := p.Tokens(t.Context(), r); !errors.Is(err, c.still) || err == nil && res.Exact {
							t.Errorf("mode %d, tried again: %+v, error %v, want %v", mode, res, err, c.still)
						}
					}
				}
				if f.fetches.Load() != 2 {
					t.Errorf("%d loads, not a second one", f.fetches.Load())
				}
				time.Sleep(f.slow + p.cfg.FailureTTL)
				p.cfg.Origin = f
				f.put("m", "1")
				res, err = ask(prompt.Sync)
				want(t, res, err, tokensOf("abc"), prompt.FromTokenizer, true, 3, "")
			})
		})
	}
}

// fetchFails is an origin that cannot fetch.
type fetchFails struct {
	*fakes
	err error
}

func (f fetchFails) Fetch(ctx context.Context, model string) (Files, error) {
	_, _ = f.fakes.Fetch(ctx, model)
	return Files{}, f.err
}

func TestFailureOfOldVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		p := f.pool(Config{})
		f.put("m", "bad")
		ask := func() (prompt.Result, error) {
			return p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: prompt.Sync})
		}
		if _, err := ask(); !errors.Is(err, tokenfile.ErrLoad) {
			t.Errorf("error %v", err)
		}
		f.put("m", "1") // repaired: no need to wait
		res, err := ask()
		want(t, res, err, tokensOf("abc"), prompt.FromTokenizer, true, 3, "")
	})
}

func TestTokenizersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.slow, f.took = 100*time.Millisecond, 10*time.Millisecond
		var models []string
		for i := range 10 {
			models = append(models, fmt.Sprint("m", i))
			f.put(models[i], "1")
		}
		store := &mapStore{}
		var mu sync.Mutex
		var dropped []string
		p := f.pool(Config{MaxTokenizers: 3, Workers: 4, Queue: 20, Store: store, Observer: Observer{
			Dropped: func(m Model, reason string) {
				mu.Lock()
				defer mu.Unlock()
				dropped = append(dropped, m.Name+" "+reason)
			},
		}})
		ask := func(model, text string) {
			res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync})
			if err != nil || !res.Exact {
				t.Errorf("%+v, %v", res, err)
			}
		}
		// The one that was not asked for longest goes.
		for _, i := range []int{0, 1, 2, 0, 3} {
			ask(models[i], fmt.Sprint("first ", i))
		}
		if got := fmt.Sprint(dropped); got != "[m1 room]" {
			t.Errorf("dropped %v", got)
		}
		// The store still answers for a tokenizer that is gone.
		before := f.fetches.Load()
		res, err := p.Tokens(t.Context(), prompt.Request{Model: "m1", Text: "first 1"})
		want(t, res, err, tokensOf("first 1"), prompt.FromPrefixStore, true, 7, "")
		if f.fetches.Load() != before {
			t.Error("loaded for what the store knows")
		}
		// All at once, for a while.
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { ask(models[i*7%10], fmt.Sprint("all ", i)) })
		}
		wg.Wait()
		if n := f.maxLive.Load(); n > 3 {
			t.Errorf("%d tokenizers were in memory, want at most 3", n)
		}
		if n := p.Stats().Tokenizers; n > 3 {
			t.Errorf("%d tokenizers", n)
		}
	})
}

// TestBusyModelLetsOthersIn: with room for one tokenizer, a model with a
// constant stream of texts does not keep another out.
func TestBusyModelLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "busy", "other")
		f.took = 10 * time.Millisecond
		p := f.pool(Config{MaxTokenizers: 1, Workers: 1, Queue: 10})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for g := range 5 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						if _, err := p.Tokens(t.Context(), prompt.Request{Model: "busy", Text: fmt.Sprint(g, i), Mode: prompt.Sync}); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		time.Sleep(time.Second)
		start := time.Now()
		res, err := p.Tokens(t.Context(), prompt.Request{Model: "other", Text: "abc", Mode: prompt.Sync})
		want(t, res, err, tokensOf("abc"), prompt.FromTokenizer, true, 3, "")
		if d := time.Since(start); d > time.Second {
			t.Errorf("took %v", d)
		}
		close(stop)
		wg.Wait()
		if f.maxLive.Load() != 1 {
			t.Errorf("%d tokenizers at a time", f.maxLive.Load())
		}
	})
}

func TestReplacedAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		store := &mapStore{}
		p := f.pool(Config{Store: store})
		ask := func(content string, from prompt.Source) {
			t.Helper()
			synctest.Wait() // or it might find the run before
			res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: prompt.Sync})
			ids, _ := fakeTokens("abc", true, content)
			want(t, res, err, ids, from, true, 3, "")
		}
		ask("1", prompt.FromTokenizer)
		stats := f.stats.Load()
		ask("1", prompt.FromPrefixStore)
		if f.stats.Load() != stats {
			t.Error("a stat a request")
		}
		f.put("m", "2")
		ask("1", prompt.FromPrefixStore) // not noticed yet
		time.Sleep(p.cfg.Recheck)
		ask("2", prompt.FromTokenizer) // never the old file's tokens
		ask("2", prompt.FromPrefixStore)
		f.put("m", "1")
		time.Sleep(p.cfg.Recheck)
		// The old file again, whose tokens the store still has. It is not
		// loaded for them, but its version is not known as the loaded one's.
		ask("1", prompt.FromTokenizer)

		// An origin that fails leaves what is loaded alone.
		f.setDown(errors.New("out of order"))
		time.Sleep(p.cfg.Recheck)
		ask("1", prompt.FromPrefixStore)
		f.setDown(nil)
		f.put("m", "")
		time.Sleep(p.cfg.Recheck)
		for _, mode := range []prompt.Mode{prompt.Wait, prompt.Async, prompt.Sync} {
			if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: mode}); !errors.Is(err, ErrUnknownModel) {
				t.Errorf("removed: %v", err)
			}
		}
		if len(p.Models()) != 0 {
			t.Errorf("models %v", p.Models())
		}
	})
}

// TestRemoteFlood: made-up names of models do not keep the models at hand out.
func TestRemoteFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := newFakes(t)
		hub.remote, hub.slow = true, time.Hour
		f := newFakes(t, "local")
		p := f.pool(Config{Queue: 100})
		p.cfg.Origin = Chain(f, hub)
		busy := 0
		for i := range 200 {
			res := must.Get(p.Tokens(t.Context(), prompt.Request{Model: fmt.Sprint("made-up-", i), Text: "x", Mode: prompt.Async}))(t)
			if res.Behind == prompt.BehindBusy {
				busy++
			}
		}
		if busy != 150 {
			t.Errorf("%d were refused, want 150", busy)
		}
		res, err := p.Tokens(t.Context(), prompt.Request{Model: "local", Text: "abc", Budget: time.Second})
		want(t, res, err, tokensOf("abc"), prompt.FromTokenizer, true, 3, "")
	})
}

func TestLoadTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.slow = time.Hour
		p := f.pool(Config{LoadTimeout: time.Minute})
		start := time.Now()
		_, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: prompt.Sync})
		if !errors.Is(err, tokenfile.ErrLoad) || time.Since(start) != time.Minute {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
	})
}

func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m", "bad")
		f.put("bad", "bad")
		var mu sync.Mutex
		var log []string
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, fmt.Sprintf(format, args...))
		}
		p := f.pool(Config{Workers: 1, Store: &mapStore{refuse: true}, Observer: Observer{
			Tokenized: func(e TokenizedEvent) {
				note("tokenized %s %d %d %v", e.Model, e.Bytes, e.Tokens, errors.Is(e.Err, ErrTokenizer))
			},
			Loaded:       func(m Model, err error) { note("loaded %s %v", m.Name, err != nil) },
			StoreRefused: func(model string, err error) { note("refused %s", model) },
		}})
		for _, r := range []prompt.Request{{Model: "m", Text: "abc"}, {Model: "m", Text: "fails!"}, {Model: "bad", Text: "x"}} {
			r.Mode = prompt.Sync
			_, _ = p.Tokens(t.Context(), r)
			synctest.Wait()
		}
		_ = p.Close()
		wantLog := "loaded m false, refused m, tokenized m 3 5 false, tokenized m 6 0 true, loaded bad true"
		if got := strings.Join(log, ", "); got != wantLog {
			t.Errorf("log  %s\nwant %s", got, wantLog)
		}
	})
}
