package encode_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/sim/encode"
	"github.com/kvatlas/kvatlas/sim/engine"
)

// What simulated engines tell is read by the structs of the releases themselves, and means
// to them what it means to the simulation.
func TestReleasesDecode(t *testing.T) {
	for _, x := range []struct {
		release enginetest.Release
		form    encode.Form
		config  engine.Config
	}{
		{enginetest.Release{Engine: "vllm", Version: "0.9.0"}, encode.VLLM10, engine.Config{}},
		{enginetest.Release{Engine: "vllm", Version: "0.11.0"}, encode.VLLM10, engine.Config{}},
		{enginetest.Release{Engine: "vllm", Version: "0.22.0"}, encode.VLLM22, engine.Config{Window: 20}},
		{enginetest.Release{Engine: "vllm", Version: "0.24.0"}, encode.VLLM24, engine.Config{HostBlocks: 20, DiskBlocks: 20}},
		{enginetest.Release{Engine: "vllm", Version: "0.33.0"}, encode.VLLM33, engine.Config{HostBlocks: 20, DiskBlocks: 20}},
		{enginetest.Release{Engine: "vllm", Version: "0.33.0"}, encode.VLLM33, engine.Config{Window: 20}},
		{enginetest.Release{Engine: "sglang", Version: "0.5.16"}, encode.SGLang517, engine.Config{Kind: engine.SGLang}},
		{enginetest.Release{Engine: "sglang", Version: "0.5.23"}, encode.SGLang520, engine.Config{Kind: engine.SGLang, HostBlocks: 20, DiskBlocks: 20}},
	} {
		t.Run(x.release.String(), func(t *testing.T) {
			d := enginetest.StartDecoder(t, x.release)
			x.config.Blocks = 40
			e := must.Get(engine.New(x.config))(t)
			var r engine.Report
			for id := range uint64(30) {
				q := engine.Request{ID: id, Output: []uint32{1, 2, 3}}
				for i := range 40 + id*11%90 {
					q.Tokens = append(q.Tokens, uint32(i+id%4*1000))
				}
				if id%3 == 1 {
					q.LoRA = "law"
				}
				if id%4 == 2 {
					q.Salt = "tenant"
				}
				must.OK(t, e.Submit(0, q))
				for at, ok := e.Due(); ok; at, ok = e.Due() {
					e.Advance(at, &r)
				}
				if id == 20 {
					e.Clear()
				}
			}
			kinds := map[string]bool{}
			for _, b := range r.Batches {
				told := d.Decode(encode.Append(nil, &event.Batch{Time: 1e9, Rank: 3, HasRank: true, Events: b.Events}, x.form))
				// vLLM 0.9 knows neither ranks nor media, and reads what it knows.
				old := x.release.Version == "0.9.0"
				if rank := map[bool]int{false: 3, true: 0}[old]; len(told.Events) != len(b.Events) || told.Rank != rank {
					t.Fatalf("%d events of rank %d, want %d of %d", len(told.Events), told.Rank, len(b.Events), rank)
				}
				for i := range b.Events {
					kinds[told.Events[i].Type] = true
					if old && told.Events[i].Medium == nil {
						told.Events[i].Medium = &b.Events[i].Medium
					}
					if err := same(&told.Events[i], &b.Events[i]); err != nil {
						t.Fatalf("%v\n got %+v\nwant %+v", err, told.Events[i], b.Events[i])
					}
				}
			}
			if len(kinds) != 3 {
				t.Errorf("only %v were told", kinds)
			}
		})
	}
}

// same says how what was read differs from what was told.
func same(got *enginetest.ToldEvent, want *event.Event) error {
	switch {
	case got.Type != want.Kind.String():
		return fmt.Errorf("it is a %s", got.Type)
	case len(got.Hashes) != len(want.Hashes):
		return fmt.Errorf("%d hashes", len(got.Hashes))
	case want.Kind == event.Cleared:
		return nil
	case got.Medium == nil || *got.Medium != want.Medium:
		return fmt.Errorf("the medium is %v", got.Medium)
	case got.Group != nil && *got.Group != want.Group:
		return fmt.Errorf("the group is %d", *got.Group)
	case want.Kind == event.Removed:
		return nil
	case !slices.Equal(got.Tokens, want.Tokens) || got.Size != want.BlockSize:
		return fmt.Errorf("the tokens, or the block size, differ")
	case (got.Parent != nil) != want.HasParent:
		return fmt.Errorf("the parent is %v", got.Parent)
	case got.LoRA != nil && *got.LoRA != want.LoRA, got.Salt != nil && *got.Salt != want.Salt:
		return fmt.Errorf("adapter or salt differ")
	}
	return nil
}
