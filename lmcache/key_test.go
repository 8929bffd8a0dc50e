package lmcache

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
)

const hash64 = "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08"

// String returns the string of the key that p is.
func (p Parsed) String() string {
	switch {
	case p.Key != nil:
		return p.Key.String()
	case p.Object != nil:
		return p.Object.String()
	case p.Fork != nil:
		return p.Fork.String()
	}
	return ""
}

func mustHash(t testing.TB, s string) Hash {
	t.Helper()
	h := must.Get(ParseHash(s))(t)
	return h
}

func TestParse(t *testing.T) {
	long := mustHash(t, hash64)
	var digest blockkey.Digest
	copy(digest[:], long.b[:])
	key := func(k Key) Parsed { return Parsed{Key: &k} }
	for s, want := range map[string]Parsed{
		"vllm@m@1@0@" + hash64: key(Key{Fmt: "vllm", Model: "m", WorldSize: 1, Hash: long}),
		"vllm@org/m@x@8@7@" + hash64 + "@31": key(Key{Fmt: "vllm", Model: "org/m@x", WorldSize: 8, WorkerID: 7, Hash: long, Layer: 31,
			HasLayer: true}),
		"vllm@m@1@0@-3056368036007599741": key(Key{Form: FormDecimal, Fmt: "vllm", Model: "m", WorldSize: 1, Hash: IntHash(-3056368036007599741)}),
		"vllm@m@1@0@-3056368036007599741@0": key(Key{Form: FormDecimal, Fmt: "vllm", Model: "m", WorldSize: 1,
			Hash: IntHash(-3056368036007599741), HasLayer: true}),
		"vllm@m@1@0@5b5ca63e77eeaf@user%a%b": key(Key{Fmt: "vllm", Model: "m", WorldSize: 1, Hash: UintHash(0x5b5ca63e77eeaf),
			Tags: []Tag{{"user", "a%b"}}}),
		"vllm@m@1@0@-77e7eb2907b6ffa1@bfloat16": key(Key{Form: FormDType, Fmt: "vllm", Model: "m", WorldSize: 1,
			Hash: IntHash(-0x77e7eb2907b6ffa1), DType: "bfloat16"}),
		"m@1@0@6671432cc016aec@half@3@a%1@b%": key(Key{Form: FormModel, Model: "m", WorldSize: 1, Hash: UintHash(0x6671432cc016aec), DType: "half",
			Layer: 3, HasLayer: true, Tags: []Tag{{"a", "1"}, {"b", ""}}}),
		"a@b%c/d@2@1@" + hash64 + "@fp8_e4m3fn": key(Key{Form: FormModel, Model: "a@b%c/d", WorldSize: 2, WorkerID: 1, Hash: long, DType: "fp8_e4m3fn"}),
		// MLA: the world is 1 whatever the worker.
		"m@1@5@ff@half": key(Key{Form: FormModel, Model: "m", WorldSize: 1, WorkerID: 5, Hash: UintHash(0xff), DType: "half"}),
		// Digits alone: hex, as far as hex reaches.
		"vllm@m@1@0@1234567890123456":              key(Key{Fmt: "vllm", Model: "m", WorldSize: 1, Hash: UintHash(0x1234567890123456)}),
		"vllm@m@1@0@12345678901234567":             key(Key{Form: FormDecimal, Fmt: "vllm", Model: "m", WorldSize: 1, Hash: UintHash(12345678901234567)}),
		"org/m@02010201@1f@" + hash64 + "@ten@ant": {Object: &ObjectKey{Model: "org/m", Rank: 0x02010201, Group: 0x1f, Hash: long, Salt: "ten@ant"}},
		// A rank of digits alone is no world size, a salt no dtype.
		"m@10001000@0@" + hash64 + "@half": {Object: &ObjectKey{Model: "m", Rank: 0x10001000, Hash: long, Salt: "half"}},
		"org/m@" + hash64:                  {Fork: &ForkKey{Model: "org/m", Hash: digest}},
		"org/m@x@" + hash64:                {Fork: &ForkKey{Model: "org/m@x", Hash: digest}},
	} {
		got, err := Parse(s)
		if err != nil || !reflect.DeepEqual(got, want) || got.String() != s {
			t.Errorf("%q: %+v %v, want %+v", s, got.Key, err, want.Key)
		}
	}
}

