package event_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/encode"
)

// forms are the form of each version's messages.
var forms = map[string]encode.Form{
	"vllm 0.33.0":   encode.VLLM33,
	"vllm 0.24.0":   encode.VLLM24,
	"vllm 0.22.0":   encode.VLLM22,
	"vllm 0.17.0":   encode.VLLM17,
	"vllm 0.14.0":   encode.VLLM14,
	"vllm 0.11.0":   encode.VLLM10,
	"vllm 0.10.2":   encode.VLLM10,
	"vllm 0.10.1":   encode.VLLM9,
	"vllm 0.9.2":    encode.VLLM9,
	"vllm 0.9.0":    encode.VLLM9,
	"sglang 0.4.7":  encode.SGLang4,
	"sglang 0.5.10": encode.SGLang59,
	"sglang 0.5.18": encode.SGLang517,
	"sglang 0.5.19": encode.SGLang517,
	"sglang 0.5.23": encode.SGLang520,
}

// What was decoded is written again as the engine wrote it, byte for byte, except
// for what an Event does not keep.
func TestAppendMessages(t *testing.T) {
	n := 0
	for _, m := range event.Messages(t) {
		form, known := forms[m.Engine+" "+m.Version]
		if m.Decoded == nil || !known || len(m.Decoded) < 3 {
			continue
		}
		switch {
		case strings.Contains(m.What, "32-byte hashes"), // only their last 8 bytes
			m.ID == 39, // bare identifiers, which 0.19 no longer sends
			strings.Contains(m.Payload, hex.EncodeToString([]byte("session_id"))), // is not used here
			strings.Contains(m.Payload, hex.EncodeToString([]byte("ownership"))):
			continue
		}
		n++
		var b event.Batch
		must.OK(t, new(event.Decoder).Decode(m.Bytes(t), &b))
		if got := hex.EncodeToString(encode.Append(nil, &b, form)); got != m.Payload {
			t.Errorf("message %d (%s %s, %s)\n got %s\nwant %s", m.ID, m.Engine, m.Version, m.What, got, m.Payload)
		}
	}
	if n < 75 {
		t.Errorf("only %d messages were written again", n)
	}
}

func object(id string, offset int) event.Object {
	hash, _ := blockkey.ObjectHash(id)
	return event.Object{ID: id, Hash: hash, Offset: offset}
}

// random is an event that a form can write whole.
func random(r *rand.Rand, form encode.Form) event.Event {
	e := event.Event{Kind: event.Kind(1 + r.IntN(3))}
	if e.Kind == event.Cleared {
		return e
	}
	word := func(of ...string) string { return of[r.IntN(len(of))] }
	for range r.IntN(5) {
		e.Hashes = append(e.Hashes, event.Hash(r.Uint64()>>r.IntN(64)))
	}
	if form != encode.VLLM9 && form != encode.SGLang4 {
		e.Medium = word("", "GPU", "CPU", "disk")
	}
	grouped := form == encode.VLLM33 || form == encode.VLLM24 || form == encode.VLLM22 || form == encode.VLLM20
	if grouped {
		e.Group = r.IntN(3)
	}
	if e.Kind == event.Removed {
		return e
	}
	if e.HasParent = r.IntN(2) == 0; e.HasParent {
		e.Parent = event.Hash(r.Uint64())
	}
	e.BlockSize = 1 + r.IntN(20)
	if n := len(e.Hashes) * e.BlockSize; n > 0 {
		if e.Bigram = r.IntN(4) == 0; e.Bigram {
			n++
		}
		for range n {
			e.Tokens = append(e.Tokens, r.Uint32()>>r.IntN(32))
		}
	}
	e.LoRAID = int64(r.IntN(3))
	switch form {
	case encode.VLLM33, encode.VLLM24, encode.VLLM22, encode.VLLM20, encode.VLLM17:
		if form != encode.VLLM17 { // where a salt and a bare object look alike
			e.Salt = word("", "tenant")
		}
		if e.HasParent || len(e.Hashes) == 0 {
			e.Salt = ""
		}
		e.LoRA = word("", "lora")
		if r.IntN(2) == 0 && len(e.Hashes) > 0 {
			e.Extra = make([]event.Extra, len(e.Hashes))
			some := false
			for i := range e.Extra {
				for range r.IntN(3) {
					e.Extra[i].Objects = append(e.Extra[i].Objects, object(word("a", "b"), r.IntN(40)-20))
					some = true
				}
			}
			if !some {
				e.Extra = nil
			}
		}
	case encode.VLLM14, encode.SGLang520:
		e.LoRA = word("", "lora")
	default:
	}
	if form == encode.SGLang520 || form == encode.SGLang517 {
		e.Salt = word("", "tenant")
	}
	if form == encode.VLLM22 {
		e.Spec, e.SlidingWindow = word("", "full_attention"), r.IntN(2)*128
	}
	return e
}

