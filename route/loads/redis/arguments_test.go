package redis

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/store"
)

// TestWrongArguments calls the scripts with arguments that are too few, too many, twice, in another
// order, or no such numbers. A script that says so has changed nothing. One that takes them leaves
// loads that are the sum of their reservations, and 0 when these have ended.
func TestWrongArguments(t *testing.T) {
	client, ctx := redistest.Start(t).Client(), context.Background()
	clock := time.UnixMicro(1_800_000_000_000_000)
	s := must.Get(New(Config{Client: client, Prefix: "kva", Now: func() time.Time { return clock }, Timeout: 10 * time.Second}))(t)
	call := func(id string) *loads.PairCall {
		c := &loads.PairCall{Options: []loads.Option{{Factor: 1}, {Prefill: 1, Factor: 1}}, Resorts: []loads.Option{{Factor: 1}}}
		c.Call = loads.Call{Model: "m", ID: id, Lease: time.Minute, Tokens: 200, BlockSize: 16, Keys: []blockkey.Key{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
		for i, pod := range []string{"a", "b", "c"} {
			list := &c.Candidates
			if i > 0 {
				list = &c.Prefill
			}
			*list = append(*list, loads.Candidate{RankRef: store.RankRef{Pod: pod}, Uncached: 50, Work: 60, Factor: 1, Speed: 1})
		}
		return c
	}
	single := func(id string) *loads.PairCall {
		c := call(id)
		return &loads.PairCall{Call: c.Call}
	}
	learnt := s.now(leaveDone, -1, 0.1, 3, 1)
	scripts := []struct {
		name   string
		script *goredis.Script
		args   []any
		keep   int // so many arguments are not touched
	}{
		{"book", bookScript, s.bookArgs(single("new"), overdueAtOnce), 0},
		{"book a pair", bookScript, s.bookArgs(call("new"), overdueAtOnce), 0},
		{"done", leaveScript, []any{learnt, "1"}, 0},
		{"end", leaveScript, []any{s.now(leaveEnd), "1"}, 0},
		{"overdue", leaveScript, []any{s.now(leaveOverdue), "1", "2"}, 0},
		{"output", outputScript, []any{s.now(), "1", 40}, 0},
		{"picture", pictureScript, []any{s.now(), 64}, 0},
		{"forget", forgetScript, []any{s.now(), 10, 10, "0:a", "0:b"}, 0},
		{"settings", settingsScript, []any{s.now(), "{}"}, 0},
		{"engine", engineScript, []any{s.now(), "a", 5, 5, 5, 100, "0:a", 0, 1, 2, -1, 5, 7, 0}, 0},
		{"turns", turnsScript, []any{s.now(), 3, 5, 5, "a", "b"}, 0},
		{"missed", missedScript, []any{s.now(), "a", 5, 5}, 0},
		{"audit", auditScript, []any{s.now(), "0:a", 5, 1, "1"}, 4},
	}
	keys := s.keys("m")
	state := func() map[string]string {
		m := map[string]string{}
		for _, k := range client.Keys(ctx, "*").Val() {
			m[k] = client.Dump(ctx, k).Val()
		}
		return m
	}
	wrong := rapid.SampledFrom([]any{"", "x", "nan", "inf", "-inf", "-1", "1e300", "\x00", "12345678", string(learnt), string(appendNumbers(nil, -5))})
	refused, taken := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		client.FlushAll(ctx)
		clock = time.UnixMicro(1_800_000_000_000_000) // that of the arguments
		for _, c := range []*loads.PairCall{single("1"), call("2"), single("3")} {
			must.Get(s.book(ctx, c))(r)
		}
		c := scripts[rapid.IntRange(0, len(scripts)-1).Draw(r, "script")]
		args, names := slices.Clone(c.args), keys
		for range rapid.IntRange(1, 3).Draw(r, "changes") {
			i := rapid.IntRange(c.keep, len(args)).Draw(r, "at")
			switch what := rapid.IntRange(0, 6).Draw(r, "what"); {
			case what == 0 && i < len(args):
				args = slices.Delete(args, i, i+1)
			case what == 1:
				args = slices.Insert(args, i, wrong.Draw(r, "more"))
			case what == 2:
				names = keys[:rapid.IntRange(0, len(keys)-1).Draw(r, "keys")]
			case what == 5 && i < len(args):
				args = slices.Insert(args, rapid.IntRange(c.keep, len(args)).Draw(r, "again at"), args[i])
			case what == 6 && i < len(args):
				j := rapid.IntRange(c.keep, len(args)-1).Draw(r, "with")
				args[i], args[j] = args[j], args[i]
			case what == 3 && i < len(args):
				if b, ok := args[i].([]byte); ok && len(b) > 0 {
					b = slices.Clone(b)
					copy(b[rapid.IntRange(0, len(b)-1).Draw(r, "byte"):], rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(r, "bytes"))
					args[i] = b
				}
			case i < len(args):
				args[i] = wrong.Draw(r, "instead")
			}
		}
		if c.script == bookScript && repeatsMark(args) {
			return // it relies on its caller there: marks are hashes of ever longer prefixes
		}
		before := state()
		err := c.script.Run(ctx, client, names, args...).Err()
		if err != nil {
			refused++
			if after := state(); !maps.Equal(before, after) {
				r.Fatalf("%s said %v, and has changed something", c.name, err)
			}
			return
		}
		taken++
		if d, err := s.Audit(ctx, "m"); err != nil || len(d) > 0 {
			r.Fatalf("%s took %q; loads are not the sum of reservations any more: %+v, %v", c.name, args, d, err)
		}
		for _, id := range client.HKeys(ctx, keys[1]).Val() {
			must.OK(r, leaveScript.Run(ctx, client, keys[:5], s.now(leaveEnd), id).Err())
		}
		clock = clock.Add(loads.MaxLease) // what had ended before is overdue by now
		p, err := s.Loads(ctx, "m")
		if err != nil {
			r.Fatalf("%s took %q: %v", c.name, args, err)
		}
		for at, l := range p.Loads {
			if l.Requests != 0 || l.Work != 0 || l.Prefill != 0 || l.Blocks != 0 {
				r.Fatalf("%s took %q; %v has %+v when all have ended", c.name, args, at, l)
			}
		}
	})
	if refused == 0 || taken == 0 {
		t.Errorf("%d calls were refused, and %d taken", refused, taken)
	}
}