func TestParseGolden(t *testing.T) {
	n := 0
	g := readGolden(t)
	for _, r := range g.Rows {
		v := rowVersion(t, r.Version)
		for i, s := range append(slices.Clone(r.Keys), r.Layer0) {
			if s == "" {
				continue
			}
			k, err := v.ParseKey(s)
			if err != nil || k.String() != s || k.Model != goldenModel || k.WorldSize != 1 || k.HasLayer != (i == len(r.Keys)) {
				t.Errorf("%s: %+v, %v", r.Version, k, err)
			}
			if !k.HasLayer && k.Hash != goldenHash(t, r.Hashes[i]) {
				t.Errorf("%s: %v, want %s", r.Version, k.Hash, r.Hashes[i])
			}
			p, err := Parse(s)
			if err != nil || p.Key == nil || !reflect.DeepEqual(*p.Key, k) {
				t.Errorf("%s: %+v of nothing known, %+v of the version, %v", s, p.Key, k, err)
			}
			n++
		}
	}
	for _, r := range g.MP {
		for _, s := range append(slices.Clone(r.L2Keys), r.L2Salted) {
			if s == "" {
				continue
			}
			p, err := Parse(s)
			if err != nil || p.Object == nil || p.String() != s {
				t.Errorf("%s: %+v, %v", s, p, err)
			}
			n++
		}
	}
	if n < 300 {
		t.Errorf("%d keys", n)
	}
}

