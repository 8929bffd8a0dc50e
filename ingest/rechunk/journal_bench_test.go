package rechunk

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// A journal is the other way to keep what a generation's next owner needs. It has the events as
// they came, appended by a call of their own. Now and then comes a checkpoint of the state,
// after which the journal before it goes. It exists here alone, to be measured beside the map.
// A checkpoint is what the map has, entry by entry, in strings of 256 KiB. It is due when the
// journal has as many bytes as half of the last one. Events keep their tokens: the block key of
// an index block is known when its last engine block comes.

// appendEvent appends an event to a message of a journal.
func appendEvent(dst []byte, e *event.Event) []byte {
	dst = append(dst, byte(e.Kind), byte(e.BlockSize))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Parent))
	dst = binary.AppendUvarint(dst, uint64(len(e.Hashes)))
	for _, h := range e.Hashes {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(h))
	}
	dst = binary.AppendUvarint(dst, uint64(len(e.Tokens)))
	for _, t := range e.Tokens {
		dst = binary.AppendUvarint(dst, uint64(t)) // 3 bytes of a token below 2^21
	}
	return dst
}

// readEvents reads a message of a journal.
func readEvents(b []byte) (m event.Batch) {
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	for len(b) > 0 {
		e := event.Event{Kind: event.Kind(b[0]), BlockSize: int(b[1]), Parent: event.Hash(binary.LittleEndian.Uint64(b[2:]))}
		e.HasParent = e.Parent != 0
		b = b[10:]
		e.Hashes = make([]event.Hash, number())
		for i := range e.Hashes {
			e.Hashes[i] = event.Hash(binary.LittleEndian.Uint64(b))
			b = b[8:]
		}
		e.Tokens = make([]uint32, number())
		for i := range e.Tokens {
			e.Tokens[i] = uint32(number())
		}
		m.Events = append(m.Events, e)
	}
	return m
}

// filling makes the messages that fill an engine's memory with so many blocks of 16 tokens, and
// then replace a quarter of them. A message stores 64 blocks, prompts are two long.
func filling(blocks int, each func(event.Batch)) {
	r := rand.New(rand.NewPCG(1, 2))
	var held [][]event.Hash
	for i := range (blocks + blocks/4) / 64 {
		e := event.Event{Kind: event.Stored, BlockSize: 16, Hashes: make([]event.Hash, 64), Tokens: make([]uint32, 64*16)}
		for j := range e.Tokens {
			e.Tokens[j] = uint32(r.IntN(128_000))
		}
		for j := range e.Hashes {
			e.Hashes[j] = event.Hash(r.Uint64())
		}
		if i%2 == 1 {
			e.HasParent, e.Parent = true, held[len(held)-1][63]
		}
		m := event.Batch{}
		if len(held) >= blocks/64 {
			m.Events = append(m.Events, removed(held[0]...))
			held = held[1:]
		}
		held = append(held, e.Hashes)
		m.Events = append(m.Events, e)
		each(m)
	}
}

// cost is what a server has used: bytes, and seconds of its main thread.
func cost(b *testing.B, s *redistest.Server) (memory, cpu float64) {
	b.Helper()
	_, rest, _ := strings.Cut(s.Client().Info(b.Context(), "memory").Val(), "used_memory:")
	text, _, _ := strings.Cut(rest, "\r\n")
	memory = must.Get(strconv.ParseFloat(text, 64))(b)
	return memory, s.CPUTime().Seconds()
}

const checkpointPart = 256 << 10

// BenchmarkTakeover compares the map with a journal and its checkpoints, in turn. It measures
// what a held engine block takes of a server's memory, and what one that comes takes of the
// server's time. It also measures how long the next owner needs until it has applied its first
// message.
func BenchmarkTakeover(b *testing.B) {
	blocks := 1 << 20
	if testing.Short() {
		blocks = 1 << 14
	}
	for _, kind := range []string{"none", "map", "journal"} {
		b.Run(fmt.Sprintf("%s/%d", kind, blocks), func(b *testing.B) {
			for b.Loop() {
				takeover(b, kind, blocks)
			}
		})
	}
}

