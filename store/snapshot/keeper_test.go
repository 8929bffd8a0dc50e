package snapshot_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

// told is what a Keeper's observer has heard.
type told struct {
	mu       sync.Mutex // protects all below
	saved    []error
	restored []error
	reports  []snapshot.Report
}

func (o *told) observer() snapshot.Observer {
	return snapshot.Observer{
		Saved: func(_ snapshot.Summary, _ time.Duration, err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.saved = append(o.saved, err)
		},
		Restored: func(r snapshot.Report, _ time.Duration, err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.restored = append(o.restored, err)
			o.reports = append(o.reports, r)
		},
	}
}

func (o *told) saves() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.saved)
}

func keep(t *testing.T, cfg snapshot.KeeperConfig) (*snapshot.Keeper, *told) {
	t.Helper()
	o := &told{}
	cfg.Index, cfg.Observer = openMemory(t), o.observer()
	k := must.Get(snapshot.NewKeeper(cfg))(t)
	t.Cleanup(func() { _ = k.Close() })
	return k, o
}

// What an index had when it was closed, it has when it is opened again.
func TestKeeper(t *testing.T) {
	for _, name := range []string{"s.ndjson", "s.ndjson.gz"} {
		file := filepath.Join(t.TempDir(), name)
		synctest.Test(t, func(t *testing.T) { testKeeper(t, file) })
	}
}

func testKeeper(t *testing.T, file string) {
	ctx, ks := t.Context(), chain(1, 3000)

	k, o := keep(t, snapshot.KeeperConfig{File: file, Changes: 1000, Interval: 10 * time.Millisecond})
	must.OK(t, k.Restore(ctx))
	if len(o.restored) != 1 || o.restored[0] != nil || o.reports[0].Lines != 0 {
		t.Errorf("got %+v", o.restored)
	}
	// Less than enough is not written.
	add(t, k, "a", "m1", store.GPU, ks[:500]...)
	time.Sleep(time.Minute) // of the bubble's clock
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is written after 500 changes: %v", err)
	}
	add(t, k, "a", "m1", store.GPU, ks...)
	eventually.True(t, "the file is there", func() bool { _, err := os.Stat(file); return err == nil })
	// The removal of a pod is enough.
	n := o.saves()
	if known, err := k.Retire(ctx, "a"); !known || err != nil {
		t.Fatal(known, err)
	}
	eventually.True(t, "it is written again", func() bool { return o.saves() > n })
	add(t, k, "b", "m1", store.CPU, ks[:10]...)
	must.OK(t, k.Close())
	for _, err := range o.saved {
		if err != nil {
			t.Error(err)
		}
	}

	k, o = keep(t, snapshot.KeeperConfig{File: file})
	must.OK(t, k.Restore(ctx))
	if o.restored[0] != nil || o.reports[0].Blocks != 10 || o.reports[0].Pods != 1 {
		t.Errorf("got %+v, %v", o.reports, o.restored)
	}
	before := must.Get(os.Stat(file))(t)
	must.OK(t, k.Close())
	// Nothing has changed: the file has not either.
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("it is written although nothing has changed, %v", err)
	}
}

