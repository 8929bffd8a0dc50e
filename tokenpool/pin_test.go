package tokenpool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// words is a tokenizer.json of words, whose numbers begin behind first.
func words(first int, text string) string {
	vocab := []string{fmt.Sprintf(`"[UNK]":%d`, first)}
	for i, w := range strings.Fields(text) {
		vocab = append(vocab, fmt.Sprintf(`%q:%d`, w, first+1+i))
	}
	return `{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"Whitespace"},"model":{"type":"WordLevel","vocab":{` +
		strings.Join(vocab, ",") + `},"unk_token":"[UNK]"}}`
}

func TestPins(t *testing.T) {
	const model = "org/model"
	root := t.TempDir()
	good, other := words(0, "a b"), words(5, "a b c") // of other sizes, in one tick of the clock
	writeFile(t, good, root, "org", "model", tokenfile.TokenizerFile)
	dir := must.Get(NewDirectory(root))(t)
	h := newFakeHub(t)
	h.files["/org/model/resolve/main/tokenizer.json"] = good
	h.files["/org/model/resolve/"+commit+"/tokenizer.json"] = good
	otherCommit := strings.Repeat("f", 40)
	h.files["/org/model/resolve/"+otherCommit+"/tokenizer.json"] = good // says that it is of commit
	fromHub := func(revision string) Origin {
		return h.client(HubConfig{Revisions: map[string]string{model: revision}, CacheDir: t.TempDir()})
	}
	for _, c := range []struct {
		name   string
		origin Origin
		pin    Pin
		says   string
	}{
		{"sum", dir, Pin{SHA256: sha256Hex([]byte(good))}, ""},
		{"sum on the hub", fromHub("main"), Pin{SHA256: sha256Hex([]byte(good))}, ""},
		{"another sum", dir, Pin{SHA256: sha256Hex([]byte(other))}, "its tokenizer has SHA-256 " + sha256Hex([]byte(good)) + ", pinned is " + sha256Hex([]byte(other))},
		{"commit", fromHub(commit), Pin{Revision: commit}, ""},
		{"branch", fromHub("main"), Pin{Revision: "main"}, ""},
		{"both", fromHub(commit), Pin{Revision: commit, SHA256: sha256Hex([]byte(other))}, "SHA-256"},
		{"another commit", fromHub(otherCommit), Pin{Revision: otherCommit}, "of revision " + commit + ", pinned is " + otherCommit},
		{"no revisions there", dir, Pin{Revision: commit}, "come from the directory"},
	} {
		p, err := New(Config{Origin: c.origin, Pins: map[string]Pin{model: c.pin}})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: "a b", Mode: prompt.Sync})
		if c.says == "" && (err != nil || !slices.Equal(res.Tokens, []uint32{1, 2})) {
			t.Errorf("%s: %v, %v", c.name, res, err)
		}
		if c.says != "" && (!errors.Is(err, ErrPinned) || !errors.Is(err, tokenfile.ErrLoad) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, want one that says %q", c.name, err, c.says)
		}
		_ = p.Close()
	}
	for _, pin := range []Pin{{}, {SHA256: "abc"}, {SHA256: strings.Repeat("A", 64)}, {Revision: "a b"}, {Revision: "../x"}} {
		if _, err := New(Config{Origin: dir, Pins: map[string]Pin{model: pin}}); err == nil || !strings.Contains(err.Error(), model) {
			t.Errorf("%+v: %v", pin, err)
		}
	}
}

func TestParsePins(t *testing.T) {
	sum := strings.Repeat("0aF", 21) + "1"
	got, err := ParsePins([]string{"org/a=sha256:" + sum, "org/a=v1.2", "b=" + commit})
	if err != nil || len(got) != 2 || got["org/a"] != (Pin{SHA256: strings.ToLower(sum), Revision: "v1.2"}) || got["b"] != (Pin{Revision: commit}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, list := range [][]string{{"a"}, {"a="}, {"=main"}, {"../a=main"}, {"a=sha256:"}, {"a=sha256:12"}, {"a=x y"}, {"a=main", "a=v1"}, {"a=sha256:" + sum, "a=sha256:" + sum}} {
		if got, err := ParsePins(list); err == nil || !strings.Contains(err.Error(), list[len(list)-1]) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
}

// TestPinHolds: a pinned tokenizer that is replaced is refused, and so is what the
// stores know by then; put back, it is right again.
func TestPinHolds(t *testing.T) {
	root := t.TempDir()
	good, other := words(0, "a b"), words(5, "a b c") // of other sizes, in one tick of the clock
	writeFile(t, good, root, "m", tokenfile.TokenizerFile)
	dir := must.Get(NewDirectory(root))(t)
	p := must.Get(New(Config{Origin: dir, Pins: map[string]Pin{"m": {SHA256: sha256Hex([]byte(good))}}}))(t)
	defer func() { _ = p.Close() }()
	for i := range 6 {
		content := good
		if i%2 == 1 {
			content = other
		}
		writeFile(t, content, root, "m", tokenfile.TokenizerFile)
		p.recheck()
		res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: "a b", Mode: prompt.Sync})
		if i%2 == 0 && (err != nil || !slices.Equal(res.Tokens, []uint32{1, 2})) || i%2 == 1 && !errors.Is(err, ErrPinned) {
			t.Errorf("step %d: %v, %v", i, res, err)
		}
	}
}

