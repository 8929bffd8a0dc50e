package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = lmcachetest.Model

type golden struct {
	Events []struct {
		Path string          `json:"path"`
		Body json.RawMessage `json:"body"`
	} `json:"events"`
	HTTP map[string]json.RawMessage `json:"http"`
}

// stage is an index with engines, and coordinators that write to it.
type stage struct {
	*lmcachetest.Stage
	t *testing.T
}

func newStage(t *testing.T, pods ...string) *stage {
	t.Helper()
	return &stage{lmcachetest.NewStage(t, pods...), t}
}

func (s *stage) coordinator(change ...func(*Config)) *Coordinator {
	s.t.Helper()
	c := Config{Index: s.Index, Timeout: 20 * time.Second, Observer: Observer{
		Unmapped: func(instance string, err error) { s.Tell("unmapped %s: %v", instance, err) },
		Lost:     func(instance, why string) { s.Tell("lost %s: %s", instance, why) },
		Shared:   func(instance string, by []string) { s.Tell("%s is shared by %s", instance, strings.Join(by, " and ")) },
	}}
	for _, f := range change {
		f(&c)
	}
	x := must.Get(New(c))(s.t)
	return x
}

// call makes a request and returns what it is answered.
func call(t testing.TB, c http.Handler, method, path string, body []byte) (int, string) {
	t.Helper()
	return callFrom(t, "192.0.2.1", c, method, path, body)
}

// callFrom is call from a host.
func callFrom(t testing.TB, host string, c http.Handler, method, path string, body []byte) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
	r.RemoteAddr = net.JoinHostPort(host, "1234")
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

// event is a batch of the chunks that are named, each by a byte that its hash consists of.
func event(seq int, kind, tier string, chunks string, more ...string) string {
	var entries []string
	for i := range chunks {
		entries = append(entries, fmt.Sprintf(`{"key":{"chunk_hash_hex":%q,"model_name":%q,"kv_rank":16777472},"size_bytes":1,"token_ids":[1,2]}`, strings.Repeat(fmt.Sprintf("%02x", chunks[i]), 32), model))
	}
	return fmt.Sprintf(`{"instance_id":"mp","incarnation":7,"seq":%d,"event_type":%q,"tier":%q,"backend":"x","entries":[%s]%s}`,
		seq, kind, tier, strings.Join(entries, ","), strings.Join(more, ""))
}

func post(t testing.TB, c http.Handler, batches ...string) string {
	t.Helper()
	status, got := call(t, c, "POST", "/events", []byte(`{"batches":[`+strings.Join(batches, ",")+`]}`))
	if status != http.StatusOK {
		return fmt.Sprint(status, " ", got)
	}
	var s summary
	must.OK(t, json.Unmarshal([]byte(got), &s))
	return fmt.Sprint(s.Applied, s.Duplicates, s.Stale)
}

// holds says in which tiers the chunks are held, as the directory tells.
func holds(t testing.TB, c http.Handler, chunks string) string {
	t.Helper()
	var keys []string
	for i := range chunks {
		keys = append(keys, fmt.Sprintf(`{"chunk_hash_hex":%q,"model_name":%q,"kv_rank":16777472}`, strings.Repeat(fmt.Sprintf("%02x", chunks[i]), 32), model))
	}
	status, got := call(t, c, "POST", "/directory/lookup", []byte(`{"keys":[`+strings.Join(keys, ",")+`]}`))
	var r struct{ Results []found }
	if err := json.Unmarshal([]byte(got), &r); err != nil || status != http.StatusOK {
		t.Fatal(status, got, err)
	}
	out := make([]string, len(r.Results))
	for i := range r.Results {
		for _, p := range r.Results[i].Placements {
			out[i] += p.Backend[:1]
		}
		if out[i] == "" {
			out[i] = "-"
		}
	}
	return strings.Join(out, " ")
}

