package snapshot_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// A file that was cut off anywhere is gone on with, packed or not, and is then a
// whole dump.
func TestResume(t *testing.T) {
	ctx := t.Context()
	x, ks := sample(t)
	for _, name := range []string{"d.ndjson", "d.ndjson.gz"} {
		whole := filepath.Join(t.TempDir(), name)
		must.Get(snapshot.Save(ctx, whole, x, snapshot.Options{PageBlocks: 40}))(t)
		raw := must.Get(os.ReadFile(whole))(t)
		step := len(raw) / 40
		kept := 0
		for n := 0; n < len(raw); n += step + n%7 {
			part := whole + ".part"
			must.OK(t, os.WriteFile(part, raw[:n], 0o600))
			f := must.Get(os.OpenFile(part, os.O_RDWR, 0))(t)
			_, cursor, err := snapshot.Resume(f)
			if err != nil {
				t.Fatalf("%s cut at %d: %v", name, n, err)
			}
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil || (at == 0) != (cursor == "") {
				t.Fatalf("%s cut at %d: gone on at %d with %q, %v", name, n, at, cursor, err)
			}
			if at > 0 {
				kept++
			}
			out := snapshot.NewWriter(f, snapshot.Compressed(name))
			must.Get(snapshot.Dump(ctx, out, x, snapshot.Options{PageBlocks: 40, After: cursor}))(t)
			must.OK(t, errors.Join(out.EndPage(), f.Close()))
			text := must.Get(os.ReadFile(part))(t)
			r := must.Get(snapshot.Decompress(bytes.NewReader(text)))(t)
			y := openMemory(t)
			if _, err := snapshot.Restore(ctx, r, y, snapshot.Merge); err != nil {
				t.Fatalf("%s cut at %d: %v", name, n, err)
			}
			if got, want := found(t, y, ks), found(t, x, ks); !got["m1"].Equal(want["m1"]) || !got["m2"].Equal(want["m2"]) {
				t.Fatalf("%s cut at %d: the index is another", name, n)
			}
			_ = y.Close()
		}
		if kept < 25 {
			t.Errorf("%s: of 40 cuts only %d were gone on with", name, kept)
		}
		f := must.Get(os.OpenFile(whole, os.O_RDWR, 0))(t)
		if _, _, err := snapshot.Resume(f); !errors.Is(err, io.EOF) {
			t.Errorf("a whole dump: %v", err)
		}
		_ = f.Close()
		if again, err := os.ReadFile(whole); err != nil || !bytes.Equal(again, raw) {
			t.Errorf("a whole dump has changed, %v", err)
		}
	}
}

// A save that fails leaves the old file, and nothing beside it.
func TestSaveFails(t *testing.T) {
	x, _ := sample(t)
	dir := t.TempDir()
	name := filepath.Join(dir, "s")
	must.Get(snapshot.Save(t.Context(), name, x, snapshot.Options{}))(t)
	old := must.Get(os.ReadFile(name))(t)
	_ = x.Close()
	if _, err := snapshot.Save(t.Context(), name, x, snapshot.Options{}); err == nil {
		t.Fatal("a closed index is saved")
	}
	if _, err := snapshot.Save(t.Context(), filepath.Join(dir, "none", "s"), x, snapshot.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	now, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(now, old) {
		t.Errorf("the old file has changed, %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left are %v", files)
	}
}
