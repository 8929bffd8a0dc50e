package tokenpool

import (
	"fmt"
	"strings"
	"testing"
	"time"
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
					req := Request{Model: model.Model, Text: text, Budget: time.Minute}
					if cold { // else it might find the run before
						n++
						req.Text = fmt.Sprint(n, text)
					}
					res, err := p.Tokens(b.Context(), req)
					if err != nil || !res.Exact || (res.Source == FromTokenizer) != cold {
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
	if _, err := p.Tokens(b.Context(), Request{Model: model, Text: text, Mode: Sync}); err != nil {
		b.Fatal(err)
	}
	for p.underWay() > 0 {
		time.Sleep(time.Millisecond)
	}
}