// What LMCache's server posted, and what its own coordinator answered.
func TestRecorded(t *testing.T) {
	var g golden
	lmcachetest.ReadGolden(t, "testdata/mp.json.gz", &g)
	s := newStage(t, "mp-server-0")
	c := s.coordinator()
	if status, got := call(t, c, "POST", "/instances", []byte(`{"instance_id":"mp-server-0","ip":"10.0.0.1","http_port":8080}`)); !same(t, g.HTTP["register"], status, got) {
		t.Errorf("registration: %d %s, want %s", status, got, g.HTTP["register"])
	}
	var answers []json.RawMessage
	must.OK(t, json.Unmarshal(g.HTTP["events"], &answers))
	for i, e := range g.Events {
		if status, got := call(t, c, "POST", e.Path, e.Body); !same(t, answers[i], status, got) {
			t.Errorf("events %d: %d %s, want %s", i, status, got, answers[i])
		}
	}
	if status, got := call(t, c, "POST", g.Events[0].Path, g.Events[0].Body); !same(t, g.HTTP["events_replayed"], status, got) {
		t.Errorf("events again: %d %s", status, got)
	}
	tokens := make([]string, 1024)
	for i := range tokens {
		tokens[i] = fmt.Sprint(i)
	}
	status, got := call(t, c, "POST", "/directory/lookup", fmt.Appendf(nil, `{"model_name":%q,"world_size":1,"cache_salt":"","token_ids":[%s]}`, model, strings.Join(tokens, ",")))
	// Sizes, tokens and the names of backends are not kept.
	want := string(g.HTTP["directory_lookup"])
	for _, r := range [][2]string{{`"size_bytes": 2048`, `"size_bytes": 0`}, {`"size_bytes":2048`, `"size_bytes":0`}, {`"256 ids"`, `[]`}, {`"0 ids"`, `[]`}, {`"access_count":1`, `"access_count":0`}, {`"access_count": 1`, `"access_count":0`}, {`"resp"`, `"shared"`}} {
		want = strings.ReplaceAll(want, r[0], r[1])
	}
	if !same(t, json.RawMessage(want), status, got) {
		t.Errorf("lookup: %d\n%s, want\n%s", status, got, want)
	}
	status, got = call(t, c, "GET", "/instances", nil)
	var list struct{ Instances []member }
	if err := json.Unmarshal([]byte(got), &list); err != nil || status != http.StatusOK || len(list.Instances) != 1 {
		t.Fatal(status, got, err)
	}
	list.Instances[0].Registered = 1795815511.0978346
	b := must.Get(json.Marshal(map[string]any{"instances": list.Instances}))(t)
	if !same(t, g.HTTP["instances"], status, string(b)) {
		t.Errorf("instances: %s, want %s", b, g.HTTP["instances"])
	}
	// The paths that LMCache's has are here too.
	var paths map[string][]string
	must.OK(t, json.Unmarshal(g.HTTP["paths"], &paths))
	for path, methods := range paths {
		if path == "/metrics" {
			continue
		}
		for _, m := range methods {
			status, got := call(t, c, strings.ToUpper(m), strings.NewReplacer("{instance_id}", "no", "{request_id}", "no", "{cache_salt}", "no").Replace(path), []byte("{"))
			if status == http.StatusNotFound && !strings.Contains(got, "re-register") || status == http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", m, path, status, got)
			}
		}
	}
}

// same compares [status, body] with an answer.
func same(t testing.TB, want json.RawMessage, status int, got string) bool {
	t.Helper()
	var a, b any
	must.OK(t, json.Unmarshal(want, &a))
	if err := json.Unmarshal(fmt.Appendf(nil, "[%d,%s]", status, got), &b); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	return reflect.DeepEqual(a, b)
}

