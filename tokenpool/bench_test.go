package tokenpool

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// benchText is English prose, some code and some Chinese, of about n bytes.
func benchText(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "Paragraph %d. The scheduler asks which replica holds the longest prefix of a prompt, and sends it there. ", i)
		if i%4 == 1 {
			fmt.Fprintf(&b, "\n\tfor i := range %d {\n\t\tsum += weights[i] * float64(i)\n\t}\n", i)
		}
		if i%8 == 3 {
			b.WriteString("调度器把请求发送到持有最长前缀的副本。\n")
		}
	}
	return strings.ToValidUTF8(b.String()[:n], "")
}

// BenchmarkTokens runs what a request meets, side by side: the whole text known
// to each prefix store, and known to none.
func BenchmarkTokens(b *testing.B) {
	model := realModels(b)[0]
	for _, s := range stores() {
		p := realPool(b, Config{Store: s.open(b), PieceBytes: -1})
		for _, size := range []int{8 << 10, 600 << 10} {
			text := benchText(size)
			name := fmt.Sprintf("hit/%s/%dKB", s.name, size>>10)
			cold := p.cfg.Store == nil
			if cold {
				name = fmt.Sprintf("cold/%dKB", size>>10)
			}
			b.Run(name, func(b *testing.B) {
				n := 0
				ask := func() int {
					req := prompt.Request{Model: model.Model, Text: text, Budget: time.Minute}
					if cold { // else it might find the run before
						n++
						req.Text = fmt.Sprint(n, text)
					}
					res, err := p.Tokens(b.Context(), req)
					if err != nil || !res.Exact || (res.Source == prompt.FromTokenizer) != cold {
						b.Fatalf("%v, exact %v, from %s", err, res.Exact, res.Source)
					}
					return len(res.Tokens)
				}
				p.warm(b, model.Model, text)
				tokens := 0
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					tokens = ask()
				}
				b.ReportMetric(float64(tokens), "tokens")
			})
		}
		_ = p.Close()
	}
}

// warm has a text tokenized and stored.
func (p *Pool) warm(b *testing.B, model, text string) {
	b.Helper()
	must.Get(p.Tokens(b.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync}))(b)
	p.settle()
}

// hardTexts are texts of about n bytes that make a tokenizer work, or that it cannot
// be given in pieces.
func hardTexts(n int) map[string]string {
	repeat := func(s string) string { return strings.Repeat(s, n/len(s)) }
	var numbers strings.Builder
	for i := 0; numbers.Len() < n-8; i++ {
		fmt.Fprintf(&numbers, "%d,", i*7919%100_000)
	}
	return map[string]string{
		"prose":         benchText(n),
		"json_array":    "[" + numbers.String() + "0]",
		"one_word":      repeat("a"),
		"varied_word":   strings.NewReplacer(" ", "", "\n", "", "\t", "", ".", "", ",", "").Replace(benchText(n * 5 / 4))[:n],
		"spaces":        repeat(" ")[:min(n, 9_900_000)],
		"line_feeds":    repeat("\n"),
		"emoji":         repeat("👩‍👩‍👧🏳️‍🌈👋🏿"),
		"combining":     repeat("e\u0301\u0302\u0303"),
		"chinese":       repeat("调度器把请求发送到持有最长前缀的副本"),
		"almost_tokens": repeat("<|im_star"),
	}
}

// BenchmarkHardTexts measures time and peak memory of one text, fast and by the reference.
// It is for -benchtime 1x: the second run would find the pieces of the first.
func BenchmarkHardTexts(b *testing.B) {
	for _, m := range realModels(b) {
		for _, size := range []int{1 << 20, 10 << 20} {
			texts := hardTexts(size)
			for _, name := range []string{"prose", "json_array", "one_word", "varied_word", "spaces", "line_feeds", "emoji", "combining", "chinese", "almost_tokens"} {
				for _, fast := range []bool{true, false} {
					b.Run(fmt.Sprintf("%s/%dMB/%s/fast=%v", m.Name, size>>20, name, fast), func(b *testing.B) {
						benchHard(b, m.Model, texts[name], fast)
					})
				}
			}
		}
	}
}

func benchHard(b *testing.B, model, text string, fast bool) {
	b.Helper()
	p := benchPool(b, Config{MaxTextBytes: MaxTextLimit, WorkBytes: bytesPerByte * MaxTextLimit, Fast: fast}, model)
	before, n := resetPeak(), 0
	cpu := cputime.Process()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		res, err := p.Tokens(b.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync})
		if err != nil || !res.Exact {
			b.Fatal(err)
		}
		n = len(res.Tokens)
	}
	b.ReportMetric(float64((cputime.Process()-cpu).Milliseconds())/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(n), "tokens")
	b.ReportMetric(float64(peak()-before)/(1<<20), "peak-MiB")
}

