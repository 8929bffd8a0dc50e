package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/server"
)

// A body that is nested too deeply is refused with these words on each route, whether or
// not it has an end; so is one without a value.
func TestCaseSmallOnesUnderAttackMessages(t *testing.T) {
	s := newServer(t, openIndex(t), func(c *server.Config) { c.Events = &pusher{} })
	const far = 20_000
	array, open, object := strings.Repeat("[", far)+strings.Repeat("]", far), strings.Repeat("[", far), strings.Repeat(`{"a":`, far)
	const deep, events = "nested too deeply at byte ", "deeper than 32 levels at byte "
	for name, c := range map[string]struct{ route, body, want string }{
		"messages":            {"/v1/score", `{"model":"m","messages":` + array + `}`, deep},
		"messages open":       {"/v1/score", `{"model":"m","messages":` + open, deep},
		"input":               {"/v1/score", `{"model":"m","input":` + array + `}`, deep},
		"system":              {"/v1/score", `{"model":"m","messages":[],"system":` + array + `}`, deep},
		"skipped":             {"/v1/score", `{"model":"m","tokens":[1],"metadata":` + array + `}`, deep},
		"skipped open":        {"/v1/tokenize", `{"model":"m","metadata":` + object, deep},
		"variables":           {"/v1/tokenize", `{"model":"m","messages":[],"chat_template_kwargs":` + object, deep},
		"mm_items":            {"/v1/score", `{"model":"m","messages":[],"mm_items":` + array + `}`, deep},
		"render":              {"/v1/chat/completions/render", `{"model":"m","messages":` + array + `}`, deep},
		"render unknown":      {"/v1/completions/render", ` {"model":"m","unknown":` + object, deep},
		"engine's tokenize":   {"/tokenize", array, deep},
		"detokenize":          {"/detokenize", `{"tokens":` + open, deep},
		"events":              {"/v1/events", `{"pod":"p","model":"m","events":` + array + `}`, events},
		"broken, not deep":    {"/v1/score", `{"model":"m","metadata":[}`, "expected a value at byte 24"},
		"broken, not deep 2":  {"/tokenize", `{"model":[}`, "the body is no JSON"},
		"empty":               {"/v1/score", "", "the body is empty"},
		"spaces":              {"/v1/score", " \n\t\r ", "nothing but white space"},
		"spaces to events":    {"/v1/events", "   ", "nothing but white space"},
		"empty to events":     {"/v1/events", "", "the body is empty"},
		"spaces to pods":      {"/v1/pods", "\n", "nothing but white space"},
		"spaces to render":    {"/v1/messages/render", "   ", "nothing but white space"},
		"empty to detokenize": {"/detokenize", "", "the body is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, c.route, strings.NewReader(c.body)))
			var e struct {
				Error struct{ Code, Message string }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != 400 || e.Error.Code != "invalid_json" || !strings.Contains(e.Error.Message, c.want) {
				t.Errorf("%d %s (%v), want %q", w.Code, w.Body, err, c.want)
			}
		})
	}
}
