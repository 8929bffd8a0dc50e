package wire_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/internal/interop"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/engine"
	"github.com/kvatlas/kvatlas/sim/wire"
)

// clientAnswer is what the client has made of an answer or a stream.
type clientAnswer struct {
	Object, Model, Text, Finish string
	Usage                       *clientUsage
	Chunks                      int
	Roles                       []string
}

type clientUsage struct {
	Prompt, Completion, Total int
	Cached                    *int
}

// clientError is what the client has raised.
type clientError struct {
	Kind   string
	Status int
	Body   map[string]any
}

// The official Python client of OpenAI reads what every engine answers: usage with cached
// tokens, streams, chats and errors.
func TestOpenAIClient(t *testing.T) {
	python := interop.Python(t, filepath.Join("..", "..", ".cache", "venv-openai", "bin", "python"), "scripts/venv.sh openai sim/wire/testdata/requirements.txt")
	pods := []struct {
		kind    engine.Kind
		version string
		zero    bool // it tells that 0 tokens were cached
	}{{engine.VLLM, "0.33.0", true}, {engine.VLLM, "0.22.0", false}, {engine.SGLang, "0.5.23", true}, {engine.SGLang, "0.5.20", false}, {engine.TRTLLM, "1.3.0", true}}
	args := []string{filepath.Join("testdata", "openai_client.py"), model, "law"}
	for _, x := range pods {
		p := start(t, wire.Config{Engine: engine.Config{Kind: x.kind}, Version: x.version, LoRAs: []string{"law"}})
		args = append(args, "http://"+p.Address()+"/v1")
	}
	cmd := exec.CommandContext(t.Context(), python, args...)
	cmd.Stderr = os.Stderr
	b := must.Get(cmd.Output())(t)
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if len(lines) != len(pods) {
		t.Fatalf("%d answers of %d engines", len(lines), len(pods))
	}
	for i, x := range pods {
		t.Run(x.kind.String()+" "+x.version, func(t *testing.T) { checkClient(t, lines[i], x.zero) })
	}
}

// checkClient checks what the client has printed. zero says that 0 cached tokens are told.
func checkClient(t *testing.T, b []byte, zero bool) {
	t.Helper()
	var got struct {
		Models                                   []string
		Completion, Again, Salted, Adapter, Chat clientAnswer
		Ended, Stream, Unasked                   clientAnswer
		ChatStream                               clientAnswer `json:"chat_stream"`
		Unknown                                  clientError
		TooLong                                  clientError `json:"too_long"`
		Together                                 [][2]json.RawMessage
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	usage := func(prompt, completion, cached int) *clientUsage {
		u := &clientUsage{Prompt: prompt, Completion: completion, Total: prompt + completion}
		if cached > 0 || zero {
			u.Cached = &cached
		}
		return u
	}
	text, chat := got.Completion.Text, got.Chat.Text
	for what, x := range map[string]struct{ got, want clientAnswer }{
		"a completion":           {got.Completion, clientAnswer{Object: "text_completion", Model: model, Text: text, Finish: "length", Usage: usage(71, 7, 0)}},
		"the same again":         {got.Again, clientAnswer{Object: "text_completion", Model: model, Text: text, Finish: "length", Usage: usage(71, 7, 64)}},
		"with a salt":            {got.Salted, clientAnswer{Object: "text_completion", Model: model, Text: text, Finish: "length", Usage: usage(71, 7, 0)}},
		"of an adapter":          {got.Adapter, clientAnswer{Object: "text_completion", Model: "law", Text: text, Finish: "length", Usage: usage(71, 7, 0)}},
		"as a stream":            {got.Stream, clientAnswer{Text: text, Finish: "length", Usage: usage(71, 7, 64), Chunks: 7, Roles: []string{}}},
		"a chat":                 {got.Chat, clientAnswer{Object: "chat.completion", Model: model, Text: chat, Finish: "length", Usage: usage(113, 9, 0)}},
		"a chat as a stream":     {got.ChatStream, clientAnswer{Text: chat, Finish: "length", Usage: usage(113, 9, 112), Chunks: 10, Roles: []string{"assistant"}}},
		"a stream without usage": {got.Unasked, clientAnswer{Text: chat, Finish: "length", Chunks: 10, Roles: []string{"assistant"}}},
	} {
		if !reflect.DeepEqual(x.got, x.want) || x.got.Text == "" {
			t.Errorf("%s: %+v %+v, want %+v %+v", what, x.got, x.got.Usage, x.want, x.want.Usage)
		}
	}
	if got.Ended.Finish != "stop" || got.Ended.Usage.Cached == nil || *got.Ended.Usage.Cached != 112 {
		t.Errorf("a chat that ends by itself: %+v", got.Ended)
	}
	if !reflect.DeepEqual(got.Models, []string{model, "law"}) {
		t.Errorf("models %v", got.Models)
	}
	for what, x := range map[string]struct {
		got    clientError
		kind   string
		status int
	}{"an unknown model": {got.Unknown, "NotFoundError", 404}, "too long a prompt": {got.TooLong, "BadRequestError", 400}} {
		if message, _ := x.got.Body["message"].(string); x.got.Kind != x.kind || x.got.Status != x.status || message == "" {
			t.Errorf("%s: %+v, want %s", what, x.got, x.kind)
		}
	}
	for _, one := range got.Together {
		var u clientUsage
		if err := json.Unmarshal(one[1], &u); err != nil || string(one[0]) != "2" || u.Prompt != 7 || u.Completion != 4 {
			t.Errorf("two prompts at once: %s choices, %+v, %v", one[0], u, err)
		}
	}
	if len(got.Together) != 8 {
		t.Errorf("%d answers of 8", len(got.Together))
	}
}