// Until it is restored, an index takes no changes, and is not written.
func TestKeeperRefusesUntilRestored(t *testing.T) {
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "s")
	must.OK(t, os.WriteFile(file, []byte("x"), 0o600))
	k, _ := keep(t, snapshot.KeeperConfig{File: file})
	changes := map[string]func() error{
		"Apply":    func() error { return k.Apply(ctx, store.Batch{Pod: "a", Model: "m1"}) },
		"Register": func() error { _, err := k.Register(ctx, store.Pod{Name: "a", Model: "m1"}); return err },
		"Retire":   func() error { _, err := k.Retire(ctx, "a"); return err },
		"EnsureModel": func() error {
			_, err := k.EnsureModel(ctx, store.ModelInfo{Name: "m", BlockSize: 1, Scheme: "native"})
			return err
		},
		"Begin":    func() error { _, err := k.Begin(ctx, "a", 0, 1); return err },
		"TakeOver": func() error { _, err := k.TakeOver(ctx, 1, 1); return err },
		"Forget":   func() error { _, err := k.Forget(ctx, "m"); return err },
	}
	for name, change := range changes {
		if err := change(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	found(t, k, chain(1, 3))
	must.OK(t, k.Close())
	if text, err := os.ReadFile(file); err != nil || string(text) != "x" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// A file that cannot be restored is put aside, reported, and in the way of nothing.
func TestKeeperPutsAside(t *testing.T) {
	ctx := t.Context()
	x, _ := sample(t)
	good := dump(t, x, snapshot.Options{PageBlocks: 40})
	for what, c := range map[string]struct {
		text string
		is   error
		age  time.Duration
	}{
		"cut":     {string(good[:len(good)/2]), snapshot.ErrCut, 0},
		"changed": {strings.Replace(string(good), `"h":[1]`, `"h":[2]`, 1), snapshot.ErrCorrupt, 0},
		"empty":   {"", snapshot.ErrCut, 0},
		"gzip":    {"\x1f\x8bnothing", snapshot.ErrCorrupt, 0},
		"version": {strings.Replace(string(good), `"version":1`, `"version":9`, 1), snapshot.ErrVersion, 0},
		"old":     {string(good), nil, time.Nanosecond},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "s")
			must.OK(t, os.WriteFile(file, []byte(c.text), 0o600))
			k, o := keep(t, snapshot.KeeperConfig{File: file, MaxAge: c.age})
			must.OK(t, k.Restore(ctx))
			if c.is != nil && !errors.Is(o.restored[0], c.is) || o.restored[0] == nil || !strings.Contains(o.restored[0].Error(), file+".refused-") {
				t.Errorf("told %v", o.restored[0])
			}
			if n := k.Stats().Blocks; n != 0 {
				t.Errorf("%d blocks are loaded", n)
			}
			add(t, k, "a", "m1", store.GPU, chain(1, 10)...)
			must.OK(t, k.Close())
			files, err := filepath.Glob(file + "*")
			if err != nil || len(files) != 2 {
				t.Fatalf("files %v, %v", files, err)
			}
			if text, err := os.ReadFile(files[1]); err != nil || string(text) != c.text {
				t.Errorf("put aside is %q, %v", text, err)
			}
		})
	}
}

func TestKeeperFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "s")
	x := openMemory(t)
	for _, cfg := range []snapshot.KeeperConfig{
		{}, {Index: x}, {Index: x, File: filepath.Join(dir, "none", "s")}, {Index: x, File: file, Changes: -1},
		{Index: x, File: file, Interval: time.Millisecond}, {Index: x, File: file, MaxAge: -1},
	} {
		if _, err := snapshot.NewKeeper(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	// A folder in the place of the file is for the operator to look at.
	must.OK(t, os.Mkdir(file, 0o700))
	k, _ := keep(t, snapshot.KeeperConfig{File: file})
	if err := k.Restore(t.Context()); err == nil {
		t.Error("a folder is restored")
	}

	// So it is with a start that is broken off.
	other := filepath.Join(dir, "other")
	y, _ := sample(t)
	must.Get(snapshot.Save(t.Context(), other, y, snapshot.Options{}))(t)
	k, _ = keep(t, snapshot.KeeperConfig{File: other})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Restore(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the file is gone: %v", err)
	}

	// A save that fails is told, and the next one tries again.
	gone := filepath.Join(t.TempDir(), "gone")
	must.OK(t, os.Mkdir(gone, 0o700))
	k, o := keep(t, snapshot.KeeperConfig{File: filepath.Join(gone, "s"), Changes: 1, Interval: 10 * time.Millisecond})
	must.OK(t, k.Restore(t.Context()))
	must.OK(t, os.Remove(gone))
	add(t, k, "a", "m1", store.GPU, chain(1, 10)...)
	eventually.True(t, "two saves have failed", func() bool { return o.saves() > 1 })
	must.OK(t, os.Mkdir(gone, 0o700))
	eventually.True(t, "one works", func() bool { _, err := os.Stat(filepath.Join(gone, "s")); return err == nil })
	if err := k.Close(); err != nil || o.saved[0] == nil {
		t.Errorf("got %v, %v", err, o.saved)
	}
}
