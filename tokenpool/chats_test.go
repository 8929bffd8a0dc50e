package tokenpool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

var hello = prompt.Chat{Messages: []byte(`[{"role":"user","content":"Hi"}]`)}

// sayVersion is a template that says which tokenizer it came with.
func sayVersion(_, content string) (chat.Files, error) {
	return chat.Files{Template: []byte(content + ":{{ messages[0].content }}")}, nil
}

// renderChat renders a chat as a request does that waits.
func (p *Pool) renderChat(ctx context.Context, model string, c prompt.Chat) (chat.Prompt, error) {
	r := prompt.Request{Model: model, Chat: &c, Mode: prompt.Sync}
	entry, _, err := p.chat(ctx, r)
	if err != nil {
		return chat.Prompt{}, err
	}
	out, _, err := p.render(ctx, entry, r)
	return out, err
}

func TestRenderChat(t *testing.T) {
	f := newFakes(t, "a", "b", "none", "malformed", "unreadable")
	f.chats = func(model, content string) (chat.Files, error) {
		switch model {
		case "none":
			return chat.Files{}, nil
		case "malformed":
			return chat.Files{Config: []byte("{")}, nil
		case "unreadable":
			return chat.Files{}, errors.New("cannot be read")
		}
		return sayVersion(model, content)
	}
	p := f.pool(Config{MaxTokenizers: 1})
	render := func(model string) (string, error) {
		prompt, err := p.renderChat(t.Context(), model, hello)
		return prompt.Text, err
	}
	for _, model := range []string{"a", "a", "b", "a", "b"} {
		if got, err := render(model); err != nil || got != "1:Hi" {
			t.Errorf("%s: %q, %v", model, got, err)
		}
	}
	// The tokenizer of a has made way for that of b, but not what renders its chats.
	if n := f.fetches.Load(); n != 2 {
		t.Errorf("%d loads for two models", n)
	}
	if m := p.Models(); len(m) != 1 || !m[0].ChatTemplate {
		t.Errorf("models %+v", m)
	}
	f.put("a", "2")
	f.put("b", "3")
	p.recheck()
	for model, want := range map[string]string{"a": "2:Hi", "b": "3:Hi"} {
		if got, err := render(model); err != nil || got != want {
			t.Errorf("%s, replaced: %q, %v, want %q", model, got, err, want)
		}
	}
	for model, want := range map[string]error{"nope": ErrUnknownModel, "none": chat.ErrNoTemplate, "malformed": chat.ErrFiles} {
		if _, err := render(model); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", model, err, want)
		}
	}
	if _, err := render("unreadable"); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("unreadable: %v", err)
	}
	if m := p.Models(); len(m) != 1 || m[0].ChatTemplate {
		t.Errorf("models %+v", m)
	}
	// Texts do not need a template.
	if res, err := p.Tokens(t.Context(), prompt.Request{Model: "malformed", Text: "x", Mode: prompt.Sync}); err != nil || !res.Exact {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := p.renderChat(t.Context(), "a", prompt.Chat{}); !errors.Is(err, chat.ErrRequest) {
		t.Errorf("no messages: %v", err)
	}
}

func TestRenderChatLoadsOnce(t *testing.T) {
	f := newFakes(t, "a")
	f.chats = sayVersion
	f.slow = 20 * time.Millisecond
	p := f.pool(Config{Store: &mapStore{}})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if prompt, err := p.renderChat(t.Context(), "a", hello); err != nil || prompt.Text != "1:Hi" {
				t.Errorf("%q, %v", prompt.Text, err)
			}
		})
	}
	wg.Wait()
	if n := f.fetches.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
}

func TestRenderChatGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, "a")
		f.chats = sayVersion
		f.slow = time.Hour
		p := f.pool(Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.renderChat(ctx, "a", hello); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the time is over: %v", err)
		}
		ended := make(chan error)
		go func() {
			_, err := p.renderChat(context.Background(), "a", hello) // Close ends it
			ended <- err
		}()
		synctest.Wait()
		_ = p.Close()
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("the pool is closed: %v", err)
		}
		if _, err := p.renderChat(t.Context(), "a", hello); !errors.Is(err, ErrClosed) {
			t.Errorf("the pool was closed: %v", err)
		}
	})
}

