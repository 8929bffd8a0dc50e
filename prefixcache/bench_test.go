package prefixcache

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// sizes of text: a prompt of 8k characters, and one of 131,072 tokens.
var benchSizes = []struct {
	name  string
	bytes int
}{{"8KB", 8 << 10}, {"600KB", 590_000}}

// eachSize runs f for both kinds of store and both sizes. The store holds the
// text and some others that share nothing with it.
func eachSize(b *testing.B, f func(b *testing.B, s Store, text string, tokens []uint32, ends []int)) {
	for _, kind := range []string{KindLRU, KindTrie} {
		for _, size := range benchSizes {
			b.Run(kind+"/"+size.name, func(b *testing.B) {
				s := newStore(b, kind, Config{MaxBytes: 64 << 20})
				for i := range uint64(8) {
					text := words(size.bytes, i+10)
					tokens, ends := split(text, i)
					must.OK(b, s.Put("m", text, tokens, ends))
				}
				text := words(size.bytes, 1)
				tokens, ends := split(text, 1)
				must.OK(b, s.Put("m", text, tokens, ends))
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				b.ResetTimer()
				f(b, s, text, tokens, ends)
			})
		}
	}
}

func BenchmarkFind(b *testing.B) {
	for _, c := range []struct {
		name  string
		query func(text string) string
		whole bool
		least func(bytes int) int
	}{
		{"whole", func(t string) string { return t }, true, func(n int) int { return n }},
		{"partial", func(t string) string { return t[:len(t)*9/10] + "?" }, false, func(n int) int { return n * 8 / 10 }},
		{"miss", func(t string) string { return "?" + t }, false, func(int) int { return 0 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			eachSize(b, func(b *testing.B, s Store, text string, tokens []uint32, _ []int) {
				q := c.query(text)
				dst := make([]uint32, 0, len(tokens))
				var m Match
				for b.Loop() {
					m = s.Find(dst, "m", q)
				}
				if m.Whole != c.whole || m.Bytes < c.least(len(text)) {
					b.Fatalf("whole %v, %d bytes", m.Whole, m.Bytes)
				}
				b.ReportMetric(float64(len(m.Tokens)), "tokens")
			})
		})
	}
}

// BenchmarkFindParallel has all CPUs read one text, as they do a system prompt.
func BenchmarkFindParallel(b *testing.B) {
	eachSize(b, func(b *testing.B, s Store, text string, tokens []uint32, _ []int) {
		b.RunParallel(func(pb *testing.PB) {
			dst := make([]uint32, 0, len(tokens))
			for pb.Next() {
				if !s.Find(dst, "m", text).Whole {
					b.Error("not found")
					return
				}
			}
		})
	})
}

// BenchmarkFindWhilePut reads one text while another goroutine puts new ones.
func BenchmarkFindWhilePut(b *testing.B) {
	eachSize(b, func(b *testing.B, s Store, text string, tokens []uint32, ends []int) {
		var stop atomic.Bool
		done := make(chan int)
		go func() {
			n := 0
			for ; !stop.Load(); n++ {
				head := fmt.Sprintf("%08d", n)
				if err := s.Put("m", head+text[len(head):], tokens, ends); err != nil {
					b.Error(err)
					break
				}
			}
			done <- n
		}()
		dst := make([]uint32, 0, len(tokens))
		for b.Loop() {
			if !s.Find(dst, "m", text).Whole {
				b.Error("not found")
				break
			}
		}
		stop.Store(true)
		b.ReportMetric(float64(<-done)/float64(b.N), "puts/op")
	})
}

func BenchmarkPut(b *testing.B) {
	b.Run("new", func(b *testing.B) { // shares nothing; once full, drops as much
		eachSize(b, func(b *testing.B, s Store, text string, tokens []uint32, ends []int) {
			buf := []byte(text)
			for i := uint64(0); b.Loop(); i++ {
				copy(buf, fmt.Sprintf("%08d", i))
				must.OK(b, s.Put("m", string(buf), tokens, ends))
			}
			st := s.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Entries), "B/entry")
		})
	})
	b.Run("next turn", func(b *testing.B) { // the last tenth is new
		eachSize(b, func(b *testing.B, s Store, text string, tokens []uint32, ends []int) {
			buf := []byte(text)
			for i := uint64(0); b.Loop(); i++ {
				copy(buf[len(buf)*9/10:], fmt.Sprintf("%08d", i))
				must.OK(b, s.Put("m", string(buf), tokens, ends))
			}
		})
	})
	b.Run("known", func(b *testing.B) {
		eachSize(b, func(b *testing.B, s Store, text string, tokens []uint32, ends []int) {
			for b.Loop() {
				must.OK(b, s.Put("m", text, tokens, ends))
			}
		})
	})
}

