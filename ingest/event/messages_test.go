package event

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
)

// message is a line of testdata/messages.jsonl.
type message struct {
	ID              int
	Engine, Version string
	What            string
	Payload         string
	Decoded         []any
	Replay          []any
}

// Bytes are the payload.
func (m *message) Bytes(t testing.TB) []byte {
	b := must.Get(hex.DecodeString(m.Payload))(t)
	return b
}

func messages(t testing.TB) []message {
	b := must.Get(os.ReadFile("testdata/messages.jsonl"))(t)
	var out []message
	for line := range bytes.Lines(b) {
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		var m message
		must.OK(t, d.Decode(&m))
		out = append(out, m)
	}
	return out
}

// The meaning of a decoded message, from msgspec's decoding and not from the bytes.

var storedNames = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
	"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}

var removedNames = []string{"type", "block_hashes", "medium", "group_idx"}

func named(v any) map[string]any {
	if m, ok := v.(map[string]any); ok {
		return m
	}
	row := v.([]any)
	names := storedNames
	if row[0] == "BlockRemoved" {
		names = removedNames
	}
	m := map[string]any{}
	for i, v := range row {
		if extra, ok := v.(map[string]any); ok && i == 7 { // SGLang's map
			for k, v := range extra {
				m[k] = v
			}
			continue
		}
		m[names[i]] = v
	}
	return m
}

func meantHash(t *testing.T, v any) Hash {
	n := new(big.Int)
	switch v := v.(type) {
	case json.Number:
		if _, ok := n.SetString(v.String(), 10); !ok {
			t.Fatal(v)
		}
	case map[string]any:
		b := must.Get(hex.DecodeString(v["bytes"].(string)))(t)
		n.SetBytes(b)
	default:
		t.Fatalf("a hash of type %T", v)
	}
	mod := new(big.Int).Lsh(big.NewInt(1), 64)
	return Hash(n.Mod(n, mod).Uint64())
}

func meantInt(t *testing.T, v any) int {
	if v == nil {
		return 0
	}
	n := must.Get(v.(json.Number).Int64())(t)
	return int(n)
}

func meantText(v any) string {
	s, _ := v.(string)
	return s
}

// extras are those that have any, by the message's id.
var extras = map[int]struct {
	salt  string
	extra []Extra
}{
	5:   {salt: "tenant-a"},
	6:   {extra: images(4, -12)},
	22:  {salt: "tenant-a"},
	23:  {extra: images(4, -12)},
	29:  {salt: "tenant-a"},
	30:  {extra: images(4, -12)},
	38:  {salt: "tenant-a"},
	39:  {extra: images(0, 0)}, // bare identifiers
	109: {salt: "tenant-a", extra: []Extra{{Objects: []Object{{Hash: 123456789}}}}},
}

func images(offsets ...int) []Extra {
	const id = "imgsha_aaaa"
	hash, _ := blockkey.ObjectHash(id)
	out := []Extra{{}}
	for _, o := range offsets {
		out = append(out, Extra{Objects: []Object{{ID: id, Hash: hash, Offset: o}}})
	}
	return out
}

func meant(t *testing.T, id int, v any) Event {
	m := named(v)
	e := Event{Kind: map[string]Kind{"BlockStored": Stored, "BlockRemoved": Removed, "AllBlocksCleared": Cleared}[m["type"].(string)]}
	if e.Kind == Cleared {
		return e
	}
	e.Hashes = []Hash{}
	for _, h := range m["block_hashes"].([]any) {
		e.Hashes = append(e.Hashes, meantHash(t, h))
	}
	e.Medium = meantText(m["medium"])
	e.Locality = meantText(m["locality"])
	e.Group = meantInt(t, m["group_idx"])
	if e.Kind == Removed {
		return e
	}
	if p := m["parent_block_hash"]; p != nil {
		e.Parent, e.HasParent = meantHash(t, p), true
	}
	e.Tokens = []uint32{}
	for i, v := range m["token_ids"].([]any) {
		if pair, ok := v.([]any); ok {
			if e.Bigram = true; i == 0 {
				e.Tokens = append(e.Tokens, uint32(meantInt(t, pair[0])))
			}
			v = pair[1]
		}
		e.Tokens = append(e.Tokens, uint32(meantInt(t, v)))
	}
	if rows, ok := m["lookahead_token_ids"].([]any); ok {
		for _, row := range rows {
			for _, v := range row.([]any) {
				e.Lookahead = append(e.Lookahead, uint32(meantInt(t, v)))
			}
		}
	}
	e.BlockSize = meantInt(t, m["block_size"])
	e.LoRAID = int64(meantInt(t, m["lora_id"]))
	e.LoRA = meantText(m["lora_name"])
	e.Salt = meantText(m["cache_salt"])
	if x, ok := extras[id]; ok && (m["extra_keys"] != nil || m["block_mm_infos"] != nil) {
		e.Salt, e.Extra = x.salt, x.extra
	}
	return e
}

