package chat

import (
	"bufio"
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// TestVectors renders 102 real templates with 38 conversations each, and
// compares with what jinja2 3.1.6 makes of them, set up as in transformers
// 5.24. There are no exceptions.
func TestVectors(t *testing.T) {
	compiled := map[string]*Template{}
	lines := bufio.NewScanner(golden(t, "cases.jsonl.gz"))
	lines.Buffer(nil, 1<<20)
	rendered, refused := 0, 0
	for lines.Scan() {
		var v struct {
			T, C, Ctx string
			Out, Err  *string
		}
		must.OK(t, json.Unmarshal(lines.Bytes(), &v))
		tmpl := compiled[v.T]
		if tmpl == nil {
			tmpl = compile(t, source(t, v.T))
			compiled[v.T] = tmpl
		}
		got, err := tmpl.Render(v.Ctx, Limits{}, noon)
		switch {
		case v.Err != nil && err == nil:
			t.Errorf("%s, %s: rendered, the reference raises %s", v.T, v.C, *v.Err)
		case v.Err != nil:
			refused++
		case err != nil:
			t.Errorf("%s, %s: %v", v.T, v.C, err)
		case got != *v.Out:
			g, w := around(got, *v.Out)
			t.Errorf("%s, %s:\n got  %q\n want %q", v.T, v.C, g, w)
		default:
			rendered++
		}
	}
	must.OK(t, lines.Err())
	if len(compiled) != 102 || rendered != 3383 || refused != 493 {
		t.Errorf("%d templates, %d texts equal, %d refusals; want 102, 3383, 493", len(compiled), rendered, refused)
	}
}

// unlike are the expressions that do otherwise than in jinja2, and why that may
// be. None gives another text without an error but the two that say so.
var unlike = map[string]string{
	"u.title()":              "gives another text: Rust's standard library has no title case for digraphs (U+01C6)",
	"range(3)":               "gives another text: a range is a list here",
	"lipsum is defined":      "lipsum makes random texts",
	"l is sameas(l)":         "the identity of lists and maps is not known; an error",
	"s.encode() is defined":  "there are no bytes; an error",
	"'{!r}'.format('x')":     "conversions are not known to str.format; an error",
	"s|wordwrap(5)":          "there is no filter wordwrap; an error",
	"l|random is defined":    "there is no filter random; an error",
	"1234567|filesizeformat": "there is no filter filesizeformat; an error",
	"s|pprint":               "there is no filter pprint; an error",
	"d|pprint":               "there is no filter pprint; an error",
	"d|xmlattr":              "there is no filter xmlattr; an error",
	"cycler('a','b').next()": "there is no cycler; an error",
	"+n":                     "there is no unary plus; the template does not compile",
	"1.":                     "renders, where jinja2 does not compile",
	"1 < 'a'":                "constants are folded by minijinja, which orders all values",
	"none < 1":               "constants are folded by minijinja, which orders all values",
}

// TestExpressions compares some 500 expressions with jinja2: operators, filters,
// tests, methods and their errors.
func TestExpressions(t *testing.T) {
	var all struct {
		Context json.RawMessage
		Rows    []struct {
			Expr string
			Out  *string
			Err  string
		}
	}
	must.OK(t, json.NewDecoder(golden(t, "expressions.json")).Decode(&all))
	left := len(unlike)
	for _, row := range all.Rows {
		tmpl, err := Compile("{{ " + row.Expr + " }}")
		var got string
		if err == nil {
			got, err = tmpl.Render(string(all.Context), Limits{}, noon)
		}
		same := (row.Out == nil) == (err != nil) && (row.Out == nil || *row.Out == got)
		if why, ok := unlike[row.Expr]; ok {
			left--
			if same {
				t.Errorf("%s is as in jinja2 now: take it off the list (%s)", row.Expr, why)
			}
			continue
		}
		switch {
		case same:
		case row.Out == nil:
			t.Errorf("%s: %q, the reference raises %s", row.Expr, got, row.Err)
		case err != nil:
			t.Errorf("%s: %v, want %q", row.Expr, err, *row.Out)
		default:
			t.Errorf("%s: %q, want %q", row.Expr, got, *row.Out)
		}
	}
	if len(all.Rows) < 490 || left != 0 {
		t.Errorf("%d expressions, and %d exceptions that are none of them", len(all.Rows), left)
	}
}

// TestRequests renders random requests with real templates as vLLM 0.33 and as
// transformers 5.24 do; the goldens were made with their own functions. The
// content formats are those that vLLM finds.
func TestRequests(t *testing.T) {
	lines := bufio.NewScanner(golden(t, "requests.jsonl.gz"))
	lines.Buffer(nil, 1<<20)
	config := []byte(`{"bos_token":"<s>","eos_token":{"content":"</s>"},"unk_token":"<unk>","pad_token":"<pad>"}`)
	var renderers map[Engine]*Renderer
	formats, equal := 0, 0
	for lines.Scan() {
		var row struct {
			T, Fmt, Req      string
			V, Verr, H, Herr *string // vLLM, transformers
		}
		must.OK(t, json.Unmarshal(lines.Bytes(), &row))
		if row.Fmt != "" {
			src := source(t, row.T)
			if got := compile(t, src).Format(); string(got) != row.Fmt {
				t.Errorf("%s: format %s, want %s", row.T, got, row.Fmt)
			}
			formats++
			renderers = map[Engine]*Renderer{}
			for _, e := range []Engine{EngineVLLM, EngineTransformers} {
				renderers[e] = newRenderer(t, Files{Template: []byte(src), Config: config}, Options{Engine: e})
			}
			continue
		}
		var req prompt.Chat
		must.OK(t, json.Unmarshal([]byte(row.Req), &req))
		for e, want := range map[Engine][2]*string{EngineVLLM: {row.V, row.Verr}, EngineTransformers: {row.H, row.Herr}} {
			got, err := renderers[e].Render(req)
			switch {
			case want[1] != nil && err == nil:
				t.Errorf("%s, %s: rendered, the reference raises %s\n%s", e, row.T, *want[1], row.Req)
			case want[1] != nil:
				equal++
			case err != nil:
				t.Errorf("%s, %s: %v\n%s", e, row.T, err, row.Req)
			case got.Text != *want[0]:
				g, w := around(got.Text, *want[0])
				t.Errorf("%s, %s:\n got  %q\n want %q\n%s", e, row.T, g, w, row.Req)
			default:
				equal++
			}
		}
	}
	must.OK(t, lines.Err())
	if formats != 102 || equal != 2*4*102 {
		t.Errorf("%d formats, %d answers equal; want 102, %d", formats, equal, 2*4*102)
	}
}