func TestParseErrors(t *testing.T) {
	for _, s := range []string{
		"", "@", "m", "m@", "@" + hash64, "m@" + hash64[1:], "m@" + hash64 + "0", "m@" + strings.ToUpper(hash64),
		"vllm@m@1@0@", "vllm@m@1@0@0ff", "vllm@m@1@0@-0", "vllm@m@1@0@+5", "vllm@m@1@0@FF", "vllm@m@0@0@ff", "vllm@m@1@-1@ff",
		"vllm@m@2@2@ff", "vllm@m@01@0@ff", "@m@1@0@ff", "vllm@@1@0@ff", "vllm@m@1@0@ff@5000", "vllm@m@1@0@ff@0x1", "vllm@m@1@0@ff@%x",
		"vllm@m@1@0@ff@half@a%1@2", "m@1@0@ff@float17", "m@1@0@" + hash64[:40] + "@half", "vllm@m@1@0@-9223372036854775809",
		"vllm@m@1@0@18446744073709551616", "m@1000100@0@" + hash64 + "@s", "m@01000100@00@" + hash64 + "@s", "m@01000100@0@ff@s",
		"m@01000100@0@" + hash64 + "@", "m@01010100@0@" + hash64 + "@s", "kvatlas:{1}:b:00", strings.Repeat("m", maxKey) + "@1@0@ff@half",
	} {
		p, err := Parse(s)
		if !errors.Is(err, ErrKey) || p != (Parsed{}) {
			t.Errorf("%q: %+v, %v", clip(s), p, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func TestVersionParseKeyErrors(t *testing.T) {
	for s, v := range map[string]Version{
		"vllm@m@1@0@ff":               V031,  // no int yet
		"vllm@m@1@0@" + hash64:        V036,  // no bytes any more
		"m@1@0@" + hash64 + "@half":   V046,  // folded
		"vllm@m@1@0@12@a%b":           V033,  // no tags yet
		"m@1@0@ff@half":               V0310, // no fmt
		"vllm@m@1@0@ff@bfloat16@a%@0": V0310, // a layer behind tags
		"vllm@m@1@0@123":              numVersions,
	} {
		if k, err := v.ParseKey(s); err == nil {
			t.Errorf("%v: %q is %+v", v, s, k)
		}
	}
	// 16 decimal digits, which Parse takes for hex.
	k, err := V034.ParseKey("vllm@m@1@0@1234567890123456@t%1")
	if err != nil || k.Hash != UintHash(1234567890123456) {
		t.Errorf("%+v, %v", k, err)
	}
	if k, err := V0313.ParseKey("vllm@m@1@0@ff@half"); err != nil || k.Model != "vllm@m" {
		t.Errorf("%+v, %v", k, err)
	}
}

func genHash(t *rapid.T, kinds ...int) Hash {
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case 0:
		// Not less than a worker's number, see Parse.
		return IntHash(rapid.Int64().Filter(func(v int64) bool { return v < 0 || v > maxWorkers }).Draw(t, "int"))
	case 1:
		return UintHash(rapid.Uint64Min(1<<63).Draw(t, "uint"))
	case 2:
		h, _ := BytesHash(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes"))
		return h
	default:
		h, _ := BytesHash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "bytes"))
		return h
	}
}

var (
	genModel = rapid.StringMatching(`[a-zA-Z0-9/_.%-]{1,12}(@[a-z0-9/%-]{0,8}){0,2}`)
	genTag   = rapid.StringMatching(`[a-z0-9_.]{1,8}`)
)

// A key's string is read as the key again by its version.
func TestKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := Version(rapid.IntRange(0, int(numVersions)-1).Draw(t, "version"))
		k := Key{Form: v.Form(), Model: genModel.Draw(t, "model"), WorldSize: rapid.IntRange(1, 64).Draw(t, "world")}
		k.WorkerID = rapid.IntRange(0, k.WorldSize-1).Draw(t, "worker")
		switch {
		case v.hexChain():
			k.Hash = genHash(t, 3)
		case v == V0313 || v == V041:
			k.Hash = genHash(t, 0, 2, 3)
		default:
			k.Hash = genHash(t, 0, 1)
		}
		if k.Form.hasFmt() {
			k.Fmt = rapid.SampledFrom(formats).Draw(t, "fmt")
		}
		if k.Form.hasDType() {
			k.DType = rapid.SampledFrom(dtypes).Draw(t, "dtype")
		}
		if k.HasLayer = rapid.Bool().Draw(t, "layered"); k.HasLayer {
			k.Layer = rapid.IntRange(0, maxLayers-1).Draw(t, "layer")
		}
		if v >= V034 {
			for range rapid.IntRange(0, 3).Draw(t, "tags") {
				k.Tags = append(k.Tags, Tag{genTag.Draw(t, "name"), rapid.StringMatching(`[a-z%=]{0,5}`).Draw(t, "value")})
			}
		}
		must.OK(t, k.Validate())
		got, err := v.ParseKey(k.String())
		if err != nil || !reflect.DeepEqual(got, k) {
			t.Fatalf("%q: %+v, want %+v (%v)", k.String(), got, k, err)
		}
	})
}

func TestObjectKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 255).Draw(t, "world")
		local := rapid.IntRange(1, world).Draw(t, "local world")
		rank, err := NewKVRank(world, rapid.IntRange(0, world-1).Draw(t, "rank"), local, rapid.IntRange(0, local-1).Draw(t, "local rank"))
		if err != nil || rank.WorldSize() != world || rank.LocalWorldSize() != local {
			t.Fatal(rank, err)
		}
		k := ObjectKey{
			Model: strings.ReplaceAll(genModel.Draw(t, "model"), "@", ""), Rank: rank, Group: rapid.Uint32().Draw(t, "group"),
			Hash: genHash(t, 2, 3), Salt: rapid.String().Draw(t, "salt"),
		}
		got, err := ParseObjectKey(k.String())
		if err != nil || got != k {
			t.Fatalf("%q: %+v, want %+v (%v)", k.String(), got, k, err)
		}
		if p, err := Parse(k.String()); err != nil || p.Object == nil || *p.Object != k {
			t.Fatalf("%q: %+v, %v", k.String(), p, err)
		}
	})
}

func TestForkKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := ForkKey{Model: genModel.Draw(t, "model")}
		k.Hash, _ = genHash(t, 3).Digest()
		if got, err := ParseForkKey(k.String()); err != nil || got != k {
			t.Fatalf("%q: %+v, want %+v (%v)", k.String(), got, k, err)
		}
	})
}

