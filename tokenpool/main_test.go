package tokenpool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakes is an origin of tokenizers that tests can hold up, and count.
type fakes struct {
	t testing.TB

	mu     sync.Mutex
	models map[string]string // content by model; "bad..." cannot be read
	remote bool              // Stat does not know, as a hub with an empty cache
	down   error             // what Stat and Fetch fail with
	slow   time.Duration     // how long Fetch takes
	made   []*fakeEncoder

	fetches, stats atomic.Int64
	live, maxLive  atomic.Int64 // tokenizers in memory, now and at most

	gate chan struct{} // if not nil, each encode takes one from it
	took time.Duration // how long an encode takes

	chats func(model, content string) (chat.Files, error) // what Fetch says of chats
}

func newFakes(t testing.TB, models ...string) *fakes {
	f := &fakes{t: t, models: map[string]string{}}
	for _, m := range models {
		f.models[m] = "1"
	}
	return f
}

func (f *fakes) Stat(model string) (string, error) {
	f.stats.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return "", f.down
	}
	if f.remote {
		return "", nil
	}
	content, ok := f.models[model]
	if !ok {
		return "", unknown(model, "no fake of it")
	}
	return content, nil
}

func (f *fakes) Fetch(ctx context.Context, model string) (Files, error) {
	f.fetches.Add(1)
	f.mu.Lock()
	content, ok := f.models[model]
	slow, down := f.slow, f.down
	f.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return Files{}, ctx.Err()
	}
	if down != nil {
		return Files{}, down
	}
	if !ok {
		return Files{}, unknown(model, "no fake of it")
	}
	files := Files{Files: tokenfile.Files{Tokenizer: []byte(content)}, From: "fake", Version: content}
	if f.chats != nil {
		files.Chat, files.ChatErr = f.chats(model, content)
	}
	return files, nil
}

func (f *fakes) put(model, content string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if content == "" {
		delete(f.models, model)
		return
	}
	f.models[model] = content
}

func (f *fakes) setDown(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

func (f *fakes) read(data []byte, _ bool) (encoder, error) {
	if bytes.HasPrefix(data, []byte("bad")) {
		return nil, errors.New("cannot be read")
	}
	n := f.live.Add(1)
	for {
		most := f.maxLive.Load()
		if n <= most || f.maxLive.CompareAndSwap(most, n) {
			break
		}
	}
	e := &fakeEncoder{f: f, content: string(data)}
	f.mu.Lock()
	f.made = append(f.made, e)
	f.mu.Unlock()
	return e, nil
}

// runs is how many texts all tokenizers have worked on.
func (f *fakes) runs() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.made {
		n += e.runs.Load()
	}
	return n
}

// pool returns a pool over the fakes, closed at the end of the test.
func (f *fakes) pool(cfg Config) *Pool {
	f.t.Helper()
	cfg.Origin = f
	p := must.Get(newPool(cfg, f.read))(f.t)
	f.t.Cleanup(func() {
		_ = p.Close()
		f.check(p)
	})
	return p
}

// settle waits until no text is under way.
func (p *Pool) settle() {
	for {
		p.mu.Lock()
		var next *flight
		for _, next = range p.flights {
			break
		}
		p.mu.Unlock()
		if next == nil {
			return
		}
		<-next.done
	}
}

// recheck has the next request ask the origin of its tokenizer, as if Config.Recheck had
// passed.
func (p *Pool) recheck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.loaded.Values() {
		t.checked = time.Time{}
	}
}

// check looks whether a closed pool has given everything back.
func (f *fakes) check(p *Pool) {
	f.t.Helper()
	if n := f.live.Load(); n != 0 {
		f.t.Errorf("%d tokenizers are not closed", n)
	}
	s := p.Stats()
	if s.Queued != 0 || s.Running != 0 || s.Waiting != 0 || s.HeldBytes != 0 || s.Loading != 0 || s.Tokenizers != 0 || len(p.flights) != 0 {
		f.t.Errorf("the closed pool still holds something: %+v, %d flights", s, len(p.flights))
	}
	for _, sem := range []struct {
		name string
		ok   bool
	}{
		{"bytes", p.bytes.TryAcquire(p.cfg.QueueBytes)},
		{"places", p.places.TryAcquire(int64(p.cfg.Queue))},
		{"remote", p.remote.TryAcquire(int64(p.cfg.Queue+1) / 2)},
		{"memory", p.memory.TryAcquire(p.cfg.WorkBytes)},
		{"turns", len(p.turns.quick) == 0 && len(p.turns.slow) == 0},
		{"room", p.live == 0 && p.leaving == 0 && len(p.wanting) == 0},
	} {
		if !sem.ok {
			f.t.Errorf("the closed pool has not given all %s back", sem.name)
		}
	}
}

