package rechunk

import (
	"cmp"
	"context"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink is an index and a map in the plainest way.
type sink struct {
	held map[credit]bool
	kept map[store.MapKey]string
	// reads counts calls; fail, when not nil, is what they return.
	reads int
	fail  error
}

func newSink() *sink { return &sink{held: map[credit]bool{}, kept: map[store.MapKey]string{}} }

func (s *sink) read(_ context.Context, keys ...store.MapKey) ([][]byte, error) {
	s.reads++
	if s.fail != nil {
		return nil, s.fail
	}
	out := make([][]byte, len(keys))
	for i, k := range keys {
		if v, ok := s.kept[k]; ok {
			out[i] = []byte(v)
		}
	}
	return out, nil
}

func (s *sink) write(t failer, ch Changes) {
	t.Helper()
	for _, b := range ch.AppendBatches(nil, store.Batch{Pod: "p", Model: "m", Guard: &store.Guard{Generation: 1, Fence: 1, Seq: 1}}) {
		if err := b.Validate(); err != nil {
			t.Fatalf("the batch is refused: %v", err)
		}
	}
	for _, op := range ch.Ops {
		switch op.Kind {
		case store.Clear:
			for k := range s.held {
				if k.tier.Memory() == op.Tier {
					delete(s.held, k)
				}
			}
		case store.Add:
			for _, k := range op.Keys {
				s.held[credit{op.Tier, k}] = true
			}
		case store.Remove:
			for _, k := range op.Keys {
				delete(s.held, credit{op.Tier, k})
			}
		}
	}
	for _, op := range ch.Map {
		if op.Value == nil {
			delete(s.kept, op.MapKey)
		} else {
			s.kept[op.MapKey] = string(op.Value)
		}
	}
}

// hashOf is the hash of an engine's block: chained.
func hashOf(parent event.Hash, tokens []uint32) event.Hash {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, uint64(parent))
	_ = binary.Write(h, binary.LittleEndian, tokens)
	return event.Hash(h.Sum64())
}

// prompt makes the hashes of the blocks of tokens, without parent.
func prompt(tokens []uint32, size int) (hashes []event.Hash) {
	var parent event.Hash
	for ; len(tokens) >= size; tokens = tokens[size:] {
		parent = hashOf(parent, tokens[:size])
		hashes = append(hashes, parent)
	}
	return hashes
}

// storedOf is a Stored of the blocks from the one with number from on.
func storedOf(tokens []uint32, size, from int) event.Event {
	hashes := prompt(tokens, size)
	e := event.Event{Kind: event.Stored, BlockSize: size, Hashes: hashes[from:], Tokens: tokens[from*size : len(hashes)*size]}
	if from > 0 {
		e.HasParent, e.Parent = true, hashes[from-1]
	}
	return e
}

func removed(hashes ...event.Hash) event.Event {
	return event.Event{Kind: event.Removed, Hashes: hashes}
}

// count makes tokens that ascend.
func count(from, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(from + i)
	}
	return t
}

func mustNew(t failer, c Config) *Chunker {
	t.Helper()
	ch := must.Get(New(c))(t)
	return ch
}

// rig has a Chunker, a sink and the model beside each other.
type rig struct {
	t     failer
	c     *Chunker
	sink  *sink
	model *model
	seq   uint64

	unwritten []*event.Batch
	// to writes elsewhere than to sink, and from reads there; nil is sink.
	to   func(Changes, uint64)
	from Reader
}

func newRig(t failer, c Config) *rig {
	c.Fresh = true
	return &rig{t: t, c: mustNew(t, c), sink: newSink(), model: newModel(c)}
}

func (r *rig) read(ctx context.Context, keys ...store.MapKey) ([][]byte, error) {
	if r.from != nil {
		return r.from(ctx, keys...)
	}
	return r.sink.read(ctx, keys...)
}

// takeOver replaces the Chunker by one that knows nothing, unless it is the only one that
// can go on.
func (r *rig) takeOver() {
	if r.c.Alone() {
		return
	}
	config := r.c.config
	config.Fresh, config.MaxRecords = false, MinRecords
	next := mustNew(r.t, config)
	if torn, err := Torn(r.t.Context(), r.seq-uint64(len(r.unwritten)), r.read); torn || err != nil {
		r.t.Fatalf("the map is torn: %v, %v", torn, err)
	}
	next.config.MaxRecords = r.c.config.MaxRecords // tests go below MinRecords
	r.c = next
	for _, b := range r.unwritten { // the owner before has not come to write these
		must.OK(r.t, r.c.Apply(r.t.Context(), b, r.read))
	}
}

// apply takes a message in without writing.
func (r *rig) apply(events ...event.Event) {
	r.t.Helper()
	b := &event.Batch{Events: events}
	must.OK(r.t, r.c.Apply(r.t.Context(), b, r.read))
	r.unwritten = append(r.unwritten, b)
	r.model.apply(b)
	r.seq++
}

