package server_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// TestToolsByEngine has tools in vLLM's form, but where all engines of the model are
// SGLang.
func TestToolsByEngine(t *testing.T) {
	index := openIndex(t)
	s := newServer(t, index)
	const tool = `{"function":{"name":"f","x":1},"type":"function"}`
	rebuilt, sent := `[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}]`, `[{"function": {"name": "f", "x": 1}, "type": "function"}]`
	for _, step := range []struct {
		pod  store.Pod
		want string
	}{
		{store.Pod{Name: "o", Model: "other", Engine: "vllm"}, rebuilt},
		{store.Pod{Name: "a", Model: textModel, Engine: "sglang"}, sent},
		{store.Pod{Name: "b", Model: textModel, Engine: "sglang"}, sent},
		{store.Pod{Name: "c", Model: textModel}, rebuilt},
		{store.Pod{Name: "c", Model: textModel, Engine: "vllm"}, rebuilt},
		{store.Pod{Name: "c", Model: textModel, Engine: "sglang"}, sent},
	} {
		must.Get(index.Register(t.Context(), step.pod))(t)
		if _, err := index.Registry(t.Context()); err != nil { // which is what is cached from then on
			t.Fatal(err)
		}
		body := `{"model":"` + textModel + `","messages":[{"role":"user","content":"x"}],"tools":[` + tool + `],"mode":"sync"}`
		want := len("<user>x" + step.want + "<assistant>")
		for path, mark := range map[string]string{"/v1/score": `"tokens":{"total":`, "/v1/tokenize": `"count":`, "/tokenize": `"count":`} {
			b := body
			if path == "/v1/tokenize" {
				b = strings.Replace(b, `,"mode":"sync"`, "", 1)
			}
			if got := s.post(t, path, b); !strings.Contains(got, mark+strconv.Itoa(want)+",") {
				t.Errorf("%+v: %s: %s, want %d", step.pod, path, got, want)
			}
		}
	}
}
