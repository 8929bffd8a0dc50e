package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// many is n times s in an array.
func many(n int, s string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(s+",", n), ",") + "]"
}

// TestLimitsOfRequests has each limit at its edge and one beyond.
func TestLimitsOfRequests(t *testing.T) {
	one := `[{"role":"user","content":"x"}]`
	call := `{"id":"1","type":"function","function":{"name":"f","arguments":%s}}`
	calls := func(calls string) string { return `[{"role":"assistant","tool_calls":` + calls + `}]` }
	r := newRenderer(t, Files{Template: []byte("{{ messages|length }}")}, Options{Limits: Limits{Items: 10, Values: 100}})
	hf := newRenderer(t, Files{Template: []byte("{{ messages|length }}")}, Options{Engine: EngineTransformers, Limits: Limits{Items: 10, Values: 100}})
	kwargs := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":%d`, i, i)
		}
		return "{" + b.String()[1:] + "}"
	}
	for _, c := range []struct {
		name  string
		make  func(n int) prompt.Chat
		most  int
		where string
		in    *Renderer
	}{
		{"messages", func(n int) prompt.Chat { return prompt.Chat{Messages: []byte(many(n, `{"role":"user"}`))} }, 10, "messages: ", r},
		{"parts", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(`[{"role":"user","content":` + many(n, `""`) + `}]`)}
		}, 9, "messages[0].content: ", r},
		{"parts for transformers", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(`[{"role":"user","content":` + many(n, `""`) + `}]`)}
		}, 9, "messages[0].content: ", hf},
		{"calls", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(calls(many(n, fmt.Sprintf(call, `"{}"`))))}
		}, 9, "messages[0].tool_calls: ", r},
		{"tools", func(n int) prompt.Chat { return prompt.Chat{Messages: []byte(one), Tools: []byte(many(n, `{}`))} }, 9, "tools: ", r},
		{"documents", func(n int) prompt.Chat { return prompt.Chat{Messages: []byte(one), Documents: []byte(many(n, `{}`))} }, 9, "documents: ", r},
		// [, {, two strings; [, {, {, [
		{"values", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), Tools: []byte(`[{"parameters":{"a":` + many(n, `0`) + `}}]`)}
		}, 92, "tools: ", r},
		// The call has an id, a type, a name, and arguments: a string, and then an
		// object and an array.
		{"values of arguments", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(calls(many(1, fmt.Sprintf(call, `"{\"a\":`+many(n, `0`)+`}"`))))}
		}, 100 - 12, "messages[0].tool_calls[0]: ", r},
		{"values of kwargs", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), ChatTemplateKwargs: []byte(`{"a":` + many(n, `0`) + `}`)}
		}, 94, "chat_template_kwargs: ", r},
		{"kwargs", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), ChatTemplateKwargs: []byte(kwargs(n))}
		}, maxKwargs, "chat_template_kwargs: ", newRenderer(t, Files{Template: []byte("x")}, Options{})},
		{"defaults: items", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(`[{"role":"user","content":` + many(n, `""`) + `}]`)}
		}, defaultItems - 1, "messages[0].content: ", newRenderer(t, Files{Template: []byte("x")}, Options{})},
		{"defaults: values", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), Tools: []byte(`[{"a":` + many(n, `0`) + `}]`)}
		}, defaultValues - 7, "tools: ", newRenderer(t, Files{Template: []byte("x")}, Options{})},
	} {
		if _, err := c.in.Render(c.make(c.most)); err != nil {
			t.Errorf("%s: at the limit: %v", c.name, err)
		}
		if _, err := c.in.Render(c.make(c.most + 1)); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), ": "+c.where) {
			t.Errorf("%s: beyond the limit: %v", c.name, err)
		}
	}
}

