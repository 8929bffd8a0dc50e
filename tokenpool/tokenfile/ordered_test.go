package tokenfile

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// TestReadObject reads objects as encoding/json does, and in their order.
func TestReadObject(t *testing.T) {
	for _, text := range []string{
		`{}`, " {\n} ", `{"a":1}`, `{"a" : -1.5e3 , "b":true,"c":null}`, "\t{ \"a\"\r\n:\t[1, [2, {\"x\": \"}\"}], []] ,\"b\":{} }\n",
		`{"q\"\\":"\\\"]}","\u00e9":"\u0000\"","":""}`, `{"a":"{[","b":"\\"}`, `{"a":[],"b":[{}],"c":[[[]]]}`,
	} {
		o, err := ReadObject([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var want map[string]json.RawMessage
		must.OK(t, json.Unmarshal([]byte(text), &want))
		if len(o) != len(want) {
			t.Errorf("%s: %d members, want %d", text, len(o), len(want))
		}
		for _, m := range o {
			if !bytes.Equal(m.value, want[m.key]) {
				t.Errorf("%s: %q is %s, want %s", text, m.key, m.value, want[m.key])
			}
		}
	}
	o, err := ReadObject([]byte(`{"b":1,"a":2,"b":3}`))
	if got := string(o.AppendJSON(nil)); err != nil || got != `{"b":3,"a":2}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, text := range []string{"", "{", `{"a"}`, `{"a":1`, `{"a":1,}`, `[]`, `1`, `{} {}`, `{"a":"`, `{"a":01}`} {
		if _, err := ReadObject([]byte(text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}
