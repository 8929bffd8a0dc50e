package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// seen writes out all that a template is given.
const seen = `{% for m in messages %}{{ m | tojson }}
{% endfor %}{{ tools | tojson }} {{ reasoning_effort }} {{ enable_thinking }} {{ a }} {{ add_generation_prompt }}`

// seenParts is seen of a template that takes parts.
const seenParts = `{% for m in messages %}{% for p in m.content %}{{ p.type }}{% endfor %}{% endfor %}` + seen

// apiCase is a line of api.jsonl.gz: a request, and what vLLM makes of it.
type apiCase struct {
	API      string
	Body     string
	Merge    bool // systems belong in front
	Off      string
	Messages json.RawMessage
	Tools    json.RawMessage
	Effort   string
	Kwargs   json.RawMessage
	Continue bool
	Err      string
}

// apiCases are the lines of one API.
func apiCases(t *testing.T, api string) (out []apiCase) {
	t.Helper()
	for lines := json.NewDecoder(golden(t, "api.jsonl.gz")); lines.More(); {
		var c apiCase
		must.OK(t, lines.Decode(&c))
		if c.API == api {
			out = append(out, c)
		}
	}
	return out
}

// want is what a template is given by vLLM.
func (c *apiCase) want(t *testing.T, template string) string {
	t.Helper()
	r := newRenderer(t, Files{Template: []byte(template)}, Options{Tools: prompt.ToolsAsSent})
	p, err := r.Render(prompt.Chat{
		Messages: c.Messages, Tools: c.Tools, ReasoningEffort: c.Effort, ChatTemplateKwargs: c.Kwargs, ContinueFinalMessage: c.Continue,
	})
	if err != nil {
		return err.Error()
	}
	return p.Text
}

// TestCaseToolsThatTheServerRewrites renders chats as they are sent, and has what
// vLLM's request models make of their tools and calls.
func TestCaseToolsThatTheServerRewrites(t *testing.T) {
	for _, template := range []string{seen, seenParts} {
		r := newRenderer(t, Files{Template: []byte(template)}, Options{})
		n := 0
		for _, c := range apiCases(t, "chat") {
			var req prompt.Chat
			must.OK(t, json.Unmarshal([]byte(c.Body), &req))
			if c.Err != "" {
				continue // it never comes to an engine's cache
			}
			n++
			p, err := r.Render(req)
			if err != nil {
				p.Text = err.Error()
			}
			if want := c.want(t, template); p.Text != want {
				t.Errorf("%s\n got  %s\n want %s", c.Body, p.Text, want)
			}
		}
		if n < 400 {
			t.Errorf("%d chats", n)
		}
	}
}

// TestAPIs has requests of the other APIs rendered as what vLLM makes of them.
func TestAPIs(t *testing.T) {
	for _, api := range []prompt.API{prompt.APIMessages, prompt.APIResponses} {
		t.Run(string(api), func(t *testing.T) {
			refused := 0
			for _, template := range []string{seen, seenParts} {
				r := newRenderer(t, Files{Template: []byte(template)}, Options{})
				for _, c := range apiCases(t, string(api)) {
					var req prompt.Chat
					must.OK(t, json.Unmarshal([]byte(c.Body), &req))
					req.API = api
					r.systemsFirst = func() bool { return c.Merge }
					r.thinkingOff = func() string { return c.Off }
					p, err := r.Render(req)
					if c.Err != "" {
						refused++
						if !errors.Is(err, ErrRequest) {
							t.Errorf("%s\n got  %q, %v\n vLLM refuses it: %s", c.Body, p.Text, err, c.Err)
						}
						continue
					}
					if err != nil {
						p.Text = err.Error()
					}
					if want := c.want(t, template); p.Text != want {
						t.Errorf("%s\n got  %s\n want %s", c.Body, p.Text, want)
					}
				}
			}
			if refused == 0 {
				t.Error("vLLM refuses none")
			}
		})
	}
}

