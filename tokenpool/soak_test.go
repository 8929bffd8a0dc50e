package tokenpool

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
)

// TestSoak has 8 goroutines tokenize texts and chats that are all different. It
// holds the process's memory to what it was when the stores were full.
// KVATLAS_SOAK is how many; `make soak` takes ten million.
func TestSoak(t *testing.T) {
	total := must.Get(strconv.ParseInt(cmp.Or(os.Getenv("KVATLAS_SOAK"), "30000"), 10, 64))(t)
	store := must.Get(prefixcache.NewLRU(prefixcache.Config{MaxBytes: 4 << 20}))(t)
	p := realPool(t, Config{Store: store, PieceBytes: 2 << 20})
	defer func() { _ = p.Close() }()
	models := realModels(t)
	var done atomic.Int64
	run := func(upTo int64) {
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(g), uint64(done.Load())))
				for {
					n := done.Add(1)
					if n > upTo {
						return
					}
					text := fmt.Sprintf("Question %d: which replica holds the longest prefix of prompt %d?\n", r.Uint64(), n)
					if n%64 == 0 {
						text = strings.Repeat(text, 40) // some pieces
					}
					req := prompt.Request{Model: models[n%int64(len(models))].Model, Text: text, Mode: prompt.Sync}
					if n%8 == 0 {
						req = prompt.Request{Model: models[0].Model, Mode: prompt.Sync, Chat: &prompt.Chat{Messages: []byte(fmt.Sprintf(`[{"role":"user","content":%q}]`, text))}}
					}
					if res, err := p.Tokens(t.Context(), req); err != nil || !res.Exact || len(res.Tokens) < 10 {
						t.Errorf("%+v, %v", res, err)
						return
					}
				}
			})
		}
		wg.Wait()
		done.Store(upTo)
	}
	run(total / 3)
	before := residentBytes()
	if before == 0 {
		t.Fatal("the system does not tell how much memory the process has")
	}
	step := max((total-total/3)/20, 1)
	for done.Load() < total {
		run(min(done.Load()+step, total))
		t.Logf("%d texts, %d MiB", done.Load(), residentBytes()>>20)
	}
	if after := residentBytes(); after > before+before/10+32<<20 {
		t.Errorf("%d MiB after %d texts, %d after %d", before>>20, total/3, after>>20, total)
	}
}

// TestTenMegabytes asks for a text of 10 MB, where that is allowed. A caller that does not wait has an answer
// before it is done, which says that there is more. Its tokens are those of the text, since they are the text
// again.
func TestTenMegabytes(t *testing.T) {
	t.Parallel()
	const size = 10 << 20
	p := realPool(t, Config{MaxTextBytes: 12 << 20})
	defer func() { _ = p.Close() }()
	model := "Qwen/Qwen3-8B"
	must.Get(p.Tokens(t.Context(), prompt.Request{Model: model, Text: "a", Mode: prompt.Sync}))(t)
	text := benchText(size)
	before := p.Stats().Runs
	res, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: text, Budget: time.Millisecond})
	if err != nil || res.Exact || res.Behind != prompt.BehindBudget || p.Stats().Runs != before {
		t.Errorf("a budget of 1 ms: exact %v, behind %q, %v, %d runs ended", res.Exact, res.Behind, err, p.Stats().Runs-before)
	}
	res, err = p.Tokens(t.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync})
	if err != nil || !res.Exact {
		t.Fatalf("exact %v, %v", res.Exact, err)
	}
	got, err := p.Text(t.Context(), model, res.Tokens, false)
	if err != nil || got != text {
		t.Errorf("%d tokens give %d bytes of %d, %v", len(res.Tokens), len(got), len(text), err)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: model, Text: strings.Repeat(text, 2), Mode: prompt.Sync}); !errors.Is(err, ErrTooLong) {
		t.Errorf("20 MB: %v", err)
	}
}

// TestLargeTexts holds large and pathological texts to the tokens that they have in one
// piece. It holds the memory that the process has afterwards to a bound.
func TestLargeTexts(t *testing.T) {
	const mb = 1 << 20
	p := realPool(t, Config{})
	defer func() { _ = p.Close() }()
	models := realModels(t)
	numbers := make([]string, 100_000)
	for i := range numbers {
		numbers[i] = strconv.Itoa(i * 7919 % 100_000)
	}
	before := residentBytes()
	for name, text := range map[string]string{
		"prose":              benchText(mb),
		"an array":           "[" + strings.Join(numbers, ",") + "]",
		"an array in lines":  "[\n" + strings.Join(numbers, ",\n") + "\n]",
		"one letter":         strings.Repeat("a", mb/4),
		"spaces":             strings.Repeat(" ", mb/4),
		"line feeds":         strings.Repeat("\n", mb/4),
		"added tokens":       strings.Repeat("<|im_start|>", mb/48),
		"almost added":       strings.Repeat("<|im_star", mb/36),
		"combining marks":    strings.Repeat("e\u0301\u0302\u0303", mb/28),
		"emoji with joiners": strings.Repeat("👩‍👩‍👧", mb/72),
	} {
		for _, m := range models {
			if m.Model == "google-bert/bert-base-uncased" || len(text) > mb/2 && m.Model != models[0].Model {
				continue // it takes its time, and has no pieces; the largest texts for one only
			}
			got, err := p.Tokens(t.Context(), prompt.Request{Model: m.Model, Text: text, Mode: prompt.Sync})
			if err != nil {
				t.Errorf("%s, %s: %v", name, m.Model, err)
				continue
			}
			if want, _ := realTokenizer(t, m.path()).enc.encode(text, true); len(want) == 0 || !slices.Equal(got.Tokens, want) {
				t.Errorf("%s, %s: %d tokens, %d in one piece", name, m.Model, len(got.Tokens), len(want))
			}
		}
	}
	if grown := residentBytes() - before; grown > 1<<30 {
		t.Errorf("the process has grown by %d MiB", grown>>20)
	}
	if _, err := p.Tokens(t.Context(), prompt.Request{Model: models[0].Model, Text: strings.Repeat("a", 10*mb), Mode: prompt.Sync}); !errors.Is(err, ErrTooLong) {
		t.Errorf("10 MiB: %v", err)
	}
}
