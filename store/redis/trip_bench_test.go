package redis

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/bound"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// BenchmarkTrip makes one lookup after the other, each of which is one round trip within a
// budget, as requests make them. Beside it stands what no client can be cheaper than: the bytes
// of such a command and its reply on a bare connection.
func BenchmarkTrip(b *testing.B) {
	const blocks = 32
	s := redistest.Start(b)
	plain := s.Client()
	keys := benchChain(blocks)
	x := open(b, Config{URL: s.URL(), NoSweep: true})
	for p := range benchPods {
		must.OK(b, x.Apply(b.Context(), store.Batch{Pod: benchPod(p), Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: keys}}}))
	}
	b.Run("lookup", func(b *testing.B) {
		b.ReportAllocs()
		parent, end := context.WithCancel(b.Context())
		defer end()
		f := &tally{}
		q := &store.Query{Model: blockkey.ModelOf("m"), Keys: keys, Fold: f}
		report := cpu(b, plain)
		for b.Loop() {
			ctx, cancel := bound.WithTimeout(parent, 50*time.Millisecond)
			must.OK(b, x.Lookup(ctx, q))
			cancel()
		}
		report()
		if f.blocks[3] != blocks {
			b.Fatalf("found %d blocks of %d", f.blocks[3], blocks)
		}
	})
	b.Run("bare", func(b *testing.B) {
		conn := must.Get(new(net.Dialer).DialContext(b.Context(), "tcp", s.Addr))(b)
		defer func() { _ = conn.Close() }()
		ask := fmt.Appendf(nil, "*%d\r\n$4\r\nmget\r\n", blocks+1)
		for _, k := range keys {
			name := x.space.Names.AppendBlock(nil, k.In(blockkey.ModelOf("m")))
			ask = fmt.Appendf(ask, "$%d\r\n%s\r\n", len(name), name)
		}
		r := bufio.NewReaderSize(conn, 32<<10)
		report := cpu(b, plain)
		for b.Loop() {
			must.Get(conn.Write(ask))(b)
			for range 1 + 2*blocks {
				must.Get(r.ReadSlice('\n'))(b)
			}
		}
		report()
	})
}
