package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server/request"
	"github.com/kvatlas/kvatlas/server/scan"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/telemetry"
)

// schema is the part of JSON Schema that the document uses.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       any                `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Required   []string           `json:"required"`
	Additional any                `json:"additionalProperties"`
	Items      *schema            `json:"items"`
	Enum       []string           `json:"enum"`
	Pattern    string             `json:"pattern"`
	AnyOf      []*schema          `json:"anyOf"`
	OneOf      []*schema          `json:"oneOf"`
	Minimum    *float64           `json:"minimum"`
	Maximum    *float64           `json:"maximum"`
}

type content struct {
	Content map[string]struct {
		Schema *schema `json:"schema"`
	} `json:"content"`
}

type operation struct {
	OperationID string `json:"operationId"`
	Parameters  []struct {
		Name, In string
	} `json:"parameters"`
	RequestBody *content           `json:"requestBody"`
	Responses   map[string]content `json:"responses"`
}

type openAPI struct {
	OpenAPI    string                           `json:"openapi"`
	Paths      map[string]map[string]*operation `json:"paths"`
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

func readDocument(t *testing.T) *openAPI {
	t.Helper()
	d := new(openAPI)
	must.OK(t, json.Unmarshal(document, d))
	return d
}

func (d *openAPI) resolve(t *testing.T, s *schema) *schema {
	t.Helper()
	if s.Ref == "" {
		return s
	}
	r := d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	if r == nil {
		t.Fatalf("%s leads nowhere", s.Ref)
	}
	return r
}

// TestDocumentHasTheRoutes holds the document's paths against the router's.
func TestDocumentHasTheRoutes(t *testing.T) {
	d := readDocument(t)
	var documented, routed []string
	ids := map[string]bool{}
	for path, ops := range d.Paths {
		for method, op := range ops {
			documented = append(documented, strings.ToUpper(method)+" "+path)
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: operationId %q is empty or taken", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			inPath := 0
			for _, p := range op.Parameters {
				if p.In == "path" {
					inPath++
				}
			}
			if strings.Count(path, "{") != inPath {
				t.Errorf("%s %s: parameters %v", method, path, op.Parameters)
			}
		}
	}
	s := &Server{metrics: telemetry.NewMetrics()}
	routes, _ := s.routes().(chi.Routes)
	must.OK(t, chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method != http.MethodHead { // goes with every GET
			routed = append(routed, method+" "+route)
		}
		return nil
	}))
	slices.Sort(documented)
	slices.Sort(routed)
	if !slices.Equal(documented, routed) {
		t.Errorf("documented %v\nrouted     %v", documented, routed)
	}
}

// TestDocumentHasTheFields holds the request bodies of the document against
// what the scanner reads, both ways, and the fields of a pod against those of
// store.Pod.
func TestDocumentHasTheFields(t *testing.T) {
	d := readDocument(t)
	for path, names := range map[string][]string{
		"/v1/score": request.ScoreNames, "/v1/route": request.RouteNames, "/v1/blocks": blocksNames, "/v1/pods": podNames, "/v1/tokenize": request.TokenizeNames,
		"/v1/models/{model}": modelNames, "/v1/reset": resetNames, "/v1/lmcache/sync": lmcacheSyncNames,
		"/v1/requests/{id}/done": scan.NamesOf(doneFields), "/v1/requests/{id}/output": scan.NamesOf(outputFields), "/v1/requests/{id}/end": scan.NamesOf(endFields),
	} {
		op := d.Paths[path]["post"]
		if op == nil {
			op = d.Paths[path]["put"]
		}
		body := d.resolve(t, op.RequestBody.Content["application/json"].Schema)
		var got, passed []string
		for n, p := range body.Properties {
			if p.Ref == "#/components/schemas/Passed" {
				passed = append(passed, n)
			} else {
				got = append(got, n)
			}
		}
		slices.Sort(got)
		// What is read here is not skipped here.
		want := slices.DeleteFunc(request.SkippedFields(), func(n string) bool { return slices.Contains(names, n) })
		if slices.Contains(names, "messages") && !slices.Equal(slices.Sorted(slices.Values(passed)), want) {
			t.Errorf("%s: documented as skipped %v, skipped %v", path, passed, want)
		}
		if want := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
			t.Errorf("%s: documented %v, read %v", path, got, want)
		}
		if body.Additional != false {
			t.Errorf("%s: the document allows unknown fields", path)
		}
		if len(names) > 64 {
			t.Errorf("%s: a set of %d fields does not fit 64 bits", path, len(names))
		}
		for _, one := range body.OneOf {
			for _, n := range one.Required {
				if body.Properties[n] == nil {
					t.Errorf("%s: oneOf asks for %s, which is no field", path, n)
				}
			}
		}
	}
	var tags []string
	for f := range reflect.TypeFor[store.Pod]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		tags = append(tags, name)
	}
	tags = slices.Insert(tags, len(tags)-1, "beside") // which is part of the name in the index
	if !slices.Equal(tags, podNames) {
		t.Errorf("store.Pod has %v, POST /v1/pods reads %v", tags, podNames)
	}
}

