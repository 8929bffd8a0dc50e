package tokenpool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.slow = 400 * time.Millisecond
		f.took = 30 * time.Millisecond
		p := f.pool(Config{Store: &mapStore{}})
		ctx := t.Context()
		ask := func(text string) (prompt.Result, error) { return p.Tokens(ctx, prompt.Request{Model: "m", Text: text}) }

		// The load counts against the budget.
		start := time.Now()
		res, err := ask("abc")
		want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindBudget)
		if d := time.Since(start); d != 50*time.Millisecond {
			t.Errorf("answered after %v, want the budget", d)
		}
		// Load and tokenization go on behind, and end in the store.
		time.Sleep(time.Second)
		res, err = ask("abc")
		want(t, res, err, tokensOf("abc"), prompt.FromPrefixStore, true, 3, "")
		if f.runs() != 1 {
			t.Errorf("%d runs, want 1", f.runs())
		}
		// Inside the budget the answer is exact.
		start = time.Now()
		res, err = ask("abcd")
		want(t, res, err, tokensOf("abcd"), prompt.FromTokenizer, true, 4, "")
		if d := time.Since(start); d != 30*time.Millisecond {
			t.Errorf("answered after %v, want 30ms", d)
		}
		time.Sleep(time.Second)
		// A budget that is too short gives the known prefix.
		res, err = p.Tokens(ctx, prompt.Request{Model: "m", Text: "abcde", Budget: 10 * time.Millisecond})
		want(t, res, err, []uint32{1, 1097, 1098, 1099, 1100}, prompt.FromPrefixStore, false, 4, prompt.BehindBudget)
		res, err = p.Tokens(ctx, prompt.Request{Model: "m", Text: "abcdf", Budget: -1})
		want(t, res, err, []uint32{1, 1097, 1098, 1099, 1100}, prompt.FromPrefixStore, false, 4, prompt.BehindBudget)
		// A deadline is a shorter budget, even one that is over.
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		res, err = p.Tokens(short, prompt.Request{Model: "m", Text: "abx"})
		want(t, res, err, []uint32{1, 1097, 1098}, prompt.FromPrefixStore, false, 2, prompt.BehindBudget)
		res, err = p.Tokens(short, prompt.Request{Model: "m", Text: "aby"})
		want(t, res, err, []uint32{1, 1097, 1098}, prompt.FromPrefixStore, false, 2, prompt.BehindBudget)
		// A caller that has gone away gets an error.
		gone, cancel := context.WithCancel(ctx)
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err := p.Tokens(gone, prompt.Request{Model: "m", Text: "abz"}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		time.Sleep(time.Second)
		for _, text := range []string{"abcde", "abcdf", "abx", "aby", "abz"} {
			res, err := ask(text)
			want(t, res, err, tokensOf(text), prompt.FromPrefixStore, true, len(text), "")
		}
		s := p.Stats()
		if s.Whole != 6 || s.Tokenized != 1 || s.Partial != 4 || s.None != 1 || s.Budget != 5 || s.Failed != 1 || s.Runs != 7 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.slow, f.took = time.Second, time.Second
		p := f.pool(Config{Store: &mapStore{}})
		start := time.Now()
		ask := func(text string, plain bool) (prompt.Result, error) {
			return p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Async, NoSpecialTokens: plain})
		}
		res, err := ask("abc", false)
		want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindAsync)
		if time.Since(start) != 0 {
			t.Errorf("answered after %v, want at once", time.Since(start))
		}
		time.Sleep(3 * time.Second)
		res, err = ask("abc", false)
		want(t, res, err, tokensOf("abc"), prompt.FromPrefixStore, true, 3, "")
		// With and without special tokens are two texts.
		res, err = ask("abc", true)
		want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindAsync)
		time.Sleep(3 * time.Second)
		res, err = ask("abc", true)
		want(t, res, err, []uint32{1097, 1098, 1099}, prompt.FromPrefixStore, true, 3, "")
		res, err = ask("abd", true)
		want(t, res, err, []uint32{1097, 1098}, prompt.FromPrefixStore, false, 2, prompt.BehindAsync)
	})
}