func TestEvents(t *testing.T) {
	s := newStage(t, "mp")
	c := s.coordinator()
	for i, step := range []struct {
		post   []string
		answer string
		holds  string // of a, b, c
	}{
		{[]string{event(1, "store", "l1", "ab"), event(2, "store", "l2", "b"), event(3, "store", "l2", "c", `,"shared":true`)}, "3 0 0", "d dd s"},
		{[]string{event(2, "delete", "l2", "b"), event(3, "store", "l1", "c")}, "0 2 0", "d dd s"},
		{[]string{event(4, "access", "l1", "a"), event(5, "config", "l2", ""), event(6, "delete", "l2", "b"), event(7, "delete", "l2", "c", `,"shared":true`)}, "4 0 0", "d d -"},
		{[]string{strings.Replace(event(9, "store", "l1", "c"), `"incarnation":7`, `"incarnation":6`, 1)}, "0 0 1", "d d -"},
		// One is missing: nothing is sure any more.
		{[]string{event(9, "store", "l1", "c")}, "1 0 0", "- - d"},
		{[]string{event(10, "store", "l2", "a"), event(11, "store", "l1", "a"), event(13, "store", "l1", "b")}, "3 0 0", "- d -"},
		{[]string{event(14, "store", "l2", "c")}, "1 0 0", "- d d"},
		// A new process has an empty first level.
		{[]string{event(15, "store", "l1", "a"), strings.Replace(event(1, "store", "l1", "a"), `"incarnation":7`, `"incarnation":8`, 1)}, "2 0 0", "d - d"},
		{[]string{strings.Replace(event(3, "store", "l1", "b"), `"incarnation":7`, `"incarnation":9`, 1)}, "1 0 0", "- d -"},
		// What is not to be found without more is left out.
		{[]string{strings.NewReplacer(`"incarnation":7`, `"incarnation":9`, `"kv_rank"`, `"cache_salt":"t","kv_rank"`).Replace(event(4, "store", "l1", "a"))}, "1 0 0", "- d -"},
		{[]string{strings.NewReplacer(`"incarnation":7`, `"incarnation":9`, `"kv_rank"`, `"object_group_id":1,"kv_rank"`).Replace(event(5, "store", "l1", "a"))}, "1 0 0", "- d -"},
		{[]string{strings.NewReplacer(`"incarnation":7`, `"incarnation":9`, model, "other").Replace(event(6, "store", "l1", "a"))}, "1 0 0", "- d -"},
	} {
		if got := post(t, c, step.post...); got != step.answer {
			t.Errorf("step %d: %s, want %s", i, got, step.answer)
		}
		if got := holds(t, c, "abc"); got != step.holds {
			t.Errorf("step %d: it holds %s, want %s", i, got, step.holds)
		}
	}
	if st := c.Stats(); st.Gaps != 3 || st.Skipped != 2 || st.Foreign != 1 || st.Applied != 18 || st.Duplicates != 2 || st.Stale != 1 {
		t.Errorf("%+v", st)
	}
}

// Batches of one instance that come to several replicas are taken in once, and a new
// process goes on.
func TestReplicas(t *testing.T) {
	s := newStage(t, "mp")
	list := []*Coordinator{s.coordinator(), s.coordinator(), s.coordinator()}
	for seq := 1; seq <= 12; seq++ {
		c := list[seq%3]
		if got := post(t, c, event(seq, "store", "l1", string(rune('a'+seq)))); got != "1 0 0" {
			t.Fatalf("batch %d: %s", seq, got)
		}
		if got := post(t, list[(seq+1)%3], event(seq, "delete", "l1", string(rune('a'+seq)))); got != "0 1 0" {
			t.Fatalf("batch %d again: %s", seq, got)
		}
	}
	if got := holds(t, s.coordinator(), "bcm"); got != "d d d" {
		t.Errorf("held are %s", got)
	}
	fresh := s.coordinator()
	if got := post(t, fresh, event(14, "store", "l1", "z")); got != "1 0 0" {
		t.Error(got)
	}
	if got := holds(t, fresh, "bz"); got != "- d" {
		t.Errorf("after a hole that another process saw the first side of, held are %s", got)
	}
	for i, c := range list {
		if st := c.Stats(); st.Gaps != 0 {
			t.Errorf("replica %d: %+v", i, st)
		}
	}
}

