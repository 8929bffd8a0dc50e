package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
	"github.com/kvatlas/kvatlas/store/storetest"
)

// sample is an index of two models, three pods and some blocks.
func sample(t *testing.T) (store.Index, []blockkey.Key) {
	t.Helper()
	x := openMemory(t)
	must.Get(x.EnsureModel(t.Context(), store.ModelInfo{Name: "m1", BlockSize: 64, Scheme: store.SchemeNative}))(t)
	ks := chain(9, 500)
	add(t, x, "a", "m1", store.GPU, ks...)
	add(t, x, "b", "m1", store.CPU, ks[:120]...)
	add(t, x, "c", "m2", store.Disk, ks[:50]...)
	return x, ks
}

// subset fails the test when y credits what x does not.
func subset(t *testing.T, y, x store.Index, ks []blockkey.Key) {
	t.Helper()
	want := found(t, x, ks)
	for name, answer := range found(t, y, ks) {
		for i, at := range answer {
			for _, a := range at {
				ok := false
				for _, b := range want[name][i] {
					ok = ok || a == b
				}
				if !ok {
					t.Fatalf("block %d of %s is credited to %v", i, name, a)
				}
			}
		}
	}
}

// A dump that ends early is noticed wherever it ends, gives no false credit,
// and can be gone on with.
func TestCut(t *testing.T) {
	ctx := t.Context()
	x, ks := sample(t)
	text := dump(t, x, snapshot.Options{PageBlocks: 40})
	var cuts []int
	for n := 0; n < len(text); n += 50 + n%397 {
		cuts = append(cuts, n)
	}
	// Just before and behind the ends of pages is where it is easy to be wrong.
	for n := range text {
		if bytes.HasPrefix(text[n:], []byte(`{"page"`)) || bytes.HasPrefix(text[n:], []byte(`{"kvatlas":"end"`)) {
			end := n + bytes.IndexByte(text[n:], '\n')
			cuts = append(cuts, n, end-1, end)
			if end+1 < len(text) {
				cuts = append(cuts, end+1)
			}
		}
	}
	cuts = cuts[:len(cuts)-1] // without its very last line feed it is whole
	for _, n := range cuts {
		cut := text[:n]
		y := openMemory(t)
		report, err := snapshot.Restore(ctx, bytes.NewReader(cut), y, snapshot.Merge)
		if !errors.Is(err, snapshot.ErrCut) {
			t.Fatalf("cut at %d of %d: %v", n, len(text), err)
		}
		subset(t, y, x, ks)

		r := snapshot.NewReader(bytes.NewReader(cut))
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
		good, cursor := r.Resume()
		if good > 0 && report.Blocks == 0 {
			t.Fatalf("cut at %d: %d bytes are good, %d blocks are loaded", n, good, report.Blocks)
		}
		var whole []byte
		if cursor != "" {
			whole = append(whole, cut[:good]...)
		}
		whole = append(whole, dump(t, x, snapshot.Options{PageBlocks: 40, After: cursor})...)
		restore(t, y, whole, snapshot.Merge)
		if got, want := found(t, y, ks), found(t, x, ks); !got["m1"].Equal(want["m1"]) || !got["m2"].Equal(want["m2"]) {
			t.Fatalf("cut at %d and gone on: the index is another", n)
		}
		_ = y.Close()
	}
	// Parts of some pages each, one behind the other.
	var parts []byte
	cursor := ""
	for i := 0; i == 0 || cursor != ""; i++ {
		part := dump(t, x, snapshot.Options{PageBlocks: 40, Pages: 2, After: cursor})
		r := snapshot.NewReader(bytes.NewReader(part))
		for {
			_, err := r.Next()
			if err != nil {
				break
			}
		}
		_, cursor = r.Resume()
		if _, _, err := snapshot.Verify(bytes.NewReader(part)); i == 0 && !errors.Is(err, snapshot.ErrCut) {
			t.Fatalf("a part passes for a whole: %v", err)
		}
		parts = append(parts, part...)
	}
	if _, blocks, err := snapshot.Verify(bytes.NewReader(parts)); err != nil || blocks < 500 {
		t.Fatalf("%d blocks, %v", blocks, err)
	}
}

