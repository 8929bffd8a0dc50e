package tokenpool

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// poll waits until ok holds.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// gatedPool is a pool whose renderings wait for gate, each after it has sent to begun.
func gatedPool(t *testing.T, cfg Config) (p *Pool, begun chan struct{}, gate chan struct{}) {
	f := newFakes(t, "m")
	f.chats = sayVersion
	begun, gate = make(chan struct{}, 1000), make(chan struct{})
	cfg.Store = &mapStore{}
	cfg.Chat.Now = func() time.Time {
		begun <- struct{}{}
		<-gate
		return time.Unix(0, 0)
	}
	p = f.pool(cfg)
	must.Get(p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "x", Mode: prompt.Sync}))(t)
	return p, begun, gate
}

func asChat(content, template string) *prompt.Chat {
	return &prompt.Chat{Messages: []byte(`[{"role":"user","content":"` + content + `"}]`), ChatTemplate: template}
}

// TestCaseChatsWithoutABound: chats are rendered in turns, which texts and chats that are quick
// to render do not share with slow ones. No caller waits longer than it wants.
func TestCaseChatsWithoutABound(t *testing.T) {
	const workers = 4
	p, begun, gate := gatedPool(t, Config{Workers: workers, Budget: time.Millisecond})

	var all sync.WaitGroup
	var exact, behind atomic.Int64
	ask := func(r prompt.Request) {
		all.Go(func() {
			switch res, err := p.Tokens(t.Context(), r); {
			case err == nil && res.Exact:
				exact.Add(1)
			case err == nil && res.Behind == prompt.BehindBudget && res.Source == prompt.FromNowhere:
				behind.Add(1)
			default:
				t.Errorf("%+v: %v", res, err)
			}
		})
	}
	// 200 of which each wants to wait, then 200 that do not.
	for range 200 {
		ask(prompt.Request{Model: "m", Chat: asChat("x", "{{ messages[0].content }}"), Mode: prompt.Sync})
	}
	poll(t, "no chat begins", func() bool { return len(begun) == workers/2 })
	for range 200 {
		ask(prompt.Request{Model: "m", Chat: asChat("x", "{{ messages[0].content }}"), Budget: time.Millisecond})
	}
	poll(t, "those that do not wait are not answered", func() bool { return behind.Load() == 200 })
	if n := len(begun); n != workers/2 {
		t.Errorf("%d chats with templates of their own are rendered at once, want %d", n, workers/2)
	}
	// A text needs no turn; long chats wait for the same turns.
	if res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "another", Mode: prompt.Sync}); err != nil || !res.Exact {
		t.Errorf("a text: %+v, %v", res, err)
	}
	for _, r := range []prompt.Request{
		{Model: "m", Chat: asChat(strings.Repeat("y", slowBytes), "")},
		{Model: "m", Chat: asChat(strings.Repeat("y", slowBytes), ""), Budget: -1},
		{Model: "m", Chat: asChat(strings.Repeat("y", slowBytes), ""), Mode: prompt.Async},
	} {
		if res, err := p.Tokens(t.Context(), r); err != nil || res.Behind != prompt.BehindBudget {
			t.Errorf("a long chat: %+v, %v", res, err)
		}
	}
	if n := len(begun); n != workers/2 {
		t.Errorf("%d are rendered at once, want %d", n, workers/2)
	}
	// A short one of the model's template has turns of its own.
	ask(prompt.Request{Model: "m", Chat: asChat("z", ""), Mode: prompt.Sync})
	poll(t, "a short chat does not begin", func() bool { return len(begun) == workers/2+1 })

	// A caller that leaves while it waits gets the reason, and is not rendered later.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Tokens(ctx, prompt.Request{Model: "m", Chat: asChat("gone", "{{ 1 }}")}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
	over, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if _, err := p.Tokens(over, prompt.Request{Model: "m", Chat: asChat("gone", "{{ 1 }}"), Mode: prompt.Sync}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller whose time is over: %v", err)
	}
	close(gate)
	all.Wait()
	if n := exact.Load(); n != 201 {
		t.Errorf("%d of 201 are answered whole", n)
	}
	if n := len(begun); n != 201 {
		t.Errorf("%d renderings for 201 callers that waited", n)
	}
}