// TestRoom has the tokens of a known text put into the caller's memory, if that is large enough.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		p := f.pool(Config{Store: &mapStore{}})
		for _, c := range []struct {
			room   int
			from   prompt.Source
			inRoom bool
		}{
			{100, prompt.FromTokenizer, false}, // which others may wait for too
			{100, prompt.FromPrefixStore, true},
			{2, prompt.FromPrefixStore, false},
			{0, prompt.FromPrefixStore, false},
		} {
			room := make([]uint32, 0, c.room)
			res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: prompt.Sync, Room: room})
			want(t, res, err, tokensOf("abc"), c.from, true, 3, "")
			if c.room > 0 && (&res.Tokens[0] == &room[:1][0]) != c.inRoom {
				t.Errorf("room for %d tokens, %s: tokens in it: %v", c.room, c.from, !c.inRoom)
			}
			synctest.Wait() // the store has the text
		}
	})
}

func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.slow, f.took = 5*time.Second, time.Second
		p := f.pool(Config{Workers: 1, Queue: 1})
		// Many more than fit into the queue: all wait, and are right.
		var wg sync.WaitGroup
		for i := range 20 {
			text := fmt.Sprint("text ", i)
			wg.Go(func() {
				res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Sync, Budget: time.Nanosecond})
				want(t, res, err, tokensOf(text), prompt.FromTokenizer, true, len(text), "")
			})
		}
		wg.Wait()

		// Those whose time ends go away; in the queue or before it.
		var before, in int
		var mu sync.Mutex
		for i := range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
				defer cancel()
				_, err := p.Tokens(ctx, prompt.Request{Model: "m", Text: fmt.Sprint("late ", i), Mode: prompt.Sync})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
				case !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("error %v", err)
				case errors.Is(err, ErrBusy):
					before++
				default:
					in++
				}
			})
		}
		wg.Wait()
		if in != 2 || before != 6 { // 2 done, 1 in work, 1 in the queue
			t.Errorf("%d gave up in the queue and %d before it, want 2 and 6", in, before)
		}
	})
}

func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m", "other")
		p := f.pool(Config{Workers: 1, Queue: 2, QueueBytes: 100, MaxTextBytes: 50, Store: &mapStore{}})
		ask := func(model, text string, mode prompt.Mode) (prompt.Result, error) {
			synctest.Wait() // until the store has what came before
			return p.Tokens(t.Context(), prompt.Request{Model: model, Text: text, Mode: mode})
		}
		res, err := ask("m", "abc", prompt.Sync)
		want(t, res, err, tokensOf("abc"), prompt.FromTokenizer, true, 3, "")
		synctest.Wait()
		f.took, f.slow = time.Hour, time.Hour
		for i := range 3 { // one in work, two in the queue
			res, err := ask("m", fmt.Sprint("abc", i), prompt.Async)
			want(t, res, err, tokensOf("abc")[:4], prompt.FromPrefixStore, false, 3, prompt.BehindAsync)
			synctest.Wait()
		}
		if s := p.Stats(); s.Queued != 2 || s.Running != 1 || s.HeldBytes != 12 {
			t.Errorf("stats %+v", s)
		}
		start := time.Now()
		for _, mode := range []prompt.Mode{prompt.Wait, prompt.Async} {
			res, err = ask("m", "abc9", mode)
			want(t, res, err, tokensOf("abc")[:4], prompt.FromPrefixStore, false, 3, prompt.BehindBusy)
			res, err = ask("m", "zzz", mode)
			want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindBusy)
		}
		if time.Since(start) != 0 {
			t.Errorf("busy after %v, want at once", time.Since(start))
		}
		// The same text as one in the queue needs no place.
		res, err = ask("m", "abc2", prompt.Wait)
		want(t, res, err, tokensOf("abc")[:4], prompt.FromPrefixStore, false, 3, prompt.BehindBudget)
		// Waiters for a load have as many places.
		for i := range 2 {
			res, err = ask("other", fmt.Sprint(i), prompt.Async)
			want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindAsync)
		}
	})
}

func TestQueueBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.took = time.Hour
		p := f.pool(Config{Queue: 100, QueueBytes: 100, MaxTextBytes: 60})
		text := strings.Repeat("a", 60)
		res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Async})
		want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindAsync)
		res, err = p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text[:41], Mode: prompt.Async})
		want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindBusy)
		res, err = p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text[:40], Mode: prompt.Async})
		want(t, res, err, nil, prompt.FromNowhere, false, 0, prompt.BehindAsync)
		// Sync waits for it.
		start := time.Now()
		res, err = p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text[:41], Mode: prompt.Sync})
		want(t, res, err, tokensOf(text[:41]), prompt.FromTokenizer, true, 41, "")
		if d := time.Since(start); d != 2*time.Hour {
			t.Errorf("answered after %v, want 2h", d)
		}
	})
}

