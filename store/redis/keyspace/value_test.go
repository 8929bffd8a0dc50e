package keyspace

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/store"
)

func TestAppendHolders(t *testing.T) {
	for _, c := range []struct {
		v    string
		want []store.HolderID // nil for garbled
	}{
		{"1", []store.HolderID{1}},
		{"17,136", []store.HolderID{17, 136}},
		{"4026531839", []store.HolderID{4026531839}},
		{"1,2,3,10,4026531839", []store.HolderID{1, 2, 3, 10, 4026531839}},
		{"3,1,2,1", []store.HolderID{1, 2, 3}},
		{"5,5", []store.HolderID{5}},
		{v: ""}, {v: "0"}, {v: "01"}, {v: "1,0"}, {v: "1,02"}, {v: ","}, {v: "1,"}, {v: ",1"}, {v: "1,,2"}, {v: "1 2"}, {v: " 1"},
		{v: "-1"}, {v: "+1"}, {v: "1.5"}, {v: "a"}, {v: "1,a"}, {v: "4026531840"}, {v: "4294967296"}, {v: "99999999999999999999999"}, {v: "1\x00"}, {v: "10.0.0.1:8000"},
	} {
		got, ok := AppendHolders([]store.HolderID{99}, []byte(c.v))
		if ok != (c.want != nil) || !slices.Equal(got, append([]store.HolderID{99}, c.want...)) {
			t.Errorf("%q: got %v, %v; want %v after 99", c.v, got, ok, c.want)
		}
	}
}

func TestAppendHoldersReadsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.Uint32Range(1, uint32(store.FirstLocal)-1), 1, 40, rapid.ID).Draw(t, "ids")
		text := make([]string, len(ids))
		for i, id := range ids {
			text[i] = strconv.FormatUint(uint64(id), 10)
		}
		got, ok := AppendHolders(nil, []byte(strings.Join(text, ",")))
		slices.Sort(ids)
		if !ok || !slices.EqualFunc(got, ids, func(a store.HolderID, b uint32) bool { return uint32(a) == b }) {
			t.Fatalf("got %v, %v; want %v", got, ok, ids)
		}
	})
}

// TestReaderReadsAsAppendHolders holds a reader of values that are much alike against AppendHolders,
// which reads each by itself.
func TestReaderReadsAsAppendHolders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.Uint32Range(1, 3000), 30, 200, rapid.ID).Draw(t, "ids")
		slices.Sort(ids)
		var r HolderReader
		for range rapid.IntRange(1, 20).Draw(t, "values") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				i := rapid.IntRange(0, len(ids)).Draw(t, "at")
				id := rapid.OneOf(rapid.Uint32Range(1, 3000), rapid.Just(uint32(store.FirstLocal)-1), rapid.Just(uint32(store.FirstLocal))).Draw(t, "id")
				switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
				case what == 9: // out of order, or twice
					ids = slices.Insert(ids, i, id)
				case what > 4:
					if at, has := slices.BinarySearch(ids, id); !has {
						ids = slices.Insert(ids, at, id)
					}
				case i < len(ids):
					ids = slices.Delete(ids, i, i+1)
				}
			}
			text := make([]string, len(ids))
			for i, id := range ids {
				text[i] = strconv.FormatUint(uint64(id), 10)
			}
			v := []byte(strings.Join(text, ","))
			if rapid.IntRange(0, 9).Draw(t, "garble") == 0 && len(v) > 0 {
				v[rapid.IntRange(0, len(v)-1).Draw(t, "byte")] = rapid.SampledFrom([]byte(",0x19")).Draw(t, "by")
			}
			if rapid.IntRange(0, 9).Draw(t, "cut") == 0 {
				v = v[:rapid.IntRange(0, len(v)).Draw(t, "length")]
			}
			want, wantOK := AppendHolders(nil, v)
			got, ok := r.Read(v)
			if ok != wantOK || ok && !slices.Equal(got, want) {
				t.Fatalf("%s: got %v, %v; want %v, %v", v, got, ok, want, wantOK)
			}
		}
	})
}

func FuzzAppendHolders(f *testing.F) {
	for _, s := range []string{"1", "17,136", "1,,2", "4294967296", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		got, ok := AppendHolders(nil, v)
		if ok == (len(got) == 0) {
			t.Fatalf("%q: got %v, %v", v, got, ok)
		}
		for i, id := range got {
			if id == 0 || i > 0 && got[i-1] >= id {
				t.Fatalf("%q: got %v", v, got)
			}
		}
	})
}