// A rendering whose caller has left goes on with what the chat was then, and its text is known
// afterwards to those who ask for it in the same way.
func TestRenderingGoesOnBehind(t *testing.T) {
	const messages = `[{"role":"user","content":"hello"}]`
	for _, mode := range []prompt.Mode{prompt.Wait, prompt.Async} {
		for _, api := range []prompt.API{prompt.APIChat, prompt.APIMessages, prompt.APIResponses} {
			p, begun, gate := gatedPool(t, Config{Budget: time.Millisecond})
			ask := func(content []byte, mode prompt.Mode) (prompt.Result, error) {
				c := &prompt.Chat{API: api}
				switch api {
				case prompt.APIChat:
					c.Messages = content
				case prompt.APIMessages:
					c.System, c.Messages = content, []byte(messages)
				case prompt.APIResponses:
					c.Input = content
				}
				return p.Tokens(t.Context(), prompt.Request{Model: "m", Chat: c, Scope: "tenant", Mode: mode})
			}
			content := messages
			if api == prompt.APIMessages {
				content = `"hello"`
			}
			memory := []byte(content)
			if res, err := ask(memory, mode); err != nil || res.Behind != prompt.BehindBudget {
				t.Fatalf("%+v, %v", res, err)
			}
			<-begun
			clear(memory) // it is the caller's again
			close(gate)
			poll(t, "the text is not tokenized behind", func() bool { return p.n.tokenized.Load() == 2 })
			res, err := ask([]byte(content), prompt.Sync)
			if err != nil || !res.Exact || res.Bytes != len("1:hello") {
				t.Errorf("%q: %+v, %v", api, res, err)
			}
			if n := p.n.tokenized.Load(); n != 2 {
				t.Errorf("%q: %d texts were tokenized, want 2", api, n)
			}
		}
	}
}

// Close does not leave renderings behind, and waits for those under way.
func TestCloseWaitsForRenderings(t *testing.T) {
	p, begun, gate := gatedPool(t, Config{Workers: 1})
	failed := make(chan error, 2)
	for range 2 { // one of them has the turn
		go func() {
			_, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Chat: asChat("x", "{{ 1 }}"), Mode: prompt.Sync})
			failed <- err
		}()
	}
	<-begun
	closed := make(chan struct{})
	go func() { defer close(closed); _ = p.Close() }()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("the one that waits: %v", err)
	}
	select {
	case <-closed:
		t.Error("closed while a chat is rendered")
	default:
	}
	close(gate)
	<-closed
	if err := <-failed; err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
		t.Errorf("the one that was rendered: %v", err)
	}
}

// Tokens are turned into text in turns as well.
func TestTextWaitsForItsTurn(t *testing.T) {
	p, _, _ := gatedPool(t, Config{Workers: 2})
	for range cap(p.turns.slow) {
		p.turns.slow <- struct{}{}
	}
	ids := make([]uint32, slowTokens+1)
	for i := range ids {
		ids[i] = 1000 + 'a'
	}
	if text, err := p.Text(t.Context(), "m", ids[1:], false); err != nil || len(text) != slowTokens {
		t.Errorf("few tokens: %d bytes, %v", len(text), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.Text(ctx, "m", ids, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("many tokens without a turn: %v", err)
	}
	for range cap(p.turns.slow) {
		<-p.turns.slow
	}
	if text, err := p.Text(t.Context(), "m", ids, false); err != nil || len(text) != len(ids) {
		t.Errorf("many tokens: %d bytes, %v", len(text), err)
	}
}

// What the texts in work take together stays within WorkBytes, and a text with a part that
// takes more than that is refused.
func TestWorkBytes(t *testing.T) {
	f := newFakes(t, "m")
	f.gate = make(chan struct{})
	const part = 20 << 10
	p := f.pool(Config{Workers: 8, WorkBytes: 3 * bytesPerByte * part, PieceBytes: -1})
	var all sync.WaitGroup
	ask := func(text string) {
		all.Go(func() {
			if res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Sync}); err != nil || !res.Exact {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	busy := func() (n int64) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, e := range f.made {
			n += e.busy.Load()
		}
		return n
	}
	for i := range 6 {
		ask(strings.Repeat(string(rune('a'+i)), part))
	}
	poll(t, "the texts do not begin", func() bool { return p.Stats().Running == 6 && busy() == 3 })
	ask("short")
	poll(t, "a short text waits for long ones", func() bool { return busy() == 4 })
	f.gate <- struct{}{}
	poll(t, "no text follows the one that has ended", func() bool { return f.runs() == 1 && (busy() == 4 || busy() == 3) })
	close(f.gate)
	all.Wait()
	if res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: strings.Repeat("z", 3*part+1), Mode: prompt.Sync}); !errors.Is(err, ErrTooLong) {
		t.Errorf("more than all: %+v, %v", res, err)
	}
	ask(strings.Repeat("z", 3*part))
	all.Wait()
}