// TestChatTokens asks for the tokens of chats in each mode: those of the rendered
// text without further special tokens.
func TestChatTokens(t *testing.T) {
	f := newFakes(t, "a", "late", "never")
	f.chats = func(string, string) (chat.Files, error) {
		return chat.Files{Template: []byte("<{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}>")}, nil
	}
	p := f.pool(Config{Store: &mapStore{}})
	want := must.Get(p.Tokens(t.Context(), prompt.Request{Model: "a", Text: "<user:Hi>", NoSpecialTokens: true, Mode: prompt.Sync}))(t)
	for _, mode := range []prompt.Mode{prompt.Sync, prompt.Wait, prompt.Async} {
		got, err := p.Tokens(t.Context(), prompt.Request{Model: "a", Chat: &hello, Mode: mode, Budget: time.Minute})
		if err != nil || !got.Exact || !slices.Equal(got.Tokens, want.Tokens) || got.Bytes != len("<user:Hi>") {
			t.Errorf("mode %d: %+v, %v; want the tokens of %+v", mode, got, err, want)
		}
	}
	media := prompt.Chat{Messages: []byte(`[{"role":"user","content":"Hi"},{"role":"user","content":[{"type":"image"}]}]`)}
	before := must.Get(p.Tokens(t.Context(), prompt.Request{Model: "a", Text: "<user:Hiuser:", NoSpecialTokens: true, Mode: prompt.Sync}))(t)
	got, err := p.Tokens(t.Context(), prompt.Request{Model: "a", Chat: &media, Mode: prompt.Sync})
	if err != nil || got.Exact || got.Behind != prompt.BehindMedia || !slices.Equal(got.Tokens, before.Tokens) {
		t.Errorf("media: %+v, %v; want the tokens of %+v", got, err, before)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "a", Chat: &hello, Text: "x", Mode: prompt.Sync}); err == nil {
		t.Error("a text and a chat: no error")
	}
	for _, mode := range []prompt.Mode{prompt.Sync, prompt.Wait, prompt.Async} {
		if _, err := p.Tokens(t.Context(), prompt.Request{Model: "a", Chat: &prompt.Chat{}, Mode: mode}); !errors.Is(err, chat.ErrRequest) {
			t.Errorf("mode %d, no messages: %v", mode, err)
		}
	}
	nul := prompt.Chat{Messages: []byte(`[{"role":"user","content":"\u0000"}]`)}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "a", Chat: &nul}); !errors.Is(err, ErrInvalidText) {
		t.Errorf("NUL: %v", err)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "nope", Chat: &hello}); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("no such model: %v", err)
	}

	// A model that is not loaded is loaded behind.
	if got, err := p.Tokens(t.Context(), prompt.Request{Model: "late", Chat: &hello, Mode: prompt.Async}); err != nil || got.Exact || got.Behind != prompt.BehindAsync || got.Source != prompt.FromNowhere {
		t.Errorf("async, not loaded: %+v, %v", got, err)
	}
	for {
		got := must.Get(p.Tokens(t.Context(), prompt.Request{Model: "late", Chat: &hello, Mode: prompt.Async}))(t)
		if got.Exact {
			break
		}
		p.settle()
	}
	f.slow = time.Hour
	if got, err := p.Tokens(t.Context(), prompt.Request{Model: "never", Chat: &hello, Budget: time.Millisecond}); err != nil || got.Exact || got.Behind != prompt.BehindBudget {
		t.Errorf("wait, not loaded: %+v, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if got, err := p.Tokens(ctx, prompt.Request{Model: "never", Chat: &hello, Budget: time.Hour}); err != nil || got.Exact || got.Behind != prompt.BehindBudget {
		t.Errorf("wait, a deadline: %+v, %v", got, err)
	}
}

func TestChatConfig(t *testing.T) {
	if _, err := New(Config{Origin: newFakes(t), Chat: chat.Options{Engine: "x"}}); err == nil || !strings.Contains(err.Error(), "Chat") {
		t.Errorf("an unknown engine: %v", err)
	}
	f := newFakes(t, "a")
	f.chats = func(string, string) (chat.Files, error) {
		return chat.Files{Template: []byte("{{ 'x' * 101 }}")}, nil
	}
	p := f.pool(Config{MaxTextBytes: 100})
	if _, err := p.renderChat(t.Context(), "a", hello); !errors.Is(err, chat.ErrLimit) {
		t.Errorf("a prompt longer than MaxTextBytes: %v", err)
	}
}

