package bpe

import (
	"fmt"
	"strings"
	"testing"
)

// texts are of the kinds that prompts are, made of enough different words that a cache of
// some kilobytes does not have them all. They are NFC.
var texts = map[string]func(i int) string{
	"prose": func(i int) string {
		return fmt.Sprintf("Paragraph %d. The %s asks which %s holds the longest %s of a prompt, and %s it there; whoever %s first is %s.\n",
			i, noun(i), noun(i*7+1), noun(i*11+2), noun(i*13+3), noun(i*17+4), noun(i*19+5))
	},
	"code": func(i int) string {
		return fmt.Sprintf("func (s *%s) %s(ctx context.Context, n int) error {\n\tfor i := range n {\n\t\tif err := s.%s(ctx, i*%d); err != nil {\n\t\t\treturn fmt.Errorf(\"%s: %%w\", err)\n\t\t}\n\t}\n\treturn nil // 0x%x\n}\n\n",
			noun(i), noun(i*3+1), noun(i*5+2), i, noun(i*7+3), i*2654435761)
	},
	"JSON": func(i int) string {
		return fmt.Sprintf(`{"id":%d,"name":%q,"tags":[%q,%q],"score":%d.%d,"at":"2026-11-%02dT%02d:%02d:00Z","ok":%v},`,
			i*7919, noun(i), noun(i*3+1), noun(i*5+2), i%97, i*31, i%28+1, i%24, i%60, i%2 == 0)
	},
	"Chinese": func(i int) string {
		const all = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还因由其些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只没结解问意建月公无系军很情者最立代想已通并提直题党程展五果料象员革位入常文总次品式活设及管特件长求老头基资边流路级少图山统接知较将组见计别她手角期根论运农指几九区强放决西被干做必战先回则任取据处队南给色光门即保治北造百规热领七海口东导器压志世金增争济阶油思术极交受联什认六共权收证改清己美再采转更单风切打白教速花带安场身车例真务具万每目至达走积示议声报斗完类八离华名确才科张信马节话米整空元况今集温传土许步群广石记需段研界拉林律叫且究观越织装影算低持音众书布复容儿须际商非验连断深难近矿千周委素技备半办青省列习响约支般史感劳便团往酸历市克何除消构府称太准精值号率族维划选标写存候毛亲快效斯院查江型眼王按格养易置派层片始却专状育厂京识适属圆包火住调满县局照参红细引听该铁价严"
		runes := []rune(all)
		var b strings.Builder
		x := uint32(i)*2654435761 + 1
		for n := range 40 {
			x = x*1664525 + 1013904223
			b.WriteRune(runes[int(x>>8)%len(runes)])
			if n%13 == 12 {
				b.WriteString("，")
			}
		}
		return b.String() + "。"
	},
}

// noun is one of many words, some of which no vocabulary has whole.
func noun(i int) string {
	parts := []string{"sched", "re", "pre", "clust", "ind", "cach", "tok", "mod", "work", "serv", "cont", "bal", "graph", "inter", "over", "und"}
	ends := []string{"uler", "plica", "fix", "er", "ex", "ing", "enize", "el", "ation", "ice", "ent", "ance", "ity", "ment", "ness", "able"}
	s := parts[i%16] + ends[i/16%16]
	if i/256%4 == 3 {
		s += parts[i/1024%16]
	}
	return s
}

// textOf is the n-th text of a kind, of about so many bytes: all are different.
func textOf(kind string, n, size int) string {
	var b strings.Builder
	for i := n * (size/40 + 1); b.Len() < size; i++ {
		b.WriteString(texts[kind](i))
	}
	return strings.ToValidUTF8(b.String()[:size], "")
}

// BenchmarkCold tokenizes texts that are all different, with the reference and with this
// package in turn, and gives the ratio of their times beside them.
func BenchmarkCold(b *testing.B) {
	for _, t := range all(b) {
		for _, kind := range []string{"prose", "code", "JSON", "Chinese"} {
			for _, size := range []int{2 << 10, 8 << 10, 64 << 10, 1 << 20} {
				b.Run(fmt.Sprintf("%s/%s/%dKB", t.name, kind, size>>10), func(b *testing.B) {
					bench(b, t, func(n int) string { return textOf(kind, n, size) })
				})
			}
		}
	}
}

func bench(b *testing.B, t both, text func(n int) string) {
	var fast, slow, tokens int64
	for n := range b.N {
		s := text(n)
		fast += cpuOf(func() {
			ids, _, ok := t.fast.Encode(s)
			if !ok {
				b.Fatal("left to the reference")
			}
			tokens += int64(len(ids))
		})
		slow += cpuOf(func() { t.ref.encode(s) })
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(fast)/float64(b.N)/1e3, "us-fast")
	b.ReportMetric(float64(slow)/float64(b.N)/1e3, "us-reference")
	b.ReportMetric(float64(fast)/float64(slow), "ratio")
	b.ReportMetric(float64(tokens)/float64(b.N), "tokens")
}
