package tokenpool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// mapShared is the plainest Shared.
type mapShared struct {
	mu   sync.Mutex
	m    map[string][]byte // protected by mu
	err  error             // protected by mu
	gets int               // protected by mu
	put  chan struct{}     // has one behind the last put; nil has none
}

func (s *mapShared) GetPieces(_ context.Context, names []string) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	out := make([][]byte, len(names))
	for i, n := range names {
		out[i] = s.m[n]
	}
	return out, s.err
}

func (s *mapShared) PutPieces(_ context.Context, names []string, values [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	for i, n := range names {
		s.m[n] = bytes.Clone(values[i])
	}
	select {
	case s.put <- struct{}{}:
	default:
	}
	return nil
}

// count is the number of pieces that are kept.
func (s *pieces) count() (n int) {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += s.shards[i].lru.Len()
		s.shards[i].mu.Unlock()
	}
	return n
}

func (s *mapShared) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}

// TestShared has two pools of a fleet tokenize a text, of which the second makes
// only the last piece.
func TestShared(t *testing.T) {
	const secret = "a secret of some length"
	shared := &mapShared{m: map[string][]byte{}, put: make(chan struct{}, 1)}
	model := realModels(t)[0].Model
	text := benchText(20 << 10)
	pool := func(secret string) *Pool {
		p := realPool(t, Config{Shared: shared, SharedSecret: []byte(secret), SharedTimeout: 10 * time.Second})
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	tokens := func(p *Pool, text string) []uint32 {
		t.Helper()
		res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync})
		if err != nil || !res.Exact {
			t.Fatalf("%+v, %v", res, err)
		}
		return res.Tokens
	}
	a := pool(secret)
	want := tokens(a, text)
	for shared.size() < a.pieces.count() {
		<-shared.put
	}
	b := pool(secret)
	if got := tokens(b, text); !slices.Equal(got, want) {
		t.Error("other tokens from the fleet's pieces")
	}
	st := b.Stats()
	if st.FleetReused == 0 || st.Reused != st.FleetReused || st.Tokens > 400 || st.FleetErrors != 0 {
		t.Errorf("%+v", st)
	}
	// What it has from the fleet it keeps.
	if gets := shared.gets; !slices.Equal(tokens(b, text+" more"), tokens(a, text+" more")) || b.Stats().FleetReused != st.FleetReused {
		t.Errorf("asked again, after %d times: %+v", gets, b.Stats())
	}

	// Neither names nor values say anything without the secret.
	for name, value := range shared.m {
		if len(name) != 16 || bytes.Contains(value, []byte("scheduler")) {
			t.Fatalf("%q: %q", name, value)
		}
	}
	c := pool("another secret of some length")
	if got := tokens(c, text); !slices.Equal(got, want) || c.Stats().FleetReused != 0 {
		t.Errorf("another secret: %+v", c.Stats())
	}

	// Values that were swapped, cut or made up are not taken.
	shared.mu.Lock()
	names := slices.Sorted(maps.Keys(shared.m))
	for i, n := range names {
		switch i % 3 {
		case 0:
			shared.m[n] = shared.m[names[(i+1)%len(names)]]
		case 1:
			shared.m[n] = shared.m[n][:len(shared.m[n])-1]
		case 2:
			shared.m[n] = []byte("x")
		}
	}
	shared.mu.Unlock()
	d := pool(secret)
	if got := tokens(d, text); !slices.Equal(got, want) || d.Stats().FleetReused != 0 || d.Stats().FleetErrors == 0 {
		t.Errorf("broken values: %+v", d.Stats())
	}

	// A fleet that does not answer is left alone for a while.
	shared.mu.Lock()
	shared.err, shared.gets = errors.New("gone"), 0
	shared.mu.Unlock()
	e, began := pool(secret), time.Now()
	for i := range 20 {
		_ = tokens(e, fmt.Sprint(i)+text[:2<<10])
	}
	// However long that takes.
	if st, most := e.Stats(), 1+int(time.Since(began)/sharedPause); st.FleetErrors == 0 || shared.gets == 0 || shared.gets > most {
		t.Errorf("asked %d times, not %d at most: %+v", shared.gets, most, st)
	}
}

func TestSharedConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"SharedSecret has 3 bytes":  {Shared: &mapShared{}, SharedSecret: []byte("abc")},
		"Shared without PieceBytes": {Shared: &mapShared{}, SharedSecret: make([]byte, 16), PieceBytes: -1},
		"SharedTimeout":             {SharedTimeout: time.Hour},
	} {
		c.Origin = newFakes(t)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzSealedPiece opens what was never sealed, and what has another length.
func FuzzSealedPiece(f *testing.F) {
	fl := must.Get(newFleet(&mapShared{}, make([]byte, 16), time.Second))(f)
	f.Add([]byte{1, 2, 3}, 7)
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, 1)
	f.Fuzz(func(t *testing.T, plain []byte, n int) {
		if _, err := fl.decode("name", plain, n); err == nil {
			t.Fatal("opened what was not sealed")
		}
		p, err := fl.decode("name", fl.seal.Seal(nil, nil, plain, []byte("name")), n)
		if err != nil {
			return
		}
		q, err := fl.decode("name", fl.encode("name", p), n)
		if err != nil || !slices.Equal(p.tokens, q.tokens) || !slices.Equal(p.steps, q.steps) {
			t.Fatalf("%v, %v, %v", p, q, err)
		}
	})
}
