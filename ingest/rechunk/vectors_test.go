package rechunk

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

// message is one that an engine's own publisher was seen to send.
type message struct {
	ID                    int
	Engine, Version, What string
	Payload               string
}

func messages(t testing.TB) (out []message) {
	f := must.Get(os.Open("../event/testdata/messages.jsonl"))(t)
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		var m message
		must.OK(t, json.Unmarshal(s.Bytes(), &m))
		if m.Payload != "" {
			out = append(out, m)
		}
	}
	return out
}

func (m *message) decode(t testing.TB) *event.Batch {
	payload := must.Get(hex.DecodeString(m.Payload))(t)
	b := new(event.Batch)
	if err := new(event.Decoder).Decode(payload, b); err != nil {
		t.Fatalf("message %d: %v", m.ID, err)
	}
	return b
}

// played is a Chunker whose changes go to a sink, without model.
type played struct {
	t    testing.TB
	c    *Chunker
	sink *sink
	seq  uint64
}

func play(t testing.TB, c Config) *played {
	c.Fresh = true
	return &played{t: t, c: mustNew(t, c), sink: newSink()}
}

func (p *played) do(b *event.Batch) {
	p.t.Helper()
	p.seq++
	must.OK(p.t, p.c.Apply(p.t.Context(), b, p.sink.read))
	ch := must.Get(p.c.Take(p.t.Context(), p.seq, p.sink.read))(p.t)
	p.sink.write(p.t, ch)
	p.c.Done()
}

// want checks that just these keys are held in a tier.
func (p *played) want(what string, tier store.Tier, keys ...blockkey.Key) {
	p.t.Helper()
	var got []blockkey.Key
	for k := range p.sink.held {
		if k.tier == tier {
			got = append(got, k.key)
		}
	}
	slices.Sort(got)
	keys = slices.Clone(keys)
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		p.t.Errorf("%s: in %v are %v, want %v", what, tier, got, keys)
	}
}

func native(n, size int) []blockkey.Key {
	return blockkey.AppendNative(nil, count(0, n), size, blockkey.NativeSeed("", ""))
}

// TestVLLM follows a vLLM 0.33 event by event.
func TestVLLM(t *testing.T) {
	all := map[int]message{}
	for _, m := range messages(t) {
		all[m.ID] = m
	}
	image, _ := blockkey.ObjectHash("imgsha_aaaa")
	for _, size := range []int{16, 32, 64} {
		p := play(t, Config{BlockSize: size})
		do := func(id int) {
			m := all[id]
			p.do(m.decode(t))
		}
		do(0)
		p.want("prefill", store.GPU, native(64, size)...)
		do(1)
		p.want("a block of decode", store.GPU, native(80, size)...)
		do(2)
		do(3) // all are evicted, and block 0 has another copy
		if size == 16 {
			p.want("the second copy", store.GPU, native(16, 16)...)
		} else {
			p.want("a lone block", store.GPU)
		}
		do(4)
		p.want("cleared", store.GPU)
		do(5)
		scoped := blockkey.AppendNative(nil, count(0, 32), size, blockkey.NativeSeed("sql-lora", "tenant-a"))
		p.want("LoRA and salt", store.GPU, scoped...)
		do(4)
		do(6)
		c := blockkey.Chain{BlockSize: size, Seed: blockkey.NativeSeed("", "")}
		seen := c.AppendObjects(nil, count(0, 48), []blockkey.Object{{Hash: image, Ranges: []blockkey.Range{{Start: 20, End: 40}}}})
		p.want("an image", store.GPU, seen...)
		do(7)
		p.want("masked", store.GPU, seen...)
		do(4)
		do(8)
		p.want("lookahead", store.GPU, native(32, size)...)
		p = play(t, Config{BlockSize: size}) // one without the window of message 7
		do(0)
		report, first := all[10], all[0]
		b := report.decode(t)
		next := first.decode(t).Events[0] // what the request computes behind the report
		next.HasParent, next.Parent, next.Hashes, next.Tokens = true, next.Hashes[2], next.Hashes[3:], next.Tokens[48:]
		b.Events = append(b.Events, next)
		p.do(b)
		do(3) // the report was no copy, and its block 4 is not there
		if size == 16 {
			p.want("report", store.GPU, native(64, 16)[3])
		} else {
			p.want("report", store.GPU)
		}
		do(4)
		do(0)
		do(11)
		if size == 16 {
			p.want("known by hash", store.CPU, native(16, 16)...)
		}
		do(12)
		p.want("the CPU's is gone", store.CPU)
		if size == 16 {
			p.want("a remote disk", store.Shared, native(16, 16)...)
		}
		p.want("the GPU's is not", store.GPU, native(64, size)...)
	}
}

// TestMessages: the first message of every engine and version gives the keys of its
// tokens, whatever its wire form. None of the others does harm.
func TestMessages(t *testing.T) {
	seen := map[string]bool{}
	players := map[string]*played{}
	for _, m := range messages(t) {
		name := m.Engine + m.Version
		if players[name] == nil {
			players[name] = play(t, Config{BlockSize: 16})
		}
		p := players[name]
		b := m.decode(t)
		fresh := strings.Contains(m.What, "first block has no parent") || strings.Contains(m.What, "2 pages of 16")
		if fresh {
			p = play(t, Config{BlockSize: 16})
		}
		p.do(b)
		if fresh {
			p.want(name, store.GPU, native(len(b.Events[0].Tokens), 16)...)
			seen[name] = true
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d engines: %v", len(seen), seen)
	}
}

// TestPairs: SGLang under EAGLE tells pairs of tokens; blocks are those of the first
// of each.
func TestPairs(t *testing.T) {
	for _, m := range messages(t) {
		if !strings.Contains(m.What, "bigram") {
			continue
		}
		p := play(t, Config{BlockSize: 4})
		p.do(m.decode(t))
		p.want(m.Version, store.GPU, native(4, 4)...)
	}
}
