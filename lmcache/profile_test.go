package lmcache

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestReader(t *testing.T) {
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	const (
		hex0  = "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08"
		sha0  = "b8a960cfcc69e7a5"
		blake = "084547b6c40ed5b05ba8cd0305db5bf74d5617673948d9ed193ab7d6cbc484d4"
	)
	sha := Config{Version: V046, Algorithm: SHA256CBOR, VLLM: true, Seed: "0"}
	cases := []struct {
		name  string
		mode  Mode
		p     Profile
		kinds []EntryKind
		first []string // names of chunk 0, of all entries
	}{
		{"nothing asked for", NoEntries, Profile{Config: Config{Version: VFork}, Remote: RemoteRedis}, nil, nil},
		{"fork", AutoEntries, Profile{Config: Config{Version: VFork}}, []EntryKind{OwnerHash}, []string{"m@" + hex0}},
		{"fork of old", SetEntries, Profile{Config: Config{Version: VFork}}, []EntryKind{OwnerString}, []string{"vllm@m@1@0@" + hex0}},
		{"0.3.1", AutoEntries, Profile{Config: Config{Version: V031}}, []EntryKind{OwnerString}, []string{"vllm@m@1@0@" + hex0}},
		{"0.3.1 that writes hashes", HSetEntries, Profile{Config: Config{Version: V031}}, []EntryKind{OwnerHash}, []string{"m@" + hex0}},
		{"two workers", AutoEntries, Profile{Config: Config{Version: V031}, WorldSizes: []int{2}}, []EntryKind{OwnerString},
			[]string{"vllm@m@2@0@" + hex0, "vllm@m@2@1@" + hex0}},
		{"one worker or two", AutoEntries, Profile{Config: Config{Version: V031}, WorldSizes: []int{1, 2}}, []EntryKind{OwnerString, OwnerString},
			[]string{"vllm@m@1@0@" + hex0, "vllm@m@2@0@" + hex0, "vllm@m@2@1@" + hex0}},
		{"decimal", AutoEntries, Profile{Config: Config{Version: V033}}, []EntryKind{OwnerString}, []string{"vllm@m@1@0@-3056368036007599741"}},
		{"hex", AutoEntries, Profile{Config: Config{Version: V036, Python: 12}}, []EntryKind{OwnerString}, []string{"vllm@m@1@0@-6ac50906de809457"}},
		{"no lookup server any more", AutoEntries, Profile{Config: sha}, nil, nil},
		{"nor when asked for", SetEntries, Profile{Config: sha}, nil, nil},
		{"ints have no hash entry", HSetEntries, Profile{Config: Config{Version: V033}}, nil, nil},
		{"redis://", AutoEntries, Profile{Config: sha, DType: "bfloat16", Remote: RemoteRedis}, []EntryKind{Tensors}, []string{"m@1@0@" + sha0 + "@bfloat16metadata"}},
		{"resp://", AutoEntries, Profile{Config: sha, DType: "bfloat16", Remote: RemoteRESP, Model: "org/x"}, []EntryKind{Tensors}, []string{"org/x@1@0@" + sha0 + "@bfloat16"}},
		{"fork's redis://", AutoEntries, Profile{Config: Config{Version: VFork}, Remote: RemoteRedis}, []EntryKind{OwnerHash, Tensors},
			[]string{"m@" + hex0, "vllm@m@1@0@" + hex0 + "metadata"}},
		{"MP", AutoEntries, Profile{Config: Config{Version: V046, MP: true}, WorldSizes: []int{2}, Remote: RemoteRESP}, []EntryKind{Tensors},
			[]string{"m@02000200@0@" + blake, "m@02010201@0@" + blake}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := must.Get(NewReader("m", c.mode, c.p))(t)
			if len(r.Groups()) != 1 {
				t.Fatalf("%d groups", len(r.Groups()))
			}
			g := r.Groups()[0]
			hashes := g.Hasher.Append(nil, tokens)
			var kinds []EntryKind
			var first []string
			for _, e := range g.Entries {
				kinds = append(kinds, e.Kind)
				names := e.AppendNames([]string{"before"}, hashes)
				if len(names) != 1+e.Parts*len(hashes) || names[0] != "before" {
					t.Fatalf("%d names of %d chunks with %d parts: %q", len(names), len(hashes), e.Parts, names[0])
				}
				first = append(first, names[1:1+e.Parts]...)
				// They are what AppendKeys makes, where that makes them.
				if e.Kind == OwnerString && c.p.Version != VFork {
					for id := range e.Parts {
						want := must.Get(g.Hasher.AppendKeys(nil, Target{Model: "m", WorldSize: e.Parts, WorkerID: id}, tokens))(t)
						for i := range want {
							if got := names[1+i*e.Parts+id]; got != want[i] {
								t.Errorf("chunk %d: %q, AppendKeys has %q", i, got, want[i])
							}
						}
					}
				}
			}
			if !slices.Equal(kinds, c.kinds) || !slices.Equal(first, c.first) {
				t.Errorf("kinds %v, want %v\nnames %q, want %q", kinds, c.kinds, first, c.first)
			}
		})
	}

	t.Run("one chain of equal profiles", func(t *testing.T) {
		r := must.Get(NewReader("m", AutoEntries, Profile{Config: Config{Version: V031}}, Profile{Config: Config{Version: V031}, WorldSizes: []int{2}}, Profile{Config: Config{Version: V031, ChunkSize: 16}}))(t)
		if g := r.Groups(); len(g) != 2 || len(g[0].Entries) != 2 || g[1].Hasher.ChunkSize() != 16 {
			t.Errorf("groups: %+v", g)
		}
	})

	for _, c := range []struct {
		p    Profile
		is   error
		says string
	}{
		{Profile{Config: Config{Version: V046, VLLM: true}}, ErrUnknowable, `model "m": `},
		{Profile{Config: Config{Version: V031}, WorldSizes: []int{0}}, ErrConfig, "world size 0"},
		{Profile{Config: Config{Version: V031}, WorldSizes: []int{257}}, ErrConfig, "world size 257"},
		{Profile{Config: sha, Remote: RemoteRESP, DType: "int3"}, ErrKey, "int3"},
		{Profile{Config: Config{Version: V046, MP: true}, Remote: RemoteRedis}, ErrConfig, "resp"},
		{Profile{Config: Config{Version: V046, MP: true}, Remote: RemoteRESP, Model: "a@b"}, ErrKey, "a@b"},
	} {
		if _, err := NewReader("m", AutoEntries, c.p); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.p, err)
		}
	}
}

func TestParseRemote(t *testing.T) {
	for r := range numRemotes {
		if got, err := ParseRemote(r.String()); err != nil || got != r {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	if _, err := ParseRemote("s3"); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}

func TestEntryNamesLen(t *testing.T) {
	for want, e := range map[int]EntryNames{
		0: {},
		3: {Names: []string{"a", "b", "c"}},
		2: {Names: []string{"a", "b", "c", "d"}, Parts: 2},
	} {
		if n := e.Len(); n != want {
			t.Errorf("%+v: %d, want %d", e, n, want)
		}
	}
}
