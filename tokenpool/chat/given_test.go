package chat

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/prompt"
)

// Templates of requests have a tenth of the fuel of the model's, however long the
// request is.
func TestFuelOfGivenTemplates(t *testing.T) {
	hostile := `{% macro a(n) %}{% if n>0 %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(60) }}`
	loop := func(n int) string {
		return fmt.Sprintf(`{%% for i in range(%d) %%}{%% endfor %%}{{ messages[0].role }}`, n)
	}
	own := must.Get(NewRenderer(Files{Template: []byte(loop(90_000))}, Options{}))(t)
	messages := []byte(`[{"role":"user","content":"hi"}]`)
	if _, err := own.Render(prompt.Chat{Messages: messages}); err != nil {
		t.Errorf("the model's template: %v", err)
	}
	for _, template := range []string{hostile, loop(90_000)} {
		if _, err := own.Render(prompt.Chat{Messages: messages, ChatTemplate: template}); !errors.Is(err, ErrLimit) {
			t.Errorf("the request's: %v, want %v", err, ErrLimit)
		}
	}
	if out, err := own.Render(prompt.Chat{Messages: messages, ChatTemplate: loop(9_000)}); err != nil || out.Text != "user" {
		t.Errorf("a short one of the request's: %q, %v", out.Text, err)
	}
	if l := (Limits{}).given(1 << 30); l.Fuel != maxGivenFuel {
		t.Errorf("a context of a gigabyte has %d", l.Fuel)
	}
	if l := (Limits{GivenFuel: 5}).given(10); l.Fuel != 5 {
		t.Errorf("a limit that is set: %d", l.Fuel)
	}
}

// The compiled templates of requests are bounded together, by the length of their
// sources. Those that are not kept are closed when their last user has gone.
func TestTemplatesAreBounded(t *testing.T) {
	c := NewTemplates()
	source := func(i, n int) string { return fmt.Sprintf("{{ %d }}", i) + strings.Repeat("x", n) }
	first := must.Get(c.borrow(source(0, maxKeptSource/2)))(t)
	if again, err := c.borrow(source(0, maxKeptSource/2)); err != nil || again != first {
		t.Errorf("it is compiled twice: %v", err)
	}
	c.giveBack(first)
	for i := range 100 {
		l := must.Get(c.borrow(source(i+1, maxKeptSource/2)))(t)
		c.giveBack(l)
		if c.sources > maxKeptSources {
			t.Fatalf("%d bytes of sources are kept, want at most %d", c.sources, maxKeptSources)
		}
	}
	if first.kept || first.ptr == nil {
		t.Errorf("a template in use: kept %v, closed %v", first.kept, first.ptr == nil)
	}
	c.giveBack(first)
	if first.ptr != nil {
		t.Error("it is not closed after its last use")
	}
	long := must.Get(c.borrow(source(0, maxKeptSource)))(t)
	c.giveBack(long)
	if long.ptr != nil || c.kept.Len() == 0 {
		t.Error("a long one is kept, or replaces the others")
	}
}

// Renderers that share a Templates may use, drop and compile at once.
func TestTemplatesAtOnce(t *testing.T) {
	shared := NewTemplates()
	var all sync.WaitGroup
	for g := range 4 {
		r := must.Get(NewRenderer(Files{}, Options{Given: shared}))(t)
		all.Go(func() {
			for i := range 100 {
				word := fmt.Sprint((i + g) % 20)
				template := word + strings.Repeat(" ", maxKeptSource-2) + "{{ messages[0].content }}"
				out, err := r.Render(prompt.Chat{Messages: []byte(`[{"role":"user","content":"hi"}]`), ChatTemplate: template})
				if err != nil || !strings.HasPrefix(out.Text, word) {
					t.Errorf("%.20q, %v", out.Text, err)
				}
			}
		})
	}
	all.Wait()
	if shared.sources > maxKeptSources {
		t.Errorf("%d bytes of sources are kept", shared.sources)
	}
}
