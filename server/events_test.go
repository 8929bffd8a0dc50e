package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/server"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/store"
)

// pusher notes what is pushed and applies all of it.
type pusher struct {
	got []string
	err error
}

func (p *pusher) Push(_ context.Context, in ingest.Pushed) (ingest.PushResult, error) {
	seq := "none"
	if in.Seq != nil {
		seq = fmt.Sprint(*in.Seq)
	}
	text := fmt.Sprintf("%s/%d %s %s seq %s skipped %d:", in.Pod, in.Rank, in.Model, in.Engine, seq, in.Skipped)
	res := ingest.PushResult{Skipped: in.Skipped}
	for _, r := range in.Ranks {
		res.Applied += len(r.Events)
		res.Ranks = append(res.Ranks, ingest.RankResult{Rank: r.Rank, Applied: len(r.Events)})
		text += fmt.Sprintf(" %d", r.Rank)
		for i := range r.Events {
			text += " " + string(event.AppendJSON(nil, &r.Events[i]))
		}
	}
	p.got = append(p.got, text)
	if p.err != nil {
		return ingest.PushResult{}, p.err
	}
	return res, nil
}

func (s subject) push(t *testing.T, contentType, query, body string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/v1/events"+query, strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

const removed = `{"type":"BlockRemoved","block_hashes":[18446744073709551615]}`

func TestEvents(t *testing.T) {
	for _, test := range []struct {
		name, query, body string
		packed            bool
		status            int
		answer            string
		pushed            []string
	}{
		{"one", "", `{"pod":"p:1","model":"m","rank":2,"engine":"vllm","seq":7,"events":[` + removed + `,{"type":"x"}]}`, false,
			200, `{"applied":1,"skipped":1,"ranks":[{"rank":2,"applied":1,"skipped":0}],"skips":[{"event":1,"reason":"unknown_kind","field":"type"}]}`,
			[]string{"p:1/2 m vllm seq 7 skipped 1: 2 " + removed}},
		{"several", "", `[{"pod":"a","model":"m","events":[` + removed + `]},{"pod":"b","model":"n","seq":0,"events":[5]}]`, false,
			200, `{"applied":1,"skipped":1,"ranks":[{"push":0,"rank":0,"applied":1,"skipped":0}],"skips":[{"push":1,"event":0,"reason":"bad_field","field":"event"}]}`,
			[]string{"a/0 m  seq none skipped 0: 0 " + removed, "b/0 n  seq 0 skipped 1:"}},
		{"none", "", `[]`, false, 200, `{"applied":0,"skipped":0,"ranks":[]}`, nil},
		{"of two ranks", "", `{"pod":"p","model":"m","engine":"trtllm","events":[
			{"data":{"type":"updated","block_hash":1,"cache_level":{"old_value":0,"new_value":1}},"attention_dp_rank":1},
			{"data":{"type":"removed","block_hashes":[1]},"attention_dp_rank":0}]}`, false,
			200, `{"applied":4,"skipped":0,"ranks":[{"rank":1,"applied":2,"skipped":0},{"rank":0,"applied":2,"skipped":0}]}`, []string{
				`p/0 m trtllm seq none skipped 0: 1 {"type":"BlockStored","block_hashes":[1],"parent_block_hash":null,"token_ids":[],"block_size":0,"medium":"CPU","kv_cache_spec_kind":"widest_window"} {"type":"BlockRemoved","block_hashes":[1],"medium":"GPU","kv_cache_spec_kind":"widest_window"}` +
					` 0 {"type":"BlockRemoved","block_hashes":[1],"medium":"GPU","kv_cache_spec_kind":"widest_window"} {"type":"BlockRemoved","block_hashes":[1],"medium":"CPU","kv_cache_spec_kind":"widest_window"}`}},
		{"a message", "?pod=p&model=m&seq=3&engine=sglang", string(encode.Append(nil, &event.Batch{Rank: 4, Events: []event.Event{{Kind: event.Cleared}}}, encode.SGLang520)), true,
			200, `{"applied":1,"skipped":0,"ranks":[{"rank":4,"applied":1,"skipped":0}]}`, []string{`p/4 m sglang seq 3 skipped 0: 4 {"type":"AllBlocksCleared"}`}},
		{"a message of another rank", "?pod=p&model=m&rank=5", string(encode.Append(nil, &event.Batch{Rank: 4, Events: []event.Event{{Kind: event.Cleared}}}, encode.VLLM9)), true,
			200, `{"applied":1,"skipped":0,"ranks":[{"rank":5,"applied":1,"skipped":0}]}`, []string{`p/5 m  seq none skipped 0: 5 {"type":"AllBlocksCleared"}`}},
		{"no pod", "?model=m", "\x92\x01\x90", true, 400, "pod: a message of an engine needs pod in the query", nil},
		{"no number", "?pod=p&model=m&seq=x", "\x92\x01\x90", true, 400, "seq: seq is no sequence number: a whole number from 0 to 2^53-2", nil},
		{"no rank", "?pod=p&model=m&rank=x", "\x92\x01\x90", true, 400, "rank: rank is no number", nil},
		{"no message", "?pod=p&model=m", "\xc1", true, 400, ": event: not a message of events: neither a map nor an array at byte 0", nil},
		{"no JSON", "", `{`, false, 400, ": event: not JSON: no name at byte 1", nil},
		{"an unknown field", "", `{"pod":"p","model":"m","events":[],"sequence":1}`, false, 400, "sequence: sequence is not known", nil},
		{"a pod that is none", "", `{"pod":"p\n","model":"m","events":[]}`, false, 400, "pod: ", nil},
		{"a model that is none", "", `{"pod":"p","model":"m\n","events":[]}`, false, 400, "model: ", nil},
		{"a rank that is none", "", `[{"pod":"p","model":"m","events":[]},{"pod":"p","model":"m","events":[],"rank":1024}]`, false, 400, "[1].rank: ", nil},
		{"a number that is none", "", `{"pod":"p","model":"m","events":[],"seq":9007199254740991}`, false, 400, "seq: seq is 9007199254740991, the highest is 9007199254740990", nil},
	} {
		p := &pusher{}
		s := newServer(t, openIndex(t), func(c *server.Config) { c.Events = p })
		kind := "application/json"
		if test.packed {
			kind = "application/msgpack"
		}
		status, answer := s.push(t, kind, test.query, test.body)
		if status != 200 {
			var e struct {
				Error struct{ Message, Param string }
			}
			must.OK(t, json.Unmarshal([]byte(answer), &e))
			answer = e.Error.Param + ": " + e.Error.Message
		}
		if status != test.status || answer != test.answer && (status == 200 || !strings.HasPrefix(answer, test.answer)) {
			t.Errorf("%s: %d %s, want %d %s", test.name, status, answer, test.status, test.answer)
		}
		if !slices.Equal(p.got, test.pushed) {
			t.Errorf("%s pushed\n%s\nwant\n%s", test.name, strings.Join(p.got, "\n"), strings.Join(test.pushed, "\n"))
		}
	}
}

// An unregistered pod is registered, once.
func TestEventsRegister(t *testing.T) {
	index := openIndex(t)
	s := newServer(t, index, func(c *server.Config) { c.Events = &pusher{} })
	must.Get(index.Register(t.Context(), store.Pod{Name: "there", Model: "m", Engine: "vllm"}))(t)
	for _, pod := range []string{"there", "new", "new"} {
		if status, answer := s.push(t, "application/json", "", `{"pod":"`+pod+`","model":"m","events":[`+removed+`]}`); status != 200 {
			t.Fatal(status, answer)
		}
	}
	reg := must.Get(index.Registry(t.Context()))(t)
	for name, engine := range map[string]string{"there": "vllm", "new": ""} {
		if i, ok := reg.PodIndex(name); !ok || reg.Pods[i].Model != "m" || reg.Pods[i].Engine != engine {
			t.Errorf("%s: %v %+v", name, ok, reg.Pods)
		}
	}
}

// A pod that is known here, and has been removed by another server a moment ago, is
// registered again.
func TestEventsRegisterAgain(t *testing.T) {
	index := &staleIndex{Index: openIndex(t)}
	p := &strict{index: index.Index}
	s := newServer(t, index, func(c *server.Config) { c.Events = p })
	const body = `{"pod":"p","model":"m","events":[` + removed + `]}`
	for range 2 { // the second time the pod is in the registry in memory, and then no more
		if status, answer := s.push(t, "application/json", "", body); status != 200 || !strings.Contains(answer, `"applied":1`) {
			t.Fatal(status, answer)
		}
		if reg, err := index.Index.Registry(t.Context()); err != nil || len(reg.Pods) != 1 {
			t.Fatal(reg, err)
		}
		if index.cached == nil {
			index.cached = index.Index.Cached()
			must.Get(index.Index.Retire(t.Context(), "p"))(t)
		}
	}
}

// staleIndex has an old registry in memory, once there is one.
type staleIndex struct {
	store.Index
	cached *store.Registry
}

func (x *staleIndex) Registry(ctx context.Context) (*store.Registry, error) {
	if x.cached != nil {
		return x.cached, nil
	}
	return x.Index.Registry(ctx)
}

// strict takes events of pods that are registered.
type strict struct {
	pusher
	index store.Index
}

func (p *strict) Push(ctx context.Context, in ingest.Pushed) (ingest.PushResult, error) {
	reg, err := p.index.Registry(ctx)
	if err != nil {
		return ingest.PushResult{}, err
	}
	if _, known := reg.PodIndex(in.Pod); !known {
		return ingest.PushResult{}, store.ErrUnknownPod
	}
	return p.pusher.Push(ctx, in)
}

func TestEventsFail(t *testing.T) {
	body := `{"pod":"p","model":"m","events":[` + removed + `]}`
	s := newServer(t, openIndex(t))
	if status, answer := s.push(t, "application/json", "", body); status != 501 || !strings.Contains(answer, `"no_ingest"`) {
		t.Error(status, answer)
	}
	s = newServer(t, openIndex(t), func(c *server.Config) {
		c.Events = &pusher{err: errors.Join(store.ErrUnavailable)}
		c.Limits.MaxBodyBytes = 100
		c.Limits.MaxTokens = 2
	})
	if status, answer := s.push(t, "application/json", "", body); status != 503 || !strings.Contains(answer, `"index_unavailable"`) {
		t.Error(status, answer)
	}
	if status, answer := s.push(t, "application/json", "", strings.Repeat(" ", 101)+body); status != 413 {
		t.Error(status, answer)
	}
}

// What engines push is scored: by vLLM's map form, SGLang's arrays in MessagePack,
// TensorRT-LLM's JSON, with sequences and without.
func TestEventsAreScored(t *testing.T) {
	index := openIndex(t)
	in := must.Get(ingest.New(ingest.Config{Index: index, BlockSize: 4}))(t)
	defer func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := newServer(t, index, func(c *server.Config) { c.Events = in })
	push := func(kind, query, body, want string) {
		t.Helper()
		if status, answer := s.push(t, kind, query, body); status != 200 || !strings.HasPrefix(answer, want) {
			t.Fatalf("%d %s, want %s", status, answer, want)
		}
	}
	scores := func() string {
		t.Helper()
		w := s.do(http.MethodPost, "/v1/score", strings.NewReader(`{"model":"m","tokens":[1,2,3,4,5,6,7,8]}`))
		var resp struct{ Scores map[string]float64 }
		must.OK(t, json.Unmarshal(w.Body.Bytes(), &resp))
		return fmt.Sprint(resp.Scores)
	}
	push("application/json", "", `{"pod":"vllm","model":"m","seq":0,"events":[
		{"type":"BlockStored","block_hashes":[11,12],"parent_block_hash":null,"token_ids":[1,2,3,4],"block_size":2,"medium":"GPU"}]}`, `{"applied":1,"skipped":0,`)
	push("application/json", "", `{"pod":"vllm","model":"m","seq":1,"events":[
		{"type":"BlockStored","block_hashes":[13,14],"parent_block_hash":12,"token_ids":[5,6,7,8],"block_size":2,"medium":"GPU"}]}`, `{"applied":1,"skipped":0,`)
	sglang := event.Batch{Rank: 1, Events: []event.Event{{Kind: event.Stored, Hashes: []event.Hash{1 << 63, 2}, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, BlockSize: 4, Medium: "CPU_PINNED"}}}
	push("application/msgpack", "?pod=sglang&model=m", string(encode.Append(nil, &sglang, encode.SGLang59)), `{"applied":1,"skipped":0,`)
	push("application/json", "", `{"pod":"trt","model":"m","events":[{"event_id":0,"data":{"type":"created"},"window_size":64},
		{"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":5,"tokens":[{"token_id":1,"token_extra_id":0},{"token_id":2,"token_extra_id":0},
		{"token_id":3,"token_extra_id":0},{"token_id":4,"token_extra_id":0}],"cache_level":0}]},"window_size":64}]}`, `{"applied":3,"skipped":0,`)
	if got, want := scores(), "map[sglang:1.6 trt:1 vllm:2]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// The last push again is skipped; a removal counts.
	again := `{"pod":"vllm","model":"m","seq":2,"events":[{"type":"BlockRemoved","block_hashes":["e"],"medium":"GPU"}]}`
	push("application/json", "", again, `{"applied":1,"skipped":0,`)
	push("application/json", "", again, `{"applied":0,"skipped":1,"ranks":[{"rank":0,"applied":0,"skipped":1,"duplicate":true}]}`)
	push("application/json", "", `{"pod":"trt","model":"m","events":[{"data":{"type":"updated","block_hash":5,"cache_level":{"old_value":0,"new_value":1}},"window_size":64}]}`, `{"applied":2,"skipped":0,`)
	if got, want := scores(), "map[sglang:1.6 trt:0.8 vllm:1]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// A hole begins a new generation.
	push("application/json", "", `{"pod":"vllm","model":"m","seq":9,"events":[]}`, `{"applied":0,"skipped":0,"ranks":[{"rank":0,"applied":0,"skipped":0,"began":"lost"}]}`)
	if got, want := scores(), "map[sglang:1.6 trt:0.8]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if status, answer := s.push(t, "application/json", "", `{"pod":"vllm","model":"other","seq":10,"events":[{"type":"AllBlocksCleared"}]}`); status != 200 {
		t.Error(status, answer)
	}
}
