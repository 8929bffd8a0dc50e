package chat

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/prompt"
)

// BenchmarkAPIOf tells requests of 4 MiB apart: of texts, and of as many blocks as fit.
func BenchmarkAPIOf(b *testing.B) {
	for name, part := range map[string]string{
		"texts":  `{"role":"user","content":"` + string(bytes.Repeat([]byte("some words "), 100)) + `"},`,
		"blocks": `{"role":"user","content":[{"type":"image"},{"a":1},{},{},{},{},{},{}]},`,
	} {
		b.Run(name, func(b *testing.B) {
			body := bytes.Repeat([]byte(part), (4<<20)/len(part))
			body = append(append([]byte{'['}, body[:len(body)-1]...), ']')
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if !json.Valid(body) || APIOf(&prompt.Chat{Messages: body}) != prompt.APIChat {
					b.Fatal("it is a chat")
				}
			}
		})
	}
}
