package event

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
)

// unexplained are messages whose hashes go by what they do not tell. They have an
// adapter's number and name, a salt or an object before vLLM 0.17 (45 to 64), or a
// random seed (68). SGLang's were made with the hash of a larger page (80 to 104).
var unexplained = []int{45, 46, 52, 53, 63, 64, 68, 80, 87, 92, 98, 104}

// The hashes of every message that was captured are explained, by the algorithm
// that its engine used.
func TestExplainMessages(t *testing.T) {
	explained := 0
	for _, m := range messages(t) {
		if m.Decoded == nil || strings.Contains(m.What, "builtin") || strings.HasPrefix(m.Engine, "trtllm") {
			continue
		}
		var b Batch
		must.OK(t, new(Decoder).Decode(m.Bytes(t), &b))
		for i := range b.Events {
			e := &b.Events[i]
			x, err := Explain(e, nil, "/adapters/sql-lora")
			want := "vLLM's sha256_cbor"
			if m.Engine == "sglang" {
				want = "SGLang's"
			}
			switch {
			case errors.Is(err, ErrNoStart):
			case m.Engine == "sglang" && len(e.Hashes) == 2: // the first and the last page of 16
			case slices.Contains(unexplained, m.ID):
				if !errors.Is(err, ErrUnexplained) {
					t.Errorf("message %d (%s %s, %s): %v", m.ID, m.Engine, m.Version, m.What, x)
				}
			case err != nil || !strings.HasPrefix(x.String(), want):
				t.Errorf("message %d (%s %s, %s): %v %v", m.ID, m.Engine, m.Version, m.What, x, err)
			default:
				explained++
			}
		}
	}
	if explained < 30 {
		t.Errorf("%d events are explained", explained)
	}
}

func vllmEvent(a blockkey.VLLMAlgorithm, seed string, change func(*blockkey.VLLMChain, *Event)) *Event {
	e := &Event{Kind: Stored, BlockSize: 16, Medium: "GPU"}
	for i := range 48 {
		e.Tokens = append(e.Tokens, uint32(1000+i))
	}
	c := blockkey.NewVLLMChain(a, seed, 16)
	if change != nil {
		change(&c, e)
	}
	for _, d := range c.Append(nil, e.Tokens, e.vllmObjects()...) {
		e.Hashes = append(e.Hashes, Hash(d.VLLMWire()))
	}
	return e
}

func TestExplain(t *testing.T) {
	salted := func(c *blockkey.VLLMChain, e *Event) {
		c.Salt, e.Salt = "tenant", "tenant"
		c.Keys = blockkey.VLLMKeys19
	}
	adapter := func(c *blockkey.VLLMChain, e *Event) {
		e.LoRA = "l"
		c.LoRA = blockkey.VLLMLoRA{Name: "l", Path: "/p"}
	}
	tests := []struct {
		name        string
		e           *Event
		seeds, want string
		tried       bool
	}{
		{"the default", vllmEvent(blockkey.VLLMSHA256, blockkey.VLLMDefaultSeed, nil), "", `vLLM's sha256 with the seed "vllm-none-hash"`, false},
		{"one that is named", vllmEvent(blockkey.VLLMXXHashCBOR, "s3cret", nil), "s3cret", `vLLM's xxhash_cbor with the seed "s3cret"`, false},
		{"a number", vllmEvent(blockkey.VLLMSHA256CBOR, "42", nil), "0", `vLLM's sha256_cbor with the seed "42"`, true},
		{"a random one", vllmEvent(blockkey.VLLMSHA256, "random", nil), "0", "", false},
		{"a salt", vllmEvent(blockkey.VLLMXXHash, "0", salted), "0",
			`vLLM's xxhash with the seed "0", adapters, salts and objects as in 0.19 to 0.30`, false},
		{"an adapter", vllmEvent(blockkey.VLLMSHA256, "0", adapter), "0",
			`vLLM's sha256 with the seed "0", adapters, salts and objects as in 0.31 and later`, false},
	}
	for _, test := range tests {
		x, err := Explain(test.e, strings.Fields(test.seeds), "/p")
		if test.want == "" {
			if !errors.Is(err, ErrUnexplained) {
				t.Errorf("%s: %v %v", test.name, x, err)
			}
			continue
		}
		if err != nil || x.String() != test.want || x.Tried != test.tried {
			t.Errorf("%s: %v %v %v, want %s", test.name, x, x.Tried, err, test.want)
		}
	}
	for name, change := range map[string]func(*Event){
		"removed":        func(e *Event) { e.Kind = Removed },
		"with a parent":  func(e *Event) { e.HasParent = true },
		"without tokens": func(e *Event) { e.Tokens = nil },
		"without size":   func(e *Event) { e.BlockSize = 0 },
		"without hashes": func(e *Event) { e.Hashes = nil },
	} {
		e := *tests[0].e
		change(&e)
		if _, err := Explain(&e, nil, ""); !errors.Is(err, ErrNoStart) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