// TestAPIOfIsSafe takes the API of random requests from their fields. Chats are chats, and
// messages that pass for one are rendered as one. Not so are empty contents and texts, and
// systems in the midst, which only vLLM's route of their own could tell apart.
func TestAPIOfIsSafe(t *testing.T) {
	for _, c := range apiCases(t, "chat") {
		var req prompt.Chat
		must.OK(t, json.Unmarshal([]byte(c.Body), &req))
		if api := APIOf(&req); api != prompt.APIChat {
			t.Errorf("%s is %q", c.Body, api)
		}
	}
	r := newRenderer(t, Files{Template: []byte(seen)}, Options{})
	alike := 0
	for _, c := range apiCases(t, "messages") {
		var req prompt.Chat
		must.OK(t, json.Unmarshal([]byte(c.Body), &req))
		odd := strings.Contains(c.Body, `[]`) || strings.Contains(c.Body, `""`) || strings.Contains(c.Body, `"system"`)
		if c.Err != "" || odd || APIOf(&req) == prompt.APIMessages {
			continue
		}
		p, err := r.Render(req)
		if want := c.want(t, seen); err != nil || p.Text != want {
			t.Errorf("%s\n got  %s, %v\n want %s", c.Body, p.Text, err, want)
		}
		alike++
	}
	if alike < 10 {
		t.Errorf("%d messages pass for chats", alike)
	}
}

// TestProbes finds of each template what vLLM's probe finds.
func TestProbes(t *testing.T) {
	all, merge := 0, 0
	for lines := json.NewDecoder(golden(t, "probes.jsonl.gz")); lines.More(); all++ {
		var c struct {
			T     string
			Merge bool
		}
		must.OK(t, lines.Decode(&c))
		r := newRenderer(t, Files{Template: []byte(source(t, c.T))}, Options{})
		if got := r.systemsFirst(); got != c.Merge {
			t.Errorf("%s: %v, want %v", c.T, got, c.Merge)
		}
		if c.Merge {
			merge++
		}
	}
	if merge == 0 || merge == all {
		t.Errorf("%d of %d templates want systems first", merge, all)
	}
}

// TestThinkingOff asks templates of each kind.
func TestThinkingOff(t *testing.T) {
	for template, want := range map[string]string{
		`{{ "no" if enable_thinking is false else reasoning_effort }}`:                        "none",
		`{{ reasoning_effort if reasoning_effort in ["low", "high"] else "max" }}`:            "low", // none is max
		`{{ raise_exception("what?") if reasoning_effort == "none" }}{{ reasoning_effort }}`:  "low",
		`{{ raise_exception("what?") if reasoning_effort == "xhigh" }}{{ reasoning_effort }}`: "none",
		`always the same`: "low",
	} {
		if got := newRenderer(t, Files{Template: []byte(template)}, Options{}).thinkingOff(); got != want {
			t.Errorf("%s: %s, want %s", template, got, want)
		}
	}
}

