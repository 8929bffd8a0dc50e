package chat

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/prompt"
)

func fixed() time.Time { return noon }

// echo writes out what it is given.
const echo = `{{ messages|tojson }}{% for m in messages %}{% endfor %}`

// echoParts does, and wants parts.
const echoParts = echo + `{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}`

// TestMessages says how each kind of message is prepared for vLLM. The cases are
// those of vLLM's own code; TestRequests compares with it at random.
func TestMessages(t *testing.T) {
	for _, c := range []struct {
		name, messages  string
		asText, asParts string // the same if empty
	}{
		{"a text", `[{"content":"x","role":"user"}]`, `[{"role": "user", "content": "x"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "x"}]}]`},
		{"null", `[{"role":"user","content":null,"name":null,"x":1}]`, `[{"role": "user", "content": ""}]`,
			`[{"role": "user", "content": []}]`},
		{"parts", `[{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"text","text":""},{"text":"c","type":"input_text","cache":1},{"type":"text","text":null},{"type":"refusal","refusal":"d"}]}]`,
			`[{"role": "user", "content": "a\nb\nc\nd"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "text", "text": ""}, {"type": "text", "text": "c"}, {"type": "text", "text": "d"}]}]`},
		{"an image", `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"a"}]}]`, `[{"role": "user", "content": "a"}]`,
			`[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}]`},
		{"a part without type", `[{"role":"user","content":[{"input_audio":{}}]}]`, `[{"role": "user", "content": ""}]`, `[{"role": "user", "content": [{"type": "audio"}]}]`},
		{"escapes stay", `[{"role":"user","content":["\u00e9\\",{"type":"text","text":"\"\n"}]}]`, `[{"role": "user", "content": "é\\\n\"\n"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "é\\"}, {"type": "text", "text": "\"\n"}]}]`},
		{"a billing line", `[{"role":"system","content":"x-anthropic-billing-header: cch=1\nBe good."},{"role":"system","content":"x-anthropic-billing-header: 2"}]`,
			`[{"role": "system", "content": "Be good."}, {"role": "system", "content": ""}]`,
			`[{"role": "system", "content": [{"type": "text", "text": "Be good."}]}, {"role": "system", "content": []}]`},
		{"a billing line of another type stays", `[{"role":"system","content":[{"type":"input_text","text":"x-anthropic-billing-header: 2"},"x-anthropic-billing-header: 3"]}]`,
			`[{"role": "system", "content": "x-anthropic-billing-header: 2"}]`,
			`[{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 2"}]}]`},
		{"a tool's result is a text", `[{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`,
			`[{"role": "tool", "content": "a\nb", "tool_call_id": "1"}]`, ""},
		{"reasoning", `[{"role":"assistant","content":"x","reasoning_content":"r"}]`,
			`[{"thinking": "r", "role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}]`,
			`[{"thinking": "r", "role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning": "r", "reasoning_content": "r"}]`},
		{"reasoning of a user", `[{"role":"user","content":null,"reasoning":"r"}]`, `[{"role": "user", "content": ""}]`, `[{"role": "user", "content": []}]`},
		{"tool calls", `[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\": 1.0, \"a\": [1e2, 123456789012345678901]}"}},{"function":{"name":"g"}},{"function":{"arguments":"{bad","name":"h"}}]}]`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1.0, "a": [100.0, 123456789012345678901]}}}, {"function": {"name": "g", "arguments": {}}}, {"function": {"arguments": {}, "name": "h"}}]}]`,
			`[{"role": "assistant", "content": [], "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1.0, "a": [100.0, 123456789012345678901]}}}, {"function": {"name": "g", "arguments": {}}}, {"function": {"arguments": {}, "name": "h"}}]}]`},
		{"no tool calls", `[{"role":"assistant","content":"x","tool_calls":[]},{"role":"user","content":"y","tool_calls":[{"function":{}}]}]`,
			`[{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]`,
			`[{"role": "assistant", "content": [{"type": "text", "text": "x"}]}, {"role": "user", "content": [{"type": "text", "text": "y"}]}]`},
		{"a developer becomes the system", `[{"role":"developer","content":"d","tools":[{}]},{"role":"user","content":"u"}]`,
			`[{"role": "system", "content": "d"}, {"role": "user", "content": "u"}]`,
			`[{"role": "system", "content": [{"type": "text", "text": "d"}]}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]`},
		{"and one with the others", `[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"developer","content":["d","e"]}]`,
			`[{"role": "system", "content": "s\n\nd\ne"}, {"role": "user", "content": "u"}]`,
			`[{"role": "system", "content": "s\n\nd\ne"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]`},
	} {
		for tmpl, want := range map[string]string{echo: c.asText, echoParts: c.asParts} {
			if want == "" {
				want = c.asText
			}
			p, err := newRenderer(t, Files{Template: []byte(tmpl)}, Options{Tools: prompt.ToolsAsSent}).Render(prompt.Chat{Messages: []byte(c.messages)})
			if err != nil || p.Text != want {
				t.Errorf("%s:\n got  %s, %v\n want %s", c.name, p.Text, err, want)
			}
		}
	}
}

