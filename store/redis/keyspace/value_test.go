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