// fakeEncoder gives a token a byte: its value plus 1000 times the content's
// first digit, so that tokens tell which tokenizer they are from. A special
// token 1 goes before, a 2 behind. Bytes '.' give no token, a text with '!'
// makes it fail.
type fakeEncoder struct {
	f       *fakes
	content string
	runs    atomic.Int64
	busy    atomic.Int64
	closed  atomic.Bool
}

func (e *fakeEncoder) encode(text string, special bool) ([]uint32, []int) {
	e.busy.Add(1)
	defer e.busy.Add(-1)
	if e.closed.Load() {
		e.f.t.Error("a closed tokenizer is used")
	}
	if e.f.gate != nil {
		<-e.f.gate
	}
	if e.f.took > 0 {
		time.Sleep(e.f.took)
	}
	e.runs.Add(1)
	return fakeTokens(text, special, e.content)
}

func fakeTokens(text string, special bool, content string) (ids []uint32, ends []int) {
	if strings.Contains(text, "!") {
		return nil, nil
	}
	if special {
		ids, ends = append(ids, 1), append(ends, 0)
	}
	for i := range len(text) {
		if text[i] != '.' {
			ids, ends = append(ids, uint32(text[i])+1000*uint32(content[0]-'0')), append(ends, i+1)
		}
	}
	if special {
		ids, ends = append(ids, 2), append(ends, 0)
	}
	return ids, ends
}

// decode undoes encode.
func (e *fakeEncoder) decode(ids []uint32, skipSpecial bool) string {
	e.busy.Add(1)
	defer e.busy.Add(-1)
	if e.closed.Load() {
		e.f.t.Error("a closed tokenizer is used")
	}
	var b []byte
	for _, id := range ids {
		if id > 2 || !skipSpecial {
			b = append(b, byte(id%1000))
		}
	}
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}

func (e *fakeEncoder) check(string) error { return nil }

func (e *fakeEncoder) vocabulary() int { return 2000 }

func (e *fakeEncoder) close() {
	if e.busy.Load() != 0 {
		e.f.t.Error("a tokenizer is closed while it works")
	}
	if e.closed.Swap(true) {
		e.f.t.Error("a tokenizer is closed twice")
	}
	e.f.live.Add(-1)
}

// mapStore is the plainest prefixcache.Store: it compares with all it has.
type mapStore struct {
	mu     sync.Mutex
	scopes map[string]map[string]mapEntry
	stats  prefixcache.Stats
	refuse bool
}

type mapEntry struct {
	tokens []uint32
	ends   []int
}

func (s *mapStore) Put(scope, text string, tokens []uint32, ends []int) error {
	if len(tokens) != len(ends) {
		return fmt.Errorf("mapStore: %d tokens, %d ends", len(tokens), len(ends))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		s.stats.Refused++
		return errors.New("mapStore: refused")
	}
	if s.scopes == nil {
		s.scopes = map[string]map[string]mapEntry{}
	}
	if s.scopes[scope] == nil {
		s.scopes[scope] = map[string]mapEntry{}
	}
	s.scopes[scope][text] = mapEntry{slices.Clone(tokens), slices.Clone(ends)}
	return nil
}

func (s *mapStore) Find(dst []uint32, scope, text string) prefixcache.Match {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.scopes[scope][text]; ok {
		return prefixcache.Match{Tokens: append(dst, e.tokens...), Bytes: len(text), Whole: true}
	}
	m := prefixcache.Match{Tokens: dst}
	for have, e := range s.scopes[scope] {
		common := 0
		for common < min(len(have), len(text)) && have[common] == text[common] {
			common++
		}
		if common <= m.Bytes {
			continue
		}
		n := 0
		for n < len(e.ends) && e.ends[n] <= common && (e.ends[n] > 0 || n == 0) {
			n++
		}
		m = prefixcache.Match{Tokens: append(dst[:len(dst):len(dst)], e.tokens[:n]...), Bytes: common}
	}
	return m
}

func (s *mapStore) Stats() prefixcache.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *mapStore) Purge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scopes = nil
}

// want checks an answer against what is expected of it.
func want(t testing.TB, res prompt.Result, err error, tokens []uint32, from prompt.Source, exact bool, bytes int, behind prompt.Behind) {
	t.Helper()
	if err != nil {
		t.Fatalf("error %v", err)
	}
	if !slices.Equal(res.Tokens, tokens) {
		t.Errorf("tokens %v, want %v", res.Tokens, tokens)
	}
	if res.Source != from || res.Exact != exact || res.Bytes != bytes || res.Behind != behind {
		t.Errorf("source %q, exact %v, bytes %d, behind %q, want %q, %v, %d, %q",
			res.Source, res.Exact, res.Bytes, res.Behind, from, exact, bytes, behind)
	}
}

// tokensOf is what the first version of a fake tokenizer gives.
func tokensOf(text string) []uint32 {
	ids, _ := fakeTokens(text, true, "1")
	return ids
}
