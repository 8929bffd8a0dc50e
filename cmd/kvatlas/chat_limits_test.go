package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
)

// TestChatLimits has chats at the limits, and one beyond each.
func TestChatLimits(t *testing.T) {
	r := start(t, "--tokenizers="+tokenizers(t), "--tokenizer-budget=1m", "--request-timeout=5m")
	const message = `{"role":"user","content":"a"}` // an item, and three values
	list := func(member string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(member+",", n), ",") + "]"
	}
	for _, c := range []struct {
		name, documents, says string
	}{
		{"as many items", list("{}", 65535), ""}, // and the message
		{"an item more", list("{}", 65536), "more than 65536 messages"},
		{"as many values", `[{"a":` + list("1", 1<<20-8) + `}]`, ""},
		{"more values", `[{"a":` + list("1", 1<<20) + `}]`, "more than 1048576 JSON values"},
	} {
		_, err := r.client().Score(t.Context(), client.ScoreRequest{Model: demo.Model, Chat: &client.Chat{
			Messages: []byte("[" + message + "]"), Documents: []byte(c.documents),
		}})
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Status != http.StatusRequestEntityTooLarge || e.Code != "too_large" || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
