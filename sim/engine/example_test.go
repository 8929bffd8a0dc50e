package engine_test

import (
	"fmt"

	"github.com/kvatlas/kvatlas/sim/engine"
)

func Example() {
	e, err := engine.New(engine.Config{Kind: engine.VLLM})
	if err != nil {
		panic(err)
	}
	prompt := make([]uint32, 100)
	for id := range uint64(2) {
		if err := e.Submit(0, engine.Request{ID: id, Tokens: prompt, Output: []uint32{7, 8}}); err != nil {
			panic(err)
		}
		for at, ok := e.Due(); ok; at, ok = e.Due() {
			var r engine.Report
			e.Advance(at, &r)
			for _, o := range r.Outputs {
				if o.First {
					fmt.Printf("request %d: %d tokens reused\n", o.ID, o.Hit.Tokens())
				}
			}
		}
	}
	// Output:
	// request 0: 0 tokens reused
	// request 1: 96 tokens reused
}
