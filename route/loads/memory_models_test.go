package loads

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// Whoever asks about models that there are not leaves nothing behind.
func TestQuestionsTakeNoMemory(t *testing.T) {
	m := NewMemory(nil)
	for i := range 100 {
		model := fmt.Sprint("no such model ", i)
		must.Get(m.Loads(t.Context(), model))(t)
		must.Get(m.Truths(t.Context(), model))(t)
		must.Get(m.Audit(t.Context(), model))(t)
		must.Get(m.Done(t.Context(), model, "r", Done{}))(t)
		must.Get(m.Output(t.Context(), model, "r", 1))(t)
		must.Get(m.End(t.Context(), model, "r"))(t)
	}
	if n := len(m.models); n != 0 {
		t.Errorf("%d models are kept", n)
	}
}
