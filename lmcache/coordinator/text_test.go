package coordinator

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// Bodies of millions of small elements are refused at the first that is wrong or too much,
// in words. That is before memory is spent on them.
func TestBodiesOfSmallElements(t *testing.T) {
	s := newStage(t, "mp")
	c := s.coordinator(func(c *Config) { c.MaxEntries, c.MaxBatches, c.MaxKeys = 3, 2, 4 })
	many := func(element string) string { return strings.Repeat(element+",", 1_000_000) + element }
	for _, r := range []struct {
		path, body string
		status     int
		why        string
	}{
		{"/events", `{"batches":[` + many("{}") + `]}`, 422, "batches[0]"},
		{"/events", `{"batches":[{"entries":[` + many("{}") + `]}]}`, 422, "batches[0].entries[0]"},
		{"/events", `{"batches":[` + event(1, "store", "l1", "abcd") + `]}`, 413, "batches[0].entries has more elements than there is room for: 3"},
		{"/events", `{"batches":[` + event(1, "store", "l1", "ab") + "," + event(2, "store", "l1", "cd") + `]}`, 413, "batches[1].entries"},
		{"/events", `{"batches":[` + event(1, "access", "l1", "") + "," + event(2, "access", "l1", "") + "," + event(3, "access", "l1", "") + `]}`, 413, "batches has more"},
		{"/directory/lookup", `{"keys":[` + many("{}") + `]}`, 413, "keys has more elements than there is room for: 4"},
		{"/events", `null`, 422, "the body is null, it must be an object"},
		{"/events", `{}`, 422, "batches is missing"},
		{"/events", `{"batches":null}`, 422, "batches is missing"},
		{"/events", `{"batches":[{"incarnation":"x"}]}`, 422, "batches[0].incarnation is a text, it must be a whole number from 0 to"},
		{"/events", `{"batches":[{"seq":1.5}]}`, 422, "batches[0].seq is 1.5"},
		{"/events", `{"batches":[{"shared":1}]}`, 422, "batches[0].shared is a number"},
		{"/events", `{"batches":[{"entries":[{"key":[]}]}]}`, 422, "batches[0].entries[0].key is a list"},
		{"/events", `{"batches":[`, 422, "is not JSON"},
		{"/instances", `{"instance_id":"mp","ip":"a","http_port":1,"metadata":{"a":"` + strings.Repeat("x", 513) + `"}}`, 422, "512 bytes"},
		{"/instances", `{"instance_id":"mp","ip":"a","http_port":1,"metadata":{"` + strings.Repeat("x", 513) + `":"a"}}`, 422, "512 bytes"},
		{"/instances", `{"instance_id":"mp","ip":"a","http_port":1,"metadata":{"a":5}}`, 422, "metadata.a is a number"},
	} {
		body := []byte(r.body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		status, got := call(t, c, "POST", r.path, body)
		runtime.ReadMemStats(&after)
		if status != r.status || !strings.Contains(got, r.why) || strings.Contains(got, "Go ") {
			t.Errorf("%s %.60s: %d %s, want %d %s", r.path, r.body, status, got, r.status, r.why)
		}
		// The body itself, as it grows by doubling, and little more.
		if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(5*len(body)+1<<20) {
			t.Errorf("%s %.60s: %d bytes are allocated for %d", r.path, r.body, spent, len(body))
		}
	}
	if n := c.flight.Load(); n != 0 {
		t.Errorf("%d bytes are still in flight", n)
	}
	// Fields that are not needed are skipped, whatever they are.
	odd := strings.Replace(event(1, "store", "l1", "a"), `"seq"`, `"x":{"a":[1,"]}\"",{}],"b":null} , "y" : -1e5 , "z":"\\" ,"seq"`, 1)
	if got := post(t, c, odd) + holds(t, c, "a"); got != "1 0 0d" {
		t.Error(got)
	}
}

// Clients that send a byte and no more do not keep others out.
func TestSlowClients(t *testing.T) {
	s := newStage(t, "mp")
	c := s.coordinator(func(c *Config) { c.MaxBodies, c.ReadTimeout = 1, 200*time.Millisecond })
	srv := httptest.NewServer(c)
	defer srv.Close()
	var conns []net.Conn
	defer func() {
		for _, nc := range conns {
			_ = nc.Close()
		}
	}()
	for range 4 {
		nc := must.Get(net.Dial("tcp", srv.Listener.Addr().String()))(t)
		conns = append(conns, nc)
		must.Get(fmt.Fprintf(nc, "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"))(t)
	}
	eventually.True(t, "a body on its way", func() bool { return c.flight.Load() > 0 })
	if got := post(t, c, event(1, "store", "l1", "a")); got != "1 0 0" {
		t.Error(got)
	}
	for _, nc := range conns {
		must.OK(t, nc.SetReadDeadline(time.Now().Add(30*time.Second)))
		if got, err := io.ReadAll(nc); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 408") {
			t.Errorf("%s %v", got, err)
		}
	}
	// Bodies that would take more than there is room for are refused.
	small := s.coordinator(func(c *Config) { c.MaxBody, c.MaxInFlight = 1024, 1024 })
	small.flight.Add(1000)
	if status, got := call(t, small, "POST", "/events", []byte(`{"batches":[]}`)); status != 503 || !strings.Contains(got, "no room") {
		t.Error(status, got)
	}
}

// Workers of all instances have a share of the index, and what is full is called so.
func TestWorkersHaveAShare(t *testing.T) {
	s := newStage(t, "mp", "mp2")
	c := s.coordinator(func(c *Config) { c.MaxRegistrations = 1 })
	of := func(instance string) string {
		return strings.Replace(event(1, "store", "l1", "a"), `"mp"`, `"`+instance+`"`, 1)
	}
	if got := post(t, c, of("mp")) + post(t, c, of("mp2")); got != "1 0 01 0 0" {
		t.Error(got)
	}
	if st := c.Stats(); st.Skipped != 1 || len(s.Told()) != 1 || !strings.Contains(s.Told()[0], "index-max-pods") {
		t.Errorf("%+v, told %q", st, s.Told())
	}
	// Another replica finds the index as full.
	other := s.coordinator(func(c *Config) { c.MaxRegistrations = 1 })
	if got := post(t, other, of("mp2")); got != "1 0 0" || other.Stats().Skipped != 1 {
		t.Error(got, other.Stats())
	}
	x := must.Get(memory.New(memory.Config{MaxPods: 1}))(t)
	defer func() { _ = x.Close() }()
	must.Get(x.Register(t.Context(), store.Pod{Name: "mp", Model: model}))(t)
	full := s.coordinator(func(c *Config) { c.Index = x })
	if got := post(t, full, of("mp")); !strings.HasPrefix(got, "507") || strings.Contains(got, "does not answer") {
		t.Error(got)
	}
}
