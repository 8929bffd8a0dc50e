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

// FuzzReader has a reader read a chain of values that are like each other, as AppendHolders reads each by
// itself. They are made from two by cutting and joining them anywhere.
func FuzzReader(f *testing.F) {
	var long []string
	for id := 100; id < 400; id += 2 {
		long = append(long, strconv.Itoa(id))
	}
	base := strings.Join(long, ",")
	for _, other := range []string{
		"", "0", ",", ",7", "7,", "7,,8", "07", "00", "7 8", "\x00", "a", "-1", "1e3", "10.0.0.1:8000", "10.0.0.1:8000,10.0.0.2:8000",
		"4026531839", "4026531840", "4294967296", "18446744073709551617", "99999999999999999999999", "7,7", "9,8", "101,101,101", "101",
		strings.Repeat("7,", 100) + "7", strings.Repeat("1", 200), strings.Repeat(",", 200), strings.Repeat("10.0.0.1:8000,", 20) + "x",
	} {
		f.Add([]byte(base), []byte(other), []byte{0, 7, 3, 4, 0, 5, 250, 0, 0, 0, 1, 0})
		f.Add([]byte(base), []byte(base+","+other), []byte{1, 255, 0, 2, 9, 9, 77, 30, 12})
	}
	f.Fuzz(func(t *testing.T, one, other, cuts []byte) {
		var r HolderReader
		last := one
		for step := 0; ; step++ {
			v := last
			if step > 0 {
				if len(cuts) < 3 || len(last) > 1<<16 {
					return
				}
				// A value has what the last one has before a place, and a part of other. Behind that it has
				// what the last one has a few bytes behind that place.
				from := len(last) * int(cuts[0]) / 256
				to := min(len(last), from+int(cuts[1]%8))
				part := other[len(other)*int(cuts[2]%16)/16:]
				if cuts[1] >= 128 {
					part = part[:min(len(part), int(cuts[1]%5))]
				}
				v = slices.Concat(last[:from], part, last[to:])
				cuts = cuts[3:]
			}
			want, wantOK := AppendHolders(nil, v)
			got, ok := r.Read(v)
			if ok != wantOK || !slices.Equal(got, want) {
				t.Fatalf("%q after %q: got %v, %v; want %v, %v", v, last, got, ok, want, wantOK)
			}
			last = v
			if step%2 == 0 { // and back, from what differs
				want, wantOK := AppendHolders(nil, one)
				if got, ok := r.Read(one); ok != wantOK || !slices.Equal(got, want) {
					t.Fatalf("%q after %q: got %v, %v; want %v, %v", one, v, got, ok, want, wantOK)
				}
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
