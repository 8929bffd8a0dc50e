package chat

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/prompt"
)

// Some of what vLLM's messages API does depends on what the model's template does.
// There vLLM finds out by rendering when it starts; here the first request that needs
// it finds out.

// systemsProbe is the conversation that vLLM renders to see whether a template takes
// a system's message that is not the first.
const systemsProbe = `{"messages":[{"role":"system","content":"t"},{"role":"user","content":"t"},` +
	`{"role":"system","content":"t"},{"role":"user","content":"t"}],"add_generation_prompt":false}`

// unknownToProbe are names that vLLM's probe does not define, unlike its renderer.
var unknownToProbe = strings.NewReplacer("strftime_now", "kvatlas_undefined", "raise_exception", "kvatlas_undefined")

// probeSystems reports whether a template of the model, with tools or without, wants
// all systems in front. A model without a template counts as one that does.
func (r *Renderer) probeSystems() bool {
	for _, tools := range []bool{false, true} {
		src, _, err := r.templates.choose("", tools)
		if err != nil || strings.Contains(src, "endgeneration") {
			return true // a tag that the probe does not know
		}
		t, err := Compile(unknownToProbe.Replace(src))
		if err != nil {
			return true
		}
		if _, err = t.Render(systemsProbe, r.opts.Limits, time.Time{}); err != nil {
			return true
		}
	}
	return false
}

// probeThinking returns the effort that stands for "do not think": none, or low where
// the template refuses none or takes it for another effort.
func (r *Renderer) probeThinking() string {
	render := func(effort string) (string, error) {
		p, err := r.Render(prompt.Chat{Messages: json.RawMessage(`[{"role":"user","content":"Hi"}]`), ReasoningEffort: effort})
		return p.Text, err
	}
	none, err := render("none")
	if err != nil {
		return "low"
	}
	for _, effort := range []string{"low", "medium", "high", "xhigh", "max"} {
		if text, err := render(effort); err == nil && text == none {
			return "low"
		}
	}
	return "none"
}
