package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
)

// TestSaltOfACaller: a tenant whose credentials have a salt finds its own blocks only. That holds for
// every form of a prompt on every route that has one, whatever cache_salt it asks for.
func TestSaltOfACaller(t *testing.T) {
	tokens := map[string]string{}
	salts := map[string]string{"one": access.NewSalt(), "two": access.NewSalt()}
	var file strings.Builder
	for _, name := range []string{"writer", "one", "two", "free"} {
		tokens[name] = access.NewToken()
		digest := must.Get(access.Digest(tokens[name]))(t)
		switch {
		case name == "writer":
			fmt.Fprintf(&file, "write %s writer\n", digest)
		case salts[name] != "":
			fmt.Fprintf(&file, "read %s %s salt=%s\n", digest, name, salts[name])
		default:
			fmt.Fprintf(&file, "read %s %s\n", digest, name)
		}
	}
	path := filepath.Join(t.TempDir(), "credentials")
	must.OK(t, os.WriteFile(path, []byte(file.String()), 0o600))
	creds := must.Get(access.Open(path, nil))(t)
	index := openIndex(t)
	tokenizer := scorer.TokenizerFunc(bytewise)
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: tokenizer}))(t)
	router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: loads.NewMemory(nil), Notes: notes.NewMemory(nil), Seed: 1}))(t)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: tokenizer, Router: router, Access: &access.Guard{Credentials: creds}}))(t)
	ask := func(caller, path, body string, headers ...string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+tokens[caller])
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	text := strings.Repeat("Of a secret that one tenant has sent. ", 8)
	tokenized := must.Get(bytewise(t.Context(), prompt.Request{Model: textModel, Text: text}))(t)
	list := must.Get(json.Marshal(tokenized.Tokens))(t)
	// Each of these pods holds the text under one salt.
	for pod, salt := range map[string]string{"of-none": "", "of-one": salts["one"], "of-two": salts["two"], "of-ones-user": access.Caller{Salt: salts["one"]}.CacheSalt("user")} {
		if status, body := ask("writer", "/v1/blocks", fmt.Sprintf(`{"op":"add","model":%q,"pod":%q,"tokens":%s,"cache_salt":%q}`, textModel, pod, list, salt)); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	forms := map[string]string{
		"tokens": `"tokens":` + string(list), "prompt": fmt.Sprintf(`"prompt":%q`, text), "prompt of tokens": `"prompt":` + string(list),
		"prompts": fmt.Sprintf(`"prompts":[%q]`, text), "prompt list": fmt.Sprintf(`"prompt":[%q]`, text),
	}
	for name, form := range forms {
		for caller, of := range map[string]map[string]string{
			"one":  {"": "of-one", "user": "of-ones-user", salts["two"]: "", "../" + salts["two"]: "", "/" + salts["two"]: ""},
			"two":  {"": "of-two", "user": "", salts["one"]: "", salts["one"] + "/user": ""},
			"free": {"": "of-none", salts["one"]: "of-one"},
		} {
			for asked, want := range of {
				for _, path := range []string{"/v1/score", "/v1/route"} {
					if path == "/v1/route" && strings.HasSuffix(name, "s") && name != "tokens" || name == "prompt list" && path == "/v1/route" {
						continue // one prompt at a time
					}
					status, body := ask(caller, path, fmt.Sprintf(`{"model":%q,%s,"cache_salt":%q,"mode":"sync"}`, textModel, form, asked))
					held := heldBy(t, body)
					if status != http.StatusOK || held != want {
						t.Errorf("%s by %s asks for salt %.8q by %s: status %d, %q, want %q\n%s", path, caller, asked, name, status, held, want, body)
					}
				}
			}
		}
	}
	// Keys may be under any salt: a caller with a salt sends none.
	keys := blockkey.AppendNative(nil, tokenized.Tokens, 64, blockkey.NativeSeed("", ""))
	body := fmt.Sprintf(`{"model":%q,"block_keys":["%016x"]}`, textModel, uint64(keys[0]))
	for _, path := range []string{"/v1/score", "/v1/route"} {
		if status, answer := ask("one", path, body); status != http.StatusForbidden || !strings.Contains(answer, "block_keys may be under any") {
			t.Errorf("%s of keys by a tenant: %d %s", path, status, answer)
		}
		if status, answer := ask("free", path, body); status != http.StatusOK || !strings.Contains(answer, "of-none") {
			t.Errorf("%s of keys by another: %d %s", path, status, answer)
		}
	}
	// It is not shown its salt, nor keys under it.
	for _, field := range []string{`"explain":true`, `"return_tokens":"body"`} {
		for _, path := range []string{"/v1/score", "/v1/route"} {
			body := fmt.Sprintf(`{"model":%q,"tokens":%s,%s}`, textModel, list, field)
			if status, answer := ask("one", path, body); status != http.StatusForbidden || strings.Contains(answer, salts["one"]) {
				t.Errorf("%s with %s by a tenant: %d %s", path, field, status, answer)
			}
			if status, answer := ask("free", path, body); status != http.StatusOK {
				t.Errorf("%s with %s by another: %d %s", path, field, status, answer)
			}
		}
	}
	checkRequestsOfTenants(t, ask, string(list))
	checkSessionsOfTenants(t, ask, string(list))
	// Of all routes it has those that answer from its own prompts, and names of pods and models.
	own := 0
	closed := []string{"/metrics", "/v1/loads", "/v1/prefixes", "/v1/models/m/routing"}
	for route, need := range needs {
		method, path, _ := strings.Cut(route, " ")
		r := httptest.NewRequest(method, path, strings.NewReader("no JSON"))
		r.Header.Set("Authorization", "Bearer "+tokens["one"])
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		others := need > access.Read || slices.Contains(closed, path)
		if (w.Code == http.StatusForbidden) != others {
			t.Errorf("%s by a tenant: %d %s", route, w.Code, w.Body)
		}
		if !others {
			own++
		}
	}
	if own != 19 {
		t.Errorf("a tenant may use %d routes", own)
	}
}

