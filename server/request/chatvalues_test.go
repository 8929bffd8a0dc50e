package request

import (
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/prompt"
)

// The count of values is never less than how many there are, and strings cannot hide any.
func TestChatValues(t *testing.T) {
	for raw, want := range map[string]int{
		``: 0, `[]`: 1, `[1]`: 2, `[1,2,3]`: 4, `{"a":1,"b":[true,null]}`: 5, `[[[]]]`: 3, `"a,[{"`: 1, `["a\\",[]]`: 3, `["a\",[[[",1]`: 3,
	} {
		if raw != "" && !json.Valid([]byte(raw)) {
			t.Fatal(raw)
		}
		if got := valuesOf([]byte(raw)); got < want || got > want+5 {
			t.Errorf("%s has %d values, counted are %d", raw, want, got)
		}
	}
	one := json.RawMessage(`[1,1]`)
	if n := ChatValues(&prompt.Chat{Messages: one, Tools: one, Documents: one, ChatTemplateKwargs: one, System: one, Thinking: one, OutputConfig: one, Input: one, Reasoning: one}); n < 9*3 {
		t.Errorf("%d values of nine fields with three", n)
	}
}