// Tensor-parallel workers are registrations of their own, and an instance can serve
// several pods.
func TestWorkers(t *testing.T) {
	s := newStage(t, "p1", "p2")
	c := s.coordinator(func(c *Config) {
		c.Pods.Map = map[string][]feed.Target{"mp": {{Pod: "p1"}, {Pod: "p2", Rank: 1}}}
	})
	rank := func(b string, rank int) string {
		kv := must.Get(lmcache.NewKVRank(2, rank, 2, rank))(t)
		return strings.ReplaceAll(b, "16777472", fmt.Sprint(uint32(kv)))
	}
	if got := post(t, c, rank(event(1, "store", "l1", "a"), 0), rank(event(2, "store", "l1", "a"), 1)); got != "2 0 0" {
		t.Error(got)
	}
	reg, err := s.Index.Registry(t.Context())
	must.OK(t, err)
	got := map[string]store.PartOf{}
	for _, p := range reg.Pods {
		if p.PartOf != nil {
			got[p.Name] = *p.PartOf
		}
	}
	want := map[string]store.PartOf{}
	for w := range 2 {
		want[lmcache.WorkerName("mp", "p1", w)] = store.PartOf{Pod: "p1", Worker: w, Workers: 2}
		want[lmcache.WorkerName("mp", "p2", w)] = store.PartOf{Pod: "p2", Rank: 1, Worker: w, Workers: 2}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("registered are %v, want %v", got, want)
	}
	lookup := func(worker, want int) {
		t.Helper()
		body := fmt.Sprintf(`{"keys":[{"chunk_hash_hex":%q,"model_name":%q,"kv_rank":16777472}]}`, strings.Repeat("61", 32), model)
		status, text := call(t, c, "POST", "/directory/lookup", []byte(rank(body, worker)))
		if n := strings.Count(text, `"instance_id":"mp"`); status != http.StatusOK || n != want {
			t.Errorf("of worker %d: %d %s", worker, status, text)
		}
	}
	lookup(1, 1)
	if got := post(t, c, rank(event(3, "delete", "l1", "a"), 1)); got != "1 0 0" {
		t.Error(got)
	}
	lookup(0, 1)
	lookup(1, 0)
	// It leaves, and takes all with it.
	if status, _ := call(t, s.coordinator(), "DELETE", "/instances/mp", nil); status != http.StatusNoContent {
		t.Error(status)
	}
	if reg, err = s.Index.Registry(t.Context()); err != nil || len(reg.Pods) != 2 {
		t.Errorf("%d registrations, %v", len(reg.Pods), err)
	}
}

// A replica that takes an instance over leaves the others alone.
func TestTakesOverItsOwn(t *testing.T) {
	s := newStage(t, "mp", "mp2")
	of := func(b string) string { return strings.Replace(b, `"mp"`, `"mp2"`, 1) }
	c := s.coordinator()
	post(t, c, event(1, "store", "l1", "a"), event(2, "store", "l1", "a"), of(event(1, "store", "l1", "b")))
	next := s.coordinator()
	if got := post(t, next, of(event(2, "store", "l1", "c"))) + holds(t, c, "abc"); got != "1 0 0d d d" {
		t.Error(got)
	}
	if got := post(t, c, event(3, "store", "l1", "d")) + holds(t, c, "abcd"); got != "1 0 0d d d d" {
		t.Error(got)
	}
	if one, other := c.Stats(), next.Stats(); one.Gaps+other.Gaps != 0 || one.TookOver != 0 || other.TookOver != 1 {
		t.Errorf("%+v, %+v", one, other)
	}
}

// Heartbeats keep what an instance holds, also those that another replica hears; without
// them it ends.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, "mp")
		c, other := s.coordinator(), s.coordinator()
		if status, got := call(t, c, "PUT", "/instances/mp/heartbeat", nil); status != http.StatusNotFound {
			t.Error(status, got)
		}
		for _, x := range []*Coordinator{c, other} {
			if status, got := call(t, x, "POST", "/instances", []byte(`{"instance_id":" mp ","ip":"10.0.0.1","http_port":1}`)); status != http.StatusOK {
				t.Error(status, got)
			}
		}
		post(t, c, event(1, "store", "l1", "a"))
		for range 30 {
			time.Sleep(5 * time.Second)
			if status, got := call(t, other, "PUT", "/instances/mp/heartbeat", nil); status != http.StatusOK {
				t.Fatal(status, got)
			}
		}
		if got := holds(t, c, "a"); got != "d" {
			t.Errorf("held is %s", got)
		}
		time.Sleep(15 * time.Second)
		if status, got := call(t, c, "PUT", "/instances/mp/heartbeat", nil); status != http.StatusOK {
			t.Fatal(status, got)
		}
		time.Sleep(25 * time.Second)
		if got := holds(t, c, "a"); got != "d" {
			t.Errorf("held is %s", got)
		}
		time.Sleep(6 * time.Second)
		if got := holds(t, c, "a"); got != "-" {
			t.Errorf("a silent instance holds %s", got)
		}
		if got := post(t, c, event(2, "store", "l1", "b")) + holds(t, c, "ab"); got != "1 0 0- d" {
			t.Error(got)
		}
	})
}

