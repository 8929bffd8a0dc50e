package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/notes"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
)

// TestPrefixes has requests with one beginning come to two servers, one of which then lists all of them.
// Nothing that is shared has a word of a prompt.
func TestPrefixes(t *testing.T) {
	noting(t, func(r *routing) {
		for _, pod := range []string{"a", "b", "c"} {
			r.ok("POST", "/v1/pods", `{"name":"`+pod+`","model":"text-model"}`)
		}
		r.ok("POST", "/v1/pods", `{"name":"other","model":"m2"}`)
		secret := strings.Repeat("Du bist ein Papagei. ", 8) // 168 tokens, of a byte each
		var scored struct {
			Explain struct {
				Keys []string `json:"block_keys"`
			}
		}
		body := r.do("POST", "/v1/score", `{"model":"text-model","prompt":"`+secret+`","explain":true}`).Body.Bytes()
		must.OK(t, json.Unmarshal(body, &scored))
		r.ok("POST", "/v1/blocks", `{"op":"add","model":"text-model","pod":"b","block_keys":["`+strings.Join(scored.Explain.Keys, `","`)+`"]}`)
		for i := range 40 {
			body := fmt.Sprintf(`{"model":"text-model","prompt":"%s and %d and then some more","pods":["a"]}`, secret, i)
			if i >= 30 {
				body = fmt.Sprintf(`{"model":"text-model","prompt":"%d: %s"}`, i, secret)
			}
			r.ok("POST", "/v1/route", body)
		}
		for _, look := range r.looks {
			look()
		}
		var out struct {
			Models map[string]struct {
				Requests  float64
				BlockSize int `json:"block_size"`
				Degraded  any
				Prefixes  []struct {
					Key                     string
					Blocks, Tokens, Copies  int
					Requests, Share, Missed float64
					Sent                    []struct{ Pod string }
					HeldBy                  []struct{ Pod, Tier string } `json:"held_by"`
					ShouldHold              []struct{ Pod string }       `json:"should_hold"`
				}
			}
		}
		for range 2 { // each of the servers
			w := r.do("GET", "/v1/prefixes", "")
			if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			m := out.Models["text-model"]
			if len(out.Models) != 2 || len(out.Models["m2"].Prefixes) != 0 || m.Requests < 39.5 || m.Requests > 40 || m.BlockSize != 16 || m.Degraded != nil || len(m.Prefixes) != 1 {
				t.Fatalf("%s", w.Body)
			}
			p := m.Prefixes[0]
			if p.Blocks != 10 || p.Tokens != 160 || p.Requests < 29.5 || p.Requests > 30 || p.Share < 0.74 || p.Missed < 29.5 || len(p.Sent) != 1 || p.Sent[0].Pod != "a" {
				t.Errorf("%+v", p)
			}
			// Three quarters of all on three pods, but ten requests a copy: a gets them and has it not.
			if len(p.HeldBy) != 1 || p.HeldBy[0].Pod != "b" || p.HeldBy[0].Tier != "gpu" || p.Copies < 2 || p.ShouldHold[0].Pod != "a" {
				t.Errorf("%+v", p)
			}
			if strings.Contains(w.Body.String(), "Papagei") {
				t.Errorf("a prompt is told: %s", w.Body)
			}
			var keys struct{ Matched map[string]any }
			body := r.do("POST", "/v1/score", `{"model":"text-model","block_keys":["`+p.Key+`"]}`).Body.Bytes()
			if err := json.Unmarshal(body, &keys); err != nil || keys.Matched["b"] == nil {
				t.Errorf("the key of a prefix finds %s", body)
			}
		}
		if w := r.do("GET", "/v1/prefixes?model=text-model&limit=1", ""); strings.Contains(w.Body.String(), "m2") {
			t.Errorf("%s", w.Body)
		}
		for _, limit := range []string{"0", "101", "x", "-1"} {
			refused(t, r.do("GET", "/v1/prefixes?limit="+limit, ""), 400, "invalid_request")
		}
	})
}

// TestPrefixesWithoutIndex lists what was counted while the index cannot be reached, and says that its
// holders are not known.
func TestPrefixesWithoutIndex(t *testing.T) {
	index := &faulty{Index: openIndex(t)}
	sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 16}))(t)
	router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: loads.NewMemory(nil), Index: index, Notes: notes.NewMemory(nil)}))(t)
	s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), Router: router, BlockSize: 16}))(t)
	r := &routing{T: t, h: s.Handler()}
	away := fmt.Errorf("%w: gone", store.ErrUnavailable)
	index.set(away)
	refused(t, r.do("GET", "/v1/prefixes", ""), 503, "index_unavailable") // no model was seen
	index.set(nil)
	r.ok("POST", "/v1/pods", `{"name":"a","model":"text-model"}`)
	r.ok("POST", "/v1/pods", `{"name":"b","model":"quiet"}`)
	for range 3 {
		r.ok("POST", "/v1/route", `{"model":"text-model","prompt":"`+strings.Repeat("Du bist ein Papagei. ", 8)+`"}`)
	}
	index.set(away)
	w := r.do("GET", "/v1/prefixes", "")
	var out struct {
		Models map[string]struct {
			Degraded struct{ Reason string }
			Prefixes []map[string]any
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK || len(out.Models) != 2 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	busy, quiet := out.Models["text-model"], out.Models["quiet"]
	if busy.Degraded.Reason != "index_unavailable" || len(busy.Prefixes) != 1 || busy.Prefixes[0]["requests"] != 3.0 || busy.Prefixes[0]["held_by"] != nil {
		t.Errorf("%s", w.Body)
	}
	if quiet.Degraded.Reason != "index_unavailable" || len(quiet.Prefixes) != 0 {
		t.Errorf("%s", w.Body)
	}
	index.set(store.ErrClosed)
	refused(t, r.do("GET", "/v1/prefixes", ""), 503, "closing")
}