// A byte that has changed is noticed before a block of its page is loaded.
func TestChanged(t *testing.T) {
	ctx := t.Context()
	x, ks := sample(t)
	text := dump(t, x, snapshot.Options{PageBlocks: 40})
	for n := 0; n < len(text); n += 60 + n%431 {
		for _, flip := range []byte{1, 0x80} {
			bad := bytes.Clone(text)
			bad[n] ^= flip
			y := openMemory(t)
			_, err := snapshot.Restore(ctx, bytes.NewReader(bad), y, snapshot.Merge)
			if !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, snapshot.ErrVersion) && !errors.Is(err, snapshot.ErrCut) {
				t.Fatalf("byte %d (%q) is changed to %q: %v", n, text[n], bad[n], err)
			}
			subset(t, y, x, ks)
			_ = y.Close()
		}
	}
	// So is a line that has gone, or come twice, or changed places.
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines = lines[:len(lines)-1]
	for i := range lines {
		for what, edit := range map[string][][]byte{
			"gone":    append(append([][]byte{}, lines[:i]...), lines[i+1:]...),
			"twice":   append(append([][]byte{}, lines[:i+1]...), lines[i:]...),
			"swapped": append(append(append([][]byte{}, lines[:i]...), lines[(i+1)%len(lines)], lines[i]), lines[min(i+2, len(lines)):]...),
		} {
			if _, _, err := snapshot.Verify(bytes.NewReader(bytes.Join(edit, nil))); err == nil {
				t.Errorf("line %d %s: it passes", i+1, what)
			}
		}
	}
}

func TestBadLines(t *testing.T) {
	const head = `{"kvatlas":"dump","version":1,"schema":1,"partitions":64,"created":"2026-01-01T00:00:00Z","epoch":1,"true_at":{"time":"2026-01-01T00:00:00Z","epoch":1}}` + "\n"
	for _, c := range []struct {
		text string
		is   error
		want string
	}{
		{"", snapshot.ErrCut, "empty"},
		{"hello\n", snapshot.ErrCorrupt, "line 1: it cannot be read"},
		{"{}\n", snapshot.ErrCorrupt, "line 1: it is not one of the lines"},
		{"\n", snapshot.ErrCorrupt, "line 1: it is empty"},
		{`{"pod":{"name":"a","model":"m"}}` + "\n", snapshot.ErrCorrupt, "line 1: a dump, or a part of it, begins with"},
		{strings.Replace(head, `"version":1`, `"version":2`, 1), snapshot.ErrVersion, "version 2 of the format"},
		{strings.Replace(head, `"schema":1`, `"schema":3`, 1), snapshot.ErrVersion, "schema 3"},
		{strings.Replace(head, `64`, `32`, 1), snapshot.ErrVersion, "32 partitions"},
		{head, snapshot.ErrCut, "behind line 1"},
		{head + head, snapshot.ErrCorrupt, "line 2: another part"},
		{head + `{"pod":{"name":"","model":"m"}}` + "\n", snapshot.ErrCorrupt, "line 2: pod name is empty"},
		{head + `{"pod":{"name":"a","model":"m","x":1}}` + "\n", snapshot.ErrCorrupt, `unknown field "x"`},
		{head + `{"pod":{"name":"a","model":"m"},"k":["0000000000000001"]}` + "\n", snapshot.ErrCorrupt, "not one of the lines"},
		{head + `{"model":{"name":"m","block_size":0,"scheme":"native"}}` + "\n", snapshot.ErrCorrupt, "block size of model is 0"},
		{head + `{"holder":{"id":0,"pod":"a","rank":0,"tier":"gpu"}}` + "\n", snapshot.ErrCorrupt, "ids begin at 1"},
		{head + `{"holder":{"id":1,"pod":"a","rank":0,"tier":"tape"}}` + "\n", snapshot.ErrCorrupt, "tape"},
		{head + `{"holder":{"id":1,"pod":"a","rank":-1,"tier":"gpu"}}` + "\n", snapshot.ErrCorrupt, "rank is -1"},
		{head + `{"holder":{"id":1,"pod":"a","rank":1,"tier":"gpu"}}` + "\n", snapshot.ErrCorrupt, "holder 1 is of pod a, which no line before it has"},
		{head + `{"k":["0000000000000001"],"h":[1]}` + "\n", snapshot.ErrCorrupt, "holder 1 is given by no line"},
		{head + `{"k":["1"],"h":[1]}` + "\n", snapshot.ErrCorrupt, `k[0] is "1"`},
		{head + `{"k":["0000000000000001"],"h":[]}` + "\n", snapshot.ErrCorrupt, "without holders"},
		{head + `{"k":[],"h":[1]}` + "\n", snapshot.ErrCorrupt, "without keys"},
		{head + `{"k":["0000000000000001"],"h":[4294967296]}` + "\n", snapshot.ErrCorrupt, "cannot be read"},
		{head + `{"k":["0000000000000001"],"h":[1]} {}` + "\n", snapshot.ErrCorrupt, "more behind its end: {}"},
		{head + `{"page":1,"blocks":0,"sum":"0","next":""}` + "\n", snapshot.ErrCorrupt, "a sum is a string of 16 hex digits"},
		{head + `{"page":1,"blocks":0,"sum":"0000000000000000","next":""}` + "\n", snapshot.ErrCorrupt, "lines before this one were changed or lost"},
		{head + `{"error":{"code":"draining","message":"bye","param":null}}` + "\n", snapshot.ErrCut, "the server could not go on: draining: bye"},
		{head + `{"x":"` + strings.Repeat("x", snapshot.MaxLine) + "\"}\n", snapshot.ErrCorrupt, "line 2: it is longer than 1048576 bytes"},
		{head + "{\"x\":\"\x1b[2J\"}\n", snapshot.ErrCorrupt, ""},
	} {
		x := openMemory(t)
		_, err := snapshot.Restore(t.Context(), strings.NewReader(c.text), x, snapshot.Merge)
		if !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.want) || strings.Contains(fmt.Sprint(err), "\x1b") {
			t.Errorf("%.200s\ngot  %v\nwant %v %s", c.text[min(len(c.text), len(head)):], err, c.is, c.want)
		}
		_ = x.Close()
	}
}