func takeover(b *testing.B, kind string, blocks int) {
	ctx := b.Context()
	s := redistest.Start(b)
	plain := s.Client()
	x := must.Get(redis.Open(redis.Config{URL: s.URL(), NoSweep: true, DialTimeout: 20 * time.Second, Timeout: 20 * time.Second}))(b)
	defer func() { _ = x.Close() }()
	must.Get(x.Register(ctx, store.Pod{Name: "a", Model: "m"}))(b)
	gen := must.Get(x.Begin(ctx, "a", 0, 1))(b)
	memory, cpu := cost(b, s)

	c := mustNew(b, Config{BlockSize: 64, Fresh: true, MaxRecords: 1 << 21})
	state, bytes, journal, last := map[store.MapKey][]byte{}, 0, 0, 0
	var parts []string
	seq, came := uint64(0), 0
	var final event.Batch // the first message of the next owner
	filling(blocks, func(m event.Batch) {
		if came >= blocks+blocks/4-64 {
			final = m
			return
		}
		came += 64
		seq++
		must.OK(b, c.Apply(ctx, &m, nil))
		ch := must.Get(c.Take(ctx, seq, nil))(b)
		if kind == "journal" {
			for _, op := range ch.Map {
				bytes -= len(state[op.MapKey])
				if op.Value == nil {
					delete(state, op.MapKey)
					continue
				}
				state[op.MapKey] = append([]byte{}, op.Value...)
				bytes += len(op.Value)
			}
		}
		if kind != "map" {
			ch.Map = nil
		}
		must.OK(b, x.Apply(ctx, ch.AppendBatches(nil, store.Batch{Pod: "a", Model: "m", Guard: &store.Guard{Generation: gen, Fence: 1, Seq: seq}})...))
		c.Done()
		if kind != "journal" {
			return
		}
		var message []byte
		for i := range m.Events {
			message = appendEvent(message, &m.Events[i])
		}
		must.OK(b, plain.RPush(ctx, "journal", message).Err())
		if journal += len(message); journal < max(1<<20, last/2) {
			return
		}
		var part []byte
		n := 0
		flush := func() {
			name := fmt.Sprintf("checkpoint:%d", n)
			must.OK(b, plain.Set(ctx, name, part, 0).Err())
			if n++; n > len(parts) {
				parts = append(parts, name)
			}
			part = part[:0]
		}
		last = 0
		for k, v := range state {
			part = binary.LittleEndian.AppendUint64(part, k.Hash)
			part = binary.AppendUvarint(part, uint64(k.Part))
			part = append(append(part, byte(len(v))), v...)
			last += 10 + len(v)
			if len(part) > checkpointPart {
				flush()
			}
		}
		flush()
		for _, name := range parts[n:] {
			must.OK(b, plain.Unlink(ctx, name).Err())
		}
		parts = parts[:n]
		must.OK(b, plain.Unlink(ctx, "journal").Err())
		journal = 0
	})
	memoryNow, cpuNow := cost(b, s)
	b.ReportMetric((memoryNow-memory)/float64(blocks), "server-B/block")
	b.ReportMetric((cpuNow-cpu)/float64(came)*1e9, "server-ns/block")
	if kind == "none" {
		return
	}

	// Another process takes over.
	y := must.Get(redis.Open(redis.Config{URL: s.URL(), NoSweep: true, DialTimeout: 20 * time.Second, Timeout: 20 * time.Second}))(b)
	defer func() { _ = y.Close() }()
	begin := time.Now()
	must.Get(y.TakeOver(ctx, gen, 2))(b)
	next := mustNew(b, Config{BlockSize: 64, MaxRecords: 1 << 21})
	read := Reader(func(ctx context.Context, keys ...store.MapKey) ([][]byte, error) { return y.ReadMap(ctx, gen, keys...) })
	if kind == "journal" {
		read = readJournal(b, plain, parts, next)
	}
	must.OK(b, next.Apply(ctx, &final, read))
	must.Get(next.Take(ctx, seq+1, read))(b)
	b.ReportMetric(float64(time.Since(begin).Microseconds())/1000, "takeover-ms")
}

// readJournal reads the last checkpoint, and makes a Chunker do again what came after it.
func readJournal(b *testing.B, c *goredis.Client, parts []string, next *Chunker) Reader {
	ctx := b.Context()
	kept := map[store.MapKey][]byte{}
	for _, name := range parts {
		part := must.Get(c.Get(ctx, name).Bytes())(b)
		for len(part) > 0 {
			k := store.MapKey{Hash: binary.LittleEndian.Uint64(part)}
			p, n := binary.Uvarint(part[8:])
			k.Part = uint16(p)
			part = part[8+n:]
			kept[k] = part[1 : 1+part[0]]
			part = part[1+part[0]:]
		}
	}
	read := func(_ context.Context, keys ...store.MapKey) ([][]byte, error) {
		out := make([][]byte, len(keys))
		for i, k := range keys {
			out[i] = kept[k]
		}
		return out, nil
	}
	const step = 256 // messages at a time
	for from := int64(0); ; from += step {
		messages := must.Get(c.LRange(ctx, "journal", from, from+step-1).Result())(b)
		for i, text := range messages {
			m := readEvents([]byte(text))
			must.OK(b, next.Apply(ctx, &m, read))
			ch := must.Get(next.Take(ctx, uint64(from)+uint64(i)+1, read))(b)
			for _, op := range ch.Map {
				if op.Value == nil {
					delete(kept, op.MapKey)
				} else {
					kept[op.MapKey] = append([]byte{}, op.Value...)
				}
			}
			next.Done()
		}
		if len(messages) < step {
			return read
		}
	}
}