// TestDocumentHasTheEdges sends values at and beyond the limits in the
// document's schemas, one field at a time, to the scanner.
func TestDocumentHasTheEdges(t *testing.T) {
	d := readDocument(t)
	var all Limits
	must.OK(t, all.validate())
	bounds := all.requests()
	limits := &bounds
	read := map[string]func(body string) error{
		"ScoreRequest": func(b string) error {
			q := &request.Score{}
			q.Limits = limits
			return decodeText(b, request.ScoreFields, q)
		},
		"BlocksRequest": func(b string) error {
			q := &blocksRequest{}
			q.Limits = limits
			return decodeText(b, blocksFields, q)
		},
		"Pod": func(b string) error { return decodeText(b, podFields, &podRequest{}) },
	}
	for name, take := range read {
		for field, s := range d.Components.Schemas[name].Properties {
			try := func(v string, ok bool) {
				t.Helper()
				if err := take(`{"` + field + `":` + v + `}`); (err == nil) != ok {
					t.Errorf("%s: %s = %s: %v", name, field, v, err)
				}
			}
			for _, e := range s.Enum {
				try(strconv.Quote(e), true)
				try(strconv.Quote(e+"x"), false)
			}
			if s.Minimum != nil {
				try(fmt.Sprint(int64(*s.Minimum)), true)
				try(fmt.Sprint(int64(*s.Minimum)-1), false)
			}
			if s.Maximum != nil {
				try(fmt.Sprint(int64(*s.Maximum)), true)
				try(fmt.Sprint(int64(*s.Maximum)+1), false)
			}
		}
	}
}

// Bodies that no engine takes are read strictly.
func TestStrictBodies(t *testing.T) {
	if err := decodeText(`{"op":"add","stream":true}`, blocksFields, &blocksRequest{}); err == nil {
		t.Error("a change of blocks can be streamed")
	}
}

func decodeText[T any](body string, fs scan.Fields[T], dst *T) error {
	var s scan.Scanner
	s.Start([]byte(body), nil)
	_, err := scan.Decode(&s, fs, dst)
	return err
}

