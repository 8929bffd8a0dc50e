package chat_test

import (
	"fmt"

	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

func Example() {
	r, err := chat.NewRenderer(chat.Files{
		Template: []byte("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"),
		Config:   []byte(`{"eos_token": "</s>"}`),
	}, chat.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := r.Render(prompt.Chat{Messages: []byte(`[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Text)
	// Output: <|user|>Hello</s><|assistant|>
}
