package event

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/jsonpack"
)

func pushes(t *testing.T, body string) []Push {
	t.Helper()
	var d Decoder
	p, err := d.JSONPushes([]byte(body))
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return p
}

func TestPush(t *testing.T) {
	p := pushes(t, `{"pod":"p:1","model":"m","rank":3,"engine":"vllm","seq":18446744073709551615,"events":[`+good+`,`+goodTwo+`,7]}`)[0]
	if p.Pod != "p:1" || p.Model != "m" || p.Rank != 3 || !p.HasRank || p.Engine != "vllm" || !p.HasSeq || p.Seq != 1<<64-1 {
		t.Errorf("%+v", p)
	}
	if len(p.Batches) != 1 || len(p.Batches[0].Events) != 2 || p.Batches[0].Rank != 3 || p.Skipped != 1 || p.Skips[0] != (Skip{2, BadField, "event"}) {
		t.Errorf("%+v", p)
	}
	// Hashes beyond what a float64 holds, of either sign, and as digits.
	p = pushes(t, `{"pod":"p","model":"m","seq":null,"rank":null,"events":[["BlockRemoved",[9007199254740993,-9007199254740993,18446744073709551615,"20000000000001"]]]}`)[0]
	want := []Hash{9007199254740993, 1<<64 - 9007199254740993, 1<<64 - 1, 0x20000000000001}
	if got := p.Batches[0].Events[0].Hashes; p.HasSeq || p.HasRank || len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("%v, want %v", got, want)
	}
	many := pushes(t, `[{"pod":"a","model":"m","events":[]},{"pod":"b","model":"m","events":[`+good+`]}]`)
	if len(many) != 2 || many[0].Pod != "a" || len(many[0].Batches) != 0 || many[1].Pod != "b" || len(many[1].Batches) != 1 {
		t.Errorf("%+v", many)
	}
	if none := pushes(t, `[]`); len(none) != 0 {
		t.Errorf("%+v", none)
	}
}

