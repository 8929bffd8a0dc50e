package redis

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/lua"
)

// lateWrite is a write that is held up, and what others do between its being given up and
// its arrival.
type lateWrite struct {
	write, meanwhile func(ctx context.Context, x *Index) error
	// held are which of two blocks a holds at the end, whatever the late write says.
	held []string
}

var lateModel = store.ModelInfo{Name: "n", BlockSize: 16, Scheme: store.SchemeNative}

func lateWrites() map[string]lateWrite {
	applies := func(kind store.OpKind, keys ...blockkey.Key) func(context.Context, *Index) error {
		return func(ctx context.Context, x *Index) error { return x.Apply(ctx, batchOf("a", kind, keys...)) }
	}
	registers := func(p store.Pod) func(context.Context, *Index) error {
		return func(ctx context.Context, x *Index) error { _, err := x.Register(ctx, p); return err }
	}
	retires := func(ctx context.Context, x *Index) error { _, err := x.Retire(ctx, "a"); return err }
	both := func(fs ...func(context.Context, *Index) error) func(context.Context, *Index) error {
		return func(ctx context.Context, x *Index) error {
			for _, f := range fs {
				if err := f(ctx, x); err != nil {
					return err
				}
			}
			return nil
		}
	}
	a := store.Pod{Name: "a", Model: "m"}
	return map[string]lateWrite{
		"add":    {write: applies(store.Add, 2), meanwhile: applies(store.Remove, 2), held: []string{"a", ""}},
		"remove": {write: applies(store.Remove, 1), meanwhile: applies(store.Add, 1), held: []string{"a", ""}},
		"clear":  {write: applies(store.Clear), meanwhile: both(applies(store.Clear), applies(store.Add, 2)), held: []string{"", "a"}},
		"retire": {write: retires, meanwhile: both(retires, registers(a), applies(store.Add, 2)), held: []string{"", "a"}},
		"register": {
			write:     registers(store.Pod{Name: "a", Model: "m", Address: "http://former"}),
			meanwhile: registers(store.Pod{Name: "a", Model: "m", Address: "http://new"}), held: []string{"a", ""},
		},
		"register a pod that is retired": {
			write: registers(store.Pod{Name: "new", Model: "m"}), meanwhile: func(ctx context.Context, x *Index) error { _, err := x.Retire(ctx, "new"); return err },
			held: []string{"a", ""},
		},
		"begin": {
			write:     func(ctx context.Context, x *Index) error { _, err := x.Begin(ctx, "a", 0, 1); return err },
			meanwhile: both(retires, applies(store.Add, 2)), held: []string{"", "a"},
		},
		"model": {
			write:     func(ctx context.Context, x *Index) error { _, err := x.EnsureModel(ctx, lateModel); return err },
			meanwhile: func(ctx context.Context, x *Index) error { _, err := x.Forget(ctx, lateModel.Name); return err },
			held:      []string{"a", ""},
		},
		"a new pod's first block": {
			write:     func(ctx context.Context, x *Index) error { return x.Apply(ctx, batchOf("new", store.Add, 2)) },
			meanwhile: func(ctx context.Context, x *Index) error { _, err := x.Retire(ctx, "new"); return err },
			held:      []string{"a", ""},
		},
	}
}

// TestCaseALateWriteUndoesARemove holds up writes on their way until they have been given
// up, and others have written since: they do nothing when they arrive.
func TestCaseALateWriteUndoesARemove(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for _, known := range []*lua.Script{lua.Apply, lua.Holders, lua.Register, lua.Retire, lua.Begin, lua.Model} {
		must.OK(t, plain.ScriptLoad(t.Context(), known.Source).Err())
	}
	for name, w := range lateWrites() {
		t.Run(name, func(t *testing.T) {
			p := redistest.StartProxy(t, s.Addr)
			c := Config{URL: p.URL(), Prefix: newPrefix(), NoSweep: true, Timeout: 250 * time.Millisecond, PoolSize: 1}
			x := open(t, c)
			c.URL, c.Timeout = s.URL(), patience
			y := open(t, c)
			keys := []blockkey.Key{1, 2}
			eventually.NoError(t, "a", func() error { return x.Apply(t.Context(), batchOf("a", store.Add, 1)) })
			eventually.NoError(t, "a", func() error { return x.Apply(t.Context(), batchOf("a", store.Add, 1)) })
			wantBlocks(t, y, keys, "a", "")

			p.Hold()
			if err := w.write(t.Context(), x); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("a write that is held up: got %v, want ErrUnavailable", err)
			}
			if !bytes.Contains(bytes.ToLower(p.Held()), []byte("eval")) {
				t.Fatalf("nothing was held up: %q", p.Held())
			}
			must.OK(t, w.meanwhile(t.Context(), y))
			before := state(t, s, c.Prefix)
			p.Release()
			if after := state(t, s, c.Prefix); !slices.Equal(before, after) {
				t.Errorf("the late write has changed\n%q to\n%q", before, after)
			}
			wantBlocks(t, y, keys, w.held...)
			// The process goes on, and with what it knew before.
			eventually.NoError(t, "the process", func() error { return x.Apply(t.Context(), batchOf("b", store.Add, 1)) })
			wantBlocks(t, y, keys[:1], strings.TrimSpace(w.held[0]+" b"))
		})
	}
}

// TestCutWriteIsOver: when the connection of a write breaks, its bytes may still be on
// their way. Its caller gets the error when they can do nothing any more.
func TestCutWriteIsOver(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr)
	c := Config{URL: p.URL(), NoSweep: true, Timeout: 500 * time.Millisecond, PoolSize: 1}
	x := open(t, c)
	c.URL, c.Timeout = s.URL(), patience
	y := open(t, c)
	eventually.NoError(t, "a", func() error { return x.Apply(t.Context(), batchOf("a", store.Add, 1)) })
	eventually.NoError(t, "a", func() error { return x.Apply(t.Context(), batchOf("a", store.Add, 1)) })
	p.Hold()
	failed := make(chan error)
	go func() { failed <- x.Apply(t.Context(), batchOf("a", store.Add, 2)) }()
	cuts := 0
	for waiting := true; waiting; {
		select {
		case err := <-failed:
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("got %v, want ErrUnavailable", err)
			}
			waiting = false
		default:
			cuts += p.Cut()
			runtime.Gosched()
		}
	}
	if cuts == 0 {
		t.Fatal("no connection was cut")
	}
	p.Release()
	wantBlocks(t, y, []blockkey.Key{1, 2}, "a", "")
}

// state is all that the server has under a prefix, name by name.
func state(t *testing.T, s *redistest.Server, prefix string) []string {
	t.Helper()
	plain := s.Client()
	names := must.Get(plain.Keys(t.Context(), prefix+"{*").Result())(t)
	slices.Sort(names)
	for i, name := range names {
		names[i] += " " + plain.Dump(t.Context(), name).Val()
	}
	return names
}
