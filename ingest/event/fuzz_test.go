package event

import (
	"encoding/json"
	"errors"
	"testing"
)

// FuzzDecode: whatever comes in, what is decoded holds together, is written again
// and is then the same.
func FuzzDecode(f *testing.F) {
	for _, m := range messages(f) {
		if m.Decoded != nil {
			f.Add(m.payload(f))
		}
	}
	for _, s := range []string{good, goodTwo, `["BlockStored",[1,2],null,[1,2],1,null,"GPU",null,[["img","t"],["img"]]]`,
		`{"data":{"type":"stored","parent_hash":1,"blocks":[{"block_hash":2,"tokens":[{"token_id":1,"token_extra_id":0}],"cache_level":1}]},"window_size":64}`,
		`{"type":"BlockStored","block_hashes":["ff"],"token_ids":["x",1],"mm_keys":[[{"hash":"aa","start_offset":1}]]}`} {
		f.Add(packed(f, s))
	}
	var (
		d            Decoder
		b, twice, of Batch
	)
	f.Fuzz(func(t *testing.T, payload []byte) {
		err := d.Decode(payload, &b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || len(b.Events) != 0 {
				t.Fatal(err, b.Events)
			}
			return
		}
		hashes, tokens := 0, 0
		for i := range b.Events {
			e := &b.Events[i]
			if e.Kind < Stored || e.Kind > Cleared || e.Group < 0 || e.BlockSize < 0 || e.SlidingWindow < 0 {
				t.Fatalf("%+v", e)
			}
			if e.Extra != nil && len(e.Extra) != len(e.Hashes) {
				t.Fatalf("%d extras for %d blocks", len(e.Extra), len(e.Hashes))
			}
			if len(e.Lookahead) > 0 && len(e.Lookahead)%len(e.Hashes) != 0 {
				t.Fatalf("%d tokens of lookahead for %d blocks", len(e.Lookahead), len(e.Hashes))
			}
			hashes += len(e.Hashes)
			tokens += len(e.Tokens)
		}
		// A hash and a token have a byte at least; a hash of TensorRT-LLM's removals
		// is told in two tiers, and the last of a pair is counted with the next.
		if hashes > 2*len(payload) || tokens > 2*len(payload) {
			t.Fatalf("%d hashes and %d tokens from %d bytes", hashes, tokens, len(payload))
		}
		for form := range numForms {
			if err := Decode(Append(nil, &b, form), &twice); err != nil || len(twice.Events)+twice.Skipped != len(b.Events) {
				t.Fatalf("%v: %v, %d of %d events", form, err, len(twice.Events), len(b.Events))
			}
		}
		// As JSON they are what they were.
		body := []byte(`{"pod":"p","model":"m","events":[`)
		for i := range b.Events {
			body = AppendJSON(comma(body, i), &b.Events[i])
		}
		body = append(body, `]}`...)
		if !json.Valid(body) {
			t.Fatalf("no JSON: %s", body)
		}
		pushes, err := d.JSONPushes(body, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		of = Batch{}
		for _, p := range pushes[0].Batches {
			of.Events = append(of.Events, p.Events...)
		}
		if pushes[0].Skipped == 0 && len(of.Events) != len(b.Events) {
			t.Fatalf("%d events of %d", len(of.Events), len(b.Events))
		}
	})
}

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
		_, err := d.JSONPushes(body, nil)
		var param *ParamError
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrJSON) && !errors.As(err, &param) {
			t.Fatal(err)
		}
		if valid := json.Valid(body); !valid && !errors.Is(err, ErrJSON) {
			t.Fatalf("no JSON, and %v", err)
		} else if valid && errors.Is(err, ErrJSON) && !deepOrWide(body) {
			t.Fatalf("JSON, and %v", err)
		}
		if _, err := d.Pushes(body, nil); err != nil && !errors.Is(err, ErrMalformed) && !errors.As(err, &param) {
			t.Fatal(err)
		}
	})
}

// deepOrWide tells whether a JSON text has more levels than are read, or a number
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
	return depth > maxDepth
}