// What is written in a form is read as it was.
func TestRoundTrip(t *testing.T) {
	for form := range encode.NumForms {
		r := rand.New(rand.NewPCG(uint64(form), 1))
		var (
			d event.Decoder
			b event.Batch
		)
		for range 300 {
			want := event.Batch{Time: float64(r.IntN(1e9)), Rank: r.IntN(100), HasRank: true}
			for range r.IntN(6) {
				want.Events = append(want.Events, random(r, form))
			}
			if err := d.Decode(encode.Append(nil, &want, form), &b); err != nil || !event.Same(b, want) {
				t.Fatalf("%v: %v\n got %+v\nwant %+v", form, err, b.Events, want.Events)
			}
		}
	}
}

// FuzzDecode: whatever comes in, what is decoded holds together, is written again
// and is then the same.
func FuzzDecode(f *testing.F) {
	for _, m := range event.Messages(f) {
		if m.Decoded != nil {
			f.Add(m.Bytes(f))
		}
	}
	for _, s := range []string{`{"type":"BlockRemoved","block_hashes":[7],"medium":"GPU"}`, `["BlockRemoved",[8],"CPU"]`, `["BlockStored",[1,2],null,[1,2],1,null,"GPU",null,[["img","t"],["img"]]]`,
		`{"data":{"type":"stored","parent_hash":1,"blocks":[{"block_hash":2,"tokens":[{"token_id":1,"token_extra_id":0}],"cache_level":1}]},"window_size":64}`,
		`{"type":"BlockStored","block_hashes":["ff"],"token_ids":["x",1],"mm_keys":[[{"hash":"aa","start_offset":1}]]}`} {
		f.Add(event.Packed(f, s))
	}
	var (
		d            event.Decoder
		b, twice, of event.Batch
	)
	f.Fuzz(func(t *testing.T, payload []byte) {
		err := d.Decode(payload, &b)
		if err != nil {
			if !errors.Is(err, event.ErrMalformed) || len(b.Events) != 0 {
				t.Fatal(err, b.Events)
			}
			return
		}
		hashes, tokens := 0, 0
		for i := range b.Events {
			e := &b.Events[i]
			if e.Kind < event.Stored || e.Kind > event.Cleared || e.Group < 0 || e.BlockSize < 0 || e.SlidingWindow < 0 {
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
		// A hash and a token have a byte at least. A hash of TensorRT-LLM's removals is
		// told in two tiers, and the last of a pair is counted with the next.
		if hashes > 2*len(payload) || tokens > 2*len(payload) {
			t.Fatalf("%d hashes and %d tokens from %d bytes", hashes, tokens, len(payload))
		}
		for form := range encode.NumForms {
			if err := new(event.Decoder).Decode(encode.Append(nil, &b, form), &twice); err != nil || len(twice.Events)+twice.Skipped != len(b.Events) {
				t.Fatalf("%v: %v, %d of %d events", form, err, len(twice.Events), len(b.Events))
			}
		}
		// As JSON they are what they were.
		body := []byte(`{"pod":"p","model":"m","events":[`)
		for i := range b.Events {
			if i > 0 {
				body = append(body, ',')
			}
			body = event.AppendJSON(body, &b.Events[i])
		}
		body = append(body, `]}`...)
		if !json.Valid(body) {
			t.Fatalf("no JSON: %s", body)
		}
		pushes, err := d.JSONPushes(body)
		if err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		of = event.Batch{}
		for _, p := range pushes[0].Batches {
			of.Events = append(of.Events, p.Events...)
		}
		if pushes[0].Skipped == 0 && len(of.Events) != len(b.Events) {
			t.Fatalf("%d events of %d", len(of.Events), len(b.Events))
		}
	})
}
