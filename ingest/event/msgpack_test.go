package event

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/internal/jsonpack"
	"github.com/kvatlas/kvatlas/internal/must"
)

// anyValue writes some value as another implementation does.
func anyValue(t *rapid.T, b []byte, depth int) []byte {
	kinds := 13
	if depth > 3 {
		kinds = 11
	}
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0:
		return msgp.AppendNil(b)
	case 1:
		return msgp.AppendBool(b, rapid.Bool().Draw(t, "bool"))
	case 2:
		return msgp.AppendInt64(b, rapid.Int64().Draw(t, "int64"))
	case 3:
		return msgp.AppendUint64(b, rapid.Uint64().Draw(t, "uint64"))
	case 4:
		return msgp.AppendFloat32(b, rapid.Float32().Draw(t, "float32"))
	case 5:
		return msgp.AppendFloat64(b, rapid.Float64().Draw(t, "float64"))
	case 6:
		return msgp.AppendString(b, rapid.StringN(0, 300, 70_000).Draw(t, "string"))
	case 7:
		return msgp.AppendBytes(b, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes"))
	case 8:
		return msgp.AppendTime(b, time.Unix(rapid.Int64Range(0, 1e9).Draw(t, "time"), 0))
	case 9:
		b := must.Get(msgp.AppendExtension(b, &msgp.RawExtension{Type: 9, Data: make([]byte, rapid.IntRange(0, 300).Draw(t, "extension"))}))(t)
		return b
	case 10:
		return msgp.AppendBytes(b, make([]byte, rapid.SampledFrom([]int{255, 256, 65535, 65536}).Draw(t, "length")))
	case 11:
		return msgp.AppendString(b, strings.Repeat("x", rapid.SampledFrom([]int{31, 32, 255, 256, 65535, 65536}).Draw(t, "length")))
	case 12:
		n := rapid.SampledFrom([]int{0, 1, 3, 15, 16, 20}).Draw(t, "array")
		b = msgp.AppendArrayHeader(b, uint32(n))
		for range n {
			b = anyValue(t, b, depth+1)
		}
		return b
	default:
		n := rapid.SampledFrom([]int{0, 1, 2, 16}).Draw(t, "map")
		b = msgp.AppendMapHeader(b, uint32(n))
		for range n {
			b = anyValue(t, anyValue(t, b, depth+1), depth+1)
		}
		return b
	}
}

// Whatever another implementation writes is passed over to the byte, and a part of
// it is not.
func TestSkip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyValue(t, nil, 0)
		c := cursor{b: append(b[:len(b):len(b)], 0xc0)}
		if c.skip(); c.broken || c.i != len(b) {
			t.Fatalf("%x: at %d of %d, broken %v", b, c.i, len(b), c.broken)
		}
		cut := cursor{b: b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]}
		if cut.skip(); !cut.broken {
			t.Fatalf("the first %d bytes of %x are a value", len(cut.b), b)
		}
	})
}

// Numbers are read as another implementation writes them, and written as it reads
// them.
func TestNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.IntRange(0, 63).Draw(t, "shift")
		u := rapid.Uint64().Draw(t, "u") >> shift
		s := rapid.Int64().Draw(t, "s") >> shift
		f := rapid.Float64().Draw(t, "f")
		for _, b := range [][]byte{msgp.AppendUint64(nil, u), must.Get(jsonpack.Append(nil, strconv.AppendUint(nil, u, 10)))(t)} {
			c := cursor{b: b}
			if v, negative, ok := c.integer(); !ok || negative || v != u || c.i != len(b) {
				t.Fatalf("%d: %d %v %v", u, v, negative, ok)
			}
		}
		for _, b := range [][]byte{msgp.AppendInt64(nil, s), must.Get(jsonpack.Append(nil, strconv.AppendInt(nil, s, 10)))(t)} {
			c := cursor{b: b}
			if v, negative, ok := c.integer(); !ok || negative != (s < 0) || int64(v) != s || c.i != len(b) {
				t.Fatalf("%d: %d %v %v", s, int64(v), negative, ok)
			}
			c = cursor{b: b}
			if v, ok := c.number(); !ok || v != float64(s) {
				t.Fatalf("%d: %v", s, v)
			}
		}
		c := cursor{b: msgp.AppendFloat64(nil, f)}
		if v, ok := c.number(); !ok || v != f {
			t.Fatalf("%v: %v", f, v)
		}
		c = cursor{b: msgp.AppendFloat32(nil, float32(f))}
		if v, ok := c.number(); !ok || v != float64(float32(f)) && !math.IsNaN(v) {
			t.Fatalf("%v: %v", float32(f), v)
		}
		length := rapid.SampledFrom([]int{0, 31, 32, 255, 256, 65535, 65536}).Draw(t, "length")
		text := strings.Repeat("x", length)
		if got, _, err := msgp.ReadStringBytes(must.Get(jsonpack.Append(nil, []byte(`"`+text+`"`)))(t)); err != nil || got != text {
			t.Fatalf("a text of %d: %v", length, err)
		}
	})
}

func appendArray(b []byte, n int) []byte { return msgp.AppendArrayHeader(b, uint32(n)) }
func appendMap(b []byte, n int) []byte   { return msgp.AppendMapHeader(b, uint32(n)) }

