package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	loadsredis "github.com/kvatlas/kvatlas/route/loads/redis"
	"github.com/kvatlas/kvatlas/route/notes"
	notesredis "github.com/kvatlas/kvatlas/route/notes/redis"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/store"
	storeredis "github.com/kvatlas/kvatlas/store/redis"
)

// noting runs a test on one server with all in memory, and on two that share Redis, which
// take the requests in turn.
func noting(t *testing.T, run func(r *routing)) {
	var looks []func()
	open := func(t *testing.T, index store.Index, kept loads.Store, noted notes.Store) http.Handler {
		sc := must.Get(scorer.New(scorer.Config{Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), BlockSize: 16, Budget: 10 * time.Second}))(t)
		router := must.Get(route.New(route.Config{Scorer: sc, Pods: index, Loads: kept, Index: index, Notes: noted}))(t)
		s := must.Get(server.New(server.Config{Scorer: sc, Index: index, Tokenizer: scorer.TokenizerFunc(bytewise), Router: router, BlockSize: 16}))(t)
		u := &route.Upkeep{Router: router, Index: index, Failed: func(_ string, err error) { t.Error(err) }}
		looks = append(looks, func() { u.Look(t.Context()) })
		return s.Handler()
	}
	t.Run("memory", func(t *testing.T) {
		h := open(t, openIndex(t), loads.NewMemory(nil), notes.NewMemory(nil))
		run(&routing{T: t, h: h, looks: looks})
	})
	t.Run("Redis", func(t *testing.T) {
		redis := redistest.Start(t)
		looks = nil
		var turn []http.Handler
		for range 2 {
			index := must.Get(storeredis.Open(storeredis.Config{URL: redis.URL(), Timeout: 10 * time.Second}))(t)
			t.Cleanup(func() { _ = index.Close() })
			kept, err1 := loadsredis.New(loadsredis.Config{Client: redis.Client(), Prefix: storeredis.DefaultPrefix, Timeout: 10 * time.Second})
			noted, err2 := notesredis.New(notesredis.Config{Client: redis.Client(), Prefix: storeredis.DefaultPrefix, Timeout: 10 * time.Second})
			must.OK(t, errors.Join(err1, err2))
			turn = append(turn, open(t, index, kept, noted))
		}
		run(&routing{T: t, h: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := turn[0]
			turn = append(turn[1:], h)
			h.ServeHTTP(w, r)
		}), looks: looks})
	})
}

// What a router has sent to a pod that never tells counts for every server's next choice. For a
// score it counts only if that is asked for.
func TestPredictionsOverHTTP(t *testing.T) {
	noting(t, func(r *routing) {
		r.ok("PUT", "/v1/models/demo/routing", `{"predict":{"bridge_s":0,"ttl_s":3600}}`)
		r.ok("POST", "/v1/pods", `{"name":"tells","model":"demo"}`)
		r.ok("POST", "/v1/pods", `{"name":"silent","model":"demo","approximate":true,"kv_tokens":1600}`)
		prompt := `"model":"demo","tokens":[` + upTo(100) + `]`
		for _, pod := range []string{"tells", "silent"} {
			r.ok("POST", "/v1/route", `{`+prompt+`,"pods":["`+pod+`"],"reserve":true,"request_id":"`+pod+`"}`)
			r.ok("POST", "/v1/requests/"+pod+"/end", `{"model":"demo"}`)
		}
		var plain, asked struct {
			Scores  map[string]float64
			Matched map[string]struct {
				Blocks    int
				Predicted int `json:"predicted_blocks"`
				Tiers     map[string]int
			}
		}
		score := func(more string, into any) {
			must.OK(t, json.Unmarshal(r.do("POST", "/v1/score", `{`+prompt+more+`}`).Body.Bytes(), into))
		}
		score(``, &plain)
		score(`,"predicted":true,"explain":true`, &asked)
		if len(plain.Scores) != 0 {
			t.Errorf("without being asked a score has %v", plain.Scores)
		}
		if m := asked.Matched["silent"]; len(asked.Scores) != 1 || asked.Scores["silent"] != 6 || m.Blocks != 6 || m.Predicted != 6 || m.Tiers["gpu"] != 6 {
			t.Errorf("%+v", asked)
		}
		var d struct {
			Pod     string
			Overlap struct {
				Tokens    int
				Predicted int `json:"predicted_tokens"`
			}
		}
		must.OK(t, json.Unmarshal(r.do("POST", "/v1/route", `{`+prompt+`}`).Body.Bytes(), &d))
		if d.Pod != "silent" || d.Overlap.Tokens != 96 || d.Overlap.Predicted != 96 {
			t.Errorf("%+v", d)
		}
		if w := r.do("POST", "/v1/route", `{`+prompt+`,"predicted":true}`); w.Code != 400 {
			t.Errorf("a route with predicted: %d", w.Code)
		}
		if w := r.do("PUT", "/v1/models/demo/routing", `{"predict":{"prune":2}}`); w.Code != 400 {
			t.Errorf("prune 2: %d", w.Code)
		}
	})
}
