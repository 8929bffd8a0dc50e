package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
)

// A body that is nested too deeply is refused with these words on each route, whether or not
// it has an end. So is one without a value.
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

// timed is a client that takes its answer bit by bit. It notes what is written, and which
// writes came after the client was given more time.
type timed struct {
	*httptest.ResponseRecorder
	given  bool
	writes []bool // of each write, whether it had time of its own
	most   int
}

func (w *timed) SetWriteDeadline(time.Time) error { w.given = true; return nil }
func (w *timed) SetReadDeadline(time.Time) error  { return nil }

func (w *timed) Write(b []byte) (int, error) {
	w.writes, w.given, w.most = append(w.writes, w.given), false, max(w.most, len(b))
	return w.ResponseRecorder.Write(b)
}

// An explanation is bounded, whatever the request has. A client that goes on taking a long
// answer is not cut off by the time for the whole of it.
func TestCaseSmallOnesUnderAttackExplain(t *testing.T) {
	s := newServer(t, openIndex(t))
	const keys = 131_072
	var body strings.Builder
	body.WriteString(`{"model":"m","explain":true,"block_keys":[`)
	for i := range keys {
		fmt.Fprintf(&body, `"%016x",`, i)
	}
	w := &timed{ResponseRecorder: httptest.NewRecorder()}
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/score", strings.NewReader(strings.TrimSuffix(body.String(), ",")+"]}")))
	var r struct {
		Explain struct {
			Blocks    []json.RawMessage `json:"blocks"`
			BlockKeys []string          `json:"block_keys"`
			LeftOut   int               `json:"left_out"`
		} `json:"explain"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != 200 {
		t.Fatal(w.Code, err)
	}
	if len(r.Explain.Blocks) != scorer.MaxExplainedBlocks || r.Explain.LeftOut != keys-scorer.MaxExplainedBlocks || len(r.Explain.BlockKeys) != keys {
		t.Errorf("%d blocks, %d left out, %d keys", len(r.Explain.Blocks), r.Explain.LeftOut, len(r.Explain.BlockKeys))
	}
	if len(w.writes) < 2 || slices.Contains(w.writes[1:], false) || w.most > 64<<10 {
		t.Errorf("the answer of %d bytes came in %d writes of up to %d; with time of their own: %v", w.Body.Len(), len(w.writes), w.most, w.writes)
	}
}