func TestSameTextOnce(t *testing.T) {
	for _, store := range []*mapStore{nil, {}, {refuse: true}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes(t, "m")
			f.took, f.slow = 100*time.Millisecond, time.Second
			cfg := Config{Workers: 8}
			if store != nil {
				cfg.Store = store
			}
			p := f.pool(cfg)
			for round := range 2 { // with the tokenizer to be loaded, and loaded
				text := fmt.Sprint("same ", round)
				var wg sync.WaitGroup
				answers := make([]prompt.Result, 100)
				for i := range answers {
					wg.Go(func() {
						// A third goes away early; the others get their tokens.
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						if i%3 == 0 {
							time.AfterFunc(10*time.Millisecond, cancel)
						}
						mode := []prompt.Mode{prompt.Sync, prompt.Wait}[i%2]
						res, err := p.Tokens(ctx, prompt.Request{Model: "m", Text: text, Mode: mode, Budget: time.Minute})
						if i%3 == 0 {
							if !errors.Is(err, context.Canceled) {
								t.Errorf("cancelled: %v", err)
							}
							return
						}
						want(t, res, err, tokensOf(text), prompt.FromTokenizer, true, len(text), "")
						answers[i] = res
					})
				}
				wg.Wait()
				if n := f.runs(); n != int64(round+1) {
					t.Errorf("tokenized %d times in round %d", n, round)
				}
				for i, a := range answers {
					if i%3 != 0 && &a.Tokens[0] != &answers[1].Tokens[0] {
						t.Errorf("answer %d has tokens of its own", i)
					}
				}
			}
			if f.fetches.Load() != 1 {
				t.Errorf("loaded %d times", f.fetches.Load())
			}
		})
	}
}

// TestScopes: what one scope has asked neither answers nor hastens what another asks.
func TestScopes(t *testing.T) {
	for _, kind := range []string{"map", "lru", "trie"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes(t, "m")
			f.took = 30 * time.Millisecond
			cfg := Config{Store: &mapStore{}, Workers: 8}
			if kind != "map" {
				var err error
				if cfg.Store, err = prefixcache.New(kind, prefixcache.Config{MaxBytes: 1 << 20}); err != nil {
					t.Fatal(err)
				}
			}
			p := f.pool(cfg)
			ask := func(scope string, source prompt.Source) {
				t.Helper()
				text := strings.Repeat("a prompt ", 100)
				start := time.Now()
				res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Scope: scope, Mode: prompt.Sync})
				want(t, res, err, tokensOf(text), source, true, len(text), "")
				if took := time.Since(start); (took < 30*time.Millisecond) != (source == prompt.FromPrefixStore) {
					t.Errorf("scope %q: answered after %v", scope, took)
				}
			}
			for _, scope := range []string{"", "a", "b", "ab"} {
				ask(scope, prompt.FromTokenizer)
				synctest.Wait()
				ask(scope, prompt.FromPrefixStore)
			}
			// One text at the same time is tokenized for each scope.
			before := f.runs()
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					_, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "another", Scope: []string{"", "a", "b"}[i%3], Mode: prompt.Sync})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := f.runs() - before; n != 3 {
				t.Errorf("%s: tokenized %d times for three scopes", kind, n)
			}
		})
	}
}

// TestOwnerLeaves is the case of a text whose first asker goes away before it
// is in the queue, while others have joined.
func TestOwnerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m")
		f.took = 10 * time.Second
		p := f.pool(Config{Workers: 1, Queue: 1})
		must.Get(p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "x", Mode: prompt.Sync}))(t)
		for _, text := range []string{"in work", "queued"} {
			_, _ = p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Async})
			synctest.Wait()
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := p.Tokens(ctx, prompt.Request{Model: "m", Text: "abc", Mode: prompt.Sync})
			if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("owner: %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Mode: prompt.Sync})
				want(t, res, err, tokensOf("abc"), prompt.FromTokenizer, true, 3, "")
			})
		}
		wg.Go(func() {
			res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "abc", Budget: 2 * time.Second})
			if err != nil || res.Exact || (res.Behind != prompt.BehindBusy && res.Behind != prompt.BehindBudget) {
				t.Errorf("who waits: %+v, %v", res, err)
			}
		})
		wg.Wait()
		if f.runs() != 4 {
			t.Errorf("%d runs, want 4", f.runs())
		}
	})
}