// What cannot be read fails with its own error, and with the line if there was one.
func TestReadFails(t *testing.T) {
	head := `{"kvatlas":"dump","version":1,"schema":1,"partitions":64}` + "\n"
	for text, want := range map[string]string{"": "snapshot: gone", head: "snapshot: behind line 1: gone"} {
		gone := errors.New("gone")
		r := snapshot.NewReader(io.MultiReader(strings.NewReader(text), iotest.ErrReader(gone)))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, gone) || err.Error() != want {
			t.Errorf("behind %q: got %v, want %s", text, err, want)
		}
	}
}

// Another program may write its lines with other spaces and in another order.
func TestForeignWriter(t *testing.T) {
	text := must.Get(os.ReadFile("testdata/foreign.ndjson"))(t)
	x := openMemory(t)
	report := restore(t, x, text, snapshot.Merge)
	if report.Blocks != 3 || report.Credits != 4 {
		t.Errorf("got %+v", report)
	}
	mask := blockkey.Key(blockkey.ModelOf("m1"))
	got := found(t, x, []blockkey.Key{0xa1 ^ mask, 0xb2 ^ mask, 0xc3 ^ mask})["m1"]
	if !got.Equal([][]storetest.At{{{Pod: "10.0.0.1:8000"}}, {{Pod: "10.0.0.1:8000"}, {Pod: "10.0.0.1:8000", Rank: 1, Tier: store.CPU}}, {{Pod: "10.0.0.1:8000", Rank: 1, Tier: store.CPU}}}) {
		t.Errorf("got %v", got)
	}
}

var volatile = regexp.MustCompile(`"(created|time|next|sum)":"[^"]*"|"epoch":\d+`)

// The lines are exactly these; docs/snapshots.md shows them.
func TestGolden(t *testing.T) {
	ctx := t.Context()
	x := openMemory(t)
	must.Get(x.EnsureModel(ctx, store.ModelInfo{Name: "m1", BlockSize: 64, Scheme: store.SchemeNative}))(t)
	must.Get(x.Register(ctx, store.Pod{Name: "10.0.0.1:8000", Model: "m1", Engine: "vllm", Lease: store.Seconds(30e9)}))(t)
	mask := blockkey.Key(blockkey.ModelOf("m1"))
	add(t, x, "10.0.0.1:8000", "m1", store.GPU, 0xa1^mask)
	add(t, x, "10.0.0.1:8000", "m1", store.CPU, 0xa1^mask)
	got := volatile.ReplaceAllStringFunc(string(dump(t, x, snapshot.Options{})), func(s string) string {
		name, _, _ := strings.Cut(s, ":")
		return name + ":..."
	})
	const want = `{"kvatlas":"dump","version":1,"schema":1,"partitions":64,"created":...,"epoch":...,"true_at":{"time":...,"epoch":...}}
{"model":{"name":"m1","block_size":64,"scheme":"native"}}
{"pod":{"name":"10.0.0.1:8000","model":"m1","engine":"vllm","lease_s":30}}
{"holder":{"id":1,"pod":"10.0.0.1:8000","rank":0,"tier":"gpu"}}
{"holder":{"id":2,"pod":"10.0.0.1:8000","rank":0,"tier":"cpu"}}
{"k":["00000000000000a1"],"h":[1,2]}
{"page":1,"blocks":1,"sum":...,"next":...}
{"kvatlas":"end","models":1,"pods":1,"holders":2,"blocks":1,"pages":1,"sum":...,"next":...}
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	page := must.Get(os.ReadFile("../../docs/snapshots.md"))(t)
	for line := range strings.Lines(want) {
		if !strings.Contains(string(page), strings.TrimSpace(line)) {
			t.Errorf("docs/snapshots.md does not show %s", line)
		}
	}
}

func FuzzReader(f *testing.F) {
	text := must.Get(os.ReadFile("testdata/foreign.ndjson"))(f)
	f.Add(text)
	f.Add([]byte(`{"kvatlas":"dump","version":1,"schema":1,"partitions":64}` + "\n" + `{"k":["00000000000000a1"],"h":[1,2]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := snapshot.NewReader(bytes.NewReader(b))
		for range bytes.Count(b, []byte("\n")) + 2 {
			if _, err := r.Next(); err != nil {
				return
			}
		}
		t.Fatal("it does not end")
	})
}

