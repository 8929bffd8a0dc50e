package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
)

// TestChatLimits has chats at the limits that are set, and one beyond each.
func TestChatLimits(t *testing.T) {
	r := start(t, "--tokenizers="+tokenizers(t), "--tokenizer-budget=1m", "--request-timeout=5m", "--write-timeout=6m",
		"--max-chat-items=3", "--max-chat-values=14")
	const message = `{"role":"user","content":"a"}` // an item, and three values
	const more = `{"role":"user","content":"a","x":[1,2,3,4]}`
	for _, c := range []struct {
		name, messages, says string
	}{
		{"three messages", "[" + message + "," + message + "," + message + "]", ""}, // at most ten values
		{"four items", "[" + strings.Repeat(message+",", 3) + message + "]", "more than 3 messages"},
		{"two long messages", "[" + more + "," + more + "]", "more than 14 JSON values"},
	} {
		_, err := r.client().Score(t.Context(), client.ScoreRequest{Model: demo.Model, Chat: &client.Chat{Messages: []byte(c.messages)}})
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