// TestDeep: what is nested too deep for the library is refused with its place.
func TestDeep(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	one := `[{"role":"user","content":"x"}]`
	r := newRenderer(t, Files{Template: []byte(`{{ messages[0].tool_calls|tojson if messages[0].tool_calls }}{{ tools|tojson }}`)}, Options{})
	for _, c := range []struct {
		name  string
		make  func(n int) prompt.Chat
		most  int
		where string
	}{
		{"tools", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), Tools: []byte(`[{"a":` + deep(n) + `}]`)}
		}, 197, "tools: "},
		{"documents", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), Documents: []byte(`[{"a":` + deep(n) + `}]`)}
		}, 197, "documents: "},
		{"kwargs", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(one), ChatTemplateKwargs: []byte(`{"a":` + deep(n) + `}`)}
		}, 198, "chat_template_kwargs: "},
		{"arguments", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":` + deep(n) + `}}}]}]`)}
		}, 193, "messages: "},
		{"arguments in a string", func(n int) prompt.Chat {
			return prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":` + deep(n) + `}"}}]}]`)}
		}, 193, "messages[0].tool_calls[0]: "},
	} {
		if _, err := r.Render(c.make(c.most)); err != nil {
			t.Errorf("%s: at the limit: %v", c.name, err)
		}
		if _, err := r.Render(c.make(c.most + 1)); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), ErrRequest.Error()+": "+c.where) {
			t.Errorf("%s: beyond the limit: %v", c.name, err)
		}
	}
	// What else the library does not read.
	_, err := r.Render(prompt.Chat{Messages: []byte(one), Tools: []byte(`[{"a":"\ud800"}]`)})
	if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), ErrRequest.Error()+": tools: ") {
		t.Errorf("half of a surrogate pair: %v", err)
	}
}

// TestValues holds the count against encoding/json.
func TestValues(t *testing.T) {
	var count func(v any) int
	count = func(v any) int {
		n := 1
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				n += count(e)
			}
		case map[string]any:
			for _, e := range v {
				n += count(e)
			}
		}
		return n
	}
	rapid.Check(t, func(t *rapid.T) {
		raw := json.RawMessage(anyJSON(3).Draw(t, "json"))
		var v any
		must.OK(t, json.Unmarshal(raw, &v))
		b := newBudget(context.Background(), Limits{})
		if err := b.value("x", raw, 0); err != nil || b.values < count(v) {
			t.Fatalf("%d values of %s, want %d or more (repeated keys): %v", b.values, raw, count(v), err)
		}
		if n := b.values; !strings.Contains(string(raw), ":") && n != count(v) {
			t.Fatalf("%d values of %s, want %d", n, raw, count(v))
		}
	})
}

// ends is a context that ends after it has been looked at n times.
type ends struct {
	context.Context //nolint:containedctx // it is one
	n               int
}

func (e *ends) Err() error {
	if e.n--; e.n < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestContext ends the caller's time at each place where it is looked at.
func TestContext(t *testing.T) {
	r := newRenderer(t, Files{Template: []byte("{{ messages|length }}")}, Options{})
	req := prompt.Chat{
		Messages: []byte(strings.TrimSuffix(many(2*checkEvery, `{"role":"user","content":"x"}`), "]") +
			`,{"role":"user","content":` + many(2*checkEvery, `{"type":"image"}`) + `}]`),
		Tools: []byte(`[{}]`),
	}
	ended := 0
	for {
		_, err := r.RenderContext(&ends{t.Context(), ended}, req)
		if err == nil {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) || ended > 100 {
			t.Fatalf("after %d: %v", ended, err)
		}
		ended++
	}
	// Twice, as the chat has media: fields, messages, parts and the template.
	if ended < 16 {
		t.Errorf("the context is looked at %d times", ended)
	}
}

// TestManyKeys: objects with many keys take no time that grows with their square.
func TestManyKeys(t *testing.T) {
	var b strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&b, `,"k%d":0`, i)
	}
	b.WriteString(`,"k7":1`)
	ms := members(json.RawMessage("{" + b.String()[1:] + "}"))
	if len(ms) != 300_000 || string(ms[7].value) != "1" || ms[299_999].key != "k299999" {
		t.Errorf("%d members, %s", len(ms), ms[7].value)
	}
	for _, engine := range []Engine{EngineVLLM, EngineTransformers} {
		r := newRenderer(t, Files{Template: []byte("x")}, Options{Engine: engine})
		if _, err := r.Render(prompt.Chat{Messages: []byte(`[{"role":"user","content":"x","thinking":"t"` + b.String() + `}]`)}); err != nil {
			t.Error(err)
		}
	}
}