// TestAuditOfStrangeName books a pair in which one name is no rank's name. The audit still counts the part
// of the other one.
func TestAuditOfStrangeName(t *testing.T) {
	client, ctx := redistest.Start(t).Client(), context.Background()
	s := must.Get(New(Config{Client: client, Prefix: "kva", Timeout: 10 * time.Second}))(t)
	c := &loads.PairCall{Call: loads.Call{Model: "m", ID: "r", Lease: time.Minute, Tokens: 200, BlockSize: 16}, Options: []loads.Option{{Factor: 1}}}
	c.Candidates = []loads.Candidate{{RankRef: store.RankRef{Pod: "a"}, Factor: 1}}
	c.Prefill = []loads.Candidate{{RankRef: store.RankRef{Pod: "b"}, Factor: 1}}
	args := s.bookArgs(c, overdueAtOnce)
	i := slices.Index(args, any("0:a"))
	args[i] = "strange"
	must.OK(t, bookScript.Run(ctx, client, s.bookKeys("m"), args...).Err())
	if d, err := s.Audit(ctx, "m"); err != nil || len(d) > 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if p, err := s.Loads(ctx, "m"); err != nil || p.Loads[store.RankRef{Pod: "b"}].Requests != 1 {
		t.Errorf("%+v, %v", p.Loads, err)
	}
}

// repeatsMark reports whether two marks among the arguments of a booking are alike.
func repeatsMark(args []any) bool {
	if len(args) < 3 {
		return false
	}
	marks, _ := args[2].([]byte)
	seen := map[string]bool{}
	for m := range slices.Chunk(marks, 8) {
		if seen[string(m)] {
			return true
		}
		seen[string(m)] = true
	}
	return false
}