// benchPool is a pool that has a model loaded, and proven if that can be.
func benchPool(b *testing.B, cfg Config, model string) *Pool {
	b.Helper()
	ready := make(chan error, 1)
	cfg.Observer.Proven = func(_ string, err error) { ready <- err }
	p := realPool(b, cfg)
	b.Cleanup(func() { _ = p.Close() })
	must.Get(p.Tokens(b.Context(), prompt.Request{Model: model, Text: "a", Mode: prompt.Sync}))(b)
	if cfg.Fast {
		if err := <-ready; err != nil {
			b.Skip(err)
		}
	}
	return p
}

// resetPeak begins a new peak of the resident memory, and returns what it is now.
func resetPeak() int64 {
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // Linux
	return residentBytes()
}

// peak is the largest resident memory since, in bytes; 0 where it is not told.
func peak() int64 {
	data, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := bytes.Cut(data, []byte("VmHWM:"))
	line, _, _ := bytes.Cut(rest, []byte("kB"))
	kb, _ := strconv.ParseInt(string(bytes.TrimSpace(line)), 10, 64)
	return kb << 10
}

// BenchmarkGoroutines has one or eight goroutines tokenize texts of 4 KB, all
// different, with one tokenizer: first by itself, then through a pool. GOMAXPROCS
// (-cpu) says how many can run. Where the machine does other work as well, the
// processor time a text shows better than the time whether they get in each other's
// way.
func BenchmarkGoroutines(b *testing.B) {
	m := realModels(b)[0]
	p := realPool(b, Config{PieceBytes: -1, Workers: 8})
	defer func() { _ = p.Close() }()
	must.Get(p.Tokens(b.Context(), prompt.Request{Model: m.Model, Text: "a", Mode: prompt.Sync}))(b)
	t := must.Get(p.hold(b.Context(), m.Model))(b)
	defer p.release(t)
	var number atomic.Int64
	text := benchText(4 << 10)
	for name, run := range map[string]func() (tokens int, err error){
		"tokenizer": func() (int, error) {
			ids, _, err := tokenize(t.enc, fmt.Sprint(number.Add(1), text), true)
			return len(ids), err
		},
		"pool": func() (int, error) {
			res, err := p.Tokens(b.Context(), prompt.Request{Model: m.Model, Text: fmt.Sprint(number.Add(1), text), Mode: prompt.Sync})
			return len(res.Tokens), err
		},
	} {
		for _, goroutines := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d", name, goroutines), func(b *testing.B) {
				cpu := cputime.Process()
				var left, tokens atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				for range goroutines {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							n, err := run()
							if err != nil {
								b.Error(err)
								return
							}
							tokens.Add(int64(n))
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(tokens.Load())/b.Elapsed().Seconds(), "tokens/s")
				b.ReportMetric(float64(cputime.Process()-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkGrowing tokenizes texts that go on where others ended, and such as are new. It
// does so with pieces and without, with the fast tokenizer and with the reference. It gives
// the processor time of the process for each text.
func BenchmarkGrowing(b *testing.B) {
	const more = 1 << 10 // bytes that a text grows by
	model := realModels(b)[0].Model
	number := 0
	for _, fast := range []bool{true, false} {
		for name, pieces := range map[string]int64{"pieces": 0, "without": -1} {
			p := benchPool(b, Config{PieceBytes: pieces, MaxTextBytes: MaxTextLimit, WorkBytes: bytesPerByte * MaxTextLimit, Fast: fast}, model)
			ask := func(text string) {
				must.Get(p.Tokens(b.Context(), prompt.Request{Model: model, Text: text, Mode: prompt.Sync}))(b)
			}
			for _, size := range []int{2 << 10, 8 << 10, 64 << 10, 1 << 20} {
				text := benchText(size)
				for _, grown := range []bool{false, true} {
					b.Run(fmt.Sprintf("fast=%v/%s/grown=%v/%dKB", fast, name, grown, size>>10), func(b *testing.B) {
						var took time.Duration
						for range b.N {
							number++
							// Each line is another one, so that no piece is known.
							s := strings.ReplaceAll(text, "Paragraph", fmt.Sprint("Paragraph ", number, " of "))
							if grown {
								ask(s)
								s += fmt.Sprint(number, benchText(more))
							}
							before := cputime.Process()
							ask(s)
							took += cputime.Process() - before
						}
						b.ReportMetric(0, "ns/op")
						b.ReportMetric(float64(took.Microseconds())/float64(b.N), "cpu-us/op")
					})
				}
			}
		}
	}
}
