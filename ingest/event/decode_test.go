package event

import (
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/jsonpack"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// packed is a payload of the events in JSON, at time 1 from rank 2.
func packed(t testing.TB, events string) []byte {
	b, err := jsonpack.Append(nil, []byte(`[1.5,[`+events+`],2]`))
	if err != nil {
		t.Fatalf("%v in %s", err, events)
	}
	return b
}

func decode(t testing.TB, d *Decoder, events string) Batch {
	t.Helper()
	var b Batch
	if err := d.Decode(packed(t, events), &b); err != nil {
		t.Fatalf("%v of %s", err, events)
	}
	return b
}

const (
	good    = `{"type":"BlockRemoved","block_hashes":[7],"medium":"GPU"}`
	goodTwo = `["BlockRemoved",[8],"CPU"]`
)

// Whatever one event has, the others of its message are there.
func TestSkippedEvents(t *testing.T) {
	tests := []struct {
		event string
		want  Skip
	}{
		{`{"type":"BlockMoved","block_hashes":[1]}`, Skip{1, UnknownKind, "type"}},
		{`["BlockMoved",[1]]`, Skip{1, UnknownKind, "type"}},
		{`{"block_hashes":[1]}`, Skip{1, MissingField, "type"}},
		{`{"type":7}`, Skip{1, BadField, "type"}},
		{`{"type":"BlockStored","token_ids":[1]}`, Skip{1, MissingField, "block_hashes"}},
		{`["BlockRemoved"]`, Skip{1, MissingField, "block_hashes"}},
		{`["BlockStored",7]`, Skip{1, BadField, "block_hashes"}},
		{`["BlockStored",[true]]`, Skip{1, BadField, "block_hashes"}},
		{`["BlockStored",["xyz"]]`, Skip{1, BadField, "block_hashes"}},
		{`["BlockStored",[1.5]]`, Skip{1, BadField, "block_hashes"}},
		{`["BlockStored",[1],[]]`, Skip{1, BadField, "parent_block_hash"}},
		{`["BlockStored",[1],null,"tokens"]`, Skip{1, BadField, "token_ids"}},
		{`["BlockStored",[1],null,[4294967296],1]`, Skip{1, BadField, "token_ids"}},
		{`["BlockStored",[1],null,[-1],1]`, Skip{1, BadField, "token_ids"}},
		{`["BlockStored",[1],null,[[1,2],[3,4]],2]`, Skip{1, BadField, "token_ids"}},
		{`["BlockStored",[1],null,[[1,2],3],2]`, Skip{1, BadField, "token_ids"}},
		{`["BlockStored",[1],null,[1],-1]`, Skip{1, BadField, "block_size"}},
		{`["BlockStored",[1],null,[1],1,"seven"]`, Skip{1, BadField, "lora_id"}},
		{`["BlockStored",[1],null,[1],1,null,5]`, Skip{1, BadField, "medium"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",5]`, Skip{1, BadField, "lora_name"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",{"cache_salt":5}]`, Skip{1, BadField, "cache_salt"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",null,7]`, Skip{1, BadField, "extra_keys"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",null,[null,["of no block",1]]]`, Skip{1, BadField, "extra_keys"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",null,[[77]]]`, Skip{1, BadField, "extra_keys"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",null,[[["id"]]]]`, Skip{1, BadField, "extra_keys"}},
		{`["BlockStored",[1],null,[1],1,null,"GPU",null,null,-1]`, Skip{1, BadField, "group_idx"}},
		{`{"type":"BlockStored","block_hashes":[1],"block_mm_infos":[{"mm_objects":[{"mm_hash":"x"}]}]}`, Skip{1, BadField, "block_mm_infos"}},
		{`{"type":"BlockRemoved","block_hashes":[1],"medium":"` + strings.Repeat("m", 33) + `"}`, Skip{1, OverLimit, "medium"}},
		{`["BlockRemoved",[1,2,3,4,5]]`, Skip{1, OverLimit, "block_hashes"}},
		{`["BlockStored",[1],null,[1,2,3,4,5,6,7,8,9],9]`, Skip{1, OverLimit, "token_ids"}},
		{`5`, Skip{1, BadField, "event"}},
		{`[]`, Skip{1, BadField, "event"}},
		{`{}`, Skip{1, MissingField, "type"}},
	}
	for _, test := range tests {
		d := Decoder{Limits: Limits{Text: 32, Hashes: 4, Tokens: 8}}
		b := decode(t, &d, good+","+test.event+","+goodTwo)
		if len(b.Events) != 2 || b.Events[0].Hashes[0] != 7 || b.Events[1].Hashes[0] != 8 || b.Events[1].Medium != "CPU" {
			t.Errorf("%s: its neighbours are %+v", test.event, b.Events)
		}
		if b.Skipped != 1 || len(b.Skips) != 1 || b.Skips[0] != test.want {
			t.Errorf("%s: skipped %d %+v, want %+v", test.event, b.Skipped, b.Skips, test.want)
		}
		if !b.HasRank || b.Rank != 2 || b.Time != 1.5 {
			t.Errorf("%s: time %v, rank %v", test.event, b.Time, b.Rank)
		}
	}
}

// What stands in events without a meaning for an index is passed over.
func TestUnknownFields(t *testing.T) {
	var d Decoder
	b := decode(t, &d, `{"new":{"deep":[1,{"er":null}]},"type":"BlockStored","ownership":["a"],"block_hashes":[1,2],"session_id":"s",
		"parent_block_hash":-1,"token_ids":[1,2,3,4],"block_size":2,"lora_id":null,"later":[[[]]]},
		["BlockStored",[3],null,[1],1,null,"GPU",null,null,4,"sliding_window",128,"new",{"field":1}],
		["BlockRemoved",[3],"GPU",4,"new"],["AllBlocksCleared","GPU"]`)
	want := []Event{
		{Kind: Stored, Hashes: []Hash{1, 2}, Parent: 1<<64 - 1, HasParent: true, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2},
		{Kind: Stored, Hashes: []Hash{3}, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU"},
		{Kind: Removed, Hashes: []Hash{3}, Medium: "GPU", Group: 4},
		{Kind: Cleared},
	}
	// The second is longer than vLLM's and so Dynamo's, with objects in front of the group.
	want[1].Group, want[1].Spec, want[1].SlidingWindow = 0, "", 0
	if b.Skipped != 1 || b.Skips[0].Field != "group_idx" {
		t.Errorf("skipped %+v", b.Skips)
	}
	want = append(want[:1], want[2:]...)
	if !same(Batch{Events: b.Events}, Batch{Events: want}) {
		t.Errorf("\n got %+v\nwant %+v", b.Events, want)
	}
}

func TestForms(t *testing.T) {
	hash := func(id string) uint64 { h, _ := blockkey.ObjectHash(id); return h }
	row := func(objects ...Object) Extra { return Extra{Objects: objects} }
	tests := []struct {
		name, event string
		want        Event
	}{
		{"Mooncake", `{"event_id":4,"event_type":"stored","type":"BlockStoreEvent","seq_hashes":[9],"block_hashes":[5],"object_key":"k",
			"tenant_id":"t","backend_id":1,"medium":"cpu","token_ids":null}`,
			Event{Kind: Stored, Hashes: []Hash{9}, Medium: "cpu"}},
		{"Mooncake removed", `{"event_type":"removed","block_hashes":[5],"seq_hashes":[9],"medium":"cpu"}`,
			Event{Kind: Removed, Hashes: []Hash{9}, Medium: "cpu"}},
		{"hex digits", `["BlockRemoved",["0xff"]]`, Event{}},
		{"digest in hex", `["BlockRemoved",["d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c","1F"]]`,
			Event{Kind: Removed, Hashes: []Hash{0xb0147556276afc9c, 0x1f}}},
		{"LMCache's 257 tokens", `["BlockStored",[1],null,[1,2,3,4,5],4,null,"cpu"]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Medium: "cpu"}},
		{"LMCache's last chunk", `["BlockStored",[1,2],null,[1,2,3,4,5],4,null,"cpu"]`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4, 5}, BlockSize: 4, Medium: "cpu"}},
		{"masked blocks", `["BlockStored",[1],null,[1,2,3,4],2,null,"GPU"]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Medium: "GPU"}},
		{"pairs", `["BlockStored",[1],9,[[1,2],[2,70000]],2,null]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Parent: 9, HasParent: true, Tokens: []uint32{1, 2, 70000}, Bigram: true, BlockSize: 2}},
		{"pairs laid flat", `{"type":"BlockStored","block_hashes":[1],"token_ids":[1,2,3],"block_size":2,"is_eagle":true}`,
			Event{Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{1, 2, 3}, Bigram: true, BlockSize: 2}},
		{"texts among tokens", `{"type":"BlockStored","block_hashes":[1],"token_ids":[1,"c0ffee"],"block_size":2,
			"mm_keys":[[{"type":"mm_key","hash":"c0ffee","start_offset":1}]],"medium":"GPU"}`,
			Event{Kind: Stored, Hashes: []Hash{1}, BlockSize: 2, Medium: "GPU", Extra: []Extra{row(Object{"c0ffee", hash("c0ffee"), 1})}}},
		{"Dynamo's objects", `["BlockStored",[1,2],null,[1,2],1,null,"GPU",null,null,[null,{"mm_objects":[{"mm_hash":77,"offsets":[[3,9]]}]}],5,"full_attention",null]`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2}, BlockSize: 1, Medium: "GPU", Group: 5, Spec: "full_attention",
				Extra: []Extra{{}, row(Object{"", 77, 3})}}},
		{"Dynamo without objects", `["BlockStored",[1],null,[1],1,null,"GPU",null,null,null,5,"mla",null]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU", Group: 5, Spec: "mla"}},
		{"Dynamo's salt", `["BlockStored",[1],null,[1],1,null,"GPU",null,[["dynamo-cache-salt:t"]]]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU", Salt: "t"}},
		{"adapter and salt of one name", `["BlockStored",[1,2],null,[1,2],1,7,"GPU","x",[["x","x"],["x"]]]`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2}, BlockSize: 1, Medium: "GPU", LoRA: "x", LoRAID: 7, Salt: "x"}},
		{"bare object that goes on, and a salt", `["BlockStored",[1,2],null,[1,2],1,null,"GPU",null,[["img","t"],["img"]]]`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2}, BlockSize: 1, Medium: "GPU", Salt: "t",
				Extra: []Extra{row(Object{"img", hash("img"), 0}), row(Object{"img", hash("img"), 0})}}},
		{"bare text behind a parent", `["BlockStored",[1],9,[1],1,null,"GPU",null,[["img"]],0]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Parent: 9, HasParent: true, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU",
				Extra: []Extra{row(Object{"img", hash("img"), 0})}}},
		{"bare text with a group is a salt", `["BlockStored",[1,2],null,[1,2],1,null,"GPU",null,[["t"],["t"]],0]`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2}, BlockSize: 1, Medium: "GPU", Salt: "t",
				Extra: []Extra{{}, row(Object{"t", hash("t"), 0})}}},
		{"tags of 0.31", `["BlockStored",[1],null,[1],1,7,"GPU","l",[[["lora","l","/p"],["mm","img",-3],["cache_salt","t"]]],0,null,null]`,
			Event{Kind: Stored, Hashes: []Hash{1}, Tokens: []uint32{1}, BlockSize: 1, Medium: "GPU", LoRA: "l", LoRAID: 7, Salt: "t",
				Extra: []Extra{row(Object{"img", hash("img"), -3})}}},
		{"lookahead", `{"type":"BlockStored","block_hashes":[1,2],"token_ids":[1,2],"block_size":1,"lookahead_token_ids":[[2,3],[3,4]]}`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2}, BlockSize: 1, Lookahead: []uint32{2, 3, 3, 4}}},
		{"lookahead of two lengths", `{"type":"BlockStored","block_hashes":[1,2],"token_ids":[1,2],"block_size":1,"lookahead_token_ids":[[2],[3,4]]}`,
			Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: []uint32{1, 2}, BlockSize: 1}},
	}
	for _, test := range tests {
		var d Decoder
		b := decode(t, &d, test.event)
		if test.want.Kind == 0 {
			if b.Skipped != 1 {
				t.Errorf("%s: %+v", test.name, b.Events)
			}
			continue
		}
		if !same(Batch{Events: b.Events}, Batch{Events: []Event{test.want}}) {
			t.Errorf("%s (%+v)\n got %+v\nwant %+v", test.name, b.Skips, b.Events, test.want)
		}
	}
}

