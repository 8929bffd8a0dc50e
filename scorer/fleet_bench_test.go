package scorer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/cputime"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// BenchmarkScoreOfFleet is the cost of a prompt of 16,384 tokens by how many pods hold some of it. With
// stairs each pod holds another part of the beginning, and with whole all hold all of it.
func BenchmarkScoreOfFleet(b *testing.B) {
	inMemory := func(b *testing.B) (store.Index, func() time.Duration) {
		x := must.Get(memory.New(memory.Config{}))(b)
		b.Cleanup(func() { _ = x.Close() })
		return x, func() time.Duration { return 0 }
	}
	inRedis := func(b *testing.B) (store.Index, func() time.Duration) {
		s := redistest.Start(b)
		plain := s.Client()
		return openRedis(b, s.URL()), func() time.Duration { return cputime.Redis(plain.Info(b.Context(), "cpu").Val()) }
	}
	tokens := firstTokens(16_384)
	keys := blockKeys(64, tokens)
	for name, open := range map[string]func(*testing.B) (store.Index, func() time.Duration){"memory": inMemory, "redis": inRedis} {
		for _, shape := range []string{"stairs", "whole"} {
			for _, pods := range []int{10, 1000} {
				b.Run(fmt.Sprintf("%s/%s/pods=%d", name, shape, pods), func(b *testing.B) {
					x, server := open(b)
					fillFleet(b, x, shape, pods, keys)
					s := newScorer(b, scorer.Config{Index: x, Budget: time.Minute})
					for _, top := range []int{10, 0} {
						b.Run(fmt.Sprintf("top=%d", top), func(b *testing.B) {
							req := scorer.Request{Model: "m", Input: scorer.Tokens(tokens), Top: top}
							b.ReportAllocs()
							own, others := cputime.Process(), server()
							for b.Loop() {
								if r, err := s.Score(b.Context(), req); err != nil || r.Degraded != "" || r.Pods[0].Blocks != len(keys) {
									b.Fatal(r, err)
								}
							}
							n := float64(b.N) * float64(time.Microsecond)
							b.ReportMetric(float64(cputime.Process()-own)/n, "cpu-us/op")
							b.ReportMetric(float64(server()-others)/n, "server-us/op")
						})
					}
				})
			}
		}
	}
}

// fillFleet has pods hold a chain, in stairs or all of it.
func fillFleet(b *testing.B, x store.Index, shape string, pods int, keys []blockkey.Key) {
	var batches []store.Batch
	for p := range pods {
		n := len(keys)
		if shape == "stairs" {
			n -= p * len(keys) / pods
		}
		batches = append(batches, store.Batch{Pod: fmt.Sprintf("10.0.%d.%d:8000", p/250, p%250), Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys[:n]}}})
	}
	for len(batches) > 0 {
		n := min(len(batches), 32)
		must.OK(b, x.Apply(b.Context(), batches[:n]...))
		batches = batches[n:]
	}
}