// peak is a writer that remembers how large the heap has been.
type peak struct {
	w    io.Writer
	most uint64
	n    int
}

func (p *peak) Write(b []byte) (int, error) {
	if p.n++; p.n%4 == 0 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		p.most = max(p.most, m.HeapAlloc)
	}
	return p.w.Write(b)
}

// A million blocks are dumped, checked and restored in the memory of some pages.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("a million blocks")
	}
	const blocks = manyBlocks
	x := openMemory(t)
	ks := chain(1, blocks)
	for p := range 3 {
		add(t, x, fmt.Sprint("p", p), "m1", store.GPU, ks[p*1000:]...)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const most = 48 << 20 // with a collector that lets garbage double it
	before := heap()
	r, w := io.Pipe()
	dumped := &peak{w: w}
	var sum snapshot.Summary
	go func() {
		var err error
		sum, err = snapshot.Dump(t.Context(), dumped, x, snapshot.Options{})
		_ = w.CloseWithError(err)
	}()
	_, n, err := snapshot.Verify(r)
	if err != nil || n != blocks {
		t.Fatalf("%d blocks, %v", n, err)
	}
	grown := int64(dumped.most) - int64(before)
	t.Logf("%d blocks in %d bytes (%.1f a block); the heap has grown by %d KB", n, sum.Bytes, float64(sum.Bytes)/blocks, grown>>10)
	if dumped.n < blocks/20_000-1 || grown > most {
		t.Errorf("the heap has grown by %d bytes in %d pages, the limit is %d", grown, dumped.n, most)
	}
	if perBlock := float64(sum.Bytes) / blocks; perBlock > 25 {
		t.Errorf("%.1f bytes a block", perBlock)
	}

	y := openMemory(t)
	before = heap()
	r, w = io.Pipe()
	restored := &peak{w: w}
	go func() {
		_, err := snapshot.Dump(t.Context(), restored, x, snapshot.Options{})
		_ = w.CloseWithError(err)
	}()
	must.Get(snapshot.Restore(t.Context(), r, y, snapshot.Merge))(t)
	// The index itself grows, and its tables with some garbage.
	if grown := int64(restored.most) - int64(before) - 2*y.Stats().Bytes; grown > most {
		t.Errorf("beside the index the heap has grown by %d bytes, the limit is %d", grown, most)
	}
}

func TestWriter(t *testing.T) {
	ctx := t.Context()
	x, ks := sample(t)
	name := t.TempDir() + "/s.gz"
	s := must.Get(snapshot.Save(ctx, name, x, snapshot.Options{PageBlocks: 40}))(t)
	raw, err := os.ReadFile(name)
	if err != nil || int64(len(raw)) != s.Bytes {
		t.Fatalf("%d bytes, %+v, %v", len(raw), s, err)
	}
	// It is gzip, with the pages as its members.
	members := bytes.Count(raw, []byte("\x1f\x8b\x08"))
	if members < 8 {
		t.Errorf("%d members", members)
	}
	z := must.Get(gzip.NewReader(bytes.NewReader(raw)))(t)
	if _, _, err := snapshot.Verify(z); err != nil {
		t.Error(err)
	}
	r := must.Get(snapshot.Decompress(bytes.NewReader(raw)))(t)
	y := openMemory(t)
	must.Get(snapshot.Restore(ctx, r, y, snapshot.Merge))(t)
	if got, want := found(t, y, ks), found(t, x, ks); !got["m1"].Equal(want["m1"]) {
		t.Error("the index is another")
	}
	for n := 2; n < len(raw); n += 5 + n%37 {
		r, err := snapshot.Decompress(bytes.NewReader(raw[:n]))
		if err == nil {
			_, _, err = snapshot.Verify(r)
		}
		if !errors.Is(err, snapshot.ErrCut) && !errors.Is(err, snapshot.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		bad := bytes.Clone(raw)
		bad[n] ^= 4
		if r, err = snapshot.Decompress(bytes.NewReader(bad)); err == nil {
			_, _, err = snapshot.Verify(r)
		}
		if err != nil && !errors.Is(err, snapshot.ErrCut) && !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, snapshot.ErrVersion) {
			t.Fatalf("changed at %d: %v", n, err)
		}
	}
}