func TestTexts(t *testing.T) {
	f := newFakes(t, "m")
	p := f.pool(Config{MaxTextBytes: 20, Store: &mapStore{}})
	for _, c := range []struct {
		text string
		err  error
		says string
	}{
		{"", nil, ""},
		{"é€😀", nil, ""},
		{strings.Repeat("x", 20), nil, ""},
		{strings.Repeat("x", 21), ErrTooLong, "21 bytes, the limit is 20"},
		{"ab\x00c", ErrInvalidText, "NUL byte at byte 2"},
		{"\x00", ErrInvalidText, "NUL byte at byte 0"},
		{"é\xff", ErrInvalidText, "byte 2 (0xff)"},
		{"ab\xe2\x82", ErrInvalidText, "byte 2 (0xe2)"},
		{"\xed\xa0\x80", ErrInvalidText, "byte 0 (0xed)"}, // a surrogate
		{"�\xc0\x80", ErrInvalidText, "byte 3 (0xc0)"},    // an overlong NUL
		{"fails!", ErrTokenizer, "6 bytes"},
		{"...", nil, ""}, // rightly no tokens of its own
	} {
		for _, plain := range []bool{false, true} {
			for _, mode := range []prompt.Mode{prompt.Sync, prompt.Wait} {
				res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: c.text, Mode: mode, NoSpecialTokens: plain, Budget: time.Minute})
				if !errors.Is(err, c.err) || (err != nil && !strings.Contains(err.Error(), c.says)) {
					t.Errorf("%q: error %v, want %v with %q", c.text, err, c.err, c.says)
					continue
				}
				if err != nil {
					if strings.Contains(err.Error(), c.text) {
						t.Errorf("%q: the error holds the text: %v", c.text, err)
					}
					continue
				}
				ids, _ := fakeTokens(c.text, !plain, "1")
				if !slices.Equal(res.Tokens, ids) || !res.Exact || res.Bytes != len(c.text) {
					t.Errorf("%q: %+v, want %v", c.text, res, ids)
				}
			}
		}
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Mode: 3}); err == nil {
		t.Error("mode 3 is taken")
	}
}

func TestConfigLimits(t *testing.T) {
	origin := newFakes(t)
	for name, c := range map[string]Config{
		"Origin":        {},
		"Workers":       {Origin: origin, Workers: -1},
		"Queue":         {Origin: origin, Queue: math.MaxInt},
		"QueueBytes":    {Origin: origin, QueueBytes: 10, MaxTextBytes: 11},
		"MaxTextBytes":  {Origin: origin, MaxTextBytes: MaxTextLimit + 1},
		"Budget":        {Origin: origin, Budget: -time.Second},
		"MaxTokenizers": {Origin: origin, MaxTokenizers: 1025},
		"LoadTimeout":   {Origin: origin, LoadTimeout: 2 * time.Hour},
		"FailureTTL":    {Origin: origin, FailureTTL: time.Hour},
		"Recheck":       {Origin: origin, Recheck: time.Nanosecond},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "m", "slow")
		p := f.pool(Config{Workers: 2, Queue: 2})
		must.Get(p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "x", Mode: prompt.Sync}))(t)
		f.took, f.slow = time.Minute, time.Hour
		// In work, in the queue, before the queue, behind a load, before that.
		var wg sync.WaitGroup
		for _, model := range []string{"m", "slow"} {
			for i := range 8 {
				wg.Go(func() {
					_, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: fmt.Sprint(i), Mode: prompt.Sync})
					if !errors.Is(err, ErrClosed) {
						t.Errorf("error %v, want ErrClosed", err)
					}
				})
			}
		}
		synctest.Wait()
		start := time.Now()
		for range 2 {
			wg.Go(func() {
				_ = p.Close()
				if d := time.Since(start); d != time.Minute {
					t.Errorf("closed after %v, want when the texts in work are done", d)
				}
			})
		}
		wg.Wait()
		for _, mode := range []prompt.Mode{prompt.Wait, prompt.Async, prompt.Sync} {
			if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "x", Mode: mode}); !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if len(p.Models()) != 0 {
			t.Error("models after Close")
		}
	})
}