// asker sends a body as one of the callers.
type asker = func(caller, path, body string, headers ...string) (int, string)

// checkRequestsOfTenants: what callers with salts give one ID are two requests. Neither caller sees,
// reports or ends the other's, and each reads the ID that it gave.
func checkRequestsOfTenants(t *testing.T, ask asker, list string) {
	t.Helper()
	book := func(caller, id string) (reservation string, again bool) {
		if id != "" {
			id = fmt.Sprintf(`,"request_id":%q`, id)
		}
		status, body := ask(caller, "/v1/route", fmt.Sprintf(`{"model":%q,"tokens":%s,"reserve":true%s}`, textModel, list, id))
		var a struct {
			Reservation string
			Again       bool
		}
		if err := json.Unmarshal([]byte(body), &a); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s", caller, status, body)
		}
		return a.Reservation, a.Again
	}
	known := func(caller, id, report, more string) bool {
		status, body := ask(caller, "/v1/requests/"+id+"/"+report, fmt.Sprintf(`{"model":%q%s}`, textModel, more))
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", caller, status, body)
		}
		return strings.Contains(body, `"known":true`)
	}
	reports := map[string]string{"done": `,"cached_tokens":0`, "output": `,"tokens":1`, "end": ""}
	for _, id := range []string{"one-id", strings.Repeat("x", loads.MaxID)} {
		if got, again := book("one", id); got != id || again {
			t.Errorf("one books %s as %q, again %v", id, got, again)
		}
		for _, other := range []string{"two", "free"} {
			for report, more := range reports {
				if known(other, id, report, more) {
					t.Errorf("%s is told of one's request %s by its %s", other, id, report)
				}
			}
		}
		for _, other := range []string{"two", "free"} {
			if got, again := book(other, id); got != id || again {
				t.Errorf("%s books %s as %q, again %v", other, id, got, again)
			}
			if !known(other, id, "end", "") {
				t.Errorf("%s cannot end its own %s", other, id)
			}
		}
		if got, again := book("one", id); got != id || !again {
			t.Errorf("one books %s a second time as %q, again %v", id, got, again)
		}
		for _, report := range []string{"done", "output", "end"} {
			if !known("one", id, report, reports[report]) {
				t.Errorf("one's own %s of %s is not known", report, id)
			}
		}
	}
	// An ID that is drawn is one to report by, for its caller alone.
	drawn, _ := book("one", "")
	if drawn == "" || known("two", drawn, "end", "") || known("free", drawn, "end", "") || !known("one", drawn, "end", "") {
		t.Errorf("the drawn ID %q", drawn)
	}
	if status, body := ask("one", "/v1/route", fmt.Sprintf(`{"model":%q,"tokens":%s,"request_id":"r"}`, textModel, list)); status != http.StatusOK || strings.Contains(body, "reservation") {
		t.Errorf("a query: %d %s", status, body)
	}
}

// checkSessionsOfTenants: what callers with salts give one name are two sessions, by the body and
// by the header.
func checkSessionsOfTenants(t *testing.T, ask asker, list string) {
	t.Helper()
	name := strings.Repeat("s", notes.MaxSession)
	for i, c := range []struct{ caller, state string }{{"one", "new"}, {"two", "new"}, {"free", "new"}, {"one", "kept"}, {"two", "kept"}, {"free", "kept"}} {
		for _, by := range []string{"body", "header"} {
			field, headers := fmt.Sprintf(`,"session":"%s by %s"`, name[:200], by), []string(nil)
			if by == "header" {
				field, headers = "", []string{"X-Session-Id", name}
			}
			status, body := ask(c.caller, "/v1/route", fmt.Sprintf(`{"model":%q,"tokens":%s,"policy":"least_requests","reserve":true%s}`, textModel, list, field), headers...)
			if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"session":{"state":%q`, c.state)) {
				t.Errorf("turn %d of %s by the %s: %d %s, want it to be %s", i, c.caller, by, status, body, c.state)
			}
		}
	}
}

// heldBy is the pod that an answer credits; "" means none.
func heldBy(t *testing.T, body string) string {
	t.Helper()
	for _, pod := range []string{"of-none", "of-ones-user", "of-one", "of-two"} {
		var a struct {
			Scores  map[string]float64
			Results []struct{ Scores map[string]float64 }
			Pod     string
			Overlap struct{ Tokens int }
		}
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if len(a.Results) > 0 {
			a.Scores = a.Results[0].Scores
		}
		if a.Scores[pod] > 0 || a.Pod == pod && a.Overlap.Tokens > 0 {
			return pod
		}
	}
	return ""
}