// BenchmarkMemory says what a store takes for a token of a long text that
// shares nothing with others.
func BenchmarkMemory(b *testing.B) {
	for _, kind := range []string{KindLRU, KindTrie} {
		for _, bytes := range []int{500, 8 << 10, 590_000} {
			b.Run(fmt.Sprintf("%s/%d", kind, bytes), func(b *testing.B) {
				text := words(bytes, 1)
				tokens, ends := split(text, 1)
				var st Stats
				for b.Loop() {
					s := newStore(b, kind, Config{MaxBytes: 64 << 20})
					must.OK(b, s.Put("m", text, tokens, ends))
					st = s.Stats()
				}
				b.ReportMetric(float64(st.Bytes)/float64(len(tokens)), "B/token")
				b.ReportMetric(float64(st.Bytes)/float64(len(text)), "B/B")
			})
		}
	}
}

// BenchmarkUnpack is why tokens are kept as plain uint32; the package comment
// has the figures. Ids are spread as Llama 3's are in prose and code: 17 % take
// one byte as a varint, half take two.
func BenchmarkUnpack(b *testing.B) {
	const n, chunk = 131072, 57
	tokens := make([]uint32, n)
	x := uint64(1)
	for i := range tokens {
		x = x*6364136223846793005 + 1442695040888963407
		switch r := x >> 33; {
		case x>>60 < 3:
			tokens[i] = uint32(r % 128)
		case x>>60 < 12:
			tokens[i] = uint32(r % 16384)
		default:
			tokens[i] = uint32(r % 128000)
		}
	}
	var plain [][]uint32
	var three, varint [][]byte
	for i := 0; i < n; i += chunk {
		c := tokens[i:min(i+chunk, n)]
		var t, v []byte
		for _, id := range c {
			t = append(t, byte(id), byte(id>>8), byte(id>>16))
			v = binary.AppendUvarint(v, uint64(id))
		}
		plain, three, varint = append(plain, append([]uint32(nil), c...)), append(three, t), append(varint, v)
	}
	size := func(b *testing.B, packed [][]byte) {
		sum := 0
		for _, p := range packed {
			sum += len(p)
		}
		b.ReportMetric(float64(sum)/n, "B/token")
	}
	dst := make([]uint32, 0, n)
	b.Run("uint32", func(b *testing.B) {
		for b.Loop() {
			d := dst
			for _, c := range plain {
				d = append(d, c...)
			}
		}
		b.ReportMetric(4, "B/token")
	})
	b.Run("three bytes", func(b *testing.B) {
		for b.Loop() {
			d := dst
			for _, c := range three {
				k := len(d)
				d = d[:k+len(c)/3]
				o := d[k:]
				for len(c) >= 24 && len(o) >= 8 {
					p, q := (*[24]byte)(c), (*[8]uint32)(o)
					u, v, w := binary.LittleEndian.Uint64(p[0:]), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])
					q[0], q[1] = uint32(u)&0xffffff, uint32(u>>24)&0xffffff
					q[2], q[3] = uint32(u>>48|v<<16)&0xffffff, uint32(v>>8)&0xffffff
					q[4], q[5] = uint32(v>>32)&0xffffff, uint32(v>>56|w<<8)&0xffffff
					q[6], q[7] = uint32(w>>16)&0xffffff, uint32(w>>40)
					c, o = c[24:], o[8:]
				}
				for len(c) >= 3 && len(o) > 0 {
					o[0] = uint32(c[0]) | uint32(c[1])<<8 | uint32(c[2])<<16
					c, o = c[3:], o[1:]
				}
			}
		}
		size(b, three)
	})
	b.Run("varint", func(b *testing.B) {
		for b.Loop() {
			d := dst
			for _, c := range varint {
				for len(c) > 0 {
					v, k := binary.Uvarint(c)
					d, c = append(d, uint32(v)), c[k:]
				}
			}
		}
		size(b, varint)
	})
}
