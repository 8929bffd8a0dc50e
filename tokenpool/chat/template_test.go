package chat

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestRender(t *testing.T) {
	for _, c := range []struct{ name, template, context, want string }{
		{"order of keys", "{{ x|tojson }}", `{"x":{"b":1,"a":{"d":null,"c":true}}}`, `{"b": 1, "a": {"d": null, "c": true}}`},
		{"equal keys", "{{ x|tojson }}", `{"x":{"a":1,"b":2,"a":3}}`, `{"a": 3, "b": 2}`},
		{"numbers", "{{ x|tojson }}", `{"x":[1.0,1,1e2,-0,-0.0,0.1,1e16,1E-7,123456789012345678]}`, `[1.0, 1, 100.0, 0, -0.0, 0.1, 1e+16, 1e-07, 123456789012345678]`},
		{"whole numbers of any size", "{{ x|tojson }} {{ x[0] }}", `{"x":[18446744073709551616,-170141183460469231731687303715884105728,1` + strings.Repeat("0", 60) + `]}`,
			`[18446744073709551616, -170141183460469231731687303715884105728, 1` + strings.Repeat("0", 60) + `] 18446744073709551616`},
		{"escapes", "{{ x }}", `{"x":"\u00e9\ud83d\udc4d\t\"\\\/"}`, "é👍\t\"\\/"},
		{"NUL", "{{ x }}", `{"x":"a\u0000b"}`, "a\x00b"},
		{"line ends of the template", "a\r\nb\rc{% if x %}\r\nd{% endif %}", `{"x":1}`, "a\nb\ncd"},
		{"raw", "{% raw %}\n{{ x }}{% endraw %}", `{}`, "\n{{ x }}"},
		{"generation", "{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y is defined }}", `{}`, "1False"},
		{"time", "{{ strftime_now('%d %b %Y') }}", `{}`, "27 Nov 2026"},
		{"empty template", "", `{}`, ""},
	} {
		got, err := compile(t, c.template).Render(c.context, Limits{}, noon)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, template, context string
		limits                  Limits
		kind                    error
		line                    int
		message                 string
	}{
		{"syntax", "a\n{% if %}", "{}", Limits{}, ErrCompile, 2, "syntax error"},
		{"unknown tag", "{% include '/etc/hostname' %}", "{}", Limits{}, ErrCompile, 1, "unknown statement include"},
		{"import", "{% import 'x' as y %}", "{}", Limits{}, ErrCompile, 1, "unknown statement import"},
		{"template that is not UTF-8", "a\xff", "{}", Limits{}, ErrCompile, 0, "byte 1: not valid UTF-8"},
		{"raised", "\n\n{{ raise_exception('no ' ~ 3) }}", "{}", Limits{}, ErrRaised, 3, "no 3"},
		{"raised in a macro", "{% macro f() %}{{ raise_exception('x') }}{% endmacro %}\n{{ f() }}", "{}", Limits{}, ErrRaised, 1, "x"},
		{"undefined", "{{ a.b }}", "{}", Limits{}, ErrTemplate, 1, "undefined"},
		{"unknown filter", "{{ 1|nope }}", "{}", Limits{}, ErrTemplate, 1, "nope"},
		{"context is a list", "x", "[]", Limits{}, ErrRequest, 0, "not a JSON object"},
		{"context is cut", "x", `{"a":[1`, Limits{}, ErrRequest, 0, "byte 7"},
		{"text behind the context", "x", `{} {}`, Limits{}, ErrRequest, 0, "byte 3"},
		{"context that is not UTF-8", "x", "{\"a\":\"\xff\"}", Limits{}, ErrRequest, 0, "not valid UTF-8"},
		{"half a surrogate pair", "x", `{"a":"\ud83d"}`, Limits{}, ErrRequest, 0, "surrogate"},
		{"deep context", "x", `{"a":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, Limits{}, ErrRequest, 0, "deeper"},
		{"fuel", "{% for i in range(1000) %}{% endfor %}", "{}", Limits{Fuel: 100}, ErrLimit, 1, "fuel"},
		{"output", "{{ 'a' * 100 }}", "{}", Limits{OutputBytes: 99}, ErrLimit, 0, "more than 99"},
		{"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{}", Limits{Recursion: 20}, ErrLimit, 1, "recursion"},
	} {
		tmpl, err := Compile(c.template)
		if err == nil {
			_, err = tmpl.Render(c.context, c.limits, noon)
		}
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, c.kind) || e.Line != c.line || !strings.Contains(e.Message, c.message) {
			t.Errorf("%s: %v, want %v, line %d, ...%s...", c.name, err, c.kind, c.line, c.message)
		}
	}
	if _, err := Compile(strings.Repeat("a", MaxTemplateBytes+1)); !errors.Is(err, ErrCompile) {
		t.Errorf("a long template: %v", err)
	}
	tmpl := compile(t, "{{ raise_exception('a' * 100000) }}")
	if _, err := tmpl.Render("{}", Limits{}, noon); len(err.Error()) > 3000 {
		t.Errorf("a message of %d bytes", len(err.Error()))
	}
}

// TestLimitsAreExact says that the output may be as long as its limit.
func TestLimitsAreExact(t *testing.T) {
	got, err := compile(t, "{{ 'a' * 100 }}").Render("{}", Limits{OutputBytes: 100}, noon)
	if err != nil || len(got) != 100 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestConcurrent renders the same templates from 8 goroutines, and compares.
func TestConcurrent(t *testing.T) {
	context := conversation(6)
	var wg sync.WaitGroup
	for _, name := range []string{"trl/llama3_1", "npm/qwen3", "trl/gptoss"} {
		tmpl := compile(t, source(t, name))
		want := must.Get(tmpl.Render(context, Limits{}, noon))(t)
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if got, err := tmpl.Render(context, Limits{}, noon); err != nil || got != want {
						t.Errorf("%s: another text, %v", name, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

// TestMemory compiles and drops templates, whose memory Go does not see.
func TestMemory(t *testing.T) {
	src := source(t, "trl/gptoss")
	round := func() {
		for range 200 {
			must.Get(compile(t, src).Render(conversation(2), Limits{}, noon))(t)
		}
		runtime.GC()
		runtime.GC()
	}
	round()
	before := peakBytes(t)
	for range 5 {
		round()
	}
	// 1000 compiled templates have well over 100 MB.
	if grown := peakBytes(t) - before; grown > 64<<20 {
		t.Errorf("the memory grew by %d MB", grown>>20)
	}
}

func TestStrftime(t *testing.T) {
	for _, now := range []time.Time{
		noon,
		time.Date(2027, 1, 1, 0, 5, 9, 123456789, time.UTC),
		time.Date(2024, 2, 29, 13, 0, 0, 0, time.FixedZone("X", 3600)),
	} {
		format := "%Y %m %d %H %M %S %y %j %a %A %b %B %I %p %f %-d %-m %e %F %T %R %D %u %w %G %V %% %Q"
		got, err := compile(t, "{{ strftime_now('"+format+"') }}").Render("{}", Limits{}, now)
		year, week := now.ISOWeek()
		want := now.Format("2006 01 02 15 04 05 06 002 Mon Monday Jan January 03 PM .000000 2 1 _2 2006-01-02 15:04:05 15:04 01/02/06")
		want = strings.Replace(want, " .", " ", 1)
		want += " " + string(rune('0'+(int(now.Weekday())+6)%7+1)) + " " + string(rune('0'+int(now.Weekday()))) + " " + itoa(year, 4) + " " + itoa(week, 2) + " % %Q"
		if err != nil || got != want {
			t.Errorf("%v: %q, %v, want %q", now, got, err, want)
		}
	}
}

func itoa(n, width int) string {
	s := ""
	for range width {
		s = string(rune('0'+n%10)) + s
		n /= 10
	}
	return s
}

// TestFormat says what vLLM's rules find in templates written for it.
func TestFormat(t *testing.T) {
	for _, c := range []struct {
		template string
		want     Format
	}{
		{"{% for m in messages %}{{ m.content }}{% endfor %}", FormatString},
		{"{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% for m in messages %}{% for c in m['other'] %}{% endfor %}{% endfor %}", FormatString},
		{"{% for m in messages[1:]|list %}{% for c in m.content|list %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% set x = messages %}{% set y = x[1:] %}{% for m in y %}{% for c in m.content %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% set ns = namespace(x=messages) %}{% for m in ns.x %}{% for c in m.content %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% set ns = namespace() %}{% set ns.x = messages %}{% for m in ns.x %}{% for c in m.content %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}", FormatOpenAI},
		{"{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(c=m.content) }}{% endfor %}", FormatOpenAI},
		{"{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.role) }}{% endfor %}", FormatString},
		{"{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}", FormatOpenAI},
		{"{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", FormatString},
		{"{% for m in messages %}{% for a, b in m.content %}{% endfor %}{% endfor %}", FormatString}, // gives up
		{"{% for m in tools %}{% for c in m.content %}{% endfor %}{% endfor %}", FormatString},
	} {
		if got := compile(t, c.template).Format(); got != c.want {
			t.Errorf("%s: %s, want %s", c.template, got, c.want)
		}
	}
}