// Mooncake's times are milliseconds; a map can be a message too.
func TestMessageMap(t *testing.T) {
	body := must.Get(jsonpack.Append(nil, []byte(`{"ts":1700000000250,"x":1,"events":[`+good+`],"attn_dp_rank":3}`)))(t)
	var b Batch
	if err := new(Decoder).Decode(body, &b); err != nil || b.Time != 1700000000.25 || b.Rank != 3 || !b.HasRank || len(b.Events) != 1 {
		t.Errorf("%v %+v", err, bare(b))
	}
}

// Of what is no message nothing is used.
func TestMalformed(t *testing.T) {
	for name, payload := range map[string]string{
		"nothing":                 "",
		"a number":                "05",
		"an empty array":          "90",
		"time alone":              "9101",
		"no events":               "920105",
		"a text for time":         "92a17490",
		"not a number":            "92cb7ff800000000000090",
		"a rank below 0":          "930190ff",
		"a rank of two millions":  "930190ce00200000",
		"a second value":          "92019000",
		"a byte of no type":       "9201c1",
		"a map without events":    "80",
		"a name that is a number": "8101c0",
		"ends in an event":        "920191a57374",
		"ends in an array head":   "9201dc00",
		"an array of 2^32-1":      "9201ddffffffff",
		"hashes of 2^32-1":        "92019192ac426c6f636b52656d6f766564ddffffffff",
		"tokens of 2^32-1":        "92019194ab426c6f636b53746f7265649101c0ddffffffff",
		"an event map of 2^32-1":  "920191dfffffffff",
		"a text of 2^32-1":        "92019192dbffffffff",
		"nested 2^16 in 2^16":     "9201dcffffdcffffdcffff",
	} {
		p := must.Get(hex.DecodeString(payload))(t)
		b := decode(t, new(Decoder), good)
		if err := new(Decoder).Decode(p, &b); !errors.Is(err, ErrMalformed) || len(b.Events) != 0 || b.HasRank || b.Time != 0 {
			t.Errorf("%s: %v, %+v", name, err, bare(b))
		}
	}
	// No prefix of a message is one.
	for _, m := range messages(t) {
		if m.Decoded == nil {
			continue
		}
		p := m.Bytes(t)
		for i := range p {
			var b Batch
			if err := new(Decoder).Decode(p[:i], &b); !errors.Is(err, ErrMalformed) {
				t.Fatalf("the first %d bytes of message %d: %v", i, m.ID, err)
			}
		}
	}
}

