package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// kept is a Relay that keeps messages from first on of the rank a/b 1, as
// ingest.Ingester does. That one's own tests hold it to these errors.
type kept struct {
	first    uint64
	messages []zmq.Message
	moves    int // how often the oldest goes while a client asks
	held     func(cursor string, limit int) (ingest.Held, error)
}

func (k *kept) Recent(pod string, rank int, from, to uint64) (ingest.Recent, error) {
	if pod != "a/b" || rank != 1 {
		return ingest.Recent{}, fmt.Errorf("%w: %s/%d", ingest.ErrNotRead, pod, rank)
	}
	if from > to {
		return ingest.Recent{}, fmt.Errorf("%w: from %d to %d", ingest.ErrRange, from, to)
	}
	if len(k.messages) == 0 {
		return ingest.Recent{}, fmt.Errorf("%w: there is none", ingest.ErrTooNew)
	}
	out := ingest.Recent{First: k.first, Last: k.first + uint64(len(k.messages)) - 1}
	switch {
	case from > out.Last:
		return out, fmt.Errorf("%w: %d, the newest is %d", ingest.ErrTooNew, from, out.Last)
	case from < out.First:
		if k.moves > 0 {
			k.moves--
			k.first, k.messages = k.first+1, k.messages[1:]
		}
		return out, fmt.Errorf("%w: %d, the oldest is %d", ingest.ErrTooOld, from, out.First)
	}
	rest := k.messages[from-out.First:]
	out.Messages = rest[:min(uint64(len(rest)), min(to, out.Last)-from+1, 4)]
	return out, nil
}

func (k *kept) Held(_ context.Context, pod string, rank int, cursor string, limit int) (ingest.Held, error) {
	return k.held(cursor, limit)
}

// relayServer is a server before r, and what asks it and holds its answers to the
// document.
func relayServer(t *testing.T, r Relay, edit ...func(*Config)) (s *Server, ask func(path string) (int, string)) {
	t.Helper()
	index, err := memory.New(memory.Config{})
	must.OK(t, err)
	t.Cleanup(func() { _ = index.Close() })
	must.Get(index.Register(t.Context(), store.Pod{Name: "a/b", Model: "m", Ranks: 2}))(t)
	sc := must.Get(scorer.New(scorer.Config{Index: index}))(t)
	c := Config{Scorer: sc, Index: index, Relay: r}
	for _, f := range edit {
		f(&c)
	}
	if s, err = New(c); err != nil {
		t.Fatal(err)
	}
	d := readDocument(t)
	return s, func(path string) (int, string) {
		t.Helper()
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		pattern := "/v1/ingest/{pod}/{rank}/events"
		if strings.Contains(path, "/blocks") {
			pattern = "/v1/ingest/{pod}/{rank}/blocks"
		}
		answer, ok := d.Paths[pattern]["get"].Responses[strconv.Itoa(w.Code)]
		if !ok {
			t.Fatalf("%s: the status %d is not documented", path, w.Code)
		}
		var v any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v in %s", path, err, w.Body)
		}
		for _, bad := range d.check(t, answer.Content["application/json"].Schema, v, "answer") {
			t.Errorf("%s: %s\n%s", path, bad, w.Body)
		}
		return w.Code, strings.TrimSpace(w.Body.String())
	}
}

// someMessages are messages of one stored block each, and the third cannot be read.
func someMessages(n int) []zmq.Message {
	out := make([]zmq.Message, n)
	for i := range out {
		b := event.Batch{Time: 1.5, Rank: 1, HasRank: true, Events: []event.Event{{Kind: event.Removed, Hashes: []event.Hash{event.Hash(i)}, Medium: "GPU"}}}
		out[i] = zmq.Message{Seq: uint64(10 + i), Topic: "kv", Payload: encode.Append(nil, &b, encode.VLLM33)}
		if i == 2 {
			out[i].Payload = []byte{0xc1}
		}
	}
	return out
}