// check says how v differs from the schema.
func (d *openAPI) check(t *testing.T, s *schema, v any, at string) []string {
	t.Helper()
	s = d.resolve(t, s)
	if len(s.AnyOf) > 0 {
		var all []string
		for _, one := range s.AnyOf {
			bad := d.check(t, one, v, at)
			if len(bad) == 0 {
				return nil
			}
			all = append(all, bad...)
		}
		return all
	}
	kinds, ok := s.Type.([]any)
	if !ok {
		kinds = []any{s.Type}
	}
	if !slices.Contains(kinds, any(kindOf(v))) && (kindOf(v) != "integer" || !slices.Contains(kinds, any("number"))) {
		return []string{fmt.Sprintf("%s is %s, not %v", at, kindOf(v), s.Type)}
	}
	var bad []string
	switch v := v.(type) {
	case map[string]any:
		for _, n := range s.Required {
			if _, ok := v[n]; !ok {
				bad = append(bad, at+"."+n+" is missing")
			}
		}
		for n, e := range v {
			switch p := s.Properties[n]; {
			case p != nil:
				bad = append(bad, d.check(t, p, e, at+"."+n)...)
			case s.Additional == false:
				bad = append(bad, at+"."+n+" is not documented")
			case s.Additional != nil:
				raw, err := json.Marshal(s.Additional)
				var p schema
				if err == nil {
					err = json.Unmarshal(raw, &p)
				}
				must.OK(t, err)
				bad = append(bad, d.check(t, &p, e, at+"."+n)...)
			}
		}
	case []any:
		for i, e := range v {
			bad = append(bad, d.check(t, s.Items, e, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case string:
		if s.Enum != nil && !slices.Contains(s.Enum, v) {
			bad = append(bad, fmt.Sprintf("%s is %q, none of %v", at, v, s.Enum))
		}
		if s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(v) {
			bad = append(bad, fmt.Sprintf("%s is %q, not like %s", at, v, s.Pattern))
		}
	}
	return bad
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}

// TestDocumentFitsTheAnswers checks every answer of the golden traces against
// the document: its status is listed there, and its body has that form.
func TestDocumentFitsTheAnswers(t *testing.T) {
	d := readDocument(t)
	files := must.Get(filepath.Glob("testdata/traces/*.txt"))(t)
	checked := 0
	for _, f := range files {
		text := must.Get(os.ReadFile(f))(t)
		for entry := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			for strings.HasPrefix(entry, "#") {
				_, entry, _ = strings.Cut(entry, "\n")
			}
			request, answer, _ := strings.Cut(entry, "\n----\n")
			line, _, _ := strings.Cut(request, "\n")
			method, path, _ := strings.Cut(line, " ")
			path, _, _ = strings.Cut(path, "?")
			if strings.HasPrefix(path, "/v1/pods/") && path != "/v1/pods/" {
				path = "/v1/pods/{name}"
			}
			head, body, _ := strings.Cut(answer, "\n")
			status, _, _ := strings.Cut(head, " ")
			var v any
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			want := &schema{Ref: "#/components/schemas/Error"}
			if op := d.Paths[path][strings.ToLower(method)]; op != nil {
				r, ok := op.Responses[status]
				if !ok {
					t.Errorf("%s: status %s is not documented", line, status)
					continue
				}
				want = r.Content["application/json"].Schema
			}
			for _, bad := range d.check(t, want, v, "answer") {
				t.Errorf("%s:\n%s\n%s", request, body, bad)
			}
			checked++
		}
	}
	if checked < 100 {
		t.Errorf("only %d answers checked", checked)
	}
}

// TestDocumentHasTheCodes holds the document's list of error codes, and the
// table of docs/http-api.md, against those that can be answered.
func TestDocumentHasTheCodes(t *testing.T) {
	d := readDocument(t)
	listed := d.Components.Schemas["Error"].Properties["error"].Properties["code"].Enum
	var used []string
	var files []string
	for _, dir := range []string{".", "refusal", "scan", "request"} {
		some := must.Get(filepath.Glob(dir + "/*.go"))(t)
		files = append(files, some...)
	}
	written := regexp.MustCompile(`(?:[cC]ode:|[cC]ode[A-Z]\w+ += ) ?"([a-z_]+)"`)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text := must.Get(os.ReadFile(f))(t)
		for _, m := range written.FindAllStringSubmatch(string(text), -1) {
			used = append(used, m[1])
		}
	}
	slices.Sort(used)
	used = slices.Compact(used)
	if got := slices.Sorted(slices.Values(listed)); !slices.Equal(got, used) {
		t.Errorf("listed %v\nused   %v", got, used)
	}
	page := must.Get(os.ReadFile("../docs/http-api.md"))(t)
	for _, c := range used {
		if !strings.Contains(string(page), "`"+c+"`") {
			t.Errorf("docs/http-api.md does not name %s", c)
		}
	}
	for path := range d.Paths {
		if !strings.Contains(string(page), path) {
			t.Errorf("docs/http-api.md does not name %s", path)
		}
	}
	for name, s := range d.Components.Schemas {
		for field, f := range s.Properties {
			if f.Ref == "#/components/schemas/Passed" {
				continue // the page links to the list of fields that are skipped
			}
			if !strings.Contains(string(page), "`"+field+"`") && !strings.Contains(string(page), `"`+field+`"`) {
				t.Errorf("docs/http-api.md does not name %s of %s", field, name)
			}
		}
	}
}

// TestStrategiesAreDocumented holds the document and the HTTP API's page against the scorer's list.
func TestStrategiesAreDocumented(t *testing.T) {
	page := must.Get(os.ReadFile("../docs/http-api.md"))(t)
	var names []string
	for _, s := range scorer.Strategies() {
		names = append(names, string(s))
		if !strings.Contains(string(page), "\n| `"+string(s)+"` | ") {
			t.Errorf("docs/http-api.md does not say what %s means", s)
		}
	}
	if got := readDocument(t).Components.Schemas["ScoreRequest"].Properties["strategy"].Enum; !slices.Equal(got, names) {
		t.Errorf("openapi.json has the strategies %q, want %q", got, names)
	}
}