// A server known only by its events is asked to register; one that has gone is unknown.
func TestMembers(t *testing.T) {
	s := newStage(t, "mp")
	c := s.coordinator()
	post(t, c, event(1, "store", "l1", "a"))
	for i, step := range []struct {
		method, path, body string
		status             int
		instances          int
	}{
		{"PUT", "/instances/mp/heartbeat", "", 404, 1},
		{"POST", "/instances", `{"instance_id":"mp","ip":"10.0.0.1","http_port":1,"mq_port":65536}`, 422, 1},
		{"POST", "/instances", `{"instance_id":"mp","ip":"10.0.0.1","http_port":1,"mq_port":65535}`, 200, 1},
		{"PUT", "/instances/mp/heartbeat", "", 200, 1},
		{"DELETE", "/instances/mp", "", 204, 0},
		{"PUT", "/instances/mp/heartbeat", "", 404, 0},
		{"DELETE", "/instances/mp", "", 204, 0},
	} {
		if status, got := call(t, c, step.method, step.path, []byte(step.body)); status != step.status || c.Stats().Instances != step.instances {
			t.Errorf("step %d: %d %s, %+v", i, status, got, c.Stats())
		}
	}
	if _, got := call(t, c, "GET", "/instances", nil); got != `{"instances":[]}` {
		t.Error(got)
	}
	if got := holds(t, c, "a"); got != "-" {
		t.Errorf("one that has gone holds %s", got)
	}
}

// An instance without a pod is answered as if all were well, and the operator is told.
func TestUnmapped(t *testing.T) {
	s := newStage(t)
	c := s.coordinator()
	for seq := 1; seq < 3; seq++ {
		if got := post(t, c, event(seq, "store", "l1", "a")); got != "1 0 0" {
			t.Error(got)
		}
	}
	if st := c.Stats(); st.Unplaced != 2 || len(s.Told()) != 1 {
		t.Errorf("%+v, told %q", st, s.Told())
	}
	s.Register("mp")
	if got := post(t, c, event(3, "store", "l1", "b")) + holds(t, c, "ab"); got != "1 0 0- d" {
		t.Error(got)
	}
}

