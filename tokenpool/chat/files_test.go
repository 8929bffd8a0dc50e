package chat

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// say is a template that says which one it is.
func say(name string) string { return name + "{{ '' }}" }

func newRenderer(t testing.TB, f Files, o Options) *Renderer {
	t.Helper()
	if o.Now == nil {
		o.Now = fixed
	}
	r := must.Get(NewRenderer(f, o))(t)
	return r
}

// TestChoice says which template is taken, as in transformers' get_chat_template.
func TestChoice(t *testing.T) {
	list := []byte(`{"chat_template":[{"name":"default","template":"` + say("D") + `"},{"name":"tool_use","template":"` + say("T") + `"},{"name":"rag","template":"` + say("R") + `"}]}`)
	one := []byte(`{"chat_template":"` + say("C") + `"}`)
	for _, c := range []struct {
		name  string
		files Files
		given string
		tools string
		want  string // or the error
	}{
		{"one in the config", Files{Config: one}, "", "", "C"},
		{"one in the config, tools", Files{Config: one}, "", "[]", "C"},
		{"several, no tools", Files{Config: list}, "", "", "D"},
		{"several, tools", Files{Config: list}, "", `[{"type":"function"}]`, "T"},
		{"several, no tools but an empty list", Files{Config: list}, "", "[]", "T"},
		{"several, null tools", Files{Config: list}, "", "null", "D"},
		{"several, by name", Files{Config: list}, "rag", "[]", "R"},
		{"several, unknown name", Files{Config: list}, "nope", "", `no template "nope"; it has default, rag, tool_use`},
		{"several, one of the request", Files{Config: list}, say("X"), "", "X"},
		{"one has no name", Files{Config: one}, "default", "", `no template "default"`},
		{"several as an object", Files{Config: []byte(`{"chat_template":{"default":"` + say("O") + `"}}`)}, "", "", "O"},
		{"no default", Files{Config: []byte(`{"chat_template":[{"name":"rag","template":"x"}]}`)}, "", "", "none of which is the default; it has rag"},
		{"the file before the config", Files{Config: list, Template: []byte(say("F"))}, "", "[]", "F"},
		{"the file and named ones", Files{Config: list, Template: []byte(say("F")), Named: map[string][]byte{"tool_use": []byte(say("N"))}}, "", "[]", "N"},
		{"the file and named ones, no tools", Files{Config: list, Template: []byte(say("F")), Named: map[string][]byte{"tool_use": []byte(say("N"))}}, "", "", "F"},
		{"named ones hide the config", Files{Config: list, Named: map[string][]byte{"rag": []byte(say("N"))}}, "", "", "none of which is the default"},
		{"processor, no tools", Files{Config: one, Processor: []byte(`{"chat_template":"` + say("P") + `"}`)}, "", "", "P"},
		{"processor, tools", Files{Config: one, Processor: []byte(`{"chat_template":"` + say("P") + `"}`)}, "", "[]", "C"},
		{"processor and the file", Files{Template: []byte(say("F")), Processor: []byte(`{"chat_template":"` + say("P") + `"}`)}, "", "", "F"},
		{"none", Files{}, "", "", "the model has none"},
		{"null", Files{Config: []byte(`{"chat_template":null}`)}, "", "", "the model has none"},
		{"none, one of the request", Files{}, say("X"), "", "X"},
	} {
		r := newRenderer(t, c.files, Options{})
		p, err := r.Render(prompt.Chat{Messages: []byte(`[{"role":"user","content":"x"}]`), Tools: []byte(c.tools), ChatTemplate: c.given})
		switch {
		case err != nil && (!errors.Is(err, ErrNoTemplate) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		case err == nil && p.Text != c.want:
			t.Errorf("%s: %q, want %q", c.name, p.Text, c.want)
		}
		if c.given == "" && r.HasTemplate(c.tools != "" && c.tools != "null") != (err == nil) {
			t.Errorf("%s: HasTemplate says otherwise", c.name)
		}
	}
}

func TestOwnTemplatesOnly(t *testing.T) {
	r := newRenderer(t, Files{Config: []byte(`{"chat_template":[{"name":"a","template":"A"}]}`)}, Options{OwnTemplatesOnly: true})
	messages := []byte(`[{"role":"user","content":"x"}]`)
	if _, err := r.Render(prompt.Chat{Messages: messages, ChatTemplate: say("X")}); !errors.Is(err, ErrRequest) {
		t.Errorf("a template of the request: %v", err)
	}
	if p, err := r.Render(prompt.Chat{Messages: messages, ChatTemplate: "a"}); err != nil || p.Text != "A" {
		t.Errorf("a name: %q, %v", p.Text, err)
	}
}

func TestSpecialTokens(t *testing.T) {
	const tmpl = `{{ bos_token }},{{ eos_token }},{{ image_token }},{{ boi_token }},{{ pad_token is defined }},{{ add_bos_token is defined }},{{ add_prefix_space is defined }}`
	for _, c := range []struct{ name, config, special, kwargs, want string }{
		{"strings and objects", `{"bos_token":"<s>","eos_token":{"__type":"AddedToken","content":"</s>"},"image_token":"<i>","pad_token":null,"add_bos_token":true,"add_prefix_space":true}`, ``, ``, "<s>,</s>,<i>,,False,False,False"},
		{"names of extra tokens", `{"bos_token":"<s>","extra_special_tokens":{"image_token":"<i>","boi_token":{"content":"<b>"}}}`, ``, ``, "<s>,,<i>,<b>,False,False,False"},
		{"old models", `{"bos_token":"<s>"}`, `{"bos_token":{"content":"[S]"},"eos_token":"[E]","additional_special_tokens":["x"]}`, ``, "[S],[E],,,False,False,False"},
		{"new models", `{"bos_token":"<s>","added_tokens_decoder":{}}`, `{"bos_token":"[S]"}`, ``, "<s>,,,,False,False,False"},
		{"kwargs go before", `{"bos_token":"<s>"}`, ``, `{"bos_token":"K"}`, "K,,,,False,False,False"},
	} {
		f := Files{Config: []byte(c.config), Template: []byte(tmpl)}
		if c.special != "" {
			f.SpecialTokens = []byte(c.special)
		}
		p, err := newRenderer(t, f, Options{}).Render(prompt.Chat{Messages: []byte(`[{"role":"user"}]`), ChatTemplateKwargs: []byte(c.kwargs)})
		if err != nil || p.Text != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, p.Text, err, c.want)
		}
	}
}

