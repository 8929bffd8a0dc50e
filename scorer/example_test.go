package scorer_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// An orchestrator that runs its own engines can embed the index and the scorer
// and needs no server. It tells the index what its engines hold, and asks the
// scorer where a prompt should go. With a tokenpool.Pool in Config.Tokenizer it
// would give texts instead of tokens.
func Example() {
	if err := embed(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 10.0.0.1:8000 4 256 [{gpu 4}]
	// 10.0.0.2:8000 2.8 192 [{gpu 2} {cpu 1}]
	// best: 10.0.0.1:8000
}

func embed(ctx context.Context) error {
	index, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer index.Close()
	s, err := scorer.New(scorer.Config{Index: index})
	if err != nil {
		return err
	}

	// A prompt of 300 tokens: four full blocks of 64.
	prompt := make([]uint32, 300)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	model, err := index.EnsureModel(ctx, store.ModelInfo{Name: "llama", BlockSize: 64, Scheme: store.SchemeNative})
	if err != nil {
		return err
	}
	keys := blockkey.AppendNative(nil, prompt, model.BlockSize, blockkey.NativeSeed("", ""))

	// One engine holds all of it, another the first half and, offloaded to its
	// host's memory, the third block.
	err = index.Apply(ctx,
		store.Batch{Pod: "10.0.0.1:8000", Model: "llama", Ops: []store.Op{
			{Kind: store.Add, Tier: store.GPU, Keys: keys},
		}},
		store.Batch{Pod: "10.0.0.2:8000", Model: "llama", Ops: []store.Op{
			{Kind: store.Add, Tier: store.GPU, Keys: keys[:2]},
			{Kind: store.Add, Tier: store.CPU, Keys: keys[2:3]},
		}})
	if err != nil {
		return err
	}

	r, err := s.Score(ctx, scorer.Request{Model: "llama", Input: scorer.Tokens(prompt)})
	if err != nil {
		return err
	}
	for _, p := range r.Pods {
		fmt.Println(p.Pod, p.Score, p.Tokens, p.Tiers)
	}
	fmt.Println("best:", r.Best)
	return nil
}
