package route_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// A program that has tokens routes in process: no server, no Redis, no cgo.
func Example() {
	if err := embed(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 10.0.0.1:8000 holds 512 of 520 tokens
	// 10.0.0.1:8000 prefills 8 tokens
	// 10.0.0.1:8000 prefills 0 tokens
}

func embed(ctx context.Context) error {
	index, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer index.Close()
	s, err := scorer.New(scorer.Config{Index: index, Budget: scorer.Unbounded})
	if err != nil {
		return err
	}
	router, err := route.New(route.Config{Scorer: s, Pods: index, Loads: loads.NewMemory(nil)})
	if err != nil {
		return err
	}

	// Two pods, one of which holds eight blocks of the prompt.
	for _, name := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
		if _, err := index.Register(ctx, store.Pod{Name: name, Model: "llama"}); err != nil {
			return err
		}
	}
	model, err := index.EnsureModel(ctx, store.ModelInfo{Name: "llama", BlockSize: 64, Scheme: store.SchemeNative})
	if err != nil {
		return err
	}
	prompt := make([]uint32, 520)
	keys := blockkey.AppendNative(nil, prompt, model.BlockSize, blockkey.NativeSeed("", ""))
	if err := index.Apply(ctx, store.Batch{Pod: "10.0.0.1:8000", Model: "llama", Ops: []store.Op{{Kind: store.Add, Keys: keys}}}); err != nil {
		return err
	}

	d, err := router.Route(ctx, route.Request{Score: scorer.Request{Model: "llama", Input: scorer.Tokens(prompt)}, Reserve: true})
	if err != nil {
		return err
	}
	fmt.Println(d.Pod, "holds", d.Cached(), "of", d.Tokens, "tokens")
	show := func() error {
		p, err := router.Loads(ctx, "llama")
		fmt.Println(d.Pod, "prefills", p.Loads[d.RankRef].Prefill, "tokens")
		return err
	}
	if err := show(); err != nil {
		return err
	}
	// The first token has come; the engine's usage says what it had cached. Later: End.
	if _, err := router.Done(ctx, "llama", d.Reservation, 512); err != nil {
		return err
	}
	return show()
}
