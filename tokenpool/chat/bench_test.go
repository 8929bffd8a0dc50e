package chat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// conversation returns a context of n messages, of some 400 bytes each.
func conversation(n int) string {
	return `{"messages":` + turns(n) + `,"add_generation_prompt":true,"tools":null,"documents":null,"bos_token":"<s>","eos_token":"</s>"}`
}

func turns(n int) string {
	var b strings.Builder
	for i := range n {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%q}`, role, strings.Repeat(fmt.Sprintf("Turn %d: what is next?\n", i), 17))
	}
	return "[" + b.String() + "]"
}

// BenchmarkRender renders a context with the templates of Llama 3.1, Qwen 3 and
// gpt-oss.
func BenchmarkRender(b *testing.B) {
	for _, name := range []string{"trl/llama3_1", "npm/qwen3", "trl/gptoss"} {
		tmpl := compile(b, source(b, name))
		for _, n := range []int{2, 40} {
			context := conversation(n)
			b.Run(fmt.Sprintf("%s/messages=%d", strings.ReplaceAll(name, "/", "-"), n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(context)))
				for b.Loop() {
					must.Get(tmpl.Render(context, Limits{}, noon))(b)
				}
			})
		}
	}
}

// BenchmarkRequest prepares and renders a request, as Renderer does it.
func BenchmarkRequest(b *testing.B) {
	r := newRenderer(b, Files{Template: []byte(source(b, "npm/qwen3"))}, Options{})
	for _, n := range []int{2, 40} {
		req := prompt.Chat{Messages: []byte(turns(n))}
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(req.Messages)))
			for b.Loop() {
				must.Get(r.Render(req))(b)
			}
		})
	}
}

// BenchmarkCompile compiles the template of gpt-oss, 17 KB long.
func BenchmarkCompile(b *testing.B) {
	src := source(b, "trl/gptoss")
	b.ReportAllocs()
	for b.Loop() {
		compile(b, src)
	}
}

func BenchmarkParallel(b *testing.B) {
	tmpl := compile(b, source(b, "npm/qwen3"))
	context := conversation(40)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := tmpl.Render(context, Limits{}, noon); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
