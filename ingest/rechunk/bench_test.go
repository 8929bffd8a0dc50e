package rechunk

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// stream makes messages as of an engine whose memory is full: each evicts as many
// blocks as it stores, the oldest prompt from its end. Prompts are two messages long,
// of about a thousand tokens each.
func stream(size, messages int) []event.Batch {
	r := rand.New(rand.NewPCG(1, 2))
	var out []event.Batch
	var old [][]event.Hash
	n := max(1, 1024/size)
	for range messages / 2 {
		tokens := make([]uint32, 2*n*size)
		for i := range tokens {
			tokens[i] = uint32(r.IntN(128_000))
		}
		hashes := make([]event.Hash, 2*n)
		for i := range hashes {
			hashes[i] = event.Hash(r.Uint64())
		}
		a := event.Event{Kind: event.Stored, BlockSize: size, Hashes: hashes[:n], Tokens: tokens[:n*size]}
		b := event.Event{Kind: event.Stored, BlockSize: size, Hashes: hashes[n:], Tokens: tokens[n*size:], HasParent: true, Parent: hashes[n-1]}
		ma, mb := event.Batch{}, event.Batch{}
		if len(old) >= 200 {
			var gone []event.Hash
			for i := range old[0] {
				gone = append(gone, old[0][len(old[0])-1-i])
			}
			old = old[1:]
			ma.Events = append(ma.Events, removed(gone[:n]...))
			mb.Events = append(mb.Events, removed(gone[n:]...))
		}
		old = append(old, hashes)
		ma.Events, mb.Events = append(ma.Events, a), append(mb.Events, b)
		out = append(out, ma, mb)
	}
	return out
}

// BenchmarkStream takes in messages and gives their changes, half of which store and
// half of which remove. A block is one that is stored or removed.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1, 16, 64, 100, 128, 2048} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			messages := stream(size, 2000)
			c := mustNew(b, Config{BlockSize: 64, Fresh: true, MaxRecords: 1 << 20})
			seq, blocks := uint64(0), 0
			next := func() {
				m := &messages[seq%uint64(len(messages))]
				if seq%uint64(len(messages)) == 0 {
					c = mustNew(b, Config{BlockSize: 64, Fresh: true, MaxRecords: 1 << 20})
				}
				seq++
				must.OK(b, c.Apply(b.Context(), m, nil))
				must.Get(c.Take(b.Context(), seq, nil))(b)
				c.Done()
				for _, e := range m.Events {
					blocks += len(e.Hashes)
				}
			}
			for range 500 {
				next()
			}
			blocks = 0
			b.ReportAllocs()
			for b.Loop() {
				next()
			}
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
		})
	}
}

// BenchmarkMap reports the bytes of a block's entries, key and value, as package
// redis encodes them in a hash of one piece of memory.
func BenchmarkMap(b *testing.B) {
	for _, size := range []int{1, 16, 64, 128, 2048} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				c := mustNew(b, Config{BlockSize: 64, Fresh: true})
				s := newSink()
				blocks := 0
				for i, m := range stream(size, 100) {
					must.OK(b, c.Apply(b.Context(), &m, nil))
					ch := must.Get(c.Take(b.Context(), uint64(i+1), nil))(b)
					s.write(b, ch)
					c.Done()
					blocks += len(m.Events[0].Hashes)
				}
				bytes := 0
				for k, v := range s.kept {
					bytes += listpack(8+partBytes(k)) + listpack(len(v))
				}
				b.ReportMetric(float64(bytes)/float64(blocks), "B/block")
				b.ReportMetric(float64(len(s.kept))/float64(blocks), "entries/block")
			}
		})
	}
}

func partBytes(k store.MapKey) int {
	switch {
	case k.Part == 0:
		return 0
	case k.Part < 256:
		return 1
	}
	return 2
}

// listpack is what a string takes in a hash of one piece.
func listpack(n int) int {
	if n < 64 {
		return n + 2
	}
	return n + 3
}

// BenchmarkFullCaches takes in messages of ten engines in turn whose caches are full: each stores
// 128 blocks of 16 tokens and removes the oldest 128 of 65,536, which no cache of the processor has
// any more.
func BenchmarkFullCaches(b *testing.B) {
	const engines, cache, blocks, size = 10, 1 << 16, 128, 16
	r := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, blocks*size)
	for i := range tokens {
		tokens[i] = uint32(r.IntN(128_000))
	}
	// hashesOf are those of the n-th prompt of an engine.
	hashesOf := func(dst []event.Hash, engine, n int) []event.Hash {
		for i := range blocks {
			dst = append(dst, event.Hash((uint64(engine)<<40+uint64(n*blocks+i)+1)*0x9E3779B97F4A7C15))
		}
		return dst
	}
	var chunkers [engines]*Chunker
	var stored, gone []event.Hash
	next := func(engine, n int) {
		tokens[0] = uint32(n)
		stored = hashesOf(stored[:0], engine, n)
		m := event.Batch{Events: []event.Event{{Kind: event.Stored, BlockSize: size, Hashes: stored, Tokens: tokens}}}
		if n >= cache/blocks {
			gone = hashesOf(gone[:0], engine, n-cache/blocks)
			m.Events = append(m.Events, event.Event{Kind: event.Removed, Hashes: gone})
		}
		c := chunkers[engine]
		must.OK(b, c.Apply(b.Context(), &m, nil))
		must.Get(c.Take(b.Context(), uint64(n+1), nil))(b)
		c.Done()
	}
	for engine := range chunkers {
		chunkers[engine] = mustNew(b, Config{BlockSize: 64, Fresh: true, Alone: true})
	}
	n := 0
	for ; n < 2*cache/blocks; n++ {
		for engine := range chunkers {
			next(engine, n)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for engine := range chunkers {
			next(engine, n)
		}
		n++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*engines*blocks), "ns/stored-block")
}
