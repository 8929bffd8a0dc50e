package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/record"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func readAll(t *testing.T, path string) (entries []record.Entry) {
	t.Helper()
	files := must.Get(record.Files(path))(t)
	for _, name := range files {
		f := must.Get(os.Open(name))(t)
		r := record.NewReader(f, name)
		for {
			e, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must.OK(t, err)
			entries = append(entries, e)
		}
		must.OK(t, f.Close())
	}
	return entries
}

// What is written is read again, over all files that are kept.
func TestWriteRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	now := time.Unix(1e9, 0)
	w := must.Get(record.Create(record.Config{Path: path, MaxBytes: 2000, MaxFiles: 3, Now: func() time.Time { return now }}))(t)
	r := rand.New(rand.NewPCG(1, 1))
	var want []record.Entry
	for i := range 200 {
		payload := make([]byte, r.IntN(100))
		for i := range payload {
			payload[i] = byte(r.Uint32())
		}
		m := zmq.Message{Topic: "kv@\"é\n", Seq: 1<<63 + uint64(i), Payload: payload}
		want = append(want, record.Entry{At: now.Sub(time.Unix(1e9, 0)), Message: m})
		must.OK(t, w.Write(m))
		now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
	}
	must.OK(t, w.Close())
	if err := w.Write(zmq.Message{}); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	got := readAll(t, path)
	if len(got) < 20 || len(got) >= 200 || !reflect.DeepEqual(got, want[200-len(got):]) {
		t.Errorf("%d entries are kept, or others than the last", len(got))
	}
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) != 3 {
		t.Error(all, err)
	}
	for _, f := range all {
		if info, err := os.Stat(f); err != nil || info.Size() > 2000 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, info, err)
		}
	}
	// Another record of the name leaves the one before.
	w = must.Get(record.Create(record.Config{Path: path, MaxFiles: 3}))(t)
	must.OK(t, errors.Join(w.Write(want[0].Message), w.Flush()))
	again := readAll(t, path)
	must.OK(t, w.Close())
	if last := again[len(again)-1]; last.Message.Seq != want[0].Message.Seq || again[len(again)-2].Message.Seq != want[199].Message.Seq {
		t.Errorf("%d entries, the last %+v", len(again), last)
	}
	// A large message has a file of its own.
	w = must.Get(record.Create(record.Config{Path: filepath.Join(t.TempDir(), "x"), MaxBytes: 10, MaxFiles: 1}))(t)
	for range 3 {
		must.OK(t, w.Write(want[0].Message))
	}
	must.OK(t, w.Close())
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []record.Config{
		{}, {Path: filepath.Join(dir, "no", "such")}, {Path: filepath.Join(dir, "a"), MaxBytes: -1}, {Path: filepath.Join(dir, "a"), MaxFiles: 1001},
		{Path: filepath.Join(dir, "a"), MaxFiles: -1},
	} {
		if w, err := record.Create(c); err == nil {
			t.Errorf("%+v is taken", c)
			_ = w.Close()
		}
	}
	if _, err := record.Files(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestReadErrors(t *testing.T) {
	good := `{"timestamp":1,"topic":"t","seq":0,"payload":"wA=="}`
	for bad, want := range map[string]string{
		`{`:                                     "unexpected end",
		`{"seq":1,"payload":""}`:                "no timestamp",
		`{"timestamp":-1,"seq":1,"payload":""}`: "no timestamp",
		`{"timestamp":1e30}`:                    "cannot unmarshal",
		`{"timestamp":1,"seq":1}`:               "neither an event",
		`{"timestamp":1,"payload":""}`:          "neither an event",
		`{"timestamp":1,"seq":1,"payload":"!"}`: "payload",
		`{"timestamp":1,"event":{}}`:            "without data",
		`{"timestamp":1,"event":{"storage_tier":"x","event":{"data":"cleared"}}}`: `tier "x"`,
		`{"timestamp":1,"event":{"event":{"data":"cleared","dp_rank":-1}}}`:       "rank",
		`{"timestamp":1,"event":{"event":{"data":{}}}}`:                           "not one of stored",
		`{"timestamp":1,"event":{"event":{"data":5}}}`:                            "cannot unmarshal",
	} {
		r := record.NewReader(strings.NewReader(good+"\n\n"+bad+"\n"+good), "file")
		must.Get(r.Next())(t)
		if _, err := r.Next(); !errors.Is(err, record.ErrFormat) || !strings.Contains(err.Error(), "file, line 3: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", bad, err, want)
		}
		if e, err := r.Next(); err != nil || e.Message.Topic != "t" {
			t.Errorf("behind %s: %+v %v", bad, e, err)
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

// dynamo is what the crate of Dynamo's router wrote.
const dynamo = `{"timestamp":0,"event":{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":3,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":1234,"tokens_hash":14643705804678351452,"mm_extra_info":null}]}},"dp_rank":0}}}
{"timestamp":5,"event":{"worker_id":7,"storage_tier":"host_pinned","residency_domain":"worker","event":{"event_id":4,"data":{"stored":{"parent_hash":1234,"blocks":[{"block_hash":18446744073709551615,"tokens_hash":16777012769546811212,"mm_extra_info":null}]}},"dp_rank":0}}}
{"timestamp":7,"event":{"worker_id":7,"storage_tier":"device","event":{"event_id":5,"data":{"removed":{"block_hashes":[1234,5]}},"dp_rank":0}}}
{"timestamp":9,"event":{"worker_id":7,"storage_tier":"disk","event":{"event_id":6,"data":{"stored":{"parent_hash":1234,"blocks":[]}},"dp_rank":0}}}
{"timestamp":9,"event":{"worker_id":7,"storage_tier":"host_pinned","event":{"event_id":6,"data":"cleared","dp_rank":0}}}
{"timestamp":9,"event":{"worker_id":7,"storage_tier":"host_pinned","event":{"event_id":7,"data":{"removed":{"block_hashes":[18446744073709551615]}},"dp_rank":0}}}`

// Dynamo's events become block keys: tokens 1 to 8 in blocks of 4.
func TestDynamo(t *testing.T) {
	r := record.NewReader(strings.NewReader(dynamo), "dynamo")
	native := blockkey.AppendNative(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4, blockkey.NativeSeed("", ""))
	var c record.Chainer
	type step struct {
		kind store.OpKind
		tier store.Tier
		keys []blockkey.Key
		err  error
	}
	for i, want := range []step{
		{store.Add, store.GPU, native[:1], nil},
		{store.Add, store.CPU, native[1:], nil},
		{store.Remove, store.GPU, native[:1], nil},
		{store.Add, store.Disk, nil, record.ErrNoParent},
		{store.Clear, store.CPU, nil, nil},
		{store.Remove, store.CPU, nil, nil},
	} {
		e := must.Get(r.Next())(t)
		keys, err := c.Keys(e.Event)
		if e.Event.Kind != want.kind || e.Event.Tier != want.tier || !slices.Equal(keys, want.keys) || !errors.Is(err, want.err) || e.Event.Worker != 7 {
			t.Errorf("event %d: %+v: %v %v, want %+v", i, e.Event, keys, err, want)
		}
	}
	full := record.Chainer{Limit: 1}
	if _, err := full.Keys(&record.RouterEvent{Kind: store.Add, Hashes: []uint64{1, 2}, Locals: []uint64{1, 2}}); !errors.Is(err, record.ErrFull) {
		t.Error(err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(dynamo))
	f.Add([]byte(`{"timestamp":1,"topic":"t","seq":0,"payload":"wA=="}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := record.NewReader(bytes.NewReader(b), "f")
		c := record.Chainer{Limit: 1000}
		for range bytes.Count(b, []byte("\n")) + 2 {
			e, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				continue
			}
			if e.Event == nil {
				must.Get(json.Marshal(e.Message.Topic))(t)
				continue
			}
			keys, err := c.Keys(e.Event)
			if err == nil && e.Event.Kind == store.Add && len(keys) != len(e.Event.Hashes) {
				t.Fatalf("%d keys of %d blocks", len(keys), len(e.Event.Hashes))
			}
		}
		t.Fatal("more entries than lines")
	})
}