// write writes what has been applied and compares.
func (r *rig) write() {
	r.t.Helper()
	ch := must.Get(r.c.Take(r.t.Context(), r.seq, r.read))(r.t)
	r.sink.write(r.t, ch)
	if r.to != nil {
		r.to(ch, r.seq)
	}
	r.c.Done()
	r.unwritten = nil
	r.check()
	if d := diff(r.sink.held, r.model.credits()); d != "" {
		r.t.Fatalf("after message %d: %s", r.seq, d)
	}
}

// do is apply and write.
func (r *rig) do(events ...event.Event) {
	r.t.Helper()
	r.apply(events...)
	r.write()
}

// want checks how many index blocks are held in a tier.
func (r *rig) want(tier store.Tier, n int) {
	r.t.Helper()
	have := 0
	for k := range r.sink.held {
		if k.tier == tier {
			have++
		}
	}
	if have != n {
		r.t.Fatalf("after message %d: %d index blocks in %v, want %d", r.seq, have, tier, n)
	}
}

// check holds what is in memory to the map, by writing and reading each record.
func (r *rig) check() {
	r.t.Helper()
	entries := 0
	for b := range r.c.blocks.all() {
		h := b.hash
		if b.dead {
			r.t.Fatalf("block %x is dead and still there", h)
		}
		if r.c.blocks.get(h) != b || r.c.blocks.at(int(b.number)) != b {
			r.t.Fatalf("block %x is not at its place", h)
		}
		if r.c.Alone() {
			continue
		}
		other := mustNew(r.t, Config{BlockSize: r.c.size})
		must.OK(r.t, other.load(r.t.Context(), r.sink.read, []uint64{h}))
		o := other.blocks.get(h)
		if o == nil {
			tail, branch := run{}, run{}
			if b.tail != nil {
				tail = *b.tail
			}
			if b.branch != nil {
				branch = *b.branch
			}
			r.t.Fatalf("block %x cannot be read back: %+v, tail %+v, branch %+v, record %x", h, b, tail, branch, r.sink.kept[store.MapKey{Hash: h}])
		}
		entries += int(b.stored.record) + int(b.stored.tokens[0]) + int(b.stored.tokens[1]) + int(b.stored.kids[0]) + int(b.stored.kids[1])
		if o.stored != b.stored {
			r.t.Fatalf("block %x has %+v entries, read %+v", h, b.stored, o.stored)
		}
		for i, x := range [2][2]*run{{b.tail, o.tail}, {b.branch, o.branch}} {
			if (x[0] == nil) != (x[1] == nil) {
				r.t.Fatalf("block %x: run %d is not what is written", h, i)
			}
			if x[0] != nil && (!slices.Equal(x[0].tokens, x[1].tokens) || !slices.Equal(x[0].ends, x[1].ends) || !slices.Equal(x[0].kids(), x[1].kids()) ||
				x[0].held != x[1].held || !x[0].placed.equal(&x[1].placed) || !sameSets(&x[0].present, &x[1].present) ||
				!sameSets(&x[0].lacking, &x[1].lacking) || x[0].branches() != x[1].branches()) {
				r.t.Fatalf("block %x: run %d is %+v, written as %+v", h, i, *x[0], *x[1])
			}
			if x[0] != nil {
				v := *x[0]
				if v.void(0); !v.placed.equal(&x[0].placed) {
					r.t.Fatalf("block %x: run %d has blocks at parts %+v, which are held or lacking at %+v", h, i, x[0].placed, v.placed)
				}
			}
		}
	}
	if r.c.Alone() {
		if _, marked := r.sink.kept[markKey]; !marked || len(r.sink.kept) > 1 {
			r.t.Fatalf("the map of a Chunker that is alone has %d entries, its mark: %v", len(r.sink.kept), marked)
		}
		return
	}
	aged := 0
	if r.c.complete {
		for k := range r.sink.kept {
			switch {
			case k == metaKey, k == markKey, k.Hash == formHash, k.Part == partShare, k.Hash == agingHash && k.Part&^7 == partAging:
			case k.Part&^7 == partAged:
				aged++
			default:
				entries--
			}
		}
		if entries != 0 {
			r.t.Fatalf("the map has %d entries too many", -entries)
		}
		for t := range r.c.agings {
			aged -= int(r.c.agings[t].head - r.c.agings[t].tail)
		}
		if aged != 0 {
			r.t.Fatalf("the map has %d numbered copies too many", aged)
		}
	}
}

func sameSets(a, b *tierSets) bool {
	for t := range numTiers {
		if !a.of(t).equal(b.of(t)) {
			return false
		}
	}
	return true
}

// failer is what testing.TB and rapid.T have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

func sortKeys(keys []store.MapKey) {
	slices.SortFunc(keys, func(a, b store.MapKey) int {
		return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Part, b.Part))
	})
}
