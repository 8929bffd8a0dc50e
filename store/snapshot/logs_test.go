package snapshot_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// TestTrueAtLogs: a dump says where the logs ended when it began, if there are any.
func TestTrueAtLogs(t *testing.T) {
	s := redistest.Start(t)
	x := openRedis(s.URL())(t).(*redis.Index)
	add := store.Batch{Pod: "p", Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: chain(1, 10)}}}
	for _, on := range []bool{false, true} {
		entries := 0
		if on {
			entries = 100
		}
		must.OK(t, x.SetLog(t.Context(), entries))
		must.OK(t, x.Apply(t.Context(), add))
		var out bytes.Buffer
		sum := must.Get(snapshot.Dump(t.Context(), &out, x, snapshot.Options{Logs: x.LogOffsets}))(t)
		line, _, _ := bytes.Cut(out.Bytes(), []byte("\n"))
		var head snapshot.Header
		must.OK(t, json.Unmarshal(line, &head))
		var names []string
		for name, id := range head.TrueAt.Logs {
			names = append(names, name)
			last := s.Client().XRevRangeN(t.Context(), name, "+", "-", 1).Val()
			if len(last) != 1 || last[0].ID != id || sum.TrueAt.Logs[name] != id {
				t.Errorf("the log %q ends at %v, and the dump says %q", name, last, id)
			}
		}
		if want := map[bool]int{false: 0, true: 1}[on]; len(names) != want {
			t.Errorf("log %v: the dump has the logs %q: %s", on, names, line)
		}
	}
}