func TestRefused(t *testing.T) {
	s := newStage(t, "mp")
	c := s.coordinator(func(c *Config) {
		c.MaxBody, c.MaxInstances, c.MaxTokens, c.MaxKeys = 4096, 1, 600, 5
	})
	long := make([]string, 601)
	for i := range long {
		long[i] = "1"
	}
	for _, r := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/events", "{", 422},
		{"POST", "/events", `{"batches":5}`, 422},
		{"POST", "/events", `{"batches":[` + strings.Replace(event(1, "store", "l1", "a"), `"seq":1`, `"seq":0`, 1) + `]}`, 422},
		{"POST", "/events", `{"batches":[` + event(1, "polish", "l1", "a") + `]}`, 422},
		{"POST", "/events", `{"batches":[` + event(1, "store", "l3", "a") + `]}`, 422},
		{"POST", "/events", `{"batches":[` + strings.Replace(event(1, "store", "l1", "a"), `6161`, `61`, 1) + `]}`, 422},
		{"POST", "/events", `{"batches":[` + strings.Replace(event(1, "store", "l1", "a"), `16777472`, `0`, 1) + `]}`, 422},
		{"POST", "/events", `{"batches":[` + strings.Replace(event(1, "store", "l1", "a"), `"mp"`, `""`, 1) + `]}`, 422},
		{"POST", "/events", `{"batches":[` + strings.Repeat(" ", 5000) + `]}`, 413},
		{"POST", "/events", `{"batches":[]}`, 200},
		{"POST", "/events", `{"batches":[` + event(1, "store", "l1", "a") + `]}`, 200},
		{"POST", "/events", `{"batches":[` + strings.Replace(event(1, "store", "l1", "a"), `"mp"`, `"mp2"`, 1) + `]}`, 503},
		{"POST", "/instances", `{"instance_id":"mp3","ip":"a","http_port":1}`, 503},
		{"POST", "/instances", `{"instance_id":"mp","ip":" ","http_port":1}`, 422},
		{"POST", "/instances", `{"instance_id":"mp","ip":"a","http_port":0}`, 422},
		{"POST", "/directory/lookup", `{"token_ids":[1],"keys":[{}]}`, 400},
		{"POST", "/directory/lookup", `{"keys":[{}]}`, 400},
		{"POST", "/directory/lookup", `{"token_ids":[` + strings.Join(long, ",") + `]}`, 413},
		{"POST", "/directory/lookup", `{"model_name":"m","world_size":3,"token_ids":[` + strings.Join(long[:512], ",") + `]}`, 400},
		{"POST", "/directory/lookup", `{"model_name":"m","world_size":0,"token_ids":[` + strings.Join(long[:512], ",") + `]}`, 400},
		{"POST", "/directory/lookup", `{"model_name":"m","world_size":2,"token_ids":[` + strings.Join(long[:512], ",") + `]}`, 200},
		{"POST", "/directory/lookup", `{"model_name":"m"}`, 200},
		{"GET", "/directory/stats", ``, 501},
		{"POST", "/cache/pins", ``, 501},
		{"GET", "/nothing", ``, 404},
	} {
		status, got := call(t, c, r.method, r.path, []byte(r.body))
		if status != r.status || status >= 400 && status != 404 && !strings.Contains(got, `"detail"`) {
			t.Errorf("%s %s %.200s: %d %s, want %d", r.method, r.path, r.body, status, got, r.status)
		}
	}
	for _, bad := range []Config{{}, {Index: s.Index, Lease: 1}, {Index: s.Index, MaxBody: 1}, {Index: s.Index, MaxKeys: -1}} {
		if _, err := New(bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// down is an index that takes nothing, or of which nothing can be taken over.
type down struct {
	store.Index
	off, mute, blind bool
}

func (d *down) Registry(ctx context.Context) (*store.Registry, error) {
	if d.blind {
		return nil, store.ErrUnavailable
	}
	return d.Index.Registry(ctx)
}

func (d *down) TakeOver(ctx context.Context, gen store.Generation, fence uint64) (uint64, error) {
	if d.mute {
		return 0, store.ErrUnavailable
	}
	return d.Index.TakeOver(ctx, gen, fence)
}

func (d *down) Apply(ctx context.Context, b ...store.Batch) error {
	if d.off {
		return store.ErrUnavailable
	}
	return d.Index.Apply(ctx, b...)
}

// While the index does not answer, the server is told so, and what it drops then is a
// hole.
func TestIndexDown(t *testing.T) {
	s := newStage(t, "mp")
	d := &down{Index: s.Index}
	c := s.coordinator(func(c *Config) { c.Index = d })
	post(t, c, event(1, "store", "l1", "ab"))
	d.off = true
	if got := post(t, c, event(2, "delete", "l1", "a")); !strings.HasPrefix(got, "503") {
		t.Error(got)
	}
	d.off = false
	if got := post(t, c, event(2, "delete", "l1", "a")) + holds(t, c, "ab"); got != "1 0 0- d" {
		t.Errorf("sent again: %s", got)
	}
	d.off = true
	post(t, c, event(3, "delete", "l1", "b"))
	d.off = false
	if got := post(t, c, event(4, "store", "l1", "c")) + holds(t, c, "abc"); got != "1 0 0- - d" {
		t.Errorf("after a hole: %s", got)
	}
	call(t, c, "POST", "/instances", []byte(`{"instance_id":"other","ip":"10.0.0.1","http_port":1}`))
	d.blind = true
	if status, got := call(t, c, "PUT", "/instances/other/heartbeat", nil); status != http.StatusServiceUnavailable || c.Stats().Failures != 3 {
		t.Errorf("a heartbeat: %d %s, %+v", status, got, c.Stats())
	}
}

// The index goes away while the instance is taken over to see what is in a hole. What comes next
// must not be taken for the first of it.
func TestTakeOverCutOff(t *testing.T) {
	s := newStage(t, "mp")
	d := &down{Index: s.Index}
	c := s.coordinator(func(c *Config) { c.Index = d })
	post(t, c, event(1, "store", "l1", "ab"))
	d.mute = true
	if got := post(t, c, event(3, "store", "l1", "c")); !strings.HasPrefix(got, "503") {
		t.Error(got)
	}
	d.mute = false
	if got := post(t, c, event(4, "store", "l1", "d")) + holds(t, c, "abcd"); got != "1 0 0- - - d" {
		t.Errorf("after a hole: %s", got)
	}
	if st := c.Stats(); st.Gaps != 1 {
		t.Errorf("the hole was not seen: %+v", st)
	}
}