func TestPushErrors(t *testing.T) {
	var d Decoder
	for body, want := range map[string]string{
		`{"model":"m","events":[]}`:                               "pod is missing",
		`{"pod":"p","events":[]}`:                                 "model is missing",
		`{"pod":"p","model":"m"}`:                                 "events is missing",
		`{"pod":"p","model":"m","events":{}}`:                     "events is no array",
		`{"pod":7,"model":"m","events":[]}`:                       "pod is no text",
		`{"pod":"p","model":"` + strings.Repeat("m", 5000) + `"}`: "model is too long",
		`{"pod":"p","model":"m","events":[],"rank":-1}`:           "rank is no rank",
		`{"pod":"p","model":"m","events":[],"rank":65536}`:        "rank is no rank",
		`{"pod":"p","model":"m","events":[],"seq":1.5}`:           "seq is no sequence number",
		`{"pod":"p","model":"m","events":[],"seq":-1}`:            "seq is no sequence number",
		`{"pod":"p","model":"m","events":[],"seq":"1"}`:           "seq is no sequence number",
		`{"pod":"p","model":"m","events":[],"block_size":"x"}`:    "block_size is no number",
		`{"pod":"p","model":"m","events":[],"sequence":1}`:        "sequence is not known",
		`[{"pod":"p","model":"m","events":[]},{"pod":"p","x":1}]`: "[1].x is not known",
		`[{"pod":"p","model":"m","events":[]},5]`:                 "[1].body is no object",
	} {
		_, err := d.JSONPushes([]byte(body))
		var param *ParamError
		if !errors.As(err, &param) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", clip([]byte(body)), err, want)
		}
	}
	for _, body := range []string{`5`, `"x"`, `null`} {
		if _, err := d.JSONPushes([]byte(body)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for body, want := range map[string]string{
		``: "byte 0", `{`: "byte 1", `{"a":1}}`: "byte 7", `[1 2]`: "byte 3", `{"pod":tru}`: "byte 7", `[01]`: "byte 3",
		`["\x"]`: "byte 1", strings.Repeat("[", 40): "32 levels", `[1e999]`: "out of range",
	} {
		if _, err := d.JSONPushes([]byte(body)); !errors.Is(err, jsonpack.ErrJSON) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	d.Limits.Payload = 20
	if _, err := d.JSONPushes([]byte(`{"pod":"p","model":"m","events":[]}`)); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := d.Pushes(make([]byte, 21)); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

// A body may be what an engine publishes.
func TestPushPayload(t *testing.T) {
	var d Decoder
	p, err := d.Pushes(packed(t, good+",3"))
	if err != nil || len(p) != 1 || p[0].Pod != "" || p[0].Rank != 2 || !p[0].HasRank || len(p[0].Batches[0].Events) != 1 || p[0].Skipped != 1 {
		t.Errorf("%v %+v", err, p)
	}
	if _, err := d.Pushes(packed(t, good)[:9]); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

func trtStored(parent, blocks string) string {
	return `{"event_id":1,"data":{"type":"stored","parent_hash":` + parent + `,"blocks":[` + blocks + `]},"window_size":128}`
}

func trtBlock(hash, tokens, rest string) string {
	return `{"type":"stored_block","block_hash":` + hash + `,"tokens":[` + tokens + `]` + rest + `,"priority":35}`
}

func tok(ids ...string) string {
	var out []string
	for _, id := range ids {
		out = append(out, `{"type":"unique_token","token_id":`+id+`,"token_extra_id":0}`)
	}
	return strings.Join(out, ",")
}

// What TensorRT-LLM gives as JSON.
func TestTensorRT(t *testing.T) {
	hash := func(id string) uint64 { h, _ := blockkey.ObjectHash(id); return h }
	two := trtBlock("1", tok("10", "11"), `,"cache_level":0`)
	tests := []struct {
		name, events string
		want         []Event
		skips        []Skip
	}{
		{"stored", trtStored("null", two+","+trtBlock("2", tok("12", "13"), `,"cache_level":0,"mm_keys":[]`)),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{10, 11, 12, 13}, BlockSize: 2, Medium: "GPU"}}, nil},
		{"with a parent", trtStored("18446744073709551615", two),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{1}, Parent: 1<<64 - 1, HasParent: true, Tokens: []uint32{10, 11}, BlockSize: 2, Medium: "GPU"}}, nil},
		{"in two levels", trtStored("null", two+","+trtBlock("2", tok("12", "13"), `,"cache_level":1`)),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{10, 11}, BlockSize: 2, Medium: "GPU"},
				{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{2}, Parent: 1, HasParent: true, Tokens: []uint32{12, 13}, BlockSize: 2, Medium: "CPU"}}, nil},
		{"with a partial block", trtStored("null", two+","+trtBlock("2", tok("12"), "")),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{10, 11}, BlockSize: 2, Medium: "GPU"},
				{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{2}, Parent: 1, HasParent: true, Tokens: []uint32{12}, BlockSize: 1, Medium: "GPU"}}, nil},
		{"of a layer group", strings.Replace(trtStored("null", two), `"window_size"`, `"layer_group_id":3,"window_size"`, 1),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Group: 3, HasGroup: true, Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{10, 11}, BlockSize: 2, Medium: "GPU"}}, nil},
		{"with an object", trtStored("null", trtBlock("1", `{"token_id":10},{"token_id":11}`, `,"mm_keys":[{"type":"mm_key","hash":"ab","start_offset":-4}]`)+","+trtBlock("2", tok("12", "13"), "")),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{10, 11, 12, 13}, BlockSize: 2, Medium: "GPU",
				Extra: []Extra{{Objects: []Object{{"ab", hash("ab"), -4}}}, {}}}}, nil},
		{"with tokens that are none", trtStored("null", two+","+trtBlock("2", `{"token_id":5,"token_extra_id":7},{"token_id":5,"token_extra_id":8}`, "")),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{10, 11}, BlockSize: 2, Medium: "GPU"},
				{Spec: SpecWidest, SlidingWindow: 128, Kind: Stored, Hashes: []Hash{2}, Parent: 1, HasParent: true, BlockSize: 2, Medium: "GPU"}}, nil},
		{"removed", `{"event_id":3,"data":{"type":"removed","block_hashes":[1,2]},"window_size":128}`,
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Removed, Hashes: []Hash{1, 2}, Medium: "GPU"}, {Spec: SpecWidest, SlidingWindow: 128, Kind: Removed, Hashes: []Hash{1, 2}, Medium: "CPU"}}, nil},
		{"moved", `{"event_id":4,"data":{"type":"updated","block_hash":1,"cache_level":{"type":"event_diff","old_value":0,"new_value":1},"priority":null}}`,
			[]Event{{Spec: SpecWidest, Kind: Stored, Hashes: []Hash{1}, Medium: "CPU"}, {Spec: SpecWidest, Kind: Removed, Hashes: []Hash{1}, Medium: "GPU"}}, nil},
		{"of another priority", `{"data":{"type":"updated","block_hash":1,"cache_level":null,"priority":{"old_value":1,"new_value":2}}}`,
			nil, []Skip{{0, NotIndexed, "cache_level"}}},
		{"created, and a narrower window", `{"data":{"type":"created","num_blocks_per_cache_level":[8,0]},"window_size":128},{"data":{"type":"created"},"window_size":64},` +
			strings.Replace(trtStored("null", two), "128", "64", 1),
			[]Event{{Spec: SpecWidest, SlidingWindow: 128, Kind: Cleared}, {Spec: SpecWidest, SlidingWindow: 128, Kind: Stored}, {Spec: SpecWidest, SlidingWindow: 64, Kind: Stored},
				{Spec: SpecWidest, SlidingWindow: 64, Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{10, 11}, BlockSize: 2, Medium: "GPU"}}, nil},
		{"of no kind", `{"data":{"type":"swapped"}}`, nil, []Skip{{0, UnknownKind, "type"}}},
		{"without blocks", `{"data":{"type":"stored"}}`, nil, []Skip{{0, MissingField, "blocks"}}},
		{"without hashes", `{"data":{"type":"removed"}},{"data":{"type":"updated"}}`, nil,
			[]Skip{{0, MissingField, "block_hashes"}, {1, MissingField, "block_hash"}}},
		{"with a block without a hash", trtStored("null", `{"tokens":[]}`), nil, []Skip{{0, MissingField, "block_hash"}}},
		{"bad", trtStored("{}", two) + "," + trtStored("null", trtBlock(`"x"`, "", "")) + "," + trtStored("null", trtBlock("1", tok("-1"), "")),
			nil, []Skip{{0, BadField, "parent_hash"}, {1, BadField, "block_hash"}, {2, BadField, "token_id"}}},
	}
	for _, test := range tests {
		p := pushes(t, `{"pod":"p","model":"m","events":[`+test.events+`]}`)[0]
		var got []Event
		for _, b := range p.Batches {
			got = append(got, b.Events...)
		}
		if !same(Batch{Events: got, Skips: p.Skips}, Batch{Events: test.want, Skips: test.skips}) || p.Skipped != len(test.skips) {
			t.Errorf("%s\n got %+v %+v\nwant %+v %+v", test.name, got, p.Skips, test.want, test.skips)
		}
	}
}

