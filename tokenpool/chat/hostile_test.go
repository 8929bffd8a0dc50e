package chat

import (
	"errors"
	"strings"
	"testing"
)

// share makes a value of 2 to the power of 60 parts, of which 62 are different.
const share = `{% set ns = namespace(x=[1,1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}`

// hostile are templates that would not end, fill the memory or overflow the
// stack, each in another part of the engine.
var hostile = map[string]string{
	"macro":       `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`,
	"macro2":      `{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}`,
	"loop10":      `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
	"range":       `{{ range(3000000000)|list|length }}`,
	"range2":      `{% for i in range(3000000000) %}x{% endfor %}`,
	"range3":      `{{ range(3000000000)|join('x') }}`,
	"double":      `{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}`,
	"double+":     `{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}`,
	"mul":         `{{ 'a' * 1000000000 }}`,
	"mul2":        `{{ ('a' * 10000000)|length }}{{ ('a' * 10000000)|length }}{{ ('a' * 10000000)|length }}{{ ('a' * 10000000)|length }}{{ ('a' * 10000000)|length }}{{ ('a' * 10000000)|length }}{{ ('a' * 10000000)|length }}`,
	"listmul":     `{{ ([1] * 1000000000)|length }}`,
	"laughs":      `` + share + `{{ ns.x|tojson }}`,
	"laughs2":     `` + share + `{{ ns.x }}`,
	"laughs3":     `` + share + `{{ ns.x == ns.x }}{% set y = ns.x %}{% set ns.x=[1,1] %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == y }}`,
	"laughs4":     `` + share + `{{ ns.x|string|length }}`,
	"laughs5":     `` + share + `{{ 1 in ns.x }}{{ ns.x|sort }}`,
	"laughs6":     `` + share + `{{ {ns.x: 1} }}`,
	"laughs7":     `` + share + `{{ ns.x|pprint }}`,
	"laughs8":     `` + share + `{{ [ns.x,ns.x]|unique|list|length }}`,
	"laughs9":     `` + share + `{{ [1]|map('replace', '1', ns.x)|list }}`,
	"laughs10":    `` + share + `{{ "%s"|format(ns.x) }}{{ ns.x|upper }}`,
	"laughs11":    `` + share + `{{ ns.x|upper }}`,
	"laughs12":    `` + share + `{{ ns.x|escape }}`,
	"laughs13":    `` + share + `{{ 'a'.join([ns.x]) }}{{ raise_exception(ns.x) }}`,
	"laughs14":    `` + share + `{{ ns.x|groupby(0) }}`,
	"laughs15":    `` + share + `{{ ns.x.count(ns.x) }}{{ [ns.x,[]].count([[],1]) }}`,
	"laughs16":    `` + share + `{% set a=ns.x %}{% set ns.x=[1,1] %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ [a].count(ns.x) }}`,
	"laughs17":    `` + share + `{% set a=ns.x %}{% set ns.x=[1,1] %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ a is eq(ns.x) }}{{ [a]|select('eq', ns.x)|list|length }}{{ [a]|selectattr(0,'eq', ns.x)|list|length }}`,
	"laughs18":    `` + share + `{% set a=ns.x %}{% set ns.x=[1,1] %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ [a,ns.x]|max|length }}{{ [a,ns.x]|sort|length }}{{ {a:1}[ns.x] }}`,
	"laughs19":    `` + share + `{{ dict(a=ns.x).get(ns.x) }}`,
	"deep":        `{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}done`,
	"deepmap":     `{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}done`,
	"deeptuple":   `{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}done`,
	"deepns":      `{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}done`,
	"deepgen":     `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x|map('string') %}{% endfor %}done`,
	"deepsum":     `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x|reverse %}{% endfor %}done{{ ns.x|list|length }}`,
	"deepitems":   `{% set ns = namespace(x={'a':1}) %}{% for i in range(100000) %}{% set ns.x = dict(a=ns.x.items()) %}{% endfor %}done`,
	"deepslice":   `{% set ns = namespace(x=[1,2,3]) %}{% for i in range(100000) %}{% set ns.x = ns.x[:] %}{% endfor %}done`,
	"deepadd":     `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x + [] %}{% endfor %}done{{ ns.x|length }}`,
	"deepadd2":    `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [] + ns.x %}{% endfor %}done`,
	"deepdict":    `{% set ns = namespace(x={'a':1}) %}{% for i in range(100000) %}{% set ns.x = dict(ns.x, b=1) %}{% endfor %}done{{ ns.x|length }}`,
	"deepgen2":    `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [ns.x]|map('default') %}{% endfor %}done`,
	"deepgen3":    `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = dict(a=[ns.x]|map('default')) %}{% endfor %}done`,
	"deepns2":     `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set n2 = namespace() %}{% set n2.x = [none]|map('default', ns.x, true)|list %}{% set ns.x = [none]|map('default', n2, true)|list %}{% endfor %}done`,
	"deepbatch":   `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x|batch(1)|list %}{% endfor %}done`,
	"deepgroup":   `{% set ns = namespace(x=[{'a':1}]) %}{% for i in range(100000) %}{% set ns.x = [{'a': ns.x|groupby('a')}] %}{% endfor %}done`,
	"deepgroup2":  `{% set ns = namespace(x=[{'a':1}]) %}{% for i in range(100000) %}{% set ns.x = ns.x|groupby('grouper')|list %}{% endfor %}done`,
	"deeploop":    `{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% for j in [none]|map('default', ns.x, true) %}{% set ns.x = loop %}{% endfor %}{% endfor %}done`,
	"deepitems2":  `{% set ns = namespace(x={'a':1}) %}{% for i in range(100000) %}{% set ns.x = ns.x|items|list|map('list')|list %}{% endfor %}done`,
	"deepmacro":   `{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% macro f() %}{{ ns }}{% endmacro %}{% set ns.x = f %}{% endfor %}done`,
	"deepcaller":  `{% set ns = namespace(x=1) %}{% macro f() %}{% set ns.x = caller %}{% endmacro %}{% for i in range(100000) %}{% call f() %}{{ ns.x }}{% endcall %}{% endfor %}done`,
	"deepset":     "{% set x = 1 %}" + strings.Repeat("{% set x = [x] %}", 15000) + "done",
	"deepset2":    "{% set x = [1] %}" + strings.Repeat("{% set x = x|batch(1) %}", 9000) + "done",
	"deepwith":    strings.Repeat("{% with x = [x] %}", 9000),
	"cycle":       `{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}`,
	"cycle2":      `{% set ns = namespace(x=1) %}{% set ns.x = [ns] %}{{ ns.x }}{{ ns.x|tojson }}`,
	"count":       `{% set s = 'a' * 20000000 %}{% for i in range(100000) %}{% if s.count('b') %}{% endif %}{% endfor %}`,
	"find":        `{% set s = 'a' * 20000000 %}{% for i in range(100000) %}{% if s.find('b') %}{% endif %}{% endfor %}`,
	"in":          `{% set s = 'a' * 20000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}`,
	"eq":          `{% set s = 'a' * 20000000 %}{% set t = 'a' * 20000000 %}{% for i in range(100000) %}{% if s == t %}{% endif %}{% endfor %}`,
	"teststart":   `{% set s = 'a' * 20000000 %}{% set t = 'a' * 20000000 %}{% for i in range(100000) %}{% if s is startingwith(t) %}{% endif %}{% if s is lower %}{% endif %}{% endfor %}`,
	"startswith":  `{% set s = 'a' * 20000000 %}{% set t = 'a' * 20000000 %}{% for i in range(100000) %}{% if s.startswith(t) %}{% endif %}{% endfor %}`,
	"startswithl": `{% set t = ['a' * 2000000] * 100000 %}{% set s = 'a' * 2000000 ~ 'b' %}{% for i in range(100000) %}{% if s.startswith(t) %}{% endif %}{% endfor %}`,
	"listcount":   `{% set s = [1] * 500000 %}{% for i in range(100000) %}{% if s.count(2) %}{% endif %}{% endfor %}`,
	"listin":      `{% set s = [1] * 500000 %}{% for i in range(100000) %}{% if 2 in s %}{% endif %}{% endfor %}`,
	"length":      `{% set s = 'é' * 10000000 %}{% for i in range(100000) %}{% if s|length %}{% endif %}{% endfor %}`,
	"index":       `{% set s = 'é' * 10000000 %}{% for i in range(100000) %}{% if s[9999999] %}{% endif %}{% endfor %}`,
	"slice":       `{% set s = 'é' * 10000000 %}{% for i in range(100000) %}{% if s[9999999:] %}{% endif %}{% endfor %}`,
	"istrue":      `{% set s = range(100000000) %}{% for i in range(100000) %}{% if s %}{% endif %}{% endfor %}`,
	"rangein":     `{% set s = range(100000000) %}{% for i in range(100000) %}{% if -1 in s %}{% endif %}{% endfor %}`,
	"strfmt":      `{{ '{:1000000000}'.format('x') }}`,
	"strfmt2":     `{{ '{:{}}'.format('x', 1000000000) }}`,
	"fmt":         `{{ '%1000000000s'|format('x') }}`,
	"fmt2":        `{{ '%.1000000000f'|format(1.0) }}`,
	"fmt3":        `{{ '%*d'|format(1000000000, 1) }}`,
	"fmt4":        `{{ '%(a)1000000000s'|format(a='x') }}`,
	"center":      `{{ 'x'|center(1000000000) }}`,
	"indent":      `{{ ('\n' * 1000000)|indent(1000000000) }}`,
	"indent2":     `{{ ('a\n' * 1000000)|indent('x' * 1000000) }}`,
	"tojson":      `{{ [[[1]]]|tojson(indent=1000000000) }}`,
	"tojson2":     `{{ ([[1]] * 14000)|tojson(indent=1000) }}`,
	"tojson3":     `{{ ([1] * 14000)|tojson(separators=('x' * 100000, 'y')) }}`,
	"replace":     `{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}`,
	"replacef":    `{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}`,
	"join":        `{{ ('a' * 1000000).join(['x'] * 1000000) }}`,
	"joinf":       `{{ (['x'] * 1000000)|join('a' * 1000000) }}`,
	"pow":         `{{ 9 ** 9 ** 9 }}`,
	"pow2":        `{{ 10 ** 30 * 10 ** 30 }}`,
	"batch":       `{{ range(10000000)|batch(1)|list|length }}`,
	"slicef":      `{{ range(10)|slice(1000000000)|list|length }}`,
	"batchf":      `{{ [1]|batch(1000000000, 'x')|list|length }}`,
	"int":         `{{ ('9' * 1000000)|int }}`,
	"split":       `{% set s = 'a ' * 5000000 %}{% for i in range(100) %}{% set x = s.split() %}{% endfor %}`,
	"title":       `{% set s = 'a ' * 5000000 %}{% for i in range(100) %}{% set x = s.title() %}{% endfor %}`,
	"callstack":   `{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(10000) }}`,
	"caller":      `{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}`,
	"recloop":     `{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}`,
	"fib":         `{% macro f(n) %}{{ f(n-1) }}{{ f(n-1) }}{% endmacro %}{% macro g(n) %}{% if n %}{{ g(n-1) }}{{ g(n-1) }}{% endif %}{% endmacro %}{{ g(60) }}`,
	"strftime":    `{% for i in range(100000) %}{% set x = strftime_now('%c' * 14000) %}{% endfor %}`,
	"strftime2":   `{{ strftime_now('%c' * 10000000)|length }}`,
	"raise":       `{{ raise_exception('a' * 10000000) }}`,
	"map":         `{{ range(100000000)|map('string')|list|length }}`,
	"select":      `{{ range(100000000)|select('odd')|list|length }}`,
	"sum":         `{{ range(1000000000)|sum }}`,
	"max":         `{{ range(1000000000)|max }}`,
	"sort":        `{{ (range(200000)|list)|sort|length }}`,
	"last":        `{{ range(1000000000)|last }}`,
	"reverse":     `{{ range(1000000000)|reverse|first }}`,
	"listlist":    `{{ range(100000000)|list }}`,
	"unpack":      `{% set a, b = range(1000000000) %}`,
	"splat":       `{{ dict(*range(1000000000)) }}`,
	"splat2":      `{% macro f() %}{% endmacro %}{{ f(*range(1000000000)) }}`,
	"loopprev":    `{% for i in range(100000) %}{{ loop.index }}{{ loop.length }}{% endfor %}`,
	"setblock":    `{% set x %}{% for i in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}`,
	"out":         `{% for i in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}`,
	"listgrow":    `{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}`,
	"kwargs":      `{% set ns = namespace(d={}) %}{% for i in range(100000) %}{% set ns.d = dict(ns.d, **{'k' ~ i: 1}) %}{% endfor %}{{ ns.d|length }}`,
	"sameas":      `{{ (range(100000000)|list) is sameas(1) }}`,
	"dictsort":    `` + share + `{{ {'a': ns.x, 'b': ns.x}|dictsort(by='value') }}`,
	"partition":   `{% set s = 'a' * 20000000 %}{% for i in range(100000) %}{% set x = s.partition('b') %}{% endfor %}`,
	"upper":       `{% set s = 'a' * 20000000 %}{% for i in range(100000) %}{% set x = s.isupper() %}{% endfor %}`,
	"bigloopstr":  `{% set s = 'é' * 10000000 %}{% for c in s %}{% endfor %}`,
	"nested":      strings.Repeat("{% if 1 %}", 5000),
	"nestedexpr":  "{{ " + strings.Repeat("(", 14000) + "1" + strings.Repeat(")", 14000) + " }}",
	"nestedlist":  "{{ " + strings.Repeat("[", 14000),
	"nestednot":   "{{ " + strings.Repeat("not ", 14000) + "1 }}",
	"longadd":     "{{ 1" + strings.Repeat("+1", 14000) + " }}",
	"longdot":     "{{ a" + strings.Repeat(".b", 14000) + " }}",
	"longfilter":  "{{ 'a'" + strings.Repeat("|trim", 14000) + " }}",
	"longtern":    "{{ 1" + strings.Repeat(" if 1 else 1", 14000) + " }}",
	"longelif":    "{% if 1 %}" + strings.Repeat("{% elif 1 %}", 14000) + "{% endif %}",
	"longand":     "{{ 1" + strings.Repeat(" and 1", 14000) + " }}",
	"longpow":     "{{ 1" + strings.Repeat("**1", 14000) + " }}",
	"longcmp":     "{{ 1" + strings.Repeat("<1", 14000) + " }}",
	"longconcat":  "{{ 'a'" + strings.Repeat("~'a'", 14000) + " }}",
	"longtests":   "{{ 1" + strings.Repeat(" is defined", 14000) + " }}",
	"longcall":    "{{ a" + strings.Repeat("()", 14000) + " }}",
	"longslice":   "{{ a" + strings.Repeat("[:]", 14000) + " }}",
	"longindex":   "{{ a" + strings.Repeat("[0]", 14000) + " }}",
}

// TestHostile renders them. All end soon, which the time limit of the test run
// watches. They end in an error of the right kind or, where the work was within
// the limits, in a text. Together they have not needed much memory.
func TestHostile(t *testing.T) {
	// What is done at a stroke, or less than it looks like.
	harmless := map[string]bool{
		"int": true, "indent": true, "tojson": true, "setblock": true, "out": true, "longelif": true, "laughs19": true,
		"nested": false,
	}
	before := peakBytes(t)
	for name, src := range hostile {
		tmpl, err := Compile(src)
		if err == nil {
			_, err = tmpl.Render(`{"messages":[{"role":"user","content":"x"}]}`, Limits{}, noon)
		}
		switch {
		case err == nil && !harmless[name]:
			t.Errorf("%s: rendered", name)
		case err != nil && !errors.Is(err, ErrLimit) && !errors.Is(err, ErrCompile) && !errors.Is(err, ErrTemplate) && !errors.Is(err, ErrRaised):
			t.Errorf("%s: %v", name, err)
		}
	}
	if grown := peakBytes(t) - before; grown > 400<<20 {
		t.Errorf("the memory grew by %d MB", grown>>20)
	}
}

// TestHostileContext renders a template that goes over every character of a
// content, with a long one: the limits grow with the context.
func TestLongContext(t *testing.T) {
	context := `{"messages":[{"role":"user","content":"` + strings.Repeat("All work and no play. ", 100_000) + `"}],"add_generation_prompt":true,"tools":null,"bos_token":"<s>"}`
	for _, name := range []string{"trl/llama3_1", "npm/qwen3", "trl/gptoss", "npm/deepseek_v3", "npm/gemma3", "lcpp/GLM-4.6"} {
		got, err := compile(t, source(t, name)).Render(context, Limits{}, noon)
		if err != nil || len(got) < 2_000_000 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}
