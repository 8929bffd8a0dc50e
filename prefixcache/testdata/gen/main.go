// Command gen writes spans.jsonl: texts that are awkward to cut, with the
// tokens that real tokenizers give for them and where these end.
//
//	CGO_LDFLAGS=-L$PWD/lib go run ./prefixcache/testdata/gen TOKENIZER.json... > prefixcache/testdata/spans.jsonl
package main

import (
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/daulet/tokenizers"
)

var texts = []string{
	"",
	"Hello, world!",
	"The quick brown fox jumps over the lazy dog. The quick brown foxes jumped over the lazy dogs.",
	"foo ba", "foo bar", "foo barrier", "foobar", "internationalization of internationalizations",
	"  leading and trailing spaces   ", "\n\n\n", "a\tb\r\nc", strings.Repeat(" ", 70), strings.Repeat("a", 70),
	"caf\u00e9", "cafe\u0301", "cafe\u0301s", "A\u030a\u0328\u0301 Z\u0351\u036b\u0343", "Vie\u0323\u0302t Nam", "\u1112\u1161\u11ab\u1100\u1173\u11af",
	"👍", " 👍", "a👍b 👍🏽c", "👩\u200d👩\u200d👧\u200d👦 family", "🇩🇪🇫🇷🇯🇵", "❤\ufe0f❤", "👩\u200d👩", "1\ufe0f\u20e3",
	"我能吞下玻璃而不伤身体。", "我能吞下玻璃而不伤身", "私はガラスを食べられます。", "나는 유리를 먹을 수 있어요.", "ฉันกินกระจกได้", "أنا قادر على أكل الزجاج", "मैं काँच खा सकता हूँ",
	"ﬁne ﬂow ½ ① Ⅳ ㎏", "\u200b\u200bzero\u00adwidth\u2060", "\U0001d573\U0001d58a\U0001d591\U0001d591\U0001d594 \U00020000\U0002a6d6", "\ufffd\ufffd", "\U0010ffff",
	"func main() {\n\tfor i := range 10 {\n\t\tfmt.Println(i)\n\t}\n}\n", "{\"a\": [1, 2.50, 1e-7], \"b\": null}", "x = 1234567890123456789;",
	"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>", "<|im_start|>user\nHi there 👍<|im_end|>\n<|im_start|>assistant\n", "[CLS] a [SEP] b [MASK]", "<|im_end|<|im_end|>",
}

type span struct {
	Tokenizer string   `json:"tokenizer"`
	Text      string   `json:"text"`
	Tokens    []uint32 `json:"tokens"`
	Ends      []int    `json:"ends"`
}

func main() {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for _, path := range os.Args[1:] {
		tk, err := tokenizers.FromFile(path)
		if err != nil {
			log.Fatal(err)
		}
		for _, text := range texts {
			e := tk.EncodeWithOptions(text, true, tokenizers.WithReturnOffsets())
			s := span{Tokenizer: filepath.Base(filepath.Dir(path)), Text: text, Tokens: e.IDs}
			for _, o := range e.Offsets {
				s.Ends = append(s.Ends, int(o[1]))
			}
			if err := out.Encode(s); err != nil {
				log.Fatal(err)
			}
		}
		if err := tk.Close(); err != nil {
			log.Fatal(err)
		}
	}
}