func TestHash(t *testing.T) {
	for _, h := range []Hash{{}, IntHash(-1), IntHash(-1 << 63), IntHash(1<<63 - 1), UintHash(1<<64 - 1), mustHash(t, hash64), mustHash(t, hash64[:32])} {
		if got, err := ParseHash(h.String()); err != nil || got != h {
			t.Errorf("%v: %v, %v", h, got, err)
		}
	}
	if v, negative, ok := IntHash(-5).Int(); int64(v) != -5 || !negative || !ok {
		t.Errorf("%d, %v, %v", int64(v), negative, ok)
	}
	if _, _, ok := mustHash(t, hash64).Int(); ok {
		t.Error("bytes are an int")
	}
	if _, ok := UintHash(5).Digest(); ok {
		t.Error("an int is a digest")
	}
	if b, ok := mustHash(t, hash64[:32]).Bytes(); !ok || len(b) != 16 || b[0] != 0x88 {
		t.Errorf("%x, %v", b, ok)
	}
	if _, err := BytesHash(make([]byte, 8)); !errors.Is(err, ErrHash) {
		t.Error(err)
	}
}

func TestVersionOf(t *testing.T) {
	for s, want := range map[string]Version{
		"fork": VFork, "0.1": V01, "v0.1.2-alpha": V01, "0.3.1": V031, "0.3.2.post1": V031, "0.3.3": V033, "0.3.5": V034, "0.3.9": V036,
		"0.3.10": V0310, "0.3.12": V0310, "0.3.13": V0313, "0.3.15": V0313, "0.4.1": V041, "0.4.5": V041, "0.4.6": V046, "v0.5.6": V046, "0.5.6rc1": V046,
	} {
		if got, err := VersionOf(s); err != nil || got != want {
			t.Errorf("%q: %v, want %v (%v)", s, got, want, err)
		}
	}
	for v := range numVersions {
		if got, err := VersionOf(v.String()); err != nil || got != v {
			t.Errorf("%v: %v, %v", v, got, err)
		}
	}
	for _, s := range []string{"", "x", "0", "0.", "0.3.x", "0.2.0", "0.3.0", "0.0.9", "0.5.7", "1.0.0", "0.9999.0", "-1.2.3", "0.3.99999"} {
		if v, err := VersionOf(s); !errors.Is(err, ErrVersion) {
			t.Errorf("%q: %v, %v", s, v, err)
		}
	}
}

func TestParseAlgorithm(t *testing.T) {
	for a := range numAlgorithms {
		if got, err := ParseAlgorithm(a.String()); err != nil || got != a {
			t.Errorf("%v: %v, %v", a, got, err)
		}
	}
	if a, err := ParseAlgorithm(""); err != nil || a != Default {
		t.Errorf("%v, %v", a, err)
	}
	if _, err := ParseAlgorithm("md5"); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}

// Whatever is read is written as it was, is valid, and is read as the same again.
func FuzzParse(f *testing.F) {
	g := readGolden(f)
	for _, r := range append(g.Rows, g.MP...) {
		for _, s := range slices.Concat(r.Keys, r.L2Keys, []string{r.Layer0, r.L2Salted}) {
			f.Add(s)
		}
	}
	f.Add("org/m@x@" + hash64)
	f.Add("m@1@0@6671432cc016aec@half@3@a%1@b%")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := Parse(s); err == nil {
			if p.String() != s {
				t.Fatalf("%q became %q", s, p)
			}
			if p.Key != nil && p.Key.Validate() != nil || p.Object != nil && p.Object.Validate() != nil {
				t.Fatalf("%q: %+v is not valid", s, p)
			}
		} else if !errors.Is(err, ErrKey) {
			t.Fatal(err)
		}
		for v := range numVersions {
			k, err := v.ParseKey(s)
			if err == nil && (k.String() != s || k.Validate() != nil) {
				t.Fatalf("%v: %q became %q, %v", v, s, k, k.Validate())
			}
			if err == nil {
				if _, err := Parse(s); err != nil {
					t.Fatalf("%v reads %q, Parse does not: %v", v, s, err)
				}
			}
		}
	})
}
