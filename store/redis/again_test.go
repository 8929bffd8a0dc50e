package redis

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/lmcache"
	"github.com/kvatlas/kvatlas/store"
)

// TestLookupIsMadeAgain: a connection that ends before it has replied costs a lookup nothing,
// with entries of LMCache beside the blocks or without.
func TestLookupIsMadeAgain(t *testing.T) {
	const entry = "vllm@m@1@0@1"
	for name, beside := range map[string]bool{"blocks": false, "blocks and entries": true} {
		t.Run(name, func(t *testing.T) {
			p := redistest.StartProxy(t, redistest.Start(t).Addr)
			x := open(t, Config{URL: p.URL(), NoSweep: true, Entries: true, Timeout: patience})
			register(t, x, store.Pod{Name: "10.0.0.1:8000"})
			apply(t, x, batchOf("10.0.0.1:8000", store.Add, 1, 2))
			must.OK(t, x.space.Client.Set(t.Context(), entry, "10.0.0.1:8200", 0).Err())
			look := func(blocks, entries *holdings) error {
				queries := []*store.Query{{Model: blockkey.ModelOf("m"), Keys: []blockkey.Key{1, 2}, Fold: blocks}}
				if beside {
					queries = append(queries, &store.Query{Model: blockkey.ModelOf("m"), Fold: entries, Beside: &lmcache.EntryNames{Kind: lmcache.OwnerString, Names: []string{entry}, Parts: 1}})
				}
				return x.Lookup(t.Context(), queries...)
			}
			if err := look(&holdings{}, &holdings{}); err != nil { // the registry is read
				t.Fatal(err)
			}
			p.Hold()
			blocks, entries := &holdings{}, &holdings{}
			done := make(chan error)
			go func() { done <- look(blocks, entries) }()
			for !bytes.Contains(p.Held(), []byte("mget")) {
				runtime.Gosched()
			}
			p.Pass()
			if n := p.Cut(); n != 1 {
				t.Fatalf("%d connections were cut, want 1", n)
			}
			must.OK(t, <-done)
			wantHoldings(t, blocks.blocks, "10.0.0.1:8000/0/gpu", "10.0.0.1:8000/0/gpu")
			if beside {
				wantHoldings(t, entries.blocks, "10.0.0.1:8000/0/cpu")
			}
		})
	}
}