// Ranks of TensorRT-LLM stand in its events.
func TestTensorRTRanks(t *testing.T) {
	at := func(rank string) string {
		return `{"data":{"type":"updated","block_hash":1,"cache_level":{"old_value":0,"new_value":1}}` + rank + `}`
	}
	p := pushes(t, `{"pod":"p","model":"m","rank":9,"events":[`+at(`,"attention_dp_rank":1`)+","+at(`,"attention_dp_rank":1`)+","+at("")+","+at(`,"attention_dp_rank":0`)+`]}`)[0]
	var got [][2]int
	for _, b := range p.Batches {
		if !b.HasRank {
			t.Error("no rank")
		}
		got = append(got, [2]int{b.Rank, len(b.Events)})
	}
	if len(got) != 3 || got[0] != [2]int{1, 4} || got[1] != [2]int{9, 2} || got[2] != [2]int{0, 2} {
		t.Error(got)
	}
	// Ranks that alternate: the number of the push is of one batch of each.
	p = pushes(t, `{"pod":"p","model":"m","seq":7,"events":[`+at(`,"attention_dp_rank":0`)+","+at(`,"attention_dp_rank":1`)+","+at("")+`]}`)[0]
	if len(p.Batches) != 2 || len(p.Batches[0].Events) != 4 || p.Batches[0].Rank != 0 || len(p.Batches[1].Events) != 2 || p.Batches[1].Rank != 1 {
		t.Errorf("%+v", p.Batches)
	}
}

// Where the push tells the engine's block size, smaller blocks are left out.
func TestTensorRTBlockSize(t *testing.T) {
	body := `{"pod":"p","block_size":2,"model":"m","events":[` + trtStored("null", trtBlock("1", tok("1", "2"), "")+","+trtBlock("2", tok("3"), "")) + "," + trtStored("1", trtBlock("2", tok("3"), "")) + `]}`
	p := pushes(t, body)[0]
	if p.BlockSize != 2 || len(p.Batches) != 1 || len(p.Batches[0].Events) != 1 || p.Skipped != 1 || p.Skips[0] != (Skip{1, NotIndexed, "tokens"}) {
		t.Errorf("%+v", p)
	}
}