// TestHotReload replaces a tokenizer again and again, by one that gives other tokens,
// while it is asked. No answer mixes two of them. No text that is asked for after a
// replacement has been seen gets tokens of before, from whatever store.
func TestHotReload(t *testing.T) {
	for _, s := range stores()[1:] {
		t.Run(s.name, func(t *testing.T) {
			root := t.TempDir()
			const line = "a b c d e f g h"
			put := func(version int) {
				writeFile(t, words(1000*version, line), root, "m", "next")
				must.OK(t, replaceFile(root, "m"))
			}
			put(0)
			dir := must.Get(NewDirectory(root))(t)
			var before []string
			var mu sync.Mutex // protects before
			p := must.Get(New(Config{Origin: dir, Store: s.open(t), Recheck: time.Millisecond, Observer: Observer{Loaded: func(m Model, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				before = append(before, m.Before, m.Fingerprint)
			}}}))(t)
			defer func() { _ = p.Close() }()

			var seen atomic.Int64 // the newest version that an answer has been of
			version := func(res prompt.Result) int64 {
				v := int64(res.Tokens[0]) / 1000
				for i, id := range res.Tokens {
					if want := uint32(v)*1000 + 1 + uint32(i%8); id != want {
						t.Errorf("token %d is %d, the first is %d", i, id, res.Tokens[0])
						break
					}
				}
				return v
			}
			newer := make(chan struct{}, 1) // seen has changed
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for g := range 6 {
				wg.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						text := strings.Repeat(line+" ", 1+(n+g)%40)
						know := seen.Load()
						res, err := p.Tokens(t.Context(), prompt.Request{Model: "m", Text: text, Mode: prompt.Mode(n % 3), Budget: time.Second})
						if err != nil {
							t.Error(err)
							return
						}
						if len(res.Tokens) == 0 {
							continue
						}
						v := version(res)
						if v < know {
							t.Errorf("version %d after %d (%s)", v, know, res.Source)
						}
						for old := seen.Load(); v > old; old = seen.Load() {
							if seen.CompareAndSwap(old, v) {
								select {
								case newer <- struct{}{}:
								default:
								}
							}
						}
					}
				})
			}
			for v := 1; v <= 15; v++ {
				put(v)
				for seen.Load() < int64(v) {
					select {
					case <-newer:
					case <-time.After(time.Minute):
						t.Fatalf("version %d is not seen", v)
					}
				}
			}
			close(stop)
			wg.Wait()
			mu.Lock()
			defer mu.Unlock()
			for i := 2; i < len(before); i += 2 {
				again := before[i] == "" && before[i+1] == before[i-1] // replaced while it was read
				if before[i] != before[i-1] && !again {
					t.Errorf("load %d says that %q was before, want %q", i/2, before[i], before[i-1])
				}
			}
			if len(before) < 30 || before[0] != "" {
				t.Errorf("loads %v", before)
			}
		})
	}
}

// TestManyModels has twenty models on disk. None is read before it is asked for, and
// no more than three are ever in memory.
func TestManyModels(t *testing.T) {
	root := t.TempDir()
	const models = 20
	for i := range models {
		writeFile(t, words(100*i, "a b"), root, fmt.Sprint("m", i), tokenfile.TokenizerFile)
	}
	dir := must.Get(NewDirectory(root))(t)
	store := must.Get(prefixcache.NewLRU(prefixcache.Config{}))(t)
	var live, most atomic.Int64
	p := must.Get(newPool(Config{Origin: dir, MaxTokenizers: 3, Store: store}, func(data []byte, split bool) (encoder, error) {
		e, err := newLibrary(data, split)
		if err != nil {
			return nil, err
		}
		n := live.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		return counted{e, &live}, nil
	}))(t)
	if st := p.Stats(); st.Loads != 0 || st.Tokenizers != 0 || live.Load() != 0 {
		t.Errorf("at the beginning: %+v", st)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := range 3 * models {
				i := (n*7 + g) % models
				res, err := p.Tokens(t.Context(), prompt.Request{Model: fmt.Sprint("m", i), Text: "a b", Mode: prompt.Sync})
				if err != nil || !slices.Equal(res.Tokens, []uint32{uint32(100*i) + 1, uint32(100*i) + 2}) {
					t.Errorf("model %d: %v, %v", i, res, err)
				}
			}
		})
	}
	wg.Wait()
	if st := p.Stats(); st.Loads < models || st.Tokenizers > 3 || most.Load() > 3 {
		t.Errorf("%d at most, %+v", most.Load(), st)
	}
	_ = p.Close()
	if live.Load() != 0 {
		t.Errorf("%d are left", live.Load())
	}
}

// counted is an encoder that is counted while it is open.
type counted struct {
	encoder
	live *atomic.Int64
}

func (c counted) close() {
	c.encoder.close()
	c.live.Add(-1)
}

// TestMemoryBytes loads real tokenizers one after the other, and compares what each is
// said to take with what is given back when it goes.
func TestMemoryBytes(t *testing.T) {
	if allocatedBytes() == 0 {
		t.Log("the system does not tell what is allocated: the resident memory is taken")
		return
	}
	models := realModels(t)
	p := realPool(t, Config{})
	var said int64
	before := memoryBytes()
	for _, m := range models {
		must.Get(p.Tokens(t.Context(), prompt.Request{Model: m.Model, Text: "a", Mode: prompt.Sync}))(t)
	}
	for _, m := range p.Models() {
		if said += m.MemoryBytes; m.MemoryBytes < 2<<20 || m.MemoryBytes > 400<<20 {
			t.Errorf("%s: %d bytes", m.Name, m.MemoryBytes)
		}
		t.Logf("%s: %.1f MB of memory, %.1f MB of file", m.Name, float64(m.MemoryBytes)/1e6, float64(m.FileBytes)/1e6)
	}
	loaded := memoryBytes()
	_ = p.Close()
	back := loaded - memoryBytes()
	if grown := loaded - before; said > grown+grown/5+8<<20 || said < grown-grown/5-8<<20 || back < said*8/10 {
		t.Errorf("%d bytes are said, memory has grown by %d, and %d came back", said, grown, back)
	}
}
