package request

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// engineBody reads a body as /v1/score does.
func engineBody(body string) (*Score, scan.Form, error) {
	var s scan.Scanner
	q := &Score{}
	q.Limits = testLimits()
	s.Start([]byte(body), EngineSkips)
	f, err := scan.Read(&s, ScoreFields, ScoreNames, q)
	return q, f, err
}

// TestSkippedFields reads a chat with each field that is skipped, with values of every
// kind, and finds the chat as it is without.
func TestSkippedFields(t *testing.T) {
	skipped := SkippedFields()
	if all := slices.Concat(skipped, slices.Collect(maps.Keys(refusedFields))); len(all) > scan.MaxSkips || len(slices.Compact(slices.Sorted(slices.Values(all)))) != len(all) {
		t.Fatalf("%d fields, of which some are listed twice or too many: there may be %d", len(all), scan.MaxSkips)
	}
	values := []string{"null", "true", "0.7", "-1e3", `"a \"text\", }"`, "[]", `[1,{"a":[]}]`, "{}", `{"model":"other","stream":{"b":"}"}}`}
	body := `{"model":"m",`
	for i, n := range skipped {
		if slices.Contains(ScoreNames, n) || slices.Contains(TokenizeNames, n) {
			t.Errorf("%s is read", n)
		}
		body += fmt.Sprintf("%q : %s ,", n, values[i%len(values)])
		for _, v := range values {
			q, f, err := engineBody(fmt.Sprintf(`{"messages":[1],%q:%s,"model":"m"}`, n, v))
			if err != nil || q.Model != "m" || f.Skipped != n {
				t.Errorf("%s = %s: %v, model %q, skipped %q", n, v, err, q.Model, f.Skipped)
			}
		}
	}
	body += `"messages":[{"role":"user","content":"x"}]}`
	q, _, err := engineBody(body)
	if err != nil || q.Model != "m" || !strings.Contains(string(q.Chat.Messages), "user") {
		t.Errorf("%s: %v, %+v", body, err, q.Chat)
	}
	for _, bad := range []string{
		`{"stream":tru}`, `{"stream":"\ud800"}`, `{"stream"}`, `{"stream":}`, `{"stream":1 "n":1}`, `{"stream":1,"stream":null}`, `{"watermark":1,"rid":2,"watermark":1}`,
		`{"lora":null,"lora":"x"}`, `{"lora":"x","lora":null}`, `{"lora":nul}`, `{"lora":nullx}`,
	} {
		if _, _, err := engineBody(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestCaseRequestsThatEnginesTake holds the fields of the requests of vLLM and SGLang,
// release by release, against what is done with them. Each is read, skipped, or refused
// with the reason. One of which nothing is said fails, and so does what is said of a
// field that no engine has. So a new release in scripts/engines/fields.py shows what to
// think about.
func TestCaseRequestsThatEnginesTake(t *testing.T) {
	raw := must.Get(os.ReadFile("testdata/engine_fields.json"))(t)
	var releases map[string]map[string][]string
	must.OK(t, json.Unmarshal(raw, &releases))
	if len(releases) < 10 {
		t.Fatalf("%d releases", len(releases))
	}
	form := map[string]string{
		"chat": `"messages":[]`, "messages": `"messages":[]`, "count_tokens": `"messages":[]`, "completion": `"prompt":"x"`, "responses": `"input":"x"`,
	}
	have := map[string]bool{}
	for release, apis := range releases {
		for api, names := range apis {
			if strings.Contains(api, "[") {
				continue // what is inside of messages is package chat's
			}
			for _, n := range names {
				have[n] = true
				if !EngineSkips.Has(n) && !slices.Contains(ScoreNames, n) && !slices.Contains(TokenizeNames, n) {
					t.Errorf("%s: a request of kind %s has %s: say whether it is skipped (enginefields.go), read (enginebody.go) or refused", release, api, n)
				}
				begin, known := form[api]
				if !known || strings.HasPrefix(begin, `"`+n+`"`) || n == "model" {
					continue
				}
				// null is like leaving it out, in requests of every kind.
				q, f, err := engineBody(`{"model":"m",` + begin + `,"` + n + `":null}`)
				if err == nil {
					kind, _ := f.One("prompt", "messages", "input")
					err = q.Check(f, kind)
				}
				if err != nil {
					t.Errorf("%s: %s with %s null: %v", release, api, n, err)
				}
			}
		}
	}
	// Of vLLM's and SGLang's own nothing is left that they do not have any more, or
	// never had.
	for _, s := range skippedOf {
		for _, n := range s.fields {
			if (s.of == "vLLM's" || s.of == "SGLang's") && !have[n] && !slices.Contains(formerFields, n) {
				t.Errorf("%s is said to be %s, but no release has it", n, s.of)
			}
		}
	}
}

// formerFields are those of releases before the first of engine_fields.json.
var formerFields = []string{"best_of", "logits_processors", "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex"}

// TestRefusedFields has the reason for each, where it belongs, and skips it elsewhere.
func TestRefusedFields(t *testing.T) {
	for n, r := range refusedFields {
		for kind, prompt := range map[string]string{"prompt": `"x"`, "messages": "[1]", "input": `"x"`} {
			q, f, err := engineBody(`{"model":"m","` + kind + `":` + prompt + `,"` + n + `":["x"]}`)
			if err == nil {
				err = q.Check(f, kind)
			}
			if !slices.Contains(r.beside, kind) {
				if err != nil {
					t.Errorf("%s beside %s: %v", n, kind, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), r.why) || refusal.Of(err).Param != n {
				t.Errorf("%s beside %s: %v", n, kind, err)
			}
		}
	}
}
