package store_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/store"
)

func TestPodValidate(t *testing.T) {
	good := store.Pod{Name: "10.0.0.1:8000", Model: "m", Role: "prefill", Ranks: 8, BlockSize: 16, Lease: store.Seconds(time.Second), Labels: map[string]string{"zone": "a"}}
	if err := good.Validate(); err != nil {
		t.Fatalf("a good pod is refused: %v", err)
	}
	for _, tc := range []struct {
		name string
		want string // a word of the message
		edit func(*store.Pod)
	}{
		{"no name", "pod name is empty", func(p *store.Pod) { p.Name = "" }},
		{"long name", "254 bytes", func(p *store.Pod) { p.Name = strings.Repeat("a", store.MaxPodName+1) }},
		{"NUL", "U+0000 at byte 1", func(p *store.Pod) { p.Name = "a\x00b" }},
		{"newline", "U+000A", func(p *store.Pod) { p.Name = "a\n" }},
		{"not UTF-8", "UTF-8", func(p *store.Pod) { p.Name = "a\xff" }},
		{"no model", "model of the pod is empty", func(p *store.Pod) { p.Model = "" }},
		{"long model", "513 bytes", func(p *store.Pod) { p.Model = strings.Repeat("a", store.MaxModelName+1) }},
		{"role", "role", func(p *store.Pod) { p.Role = "boss" }},
		{"ranks below", "ranks is -1", func(p *store.Pod) { p.Ranks = -1 }},
		{"ranks above", "ranks is 1025", func(p *store.Pod) { p.Ranks = store.MaxRanks + 1 }},
		{"block size", "block_size is -1", func(p *store.Pod) { p.BlockSize = -1 }},
		{"lease below", "lease_s", func(p *store.Pod) { p.Lease = -1 }},
		{"lease above", "lease_s", func(p *store.Pod) { p.Lease = store.Seconds(store.MaxLease + 1) }},
		{"address", "address", func(p *store.Pod) { p.Address = "a\tb" }},
		{"label", "label zone", func(p *store.Pod) { p.Labels = map[string]string{"zone": "\x01"} }},
		{"label name", "name of a label is empty", func(p *store.Pod) { p.Labels = map[string]string{"": "x"} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := good
			tc.edit(&p)
			err := p.Validate()
			if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want ErrInvalid with %q", err, tc.want)
			}
		})
	}
}

func TestBatchValidate(t *testing.T) {
	op := func(kind store.OpKind, tier store.Tier, keys int) store.Batch {
		return store.Batch{Pod: "p", Model: "m", Ops: []store.Op{{Kind: store.Add}, {Kind: kind, Tier: tier, Keys: make([]blockkey.Key, keys)}}}
	}
	for _, tc := range []struct {
		name  string
		batch store.Batch
		want  string // a word of the message; "" is valid
	}{
		{"add", op(store.Add, store.Shared, store.MaxOpKeys), ""},
		{"remove from all tiers", op(store.Remove, store.AllTiers, 3), ""},
		{"clear all tiers", op(store.Clear, store.AllTiers, 0), ""},
		{"no ops", store.Batch{Pod: "p", Model: "m"}, ""},
		{"last rank", store.Batch{Pod: "p", Model: "m", Rank: store.MaxRanks - 1}, ""},
		{"no pod", store.Batch{Model: "m"}, "pod name"},
		{"no model", store.Batch{Pod: "p"}, "model of the batch"},
		{"rank below", store.Batch{Pod: "p", Model: "m", Rank: -1}, "rank is -1"},
		{"rank above", store.Batch{Pod: "p", Model: "m", Rank: store.MaxRanks}, "rank is 1024"},
		{"no kind", op(0, store.GPU, 1), "op 1: store: invalid argument: kind 0"},
		{"unknown kind", op(4, store.GPU, 1), "kind 4"},
		{"tier", op(store.Remove, store.NumHolderTiers+1, 1), "tier 9"},
		{"window tier", op(store.Add, store.Shared.Window(), 1), ""},
		{"clear a window tier", op(store.Clear, store.GPU.Window(), 0), "there is no tier 4 to clear"},
		{"window without block size", store.Batch{Pod: "p", Model: "m", Reuse: store.Reuse{Window: 128}}, "window is 128"},
		{"engine's block size", store.Batch{Pod: "p", Model: "m", Reuse: store.Reuse{Block: -1}}, "block size is -1"},
		{"add to all tiers", op(store.Add, store.AllTiers, 1), "there is no tier 255 to add to"},
		{"too many keys", op(store.Add, store.GPU, store.MaxOpKeys+1), "8193 keys"},
		{"clear with keys", op(store.Clear, store.GPU, 1), "clear takes no keys"},
		{"add of all ranks", store.Batch{Pod: "p", Model: "m", Ops: []store.Op{{Kind: store.Add, AllRanks: true}}}, "all ranks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.batch.Validate()
			if tc.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want ErrInvalid with %q", err, tc.want)
			}
		})
	}
}

func TestModelInfoValidate(t *testing.T) {
	for _, tc := range []struct {
		info store.ModelInfo
		ok   bool
	}{
		{store.ModelInfo{Name: "m", BlockSize: 64, Scheme: store.SchemeNative}, true},
		{store.ModelInfo{Name: "m", BlockSize: store.MaxBlockSize, Scheme: "vllm"}, true},
		{store.ModelInfo{BlockSize: 64, Scheme: store.SchemeNative}, false},
		{store.ModelInfo{Name: "m", Scheme: store.SchemeNative}, false},
		{store.ModelInfo{Name: "m", BlockSize: store.MaxBlockSize + 1, Scheme: store.SchemeNative}, false},
		{store.ModelInfo{Name: "m", BlockSize: 64}, false},
	} {
		err := tc.info.Validate()
		if tc.ok != (err == nil) || err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%+v: got %v", tc.info, err)
		}
	}
}

func TestSecondsJSON(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want time.Duration
		ok   bool
	}{
		{`30`, 30 * time.Second, true},
		{`0.25`, 250 * time.Millisecond, true},
		{`1e-9`, 1, true},
		{`1e300`, 0, false},
		{`"30s"`, 0, false},
	} {
		var p store.Pod
		err := json.Unmarshal([]byte(`{"lease_s":`+tc.in+`}`), &p)
		if tc.ok != (err == nil) {
			t.Errorf("%s: %v", tc.in, err)
			continue
		}
		if got := time.Duration(p.Lease); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.in, got, tc.want)
		}
	}
	b, err := json.Marshal(store.Pod{Name: "p", Model: "m", Lease: store.Seconds(1500 * time.Millisecond)})
	if err != nil || string(b) != `{"name":"p","model":"m","lease_s":1.5}` {
		t.Errorf("got %s, %v", b, err)
	}
}
