package proofs

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
)

func keyOf(t *testing.T, f *Folder, files ...string) Key {
	t.Helper()
	var all [][]byte
	for _, s := range files {
		all = append(all, []byte(s))
	}
	k := must.Get(f.Key(all...))(t)
	return k
}

var example = &Proof{
	Tables: &bpe.Tables{File: []byte("{}"), Added: []uint32{7}, Spelled: []byte("abc"), Lengths: []uint16{1, 2}, Merges: []uint32{0, 1, 2}},
	Sum:    [32]byte{1, 2}, Vocabulary: 9, Framed: true, Before: []uint32{1}, Behind: []uint32{2, 3},
}

// TestFolder saves a proof and reads it by another Folder, as another process does.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	f := NewFolder(dir)
	key := keyOf(t, f, "tokenizer", "config")
	if p := f.Load(key); p != nil {
		t.Fatalf("there is %+v", p)
	}
	must.OK(t, f.Save(key, example))
	again := NewFolder(dir)
	if p := again.Load(keyOf(t, again, "tokenizer", "config")); !reflect.DeepEqual(p, example) {
		t.Errorf("read %+v", p)
	}
	for _, other := range [][]string{{"tokenizer"}, {"tokenizer", "config", ""}, {"tokenize", "rconfig"}, {"config", "tokenizer"}} {
		if again.Load(keyOf(t, again, other...)) != nil {
			t.Errorf("%q has the proof of other files", other)
		}
	}
	if missing, _ := f.Key(nil); missing == keyOf(t, f, "") {
		t.Error("a missing file is an empty one")
	}
	f.Remove(key)
	if again.Load(key) != nil {
		t.Error("it is still there")
	}
}

// TestDamagedFiles has no byte of a file that could be another one, or missing.
func TestDamagedFiles(t *testing.T) {
	f := NewFolder(t.TempDir())
	key := keyOf(t, f, "a")
	must.OK(t, f.Save(key, example))
	whole := must.Get(os.ReadFile(f.file(key)))(t)
	write := func(key Key, data []byte) {
		t.Helper()
		must.OK(t, os.WriteFile(f.file(key), data, 0o600))
	}
	for i := range whole {
		write(key, whole[:i])
		if f.Load(key) != nil {
			t.Fatalf("a file of %d bytes of %d is read", i, len(whole))
		}
		other := append([]byte(nil), whole...)
		other[i] ^= 0x10
		write(key, other)
		if f.Load(key) != nil {
			t.Fatalf("a file with another byte %d is read", i)
		}
	}
	foreign := keyOf(t, f, "b")
	write(foreign, whole)
	if f.Load(foreign) != nil {
		t.Error("a proof is taken for another tokenizer's")
	}
	write(key, whole)
	if f.Load(key) == nil {
		t.Error("the whole file is not read")
	}
}

// TestShrink removes what was not used for longest, and what a crash has left.
func TestShrink(t *testing.T) {
	f := NewFolder(t.TempDir())
	var keys []Key
	for i, name := range []string{"a", "b", "c"} {
		keys = append(keys, keyOf(t, f, name))
		must.OK(t, f.Save(keys[i], example))
		when := time.Unix(int64(1000+i), 0)
		must.OK(t, os.Chtimes(f.file(keys[i]), when, when))
	}
	part := filepath.Join(f.path, "1.part")
	must.OK(t, os.WriteFile(part, []byte("cut off"), 0o600))
	must.OK(t, os.Chtimes(part, time.Unix(1, 0), time.Unix(1, 0)))
	if f.Load(keys[0]) == nil {
		t.Fatal("not read")
	}
	info := must.Get(os.Stat(f.file(keys[0])))(t)
	must.OK(t, f.shrink(2*info.Size()))
	if _, err := os.Stat(part); err == nil {
		t.Error("what was cut off is still there")
	}
	for i, want := range []bool{true, false, true} {
		if got := f.Load(keys[i]) != nil; got != want {
			t.Errorf("file %d is there: %v, want %v", i, got, want)
		}
	}
}