// bare is a batch without what is not for its users.
func bare(b Batch) Batch {
	b.arena = arena{}
	return b
}

// Every message that an engine was seen to send means what msgspec says, the library
// that engines write it with. That holds whichever messages the Batch had before.
func TestDecodeMessages(t *testing.T) {
	var (
		d       Decoder
		reused  Batch
		decoded int
	)
	for _, m := range messages(t) {
		if m.Decoded == nil {
			continue
		}
		decoded++
		want := Batch{Events: []Event{}}
		at := must.Get(m.Decoded[0].(json.Number).Float64())(t)
		want.Time = at
		for _, e := range m.Decoded[1].([]any) {
			want.Events = append(want.Events, meant(t, m.ID, e))
		}
		if len(m.Decoded) > 2 {
			want.Rank, want.HasRank = meantInt(t, m.Decoded[2]), true
		}
		var fresh Batch
		if err := new(Decoder).Decode(m.Bytes(t), &fresh); err != nil {
			t.Errorf("message %d (%s %s): %v", m.ID, m.Engine, m.Version, err)
			continue
		}
		if err := d.Decode(m.Bytes(t), &reused); err != nil {
			t.Errorf("message %d (%s %s), reused: %v", m.ID, m.Engine, m.Version, err)
			continue
		}
		if got := bare(fresh); !same(got, want) {
			t.Errorf("message %d (%s %s, %s)\n got %+v\nwant %+v", m.ID, m.Engine, m.Version, m.What, got, want)
		}
		if got := bare(reused); !same(got, want) {
			t.Errorf("message %d (%s %s) differs in a Batch that was used before\n got %+v\nwant %+v", m.ID, m.Engine, m.Version, got, want)
		}
	}
	if decoded != 98 {
		t.Errorf("%d messages, there were 98", decoded)
	}
}

// same compares what batches say: empty and nil lists are the same, and so are the forms
// in which events come.
func same(a, b Batch) bool {
	norm := func(b Batch) Batch {
		out := b
		out.Events, out.Skips = nil, nil
		for _, e := range b.Events {
			e.Hashes = append([]Hash(nil), e.Hashes...)
			e.Tokens = append([]uint32(nil), e.Tokens...)
			e.Lookahead = append([]uint32(nil), e.Lookahead...)
			var extra []Extra
			for _, x := range e.Extra {
				extra = append(extra, Extra{Objects: append([]Object(nil), x.Objects...)})
			}
			e.Extra = extra
			e.HasGroup, e.Positional = false, false // how it was told
			out.Events = append(out.Events, e)
		}
		out.Skips = append(out.Skips, b.Skips...)
		out.arena = arena{}
		return out
	}
	return reflect.DeepEqual(norm(a), norm(b))
}

// The payloads that replay sockets sent decode like live ones.
func TestDecodeReplays(t *testing.T) {
	n := 0
	for _, m := range messages(t) {
		if m.Replay == nil {
			continue
		}
		for _, frames := range m.Replay {
			row, ok := frames.([]any)
			if !ok {
				continue
			}
			payload, err := hex.DecodeString(row[len(row)-1].(string))
			if err != nil || len(payload) == 0 {
				continue
			}
			n++
			var b Batch
			if err := new(Decoder).Decode(payload, &b); err != nil || len(b.Events) == 0 || b.Skipped != 0 {
				t.Errorf("message %d: %v, %+v", m.ID, err, bare(b))
			}
		}
	}
	if n < 8 {
		t.Errorf("%d payloads in replays", n)
	}
}

// Events are read from JSON as they were written, hashes of 64 bits to the bit.
func TestJSONMessages(t *testing.T) {
	var d Decoder
	for _, m := range messages(t) {
		if m.Decoded == nil {
			continue
		}
		var b Batch
		must.OK(t, new(Decoder).Decode(m.Bytes(t), &b))
		body := []byte(`{"pod":"p","model":"m","rank":3,"events":[`)
		for i := range b.Events {
			body = AppendJSON(comma(body, i), &b.Events[i])
		}
		body = append(body, `]}`...)
		if !json.Valid(body) {
			t.Fatalf("message %d: no JSON: %s", m.ID, body)
		}
		pushes, err := d.JSONPushes(body)
		if err != nil {
			t.Fatalf("message %d: %v in %s", m.ID, err, body)
		}
		got := pushes[0].Batches[0]
		want := Batch{Rank: 3, HasRank: true, Events: b.Events}
		if !same(got, want) {
			t.Errorf("message %d\n got %+v\nwant %+v", m.ID, got, want)
		}
	}
}