// TestDeveloper leaves developers to a template that knows them.
func TestDeveloper(t *testing.T) {
	p, err := newRenderer(t, Files{Template: []byte(echo + `{% if false == "developer" %}{% endif %}`)}, Options{}).Render(prompt.Chat{Messages: []byte(`[{"role":"developer","content":"d","tools":[{"a":1}]}]`)})
	if want := `[{"role": "developer", "content": "d", "tools": [{"a": 1}]}]`; err != nil || p.Text != want {
		t.Errorf("%q, %v, want %q", p.Text, err, want)
	}
}

func TestTransformersMessages(t *testing.T) {
	r := newRenderer(t, Files{Template: []byte(echoParts)}, Options{Engine: EngineTransformers})
	p, err := r.Render(prompt.Chat{Messages: []byte(`[{"role":"developer","content":null,"x":1,"reasoning":"r"},{"tool_calls":[{"function":{"arguments":"{}"}}],"role":"assistant"}]`)})
	want := `[{"thinking": "r", "role": "developer", "x": 1, "reasoning": "r", "reasoning_content": "r"}, {"tool_calls": [{"function": {"arguments": "{}"}}], "role": "assistant"}]`
	if err != nil || p.Text != want {
		t.Errorf("%s, %v, want %s", p.Text, err, want)
	}
}

// TestRebuildTools compares with what vLLM's request models, read and written,
// make of tools and calls.
func TestRebuildTools(t *testing.T) {
	r := newRenderer(t, Files{Template: []byte(`{{ tools|tojson }}{{ messages[1].tool_calls|tojson }}`)}, Options{})
	p, err := r.Render(prompt.Chat{
		Messages: []byte(`[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","x":1,"function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]}]`),
		Tools:    []byte(`[{"function":{"parameters":{"z":1,"a":2},"x":1,"name":"f"},"x":1,"type":"function"},{"type":"function","function":{"name":"g","description":"d","strict":true}}]`),
	})
	want := `[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}}}, ` +
		`{"type": "function", "function": {"name": "g", "description": "d", "parameters": null, "strict": true}}]` +
		`[{"id": "1", "function": {"arguments": {"b": 1, "a": 2}, "name": "f"}, "type": "function", "x": 1}]`
	if err != nil || p.Text != want {
		t.Errorf("%s, %v, want %s", p.Text, err, want)
	}
}

func TestVariables(t *testing.T) {
	const tmpl = `{{ add_generation_prompt }},{{ tools is none }},{{ documents is none }},{{ enable_thinking }},{{ reasoning_effort }},{{ x }},{{ y }}`
	yes, no := true, false
	for _, c := range []struct {
		name string
		req  prompt.Chat
		want string
	}{
		{"defaults", prompt.Chat{}, "True,True,True,,,1,"},
		{"no generation prompt", prompt.Chat{AddGenerationPrompt: &no}, "False,True,True,,,1,"},
		{"the field goes before the kwargs", prompt.Chat{AddGenerationPrompt: &yes, ChatTemplateKwargs: []byte(`{"add_generation_prompt":false}`)}, "True,True,True,,,1,"},
		{"empty lists", prompt.Chat{Tools: []byte(`[]`), Documents: []byte(`[]`)}, "True,False,False,,,1,"},
		{"kwargs before the defaults", prompt.Chat{ChatTemplateKwargs: []byte(`{"x":2.0,"y":"z"}`)}, "True,True,True,,,2.0,z"},
		{"null and auto are not said", prompt.Chat{ChatTemplateKwargs: []byte(`{"x":null,"y":"auto"}`)}, "True,True,True,,,1,"},
		{"effort", prompt.Chat{ReasoningEffort: "low"}, "True,True,True,True,low,1,"},
		{"no effort", prompt.Chat{ReasoningEffort: "none"}, "True,True,True,False,none,1,"},
		{"effort and thinking", prompt.Chat{ReasoningEffort: "low", ChatTemplateKwargs: []byte(`{"enable_thinking":false}`)}, "True,True,True,False,low,1,"},
	} {
		c.req.Messages = []byte(`[{"role":"user","content":"x"}]`)
		p, err := newRenderer(t, Files{Template: []byte(tmpl)}, Options{DefaultKwargs: []byte(`{"x":1}`)}).Render(c.req)
		if err != nil || p.Text != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, p.Text, err, c.want)
		}
	}
}