// What stands among extra keys, in the forms that JSON does not have.
func TestExtraKeyTypes(t *testing.T) {
	event := func(extra ...func([]byte) []byte) Batch {
		b := appendArray(nil, 2)
		b = appendArray(msgp.AppendUint64(b, 1), 1)
		b = msgp.AppendString(appendArray(b, atExtraKeys+1), "BlockStored")
		b = append(msgp.AppendUint64(appendArray(b, 1), 1), 0xc0)         // hashes, parent
		b = msgp.AppendUint64(msgp.AppendUint64(appendArray(b, 1), 5), 1) // tokens, block size
		b = append(msgp.AppendUint64(b, 7), 0xc0, 0xc0)                   // adapter's number, medium, adapter's name
		b = appendArray(appendArray(b, 1), len(extra))
		for _, f := range extra {
			b = f(b)
		}
		var out Batch
		must.OK(t, new(Decoder).Decode(b, &out))
		return out
	}
	digest := func(b []byte) []byte { return msgp.AppendBytes(b, make([]byte, 32)) }
	nothing := func(b []byte) []byte { return append(b, 0xc0) }
	number := func(n int64) func([]byte) []byte { return func(b []byte) []byte { return msgp.AppendInt64(b, n) } }
	object := func(b []byte) []byte { return msgp.AppendUint64(msgp.AppendString(appendMap(b, 1), "mm_hash"), 9) }
	yes := func(b []byte) []byte { return append(b, 0xc3) }
	if b := event(number(7), nothing, digest, object); len(b.Events) != 1 || len(b.Events[0].Extra) != 1 || len(b.Events[0].Extra[0].Objects) != 2 ||
		b.Events[0].Extra[0].Objects[1].Hash != 9 || b.Events[0].Extra[0].Objects[0].Hash == 0 {
		t.Errorf("%+v", bare(b))
	}
	for name, bad := range map[string]func([]byte) []byte{
		"another number": number(8), "a bool": yes, "a map of nothing": func(b []byte) []byte { return appendMap(b, 0) },
		"an object by a bool":  func(b []byte) []byte { return yes(msgp.AppendString(appendMap(b, 1), "mm_hash")) },
		"an object by no name": func(b []byte) []byte { return msgp.AppendString(msgp.AppendString(appendMap(b, 1), "hash"), "") },
		"a map by numbers":     func(b []byte) []byte { return msgp.AppendUint64(msgp.AppendUint64(appendMap(b, 1), 1), 1) },
		"a tuple of numbers":   func(b []byte) []byte { return msgp.AppendUint64(msgp.AppendUint64(appendArray(b, 2), 1), 1) },
		"an offset of 2^40":    func(b []byte) []byte { return msgp.AppendUint64(msgp.AppendString(appendArray(b, 2), "id"), 1<<40) },
		"two texts":            func(b []byte) []byte { return msgp.AppendString(msgp.AppendString(appendArray(b, 2), "a"), "b") },
		"three texts": func(b []byte) []byte {
			return msgp.AppendString(msgp.AppendString(msgp.AppendString(appendArray(b, 3), "a"), "b"), "c")
		},
	} {
		if b := event(bad); b.Skipped != 1 || b.Skips[0] != (Skip{0, BadField, "extra_keys"}) {
			t.Errorf("%s: %+v", name, bare(b))
		}
	}
}

func TestObjectForms(t *testing.T) {
	var d Decoder
	stored := `{"type":"BlockStored","block_hashes":[1],"token_ids":[1],"block_size":1,`
	for event, want := range map[string]int{
		stored + `"mm_keys":[["a",["b",2],{"hash":"c","start_offset":-1,"more":[]}]]}`:        3,
		stored + `"mm_keys":null,"block_mm_infos":[{"more":1,"mm_objects":null}]}`:            0,
		stored + `"block_mm_infos":[{"mm_objects":[{"mm_hash":-1,"offsets":null}]}]}`:         1,
		stored + `"block_mm_infos":[{"mm_objects":[{"mm_hash":1,"offsets":[[1,2],[3,4]]}]}]}`: 1,
		stored + `"mm_keys":[[5]]}`:                                                     -1,
		stored + `"mm_keys":[5]}`:                                                       -1,
		stored + `"mm_keys":5}`:                                                         -1,
		stored + `"block_mm_infos":[5]}`:                                                -1,
		stored + `"block_mm_infos":[{"mm_objects":5}]}`:                                 -1,
		stored + `"block_mm_infos":[{"mm_objects":[5]}]}`:                               -1,
		stored + `"block_mm_infos":[{"mm_objects":[{"mm_hash":1,"offsets":5}]}]}`:       -1,
		stored + `"block_mm_infos":[{"mm_objects":[{"mm_hash":1,"offsets":[[]]}]}]}`:    -1,
		stored + `"block_mm_infos":[{"mm_objects":[{"mm_hash":1,"offsets":[["x"]]}]}]}`: -1,
		stored + `"is_eagle":5}`:                                                        -1,
		stored + `"is_eagle":null,"group_idx":null,"block_mm_infos":null}`:              0,
		stored + `"window_size":-1}`:                                                    -1,
		stored + `"attention_dp_rank":-1}`:                                              -1,
		stored + `"window_size":null,"attention_dp_rank":null,"data":5}`:                0,
		stored + `"lookahead_token_ids":[[1],5]}`:                                       0,
		stored + `"lookahead_token_ids":5}`:                                             0,
	} {
		b := decode(t, &d, event)
		switch {
		case want < 0:
			if b.Skipped != 1 {
				t.Errorf("%s: %+v", event, b.Events)
			}
		case len(b.Events) != 1:
			t.Errorf("%s: %+v", event, b.Skips)
		default:
			n := 0
			for _, x := range b.Events[0].Extra {
				n += len(x.Objects)
			}
			if n != want || len(b.Events[0].Lookahead) != 0 {
				t.Errorf("%s: %+v", event, b.Events)
			}
		}
	}
}