// TestDirectoryChats says that new files are new versions, and that a broken one
// does not keep the tokenizer.
func TestDirectoryChats(t *testing.T) {
	root := t.TempDir()
	writeFile(t, "1", root, "m", tokenfile.TokenizerFile)
	writeFile(t, `{"chat_template":"config"}`, root, "m", tokenfile.ConfigFile)
	d := must.Get(NewDirectory(root))(t)
	p := must.Get(newPool(Config{Origin: d}, newFakes(t).read))(t)
	defer func() { _ = p.Close() }()
	check := func(want string) {
		t.Helper()
		p.recheck()
		if prompt, err := p.renderChat(t.Context(), "m", hello); err != nil || prompt.Text != want {
			t.Errorf("%q, %v, want %q", prompt.Text, err, want)
		}
	}
	check("config")
	writeFile(t, "jinja", root, "m", "chat_template.jinja")
	check("jinja")
	writeFile(t, "another", root, "m", "chat_template.jinja") // of another size, in the same tick of the clock
	check("another")
	must.OK(t, os.Remove(filepath.Join(root, "m", "chat_template.jinja")))
	check("config")
	must.OK(t, os.Mkdir(filepath.Join(root, "m", "chat_template.jinja"), 0o755))
	p.recheck()
	_, err := p.renderChat(t.Context(), "m", hello)
	if err == nil || !strings.Contains(err.Error(), "chat_template.jinja is not a regular file") || strings.Contains(err.Error(), root) {
		t.Errorf("a folder for a template: %v", err)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "x", Mode: prompt.Sync}); err != nil {
		t.Errorf("a text: %v", err)
	}
}

func TestHubChats(t *testing.T) {
	h := newFakeHub(t)
	base := strings.TrimSuffix(hubPath, tokenfile.TokenizerFile)
	h.files[hubPath] = "1"
	h.files[base+tokenfile.ConfigFile] = `{"bos_token":"<s>"}`
	h.files[base+"chat_template.jinja"] = "jinja {{ bos_token }}{{ eos_token }}"
	h.files[base+toolTemplate] = "tools"
	h.files[base+"special_tokens_map.json"] = `{"eos_token":"</s>"}`
	p := must.Get(newPool(Config{Origin: h.client(HubConfig{})}, newFakes(t).read))(t)
	defer func() { _ = p.Close() }()
	if prompt, err := p.renderChat(t.Context(), "org/model", hello); err != nil || prompt.Text != "jinja <s></s>" {
		t.Errorf("%q, %v", prompt.Text, err)
	}
	// A page in place of a template is refused.
	h.set(func(h *fakeHub) { h.files[base+"chat_template.jinja"] = "\n<!DOCTYPE html><title>Sign in</title>" })
	if files, err := h.client(HubConfig{}).Fetch(t.Context(), "org/model"); err != nil || files.Chat.Template != nil {
		t.Errorf("a page: %q, %v", files.Chat.Template, err)
	}
	req := hello
	req.Tools = []byte("[]")
	if prompt, err := p.renderChat(t.Context(), "org/model", req); err != nil || prompt.Text != "tools" {
		t.Errorf("%q, %v", prompt.Text, err)
	}
}

// TestToolsHaveTheTokensOfVLLM counts the tokens of chats with a tool as clients write
// them. The numbers are those of vLLM 0.32's server.
func TestToolsHaveTheTokensOfVLLM(t *testing.T) {
	const model = "Qwen/Qwen3-8B"
	count := func(form prompt.ToolForm, tool string) int {
		t.Helper()
		p := realPool(t, Config{Chat: chat.Options{Tools: form}})
		defer func() { _ = p.Close() }()
		req := prompt.Chat{Messages: []byte(`[{"role":"user","content":"a"}]`), Tools: []byte("[" + tool + "]")}
		res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Chat: &req, Mode: prompt.Sync})
		if err != nil || !res.Exact {
			t.Fatalf("exact %v, %v", res.Exact, err)
		}
		return len(res.Tokens)
	}
	const plain = `{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`
	for tool, want := range map[string]int{plain: 121, `{"type":"function","function":{"name":"f","description":"d"}}`: 117} {
		if n := count("", tool); n != want {
			t.Errorf("%s has %d tokens, in vLLM %d", tool, n, want)
		}
	}
	if n := count(prompt.ToolsAsSent, plain); n != 116 {
		t.Errorf("as sent it has %d tokens, want 116", n)
	}
}