func TestRecentEvents(t *testing.T) {
	relay := &kept{first: 10, messages: someMessages(7)}
	_, ask := relayServer(t, relay)
	message := func(seq int) string {
		if seq == 12 {
			return `{"seq":12,"topic":"kv","events":[],"malformed":"neither an array nor a map at byte 0"}`
		}
		return fmt.Sprintf(`{"seq":%d,"topic":"kv","time":1.5,"data_parallel_rank":1,"events":[{"type":"BlockRemoved","block_hashes":[%d],"medium":"GPU"}]}`, seq, seq-10)
	}
	answer := func(from, to int, more string) string {
		var list []string
		for seq := from; seq <= to; seq++ {
			list = append(list, message(seq))
		}
		return `{"pod":"a/b","rank":1,"first":10,"last":16,"messages":[` + strings.Join(list, ",") + `]` + more + `}`
	}
	const path = "/v1/ingest/a%2Fb/1/events"
	for _, tc := range []struct {
		path   string
		status int
		want   string
	}{
		{path, 200, answer(10, 13, `,"next":14`)}, // four at a time
		{path + "?from=14", 200, answer(14, 16, "")},
		{path + "?from=11&to=12", 200, answer(11, 12, "")},
		{path + "?to=10", 200, answer(10, 10, "")},
		{path + "?from=16&to=18446744073709551615", 200, answer(16, 16, "")},
		{path + "?from=17", 416, `{"error":{"code":"range_too_new","message":"17, the newest is 16","param":"from"}}`},
		{path + "?from=9&to=12", 416, `{"error":{"code":"range_too_old","message":"9, the oldest is 10","param":"from"}}`},
		{path + "?to=9", 416, `{"error":{"code":"range_too_old","message":"0, the oldest is 10","param":"from"}}`},
		{path + "?from=5&to=4", 400, `{"error":{"code":"invalid_range","message":"from 5 to 4","param":"to"}}`},
		{path + "?from=-1", 400, `{"error":{"code":"invalid_request","message":"from is -1, it must be a whole number from 0 to 18446744073709551615","param":"from"}}`},
		{path + "?form=1", 400, `{"error":{"code":"unknown_field","message":"there is no parameter \"form\" (did you mean from?): the query takes from, to","param":"form"}}`},
		{"/v1/ingest/a%2Fb/x/events", 400, `{"error":{"code":"invalid_request","message":"rank is x, it must be a whole number from 0 to 1023","param":"rank"}}`},
		{"/v1/ingest/a%2Fb/1024/events", 400, `{"error":{"code":"invalid_request","message":"rank is 1024, it must be a whole number from 0 to 1023","param":"rank"}}`},
		{"/v1/ingest/%FF/1/events", 400, ""},
		{"/v1/ingest/c/1/events", 404, `{"error":{"code":"rank_not_read","message":"this server does not read the rank: another replica does, or none","param":"rank"}}`},
	} {
		if status, got := ask(tc.path); status != tc.status || tc.want != "" && got != tc.want {
			t.Errorf("%s: got %d %s\nwant %d %s", tc.path, status, got, tc.status, tc.want)
		}
	}
	// The oldest goes while it is asked for.
	moving := &kept{first: 10, messages: someMessages(7), moves: 1}
	_, ask = relayServer(t, moving)
	if status, got := ask(path); status != 200 || !strings.Contains(got, `"first":11,"last":16,"messages":[{"seq":11,`) {
		t.Errorf("got %d %s", status, got)
	}
	_, ask = relayServer(t, &kept{})
	if status, got := ask(path); status != 200 || got != `{"pod":"a/b","rank":1,"messages":[]}` {
		t.Errorf("of an empty ring: got %d %s", status, got)
	}
	if status, got := ask(path + "?from=0"); status != 416 || !strings.Contains(got, "range_too_new") {
		t.Errorf("of an empty ring: got %d %s", status, got)
	}
	_, ask = relayServer(t, nil)
	for _, p := range []string{path, "/v1/ingest/a/0/blocks"} {
		if status, got := ask(p); status != 501 || !strings.Contains(got, "no_ingest") {
			t.Errorf("%s without the role: got %d %s", p, status, got)
		}
	}
}

