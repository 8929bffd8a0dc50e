package event

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/kvatlas/kvatlas/internal/jsonpack"
)

// FuzzPushes: a body is refused or read, and JSON is taken exactly when the
// standard library takes it too.
func FuzzPushes(f *testing.F) {
	for _, s := range []string{
		`{"pod":"p","model":"m","rank":1,"engine":"vllm","seq":18446744073709551615,"events":[` + good + `]}`,
		`[{"pod":"p","model":"m","events":[]},{"pod":"q","model":"m","block_size":2,"events":[{"event_id":1,"data":{"type":"removed","block_hashes":[-1]},"attention_dp_rank":2}]}]`,
		`{"pod":"\u00e9\ud83d\ude00\\","model":"m","events":[1e3,-0.5,null,true,{"":[]}]}`,
		`[1.5,[["AllBlocksCleared"]],0]`, `{"pod":1}`, `[`, `"`, ` 01`, `{"a" 1}`, `[1,]`, `-`, `1e`, "\"\x01\"", `"\ud800"`, "\"\xff\"",
	} {
		f.Add([]byte(s))
	}
	var d Decoder
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := d.JSONPushes(body)
		var param *ParamError
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, jsonpack.ErrJSON) && !errors.As(err, &param) {
			t.Fatal(err)
		}
		if valid := json.Valid(body); !valid && !errors.Is(err, jsonpack.ErrJSON) {
			t.Fatalf("no JSON, and %v", err)
		} else if valid && errors.Is(err, jsonpack.ErrJSON) && !deepOrWide(body) {
			t.Fatalf("JSON, and %v", err)
		}
		if _, err := d.Pushes(body); err != nil && !errors.Is(err, ErrMalformed) && !errors.As(err, &param) {
			t.Fatal(err)
		}
	})
}

// deepOrWide reports whether a JSON text has more levels than are read, or a number
// that no float64 is.
func deepOrWide(body []byte) bool {
	var v any
	if json.Unmarshal(body, &v) != nil {
		return true
	}
	depth := 0
	var walk func(v any, at int)
	walk = func(v any, at int) {
		depth = max(depth, at)
		switch v := v.(type) {
		case []any:
			for _, v := range v {
				walk(v, at+1)
			}
		case map[string]any:
			for _, v := range v {
				walk(v, at+1)
			}
		}
	}
	walk(v, 0)
	return depth > jsonpack.MaxDepth
}
