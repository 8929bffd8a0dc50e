package controller

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/lmcachetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/lmcache/feed"
	"github.com/kvatlas/kvatlas/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = lmcachetest.Model

// lease is short, and long enough that a busy machine renews in time.
const lease = 5 * time.Second

// sent is one message of a capture.
type sent struct {
	Chan  string          `json:"chan"`
	Parts int             `json:"parts"`
	Hex   string          `json:"hex"`
	Msg   json.RawMessage `json:"msg"`
}

type golden struct {
	Capture  map[string][]sent `json:"capture"`
	Messages map[string]map[string]struct {
		Hex  string   `json:"hex"`
		JSON string   `json:"json"`
		Base []string `json:"base"`
	} `json:"messages"`
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b := must.Get(hex.DecodeString(s))(t)
	return b
}

// stage is an index with engines, and controllers that write to it.
type stage struct {
	*lmcachetest.Stage
	t *testing.T
}

func newStage(t *testing.T, pods ...string) *stage {
	t.Helper()
	return &stage{lmcachetest.NewStage(t, pods...), t}
}

func (s *stage) controller(change ...func(*Config)) *Controller {
	s.t.Helper()
	c := Config{
		Index: s.Index, Pull: "tcp://127.0.0.1:0", Reply: "tcp://127.0.0.1:0", Heartbeat: "tcp://127.0.0.1:0",
		Timeout: 20 * time.Second,
		Observer: Observer{
			Malformed: func(_ string, err error) { s.Tell("%v", err) },
			Unmapped:  func(_ feed.ID, err error) { s.Tell("%v", err) },
			Shared:    func(id feed.ID, by []string) { s.Tell("%v is shared by %s", id, strings.Join(by, " and ")) },
			Location:  func(l string) { s.Tell("location %s", l) },
		},
	}
	for _, f := range change {
		f(&c)
	}
	x := must.Get(New(s.t.Context(), c))(s.t)
	must.End(s.t, x.Close)
	return x
}

// socket is a ZMTP peer.
type socket struct {
	*lmcachetest.Socket
	t testing.TB
}

func connect(t testing.TB, to net.Addr, kind string) *socket {
	t.Helper()
	return connectFrom(t, "127.0.0.1", to, kind)
}

// connectFrom is connect from another address of this machine.
func connectFrom(t testing.TB, host string, to net.Addr, kind string) *socket {
	t.Helper()
	return &socket{lmcachetest.Connect(t, host, to.String(), kind), t}
}

// request is Ask with a map, whose answer it decodes.
func (s *socket) request(m map[string]any) map[string]any {
	s.t.Helper()
	return unpack(s.t, s.Ask(pack(s.t, m)))
}

func pack(t testing.TB, m map[string]any) []byte {
	t.Helper()
	b := must.Get(msgp.AppendIntf(nil, m))(t)
	return b
}

func unpack(t testing.TB, b []byte) map[string]any {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(b)
	m, ok := v.(map[string]any)
	if err != nil || len(rest) > 0 || !ok {
		t.Fatalf("%x: %v", b, err)
	}
	return m
}

// ops is a BatchedKVOperationMsg; texts are "+n" and "-n" for the chunk n.
func ops(t testing.TB, instance string, worker int, location string, seq int, texts ...string) []byte {
	t.Helper()
	var list []any
	for i, text := range texts {
		var n uint64
		must.Get(fmt.Sscan(text[1:], &n))(t)
		op := map[string]any{"op_type": map[byte]string{'+': "admit", '-': "evict"}[text[0]], "key": n}
		if seq >= 0 {
			op["seq_num"] = seq + i
		}
		list = append(list, op)
	}
	return pack(t, map[string]any{"type": "BatchedKVOperationMsg", "instance_id": instance, "worker_id": worker, "location": location, "operations": list})
}

func ints(n ...uint64) (out []lmcache.Hash) {
	for _, v := range n {
		out = append(out, lmcache.UintHash(v))
	}
	return out
}

func about(kind, instance string, worker int) map[string]any {
	return map[string]any{"type": kind, "instance_id": instance, "worker_id": worker, "ip": "10.0.0.1", "port": 8001, "peer_init_url": nil}
}

// client is a worker of LMCache with its three sockets.
type client struct {
	push, deal, beat *socket
	instance         string
	worker           int
}

func (s *stage) client(c *Controller, instance string, worker int, register bool) *client {
	s.t.Helper()
	pull, reply, beat := c.Addrs()
	x := &client{connect(s.t, pull, "PUSH"), connect(s.t, reply, "DEALER"), connect(s.t, beat, "DEALER"), instance, worker}
	if register {
		if r := x.deal.request(about("RegisterMsg", instance, worker)); r["type"] != "RegisterRetMsg" {
			s.t.Fatalf("registration: %v", r)
		}
	}
	return x
}

func (x *client) heartbeat() (reason string) {
	r := x.beat.request(about("HeartbeatMsg", x.instance, x.worker))
	list, _ := r["commands"].([]any)
	if len(list) == 0 {
		return ""
	}
	reason, _ = list[0].(map[string]any)["reason"].(string)
	return reason
}

func (x *client) say(location string, seq int, texts ...string) {
	x.push.Send(ops(x.push.t, x.instance, x.worker, location, seq, texts...))
}

func (x *client) close() {
	for _, s := range []*socket{x.push, x.deal, x.beat} {
		s.Close()
	}
}

// sync makes a full sync as LMCache does; batches are of two keys.
func (x *client) sync(id string, keys ...uint64) (status map[string]any) {
	t := x.push.t
	t.Helper()
	const cpu = "LocalCPUBackend"
	batches := max(1, (len(keys)+1)/2)
	start := x.deal.request(map[string]any{
		"type": "FullSyncStartMsg", "instance_id": x.instance, "worker_id": x.worker, "location": cpu,
		"sync_id": id, "total_keys": len(keys), "batch_count": batches,
	})
	if start["accepted"] != true {
		t.Fatalf("full sync: %v", start)
	}
	var frames [][]byte
	for b := range batches {
		list := []any{}
		for _, k := range keys[min(len(keys), 2*b):min(len(keys), 2*b+2)] {
			list = append(list, k)
		}
		frames = append(frames, pack(t, map[string]any{
			"type": "FullSyncBatchMsg", "instance_id": x.instance, "worker_id": x.worker, "location": cpu,
			"sync_id": id, "batch_id": b, "keys": list,
		}))
	}
	x.push.Send(append(frames, x.end(id, len(keys)))...)
	lmcachetest.WaitFor(t, "a full sync", func() bool { status = x.status(id); return status["is_complete"] == true })
	return status
}

func (x *client) end(id string, n int) []byte {
	return pack(x.push.t, map[string]any{
		"type": "FullSyncEndMsg", "instance_id": x.instance, "worker_id": x.worker, "location": "LocalCPUBackend",
		"sync_id": id, "actual_total_keys": n,
	})
}

func (x *client) status(id string) map[string]any {
	return x.deal.request(map[string]any{"type": "FullSyncStatusMsg", "instance_id": x.instance, "worker_id": x.worker, "sync_id": id})
}

// faulty is an index whose Apply fails while down is set.
type faulty struct {
	store.Index
	mu   sync.Mutex // protects down
	down bool
}

var errDown = errors.New("down")

func (f *faulty) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *faulty) Apply(ctx context.Context, b ...store.Batch) error {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	if down {
		return errDown
	}
	return f.Index.Apply(ctx, b...)
}