func TestMedia(t *testing.T) {
	p, err := newRenderer(t, Files{Template: []byte(echo)}, Options{}).Render(prompt.Chat{Messages: []byte(`[{"role":"user","content":[{"type":"video_url","video_url":{"url":"u"}},"x",{"type":"image"}]}]`)})
	if err != nil || !slices.Equal(p.Media, []string{"video", "image"}) {
		t.Errorf("%q, %v", p.Media, err)
	}
}

// TestSure compares what is known of a chat with media with the texts of the messages before them.
func TestSure(t *testing.T) {
	const (
		parts = `{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{{ "[img]" if p.type == "image" else p.text }}{% endfor %}{% endif %}{% endfor %}<end>`
		plain = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<end>`
		image = `{"type":"image_url","image_url":{"url":"u"}}`
	)
	for _, c := range []struct {
		name, template, messages, sure string
		engine                         Engine
	}{
		{"no media", parts, `[{"role":"user","content":[{"type":"text","text":"x"}]}]`, "<user>x<end>", EngineVLLM},
		{"media at once", parts, `[{"role":"user","content":[` + image + `,{"type":"text","text":"x"}]}]`, "<user>", EngineVLLM},
		{"media later", parts, `[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"x"},` + image + `]},{"role":"user","content":[` + image + `]}]`, "<system>s<user>", EngineVLLM},
		{"as sent", parts, `[{"role":"user","content":"s"},{"role":"user","content":[{"type":"image"}]}]`, "<user>s<user>", EngineTransformers},
		// vLLM puts placeholders of its own in front of the text.
		{"texts only", plain, `[{"role":"user","content":"é"},{"role":"user","content":[{"type":"text","text":"x"},` + image + `]}]`, "<user>é<user>", EngineVLLM},
		{"the other content is refused", `{% for m in messages %}{% if m.content is string %}{{ raise_exception("no") }}{% endif %}{% for p in m.content %}{{ p.type }}{% endfor %}{% endfor %}`,
			`[{"role":"user","content":[{"type":"image"}]}]`, "", EngineTransformers},
		{"a content like the other", plain, `[{"role":"user","content":[{"type":"text","text":"\uf8d6"},` + image + `]}]`, "<user>", EngineVLLM},
	} {
		p, err := newRenderer(t, Files{Template: []byte(c.template)}, Options{Engine: c.engine}).Render(prompt.Chat{Messages: []byte(c.messages)})
		if err != nil || p.Text[:p.Sure] != c.sure {
			t.Errorf("%s: %q of %q, %v; want %q", c.name, p.Text[:p.Sure], p.Text, err, c.sure)
		}
	}
}

func TestBadRequests(t *testing.T) {
	yes := true
	const one = `[{"role":"user","content":"x"}]`
	for _, c := range []struct {
		name string
		req  prompt.Chat
		want string
	}{
		{"nothing", prompt.Chat{}, "messages: there are none"},
		{"no messages", prompt.Chat{Messages: []byte(`[]`)}, "messages: there are none"},
		{"messages cut", prompt.Chat{Messages: []byte(`[{`)}, "messages: not valid JSON"},
		{"messages an object", prompt.Chat{Messages: []byte(`{}`)}, "messages: not an array"},
		{"a message a text", prompt.Chat{Messages: []byte(`[{"role":"user"},"x"]`)}, "messages: element 1 is not an object"},
		{"no role", prompt.Chat{Messages: []byte(`[{"content":"x"}]`)}, "messages[0]: role is missing"},
		{"content a number", prompt.Chat{Messages: []byte(`[{"role":"user","content":1}]`)}, "messages[0].content: neither a string nor an array"},
		{"part a number", prompt.Chat{Messages: []byte(`[{"role":"user","content":["x",1]}]`)}, "messages[0].content[1]: neither"},
		{"part of no type", prompt.Chat{Messages: []byte(`[{"role":"user","content":[{}]}]`)}, "messages[0].content[0]: type is missing"},
		{"part of an unknown type", prompt.Chat{Messages: []byte(`[{"role":"user","content":[{"type":"smell"}]}]`)}, `messages[0].content[0]: unknown type "smell"`},
		{"text a number", prompt.Chat{Messages: []byte(`[{"role":"user","content":[{"type":"text","text":1}]}]`)}, "messages[0].content[0]: text is not a string"},
		{"calls an object", prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":{}}]`)}, "messages[0].tool_calls: not an array"},
		{"a call a text", prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":["x"]}]`)}, "messages[0].tool_calls[0]: not an object"},
		{"a call of no function", prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":[{}]}]`)}, "messages[0].tool_calls[0]: function is missing"},
		{"a call of another type", prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":[{"type":"custom"}]}]`)}, "messages[0].tool_calls[0]: only calls of type function"},
		{"half a surrogate pair in arguments", prompt.Chat{Messages: []byte(`[{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"a\":\"\ud83d\"}"}}]}]`)}, "surrogate"},
		{"half a surrogate pair", prompt.Chat{Messages: []byte(`[{"role":"user","content":"\ud83d"}]`)}, "surrogate"},
		{"tools an object", prompt.Chat{Messages: []byte(one), Tools: []byte(`{}`)}, "tools: not an array"},
		{"documents of texts", prompt.Chat{Messages: []byte(one), Documents: []byte(`["x"]`)}, "documents: element 0 is not an object"},
		{"kwargs a list", prompt.Chat{Messages: []byte(one), ChatTemplateKwargs: []byte(`[]`)}, "chat_template_kwargs: not an object"},
		{"kwargs with messages", prompt.Chat{Messages: []byte(one), ChatTemplateKwargs: []byte(`{"messages":[]}`)}, "chat_template_kwargs: messages is not allowed"},
		{"kwargs with a template", prompt.Chat{Messages: []byte(one), ChatTemplateKwargs: []byte(`{"chat_template":"x"}`)}, "chat_template_kwargs: chat_template is not allowed"},
		{"continue and begin", prompt.Chat{Messages: []byte(one), ContinueFinalMessage: true, AddGenerationPrompt: &yes}, "continue_final_message"},
	} {
		_, err := newRenderer(t, Files{Template: []byte(echo)}, Options{}).Render(c.req)
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	for _, o := range []Options{{Engine: "x"}, {Format: "x"}, {DefaultKwargs: json.RawMessage(`[]`)}, {DefaultKwargs: json.RawMessage(`{"messages":1}`)}} {
		if _, err := NewRenderer(Files{}, o); !errors.Is(err, ErrRequest) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestContinue(t *testing.T) {
	const plain = `{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	const parts = `{% for m in messages %}<{{ m.role }}>{% for c in m.content %}{{ c.text }}{% endfor %}</>{% endfor %}`
	for _, c := range []struct{ name, template, last, want, err string }{
		{"a text", plain, `"content":"Roses are"`, "<user>x</><assistant>Roses are", ""},
		{"blanks at its end", plain, `"content":"Roses are "`, "<user>x</><assistant>Roses are ", ""},
		{"a template that trims", strings.ReplaceAll(plain, "m.content", "m.content|trim"), `"content":" Roses are \n"`, "<user>x</><assistant>Roses are", ""},
		{"parts", parts, `"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]`, "<user>x</><assistant>ab", ""},
		{"the text of another message as well", plain, `"content":"x"`, "<user>x</><assistant>x", ""},
		{"nothing", plain, `"content":null`, "<user>x</><assistant>", ""},
		{"a template that drops it", `{{ messages[0].content }}`, `"content":"y"`, "", "does not give the last message as it is"},
		{"a template that changes it", strings.ReplaceAll(plain, "m.content", "m.content|upper"), `"content":"y"`, "", "does not give the last message as it is"},
		{"a template without contents", `x{{ '' }}`, `"content":"y"`, "", "does not use the content"},
		{"a text that is null is no part", parts, `"content":[{"type":"text","text":"a"},{"type":"text","text":null}]`, "<user>x</><assistant>a", ""},
		{"only an image", parts, `"content":[{"type":"image"}]`, "", "no text to continue"},
	} {
		r := newRenderer(t, Files{Template: []byte(c.template)}, Options{})
		p, err := r.Render(prompt.Chat{Messages: []byte(`[{"role":"user","content":"x"},{"role":"assistant",` + c.last + `}]`), ContinueFinalMessage: true})
		if c.err != "" {
			if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.name, err, c.err)
			}
		} else if err != nil || p.Text != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, p.Text, err, c.want)
		}
	}
}

// TestPrepare gives the context that Render renders.
func TestPrepare(t *testing.T) {
	r := newRenderer(t, Files{Template: []byte(echo), Config: []byte(`{"bos_token":"<s>"}`)}, Options{})
	tmpl, context, err := r.Prepare(prompt.Chat{Messages: []byte(`[{"role":"user","content":"x"}]`), Tools: []byte(`[{"b":1,"a":2}]`)})
	want := `{"messages":[{"role":"user","content":"x"}],"tools":[{"b":1,"a":2}],"documents":null,"bos_token":"<s>","add_generation_prompt":true}`
	if err != nil || string(context) != want || tmpl.Source() != echo {
		t.Errorf("%s, %v, want %s", context, err, want)
	}
}