// A size that is only claimed costs nothing.
func TestClaimedSizes(t *testing.T) {
	p := must.Get(hex.DecodeString("92019194ab426c6f636b53746f72656491" + "01c0ddffffffff"))(t)
	var (
		b             Batch
		before, after runtime.MemStats
	)
	runtime.ReadMemStats(&before)
	for range 100 {
		if err := new(Decoder).Decode(p, &b); err == nil {
			t.Fatal("no error")
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("100 claims of 4 billion tokens took %d bytes", grown)
	}
}

func TestLimits(t *testing.T) {
	d := Decoder{Limits: Limits{Events: 2}}
	b := decode(t, &d, strings.Repeat(good+",", 99)+good)
	if len(b.Events) != 2 || b.Skipped != 98 || len(b.Skips) != maxSkips || b.Skips[0] != (Skip{2, OverLimit, "events"}) {
		t.Errorf("%d events, %d skipped, %d told, the first %+v", len(b.Events), b.Skipped, len(b.Skips), b.Skips[0])
	}
	d.Limits.Payload = 10
	if err := d.Decode(packed(t, good), &b); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "limit is 10") {
		t.Error(err)
	}
}

// In a steady state nothing is allocated.
func TestDecodeAllocations(t *testing.T) {
	var payloads [][]byte
	for _, m := range messages(t) {
		if m.Decoded != nil {
			payloads = append(payloads, m.Bytes(t))
		}
	}
	var (
		d Decoder
		b Batch
	)
	allocations := testing.AllocsPerRun(50, func() {
		for _, p := range payloads {
			must.OK(t, d.Decode(p, &b))
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations for %d messages", allocations, len(payloads))
	}
}

// A Batch gives the memory of one long prompt back.
func TestBatchMemory(t *testing.T) {
	var (
		d Decoder
		b Batch
	)
	long := packed(t, `["BlockStored",[1],null,[0`+strings.Repeat(",0", 1<<17-1)+`],131072]`)
	if err := d.Decode(long, &b); err != nil || len(b.Events[0].Tokens) != 1<<17 {
		t.Fatal(err)
	}
	short := packed(t, good)
	for range idleDecodings + 2 {
		must.OK(t, d.Decode(short, &b))
	}
	if n := cap(b.arena.tokens); n > 4096 {
		t.Errorf("room for %d tokens is kept", n)
	}
}

// Names that are seen once do not stay for ever.
func TestWords(t *testing.T) {
	var w words
	for i := range 3 * maxWords {
		s := []byte{byte(i), byte(i >> 8), 'x'}
		if got := w.get(s); got != string(s) {
			t.Fatal(got)
		}
	}
	if len(w.m) > maxWords {
		t.Errorf("%d words", len(w.m))
	}
}

func TestMedia(t *testing.T) {
	m := must.Get(NewMedia(map[string]store.Tier{"cxl": store.CPU, "Storage": store.Shared}))(t)
	for _, test := range []struct {
		media *Media
		e     Event
		tier  store.Tier
		known bool
	}{
		{nil, Event{}, store.GPU, true},
		{nil, Event{Medium: "gpu"}, store.GPU, true},
		{nil, Event{Medium: "cpu"}, store.CPU, true},
		{nil, Event{Medium: "CPU_PINNED"}, store.CPU, true},
		{nil, Event{Medium: "STORAGE"}, store.Disk, true},
		{nil, Event{Medium: "STORAGE", Locality: "REMOTE"}, store.Shared, true},
		{nil, Event{Medium: "CPU", Locality: "REMOTE"}, store.CPU, true},
		{nil, Event{Medium: "FS"}, store.Disk, true},
		{nil, Event{Medium: "OBJ"}, store.Shared, true},
		{nil, Event{Medium: "EXTERNAL"}, store.Shared, true},
		{nil, Event{Medium: "CXL"}, 0, false},
		{nil, Event{Medium: strings.Repeat("GPU", 1000)}, 0, false},
		{m, Event{Medium: "CXL"}, store.CPU, true},
		{m, Event{Medium: "storage"}, store.Shared, true},
		{m, Event{Medium: "DISK"}, store.Disk, true},
	} {
		if tier, known := test.media.TierOf(&test.e); tier != test.tier || known != test.known {
			t.Errorf("%q %s: %v %v, want %v %v", test.e.Medium, test.e.Locality, tier, known, test.tier, test.known)
		}
	}
	for _, bad := range []map[string]store.Tier{
		{"x": store.NumTiers}, {"x": store.AllTiers}, {"a": store.GPU, "A": store.CPU}, {strings.Repeat("x", 33): store.GPU},
	} {
		if _, err := NewMedia(bad); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	if n := testing.AllocsPerRun(100, func() { m.Tier("cpu_pinned") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMediaText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "cxl = cpu ,,TAPE=disk": "CXL=cpu,TAPE=disk", "gpu=shared": "GPU=shared",
	} {
		var m Media
		if err := m.UnmarshalText([]byte(in)); err != nil || m.String() != want {
			t.Errorf("%q: %q %v, want %q", in, m.String(), err, want)
		}
	}
	m := Media{extra: map[string]store.Tier{"X": store.CPU}}
	for _, bad := range []string{"cxl", "cxl=fast", "cxl=cpu,CXL=gpu", strings.Repeat("x", 33) + "=cpu"} {
		if err := m.UnmarshalText([]byte(bad)); err == nil || m.String() != "X=cpu" {
			t.Errorf("%q: %v, %v", bad, m.String(), err)
		}
	}
}

func TestNames(t *testing.T) {
	for _, s := range []string{Kind(9).String(), Kind(0).String(), Reason(200).String()} {
		if s == "" {
			t.Error("a value without words")
		}
	}
	seen := map[string]bool{}
	for r := range Reason(NumReasons) {
		if seen[r.String()] || r.String() == "" {
			t.Errorf("reason %d is %q", r, r)
		}
		seen[r.String()] = true
	}
}

// An event that is skipped leaves nothing behind in the memory of those after it.
func TestSkipThenDecode(t *testing.T) {
	var d Decoder
	b := decode(t, &d, `["BlockStored",[1,2,3],null,[1,2,3],1,null,"GPU",null,[["img",1],[["img",2]],[5]]],`+
		`["BlockStored",[4],null,[4],1,null,"GPU",null,[[["img",2]]]]`)
	if b.Skipped != 1 || len(b.Events) != 1 || len(b.arena.hashes) != 1 || len(b.arena.tokens) != 1 || len(b.arena.objects) != 1 {
		t.Errorf("%+v", b)
	}
	if want := (Event{Kind: Stored, Hashes: []Hash{4}, Tokens: []uint32{4}, BlockSize: 1, Medium: "GPU", Positional: true,
		Extra: []Extra{{Objects: []Object{object("img", 2)}}}}); !reflect.DeepEqual(b.Events[0], want) {
		t.Errorf("\n got %+v\nwant %+v", b.Events[0], want)
	}
}
