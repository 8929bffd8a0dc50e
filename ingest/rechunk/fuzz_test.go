package rechunk

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// TestGarbledMap: whatever has become of the map, nothing panics or hangs.
func TestGarbledMap(t *testing.T) {
	rapid.Check(t, garbled)
}

func garbled(t *rapid.T) {
	index := rapid.SampledFrom([]int{4, 8, 12}).Draw(t, "index block")
	h := drawHistory(t, index)
	s := newSink()
	c := mustNew(t, Config{BlockSize: index})
	do := func() {
		must.OK(t, c.Apply(t.Context(), &event.Batch{Events: h.draw(t)}, s.read))
		ch := must.Get(c.Take(t.Context(), 1, s.read))(t)
		for _, op := range ch.Map {
			if op.Value == nil {
				delete(s.kept, op.MapKey)
			} else {
				s.kept[op.MapKey] = string(op.Value)
			}
		}
		c.Done()
	}
	for range rapid.IntRange(1, 8).Draw(t, "before") {
		do()
	}
	for range rapid.IntRange(1, 4).Draw(t, "damages") {
		var keys []store.MapKey
		for k := range s.kept {
			keys = append(keys, k)
		}
		if len(keys) == 0 {
			break
		}
		sortKeys(keys)
		k := rapid.SampledFrom(keys).Draw(t, "entry")
		v := []byte(s.kept[k])
		at := rapid.IntRange(0, len(v)-1).Draw(t, "at")
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			delete(s.kept, k)
			continue
		case 1:
			v[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		case 2:
			v = append(v[:at:at], rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "bytes")...)
		case 3:
			v = []byte(s.kept[rapid.SampledFrom(keys).Draw(t, "other")])
		}
		s.kept[k] = string(v)
	}
	c = mustNew(t, Config{BlockSize: index})
	c.damaged = true
	for range rapid.IntRange(1, 12).Draw(t, "after") {
		do()
	}
}

// FuzzRecord: any bytes are a record or none, and what is one is written as it is
// read.
func FuzzRecord(f *testing.F) {
	p := play(f, Config{BlockSize: 64})
	for _, size := range []int{16, 100, 1, 64} {
		p.do(&event.Batch{Events: []event.Event{storedOf(count(size, 400), size, 0)}})
	}
	for k, v := range p.sink.kept {
		if k.Part == 0 {
			f.Add([]byte(v))
		}
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		if entries(v) == 0 || len(v) > 1<<14 {
			return
		}
		b := block{hash: 7}
		if !decodeRecord(&b, v, 64) {
			return
		}
		tokens := [2]int{int(b.stored.tokens[0]), int(b.stored.tokens[1])}
		again := appendRecord(nil, &b, 64, tokens)
		o := block{hash: 7}
		if !decodeRecord(&o, again, 64) {
			t.Fatalf("%x is written as %x, which is no record", v, again)
		}
		if third := appendRecord(nil, &o, 64, tokens); !bytes.Equal(third, again) {
			t.Fatalf("%x, then %x", again, third)
		}
	})
}

// FuzzChunk is FuzzRecord for chunks of tokens.
func FuzzChunk(f *testing.F) {
	f.Add([]byte{17, 3, 1, 2, 3, 4, 5, 6, 7})
	f.Fuzz(func(t *testing.T, v []byte) {
		tokens, ok := decodeChunk(nil, v)
		if ok && len(tokens) != int(v[1]) {
			t.Fatalf("%d tokens of %d", len(tokens), v[1])
		}
	})
}
