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
	sizes := []int{8 << 10, 600 << 10}
	for _, s := range stores() {
		p := realPool(b, Config{Store: s.open(b)})
		for _, size := range sizes {
			text := benchText(size)
			name := fmt.Sprintf("hit/%s/%dKB", s.name, size>>10)
			if s.name == "none" {
				name = fmt.Sprintf("cold/%dKB", size>>10)
			}
			b.Run(name, func(b *testing.B) {
				req := Request{Model: model.Model, Text: text, Budget: time.Minute}
				res, err := p.Tokens(b.Context(), req)
				if err != nil || !res.Exact {
					b.Fatalf("%v, exact %v", err, res.Exact)
				}
				for p.underWay() > 0 {
					time.Sleep(time.Millisecond)
				}
				want := len(res.Tokens)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					res, err := p.Tokens(b.Context(), req)
					if err != nil || !res.Exact || len(res.Tokens) != want {
						b.Fatalf("%v, exact %v, %d tokens", err, res.Exact, len(res.Tokens))
					}
				}
				b.ReportMetric(float64(want), "tokens")
			})
		}
		_ = p.Close()
	}
}