// TestAPIOf tells requests apart.
func TestAPIOf(t *testing.T) {
	for body, want := range map[string]prompt.API{
		`{"messages":[{"role":"user","content":"x"}]}`: prompt.APIChat,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"tool_use"},{"type":"image","image":"u"}]}],"system":null}`:                        prompt.APIChat,
		`{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"x"}]}]}`:                                                             prompt.APIChat,
		`{"messages":[{"role":"user","content":"\"tool_use\""}],"tools":[{"type":"function","function":{"name":"f","parameters":{"input_schema":{}}}}]}`: prompt.APIChat,
		`{"messages":[{"role":"user","content":"x"}],"system":"s"}`:                                                                                      prompt.APIMessages,
		`{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{}}]}`:                                                          prompt.APIMessages,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x"}]}]}`:                                                            prompt.APIMessages,
		`{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"s"}]}]}`:                                             prompt.APIMessages,
		`{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u"}}]}]}`:                                                  prompt.APIMessages,
		`{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"}}`:                                                                    prompt.APIMessages,
		`{"messages":[{"role":"user","content":"x"}],"output_config":{"effort":"low"}}`:                                                                  prompt.APIMessages,
		`{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"reasoning_effort":"low"}`:                                           prompt.APIChat,
		`{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled"},"tools":[{"type":"function","function":{"name":"f"}}]}`:               prompt.APIChat,
		`{"messages":[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"c","content":"x"}],"thinking":{"type":"enabled"}}`:                    prompt.APIChat,
		`{"messages":[{"role":"developer","content":"x"}],"thinking":{"type":"enabled"}}`:                                                                prompt.APIChat,
		`{"messages":[{"role":"assistant","tool_calls":[]}],"thinking":{"type":"enabled"}}`:                                                              prompt.APIChat,
		`{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"tools":[]}`:                                                         prompt.APIChat,
		`{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"tools":[{"name":"f","input_schema":{}}]}`:                           prompt.APIMessages,
		`{"input":"x"}`: prompt.APIResponses, `{"input":[]}`: prompt.APIResponses,
	} {
		var req prompt.Chat
		must.OK(t, json.Unmarshal([]byte(body), &req))
		if got := APIOf(&req); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

// TestAPIErrors names the place of what is wrong.
func TestAPIErrors(t *testing.T) {
	r := newRenderer(t, Files{Template: []byte(seen)}, Options{})
	for body, want := range map[string]string{
		`{"messages":[]}`: "messages: there are none",
		`{"messages":[{"role":"nobody","content":""}]}`:                                                                 "messages[0]: role",
		`{"messages":[{"role":"user"}]}`:                                                                                "messages[0].content: neither",
		`{"messages":[{"role":"user","content":[1]}]}`:                                                                  "messages[0].content[0]: not an object",
		`{"messages":[{"role":"user","content":[{"type":"document"}]}]}`:                                                `messages[0].content[0]: unknown type "document"`,
		`{"messages":[{"role":"user","content":[{"type":"tool_addition","tool":{}}]}]}`:                                 "messages[0].content[0]: unknown type",
		`{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"web_search","type":"web_search_20250305"}]}`:     "tools[0]: input_schema",
		`{"messages":[{"role":"user","content":[{"type":"tool_result","content":7}]}]}`:                                 "messages[0].content[0].content: neither",
		`{"messages":[{"role":"assistant","content":[{"type":"tool_result","content":[{"type":"text","text":"x"}]}]}]}`: "messages[0].content[0]: a result",
		`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":7}]}]}]}`:        "messages[0].content[0].content[0]: text",
		`{"messages":[{"role":"user","content":"x"}],"system":7}`:                                                       "system: neither",
		`{"messages":[{"role":"user","content":"x"}],"system":[7]}`:                                                     "system[0]: not an object",
		`{"input":[]}`:                           "input: there are no items",
		`{"input":7}`:                            "input: neither",
		`{"input":[{"type":"web_search_call"}]}`: `input[0]: unsupported type "web_search_call"`,
		`{"input":[{"type":"function_call","name":"f"}]}`:                          "input[0]: call_id",
		`{"input":[{"role":"assistant","content":[{"type":"refusal"}]}]}`:          "input[0].content: the first part",
		`{"input":"x","tools":[{"type":"namespace","name":"n"}]}`:                  "tools[0]: a namespace",
		`{"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}]}`:    "input[0]: encrypted",
		`{"input":[{"role":"user","content":"` + strings.Repeat(" ", 3) + `"},7]}`: "input: element 1",
	} {
		var req prompt.Chat
		must.OK(t, json.Unmarshal([]byte(body), &req))
		if req.API = prompt.APIMessages; req.Input != nil {
			req.API = prompt.APIResponses
		}
		if _, err := r.Render(req); !errors.Is(err, ErrRequest) || !strings.Contains(fmt.Sprint(err), ErrRequest.Error()+": "+want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}
