package main

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestHeld reads answers in the forms of all services.
func TestHeld(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   int
	}{
		"kvatlas":           {`{"scores":{"a":3,"b":1},"matched":{"a":{"blocks":3,"tokens":192},"b":{"blocks":1,"tokens":64}}}`, 1},
		"kvatlas, nobody":   {`{"scores":{},"matched":{}}`, 0},
		"Dynamo's indexer":  {`{"scores":{"1":{"0":192},"2":{"0":208},"3":{"0":64}},"frequencies":[],"instances":{}}`, 2},
		"Dynamo's selector": {`{"block_size":16,"num_blocks":12,"workers":[{"worker_id":1,"dp_rank":0,"device_blocks":12},{"worker_id":2,"device_blocks":11}]}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := held([]byte(c.answer), 192); got != c.want || err != nil {
				t.Errorf("%d, %v, want %d", got, err, c.want)
			}
		})
	}
	if _, err := held([]byte("none"), 1); err == nil {
		t.Error("what is no JSON is no error")
	}
}

// TestStored decodes what engines tell: chains of all blocks, in events of at most so many.
func TestStored(t *testing.T) {
	tokens := newPrompt(rand.New(rand.NewPCG(1, 2)), 40*engineBlock)
	for n, messages := range map[int]int{1: 40, 16: 3, 128: 1} {
		payloads := stored(nil, tokens, n)
		if len(payloads) != messages {
			t.Errorf("%d messages for %d blocks an event, want %d", len(payloads), n, messages)
		}
		var hashes []event.Hash
		var told []uint32
		for _, p := range payloads {
			var b event.Batch
			var d event.Decoder
			must.OK(t, d.Decode(p, &b))
			e := &b.Events[0]
			if e.HasParent != (len(hashes) > 0) || e.HasParent && e.Parent != hashes[len(hashes)-1] {
				t.Errorf("block %d has parent %v", len(hashes), e.Parent)
			}
			hashes, told = append(hashes, e.Hashes...), append(told, e.Tokens...)
		}
		if !slices.Equal(told, tokens) || len(hashes) != 40 {
			t.Errorf("%d tokens and %d blocks of %d and 40", len(told), len(hashes), len(tokens))
		}
	}
}

// TestNewRequest cuts requests at the name of what they book.
func TestNewRequest(t *testing.T) {
	r := newRequest("POST", "/x", jsonKind, []byte(`{"id":"`+idMark+`"}`))
	got := append(append(bytes.Clone(r.before), nextID()...), r.behind...)
	if want := "Content-Length: 19\r\n\r\n{\"id\":\"r0"; !bytes.Contains(got, []byte(want)) || bytes.Contains(got, []byte(idMark)) {
		t.Errorf("%s", got)
	}
	if r = newRequest("GET", "/x", "", nil); r.behind != nil {
		t.Errorf("%q is cut", r.before)
	}
}