func TestMalformedFiles(t *testing.T) {
	for name, f := range map[string]Files{
		"config is cut":               {Config: []byte(`{"a":`)},
		"config is a list":            {Config: []byte(`[]`)},
		"template is a number":        {Config: []byte(`{"chat_template":1}`)},
		"template without name":       {Config: []byte(`{"chat_template":[{"template":"x"}]}`)},
		"template is a list of texts": {Config: []byte(`{"chat_template":["x"]}`)},
		"named template is a number":  {Config: []byte(`{"chat_template":{"a":1}}`)},
		"processor without template":  {Processor: []byte(`{}`)},
		"processor is cut":            {Processor: []byte(`{`)},
		"special tokens are a text":   {SpecialTokens: []byte(`"x"`)},
	} {
		if _, err := NewRenderer(f, Options{}); !errors.Is(err, ErrFiles) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A template that does not compile is an error of the requests that use it.
	r := newRenderer(t, Files{Config: []byte(`{"chat_template":[{"name":"default","template":"{% if %}"},{"name":"tool_use","template":"T"}]}`)}, Options{})
	messages := []byte(`[{"role":"user","content":"x"}]`)
	for range 2 {
		if _, err := r.Render(prompt.Chat{Messages: messages}); !errors.Is(err, ErrCompile) {
			t.Errorf("a template that does not compile: %v", err)
		}
	}
	if _, err := r.Render(prompt.Chat{Messages: messages, Tools: []byte(`[]`)}); err != nil {
		t.Errorf("another one: %v", err)
	}
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	}
	f, err := ReadFiles(dir)
	if err != nil || f.Config != nil || f.Template != nil || f.Named != nil {
		t.Fatalf("an empty folder: %+v, %v", f, err)
	}
	write("tokenizer_config.json", "{}")
	write("special_tokens_map.json", "{ }")
	write("chat_template.jinja2", "J2")
	write("chat_template.json", `{"chat_template":"P"}`)
	write("additional_chat_templates/rag.jinja", "RAG")
	write("additional_chat_templates/README.md", "no template")
	f, err = ReadFiles(dir)
	if err != nil || string(f.Config) != "{}" || string(f.SpecialTokens) != "{ }" || string(f.Template) != "J2" || len(f.Processor) == 0 || len(f.Named) != 1 || string(f.Named["rag"]) != "RAG" {
		t.Fatalf("%+v, %v", f, err)
	}
	write("chat_template.jinja", "J")
	if f, err = ReadFiles(dir); err != nil || string(f.Template) != "J" {
		t.Errorf("chat_template.jinja: %q, %v", f.Template, err)
	}
	write("chat_template.jinja", strings.Repeat("x", MaxTemplateBytes+1))
	if _, err = ReadFiles(dir); err == nil {
		t.Error("a template of any length is read")
	}
	write("chat_template.jinja", "J")
	must.OK(t, os.Mkdir(filepath.Join(dir, "additional_chat_templates", "x.jinja"), 0o755))
	if _, err = ReadFiles(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder for a template: %v", err)
	}
}