// An answer is cut where it becomes too long, never before its first message. The memory
// that it may take counts among that of requests.
func TestRecentEventsAreBounded(t *testing.T) {
	const path = "/v1/ingest/a%2Fb/1/events"
	whole := 0
	for limit := int64(1); limit < 1000; limit += 50 {
		s, ask := relayServer(t, &kept{first: 10, messages: someMessages(4)}, func(c *Config) { c.Limits.MaxRelayBytes = limit })
		_, got := ask(path)
		var v struct {
			Messages []struct{ Seq uint64 }
			Next     *uint64
		}
		if err := json.Unmarshal([]byte(got), &v); err != nil || len(v.Messages) == 0 {
			t.Fatalf("%d: %v %s", limit, err, got)
		}
		n := uint64(len(v.Messages))
		if (v.Next == nil) != (n == 4) || v.Next != nil && *v.Next != 10+n {
			t.Errorf("limit %d: %s", limit, got)
		}
		if n > 1 && int64(len(got)) > limit+20 { // the end has next
			t.Errorf("limit %d: %d bytes", limit, len(got))
		}
		if n == 4 {
			whole++
		}
		if left := s.inFlightBytes.Load(); left != 0 {
			t.Errorf("%d bytes stay taken", left)
		}
	}
	if whole == 0 || whole > 15 {
		t.Errorf("whole %d times", whole)
	}
	_, ask := relayServer(t, &kept{first: 10, messages: someMessages(4)}, func(c *Config) {
		c.Limits.MaxBodyBytes, c.Limits.MaxInFlightBytes, c.Limits.MaxRelayBytes = 100, 1000, 1001
	})
	if status, got := ask(path); status != 503 || !strings.Contains(got, "overloaded") {
		t.Errorf("got %d %s", status, got)
	}
}

func TestHeldBlocks(t *testing.T) {
	key := blockkey.Key(0x1122334455667788)
	relay := &kept{held: func(cursor string, limit int) (ingest.Held, error) {
		switch {
		case cursor == "bad":
			return ingest.Held{}, fmt.Errorf("%w: bad", store.ErrCursor)
		case cursor != "":
			return ingest.Held{Generation: 3, Seq: uint64(limit)}, nil
		}
		h := ingest.Held{Next: "n", Generation: 3, Seq: 7}
		h.Keys[store.CPU] = []blockkey.StoreKey{key.In(blockkey.ModelOf("m"))}
		return h, nil
	}}
	_, ask := relayServer(t, relay)
	const path = "/v1/ingest/a%2Fb/1/blocks"
	for _, tc := range []struct {
		path   string
		status int
		want   string
	}{
		{path, 200, `{"pod":"a/b","rank":1,"generation":3,"seq":7,"block_keys":{"cpu":["1122334455667788"]},"next":"n"}`},
		{path + "?cursor=n&limit=65536", 200, `{"pod":"a/b","rank":1,"generation":3,"seq":65536,"block_keys":{}}`},
		{path + "?cursor=bad", 400, `{"error":{"code":"invalid_cursor","message":"bad","param":"cursor"}}`},
		{path + "?limit=0", 400, `{"error":{"code":"invalid_request","message":"limit is 0, it must be a whole number from 1 to 65536","param":"limit"}}`},
		{path + "?limit=65537", 400, ""},
		{"/v1/ingest/c/1/blocks", 404, `{"error":{"code":"unknown_pod","message":"no pod is registered as c","param":"pod"}}`},
	} {
		if status, got := ask(tc.path); status != tc.status || tc.want != "" && got != tc.want {
			t.Errorf("%s: got %d %s\nwant %d %s", tc.path, status, got, tc.status, tc.want)
		}
	}
}
