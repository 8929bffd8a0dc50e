package rechunk

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

func with(e event.Event, f func(*event.Event)) event.Event {
	f(&e)
	return e
}

// TestReasons: what cannot be indexed is counted with its reason, credits nothing,
// and what follows it has no parent.
func TestReasons(t *testing.T) {
	four := count(0, 64)
	for _, c := range []struct {
		what   string
		reason Reason
		blocks uint64
		e      event.Event
	}{
		{"a parent that nobody knows", NoParent, 2, storedOf(four, 16, 2)},
		{"no tokens", NoTokens, 1, event.Event{Kind: event.Stored, Hashes: []event.Hash{7}}},
		{"no block size", Masked, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.BlockSize = 0 })},
		{"masked", Masked, 2, with(storedOf(four, 16, 0), func(e *event.Event) { e.Hashes = e.Hashes[2:] })},
		{"one token too many", Masked, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Tokens = count(0, 65) })},
		{"pairs without the last", Masked, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Bigram = true })},
		{"a window", NoPrefix, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Spec = "sliding_window" })},
		{"another model's", NoPrefix, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Spec = "cross_attention" })},
		{"a second group of no kind", NoPrefix, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Group = 1 })},
		{"a medium", UnknownMedium, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Medium = "tape" })},
		{"an adapter's number", UnnamedLoRA, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.LoRAID = 3 })},
		{"an object that is none", Unplaced, 1, with(storedOf(four, 16, 0), func(e *event.Event) {
			e.Extra = []event.Extra{{}, {}, {}, {Objects: []event.Object{{}}}}
		})},
		{"more objects than there can be", Unplaced, 1, with(storedOf(four, 16, 0), func(e *event.Event) {
			e.Extra = []event.Extra{{}, {}, {}, {Objects: slices.Repeat([]event.Object{{ID: "a", Hash: 1}}, maxObjects+1)}}
		})},
		{"a group that cannot be", OverLimit, 4, with(storedOf(four, 16, 0), func(e *event.Event) { e.Group = 256; e.Spec = "mla" })},
		{"a block of 8193", OverLimit, 1, storedOf(count(0, MaxEngineBlock+1), MaxEngineBlock+1, 0)},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := play(t, Config{BlockSize: 64})
			p.do(&event.Batch{Events: []event.Event{c.e}})
			p.want(c.what, store.GPU)
			var want [NumReasons]uint64
			want[c.reason] = c.blocks
			if s := p.c.Stats(); s.Skipped != want || s.Stored != uint64(len(c.e.Hashes)) {
				t.Errorf("counted %+v, want %v %d times", s, c.reason, c.blocks)
			}
			// Its blocks are removed, and a child comes.
			p.do(&event.Batch{Events: []event.Event{with(storedOf(count(0, 16*200), 16, 199), func(e *event.Event) { e.Group, e.Spec = 7, "mla" }), removed(c.e.Hashes...)}})
			p.want(c.what, store.GPU)
			if s := p.c.Stats(); s.Skipped[NoParent] != want[NoParent]+1 {
				t.Errorf("the child of what is not known: %+v", s)
			}
			if strings.Contains(c.reason.String(), "unknown") != (c.reason == UnknownMedium) {
				t.Errorf("reason %d has no name", c.reason)
			}
		})
	}
	if s := Reason(NumReasons).String(); s != "unknown" {
		t.Errorf("a reason that is none is %q", s)
	}
}

// TestCopies: what a repetition is.
func TestCopies(t *testing.T) {
	tokens := count(0, 64)
	hashes := prompt(tokens, 16)
	all, last := storedOf(tokens, 16, 0), storedOf(tokens, 16, 3)
	lone := all
	lone.Hashes, lone.Tokens = lone.Hashes[:1], lone.Tokens[:16]
	next, loneNext := storedOf(count(0, 80), 16, 4), storedOf(tokens, 16, 1)
	for _, c := range []struct {
		what            string
		again           []event.Event
		gone            event.Hash
		infer, all, not int // index blocks after one removal
	}{
		{"all from the root, and nothing behind it", []event.Event{all}, hashes[3], 4, 4, 3},
		{"all from the root, and what is computed behind it", []event.Event{all, removed(9), next}, hashes[3], 4, 5, 4},
		{"the same twice, at first with nothing behind it", []event.Event{all, lone, all, next}, hashes[3], 4, 5, 4},
		{"the same, and nothing behind the second", []event.Event{all, next, all}, hashes[3], 4, 5, 4},
		{"the last, computed again", []event.Event{last}, hashes[3], 4, 4, 3},
		{"a prompt of one block", []event.Event{lone}, hashes[0], 4, 4, 3},
		{"one block and what is computed behind it", []event.Event{lone, loneNext}, hashes[0], 4, 4, 3},
		{"one block where reports are known", []event.Event{all, next, lone}, hashes[0], 4, 5, 4},
		{"the prompt and more", []event.Event{storedOf(count(0, 80), 16, 0)}, hashes[2], 5, 5, 4},
	} {
		for policy, want := range map[Copies]int{InferCopies: c.infer, AllCopies: c.all, NoCopies: c.not} {
			p := play(t, Config{BlockSize: 16, Copies: policy})
			p.do(&event.Batch{Events: []event.Event{all}})
			p.do(&event.Batch{Events: append(slices.Clone(c.again), removed(c.gone))})
			if len(p.sink.held) != want {
				t.Errorf("%s, policy %d: %d index blocks are held, want %d", c.what, policy, len(p.sink.held), want)
			}
		}
	}
}

// TestLMCache: chunks of 256 with 257 tokens, the last one short. They have hashes of
// their own beside those of the GPU, and no end of them is told.
func TestLMCache(t *testing.T) {
	tokens := count(0, 600)
	p := play(t, Config{BlockSize: 64})
	p.do(&event.Batch{Events: []event.Event{storedOf(tokens, 16, 0)}})
	var parent event.Hash
	for at := 0; at < len(tokens); at += 256 {
		end := min(at+256, len(tokens))
		e := event.Event{
			Kind: event.Stored, Medium: "cpu", BlockSize: end - at, Tokens: tokens[at:min(end+1, len(tokens))],
			Hashes: []event.Hash{event.Hash(1000 + at)}, HasParent: at > 0, Parent: parent,
		}
		parent = e.Hashes[0]
		p.do(&event.Batch{Events: []event.Event{e}})
	}
	p.want("chunks", store.CPU, native(600, 64)...)
	p.want("blocks", store.GPU, native(592, 64)...)
	p.do(&event.Batch{Events: []event.Event{removed(prompt(tokens, 16)...)}})
	p.want("chunks", store.CPU, native(600, 64)...)
	p.want("blocks", store.GPU)
}

// TestUnchained: an engine that names a page by its tokens alone is never credited for
// what it may not have. It comes right when the hash is free again.
func TestUnchained(t *testing.T) {
	hash := func(tokens []uint32) event.Hash { return hashOf(0, tokens) }
	p := play(t, Config{BlockSize: 16})
	a, b, x := count(0, 16), count(100, 16), count(200, 16)
	do := func(parent []uint32, tokens []uint32) {
		e := event.Event{Kind: event.Stored, BlockSize: 16, Tokens: tokens, Hashes: []event.Hash{hash(tokens)}}
		if parent != nil {
			e.HasParent, e.Parent = true, hash(parent)
		}
		p.do(&event.Batch{Events: []event.Event{e}})
	}
	key := func(pages ...[]uint32) blockkey.Key {
		k := blockkey.AppendNative(nil, slices.Concat(pages...), 16, blockkey.NativeSeed("", ""))
		return k[len(k)-1]
	}
	do(nil, a)
	do(a, x)
	p.want("one place", store.GPU, key(a), key(a, x))
	do(nil, b)
	do(b, x) // x is at two places
	p.want("two places", store.GPU, key(a), key(b))
	do(x, count(300, 16))
	p.want("behind it", store.GPU, key(a), key(b))
	if s := p.c.Stats(); s.Conflicts != 1 || s.Skipped[Ambiguous] != 2 {
		t.Errorf("counted %+v", s)
	}
	p.do(&event.Batch{Events: []event.Event{removed(hash(x))}})
	do(a, x) // which of them is it?
	p.want("one of two", store.GPU, key(a), key(b))
	p.do(&event.Batch{Events: []event.Event{removed(hash(x), hash(x))}})
	do(b, x)
	p.want("free again", store.GPU, key(a), key(b), key(b, x))
}

// TestUnchainedRandom: pages named by their tokens alone, anywhere. What is credited
// is what the engine has at that place, whatever is lost.
func TestUnchainedRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 3).Draw(t, "page")
		r := newRig(t, Config{BlockSize: 4, Copies: AllCopies})
		// What the engine has: nodes by their whole prefix, each counted once.
		have := map[string]event.Event{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			var e event.Event
			if len(have) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				var names []string
				for n := range have {
					names = append(names, n)
				}
				slices.Sort(names)
				n := rapid.SampledFrom(names).Draw(t, "node")
				e = removed(have[n].Hashes...)
				delete(have, n)
			} else {
				var path []uint32
				for range rapid.IntRange(1, 5).Draw(t, "depth") * size {
					path = append(path, uint32(rapid.IntRange(1, 2).Draw(t, "token")))
				}
				own := path[len(path)-size:]
				e = event.Event{Kind: event.Stored, BlockSize: size, Tokens: own, Hashes: []event.Hash{hashOf(0, own)}}
				if rest := path[:len(path)-size]; len(rest) > 0 {
					e.HasParent, e.Parent = true, hashOf(0, rest[len(rest)-size:])
				}
				name := string(tokenBytes(path))
				if _, ok := have[name]; ok {
					continue
				}
				if _, ok := have[name[:len(name)-size]]; !ok && len(name) > size {
					continue // an engine has the parent of what it stores
				}
				have[name] = e
			}
			r.seq++
			must.OK(t, r.c.Apply(t.Context(), &event.Batch{Events: []event.Event{e}}, r.read))
			ch := must.Get(r.c.Take(t.Context(), r.seq, r.read))(t)
			r.sink.write(t, ch)
			r.c.Done()
			r.check()
			if rapid.IntRange(0, 4).Draw(t, "take over") == 0 {
				r.takeOver()
			}
			// A key is right when nodes of its path cover all of its last index block.
			right := map[blockkey.Key]bool{}
			for name := range have {
				tokens := tokensIn(name)
				for end := 4; end <= len(tokens); end += 4 {
					whole := true
					for at := end - 4; at < end; at++ {
						node := min((at/size+1)*size, len(tokens))
						_, ok := have[string(tokenBytes(tokens[:node]))]
						whole = whole && ok
					}
					if whole {
						k := blockkey.AppendNative(nil, tokens[:end], 4, blockkey.NativeSeed("", ""))
						right[k[len(k)-1]] = true
					}
				}
			}
			for k := range r.sink.held {
				if !right[k.key] {
					t.Fatalf("%v is held by mistake", k.key)
				}
			}
		}
	})
}

func tokenBytes(tokens []uint32) (b []byte) {
	for _, t := range tokens {
		b = append(b, byte(t))
	}
	return b
}

func tokensIn(name string) (tokens []uint32) {
	for _, c := range []byte(name) {
		tokens = append(tokens, uint32(c))
	}
	return tokens
}

// TestObjects: keys are those of the prompt with its images, however the engine's
// blocks cut it, in any order of arrival.
func TestObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "engine block")
		tokens := count(0, 40)
		var objects []blockkey.Object
		for at := rapid.IntRange(0, 9).Draw(t, "first"); at < 40; {
			n := rapid.IntRange(1, 15).Draw(t, "length")
			objects = append(objects, blockkey.Object{Hash: uint64(1 + len(objects)), Ranges: []blockkey.Range{{Start: at, End: at + n}}})
			at += n + rapid.IntRange(1, 9).Draw(t, "text")
		}
		c := blockkey.Chain{BlockSize: 8, Seed: blockkey.NativeSeed("", "")}
		want := map[credit]bool{}
		for _, k := range c.AppendObjects(nil, tokens, objects) {
			want[credit{store.GPU, k}] = true
		}
		e := storedOf(tokens, size, 0)
		for i := range e.Hashes {
			var x event.Extra
			for _, o := range objects {
				if r := o.Ranges[0]; r.Start < (i+1)*size && r.End > i*size {
					x.Objects = append(x.Objects, event.Object{ID: "image", Hash: o.Hash, Offset: r.Start - i*size})
				}
			}
			e.Extra = append(e.Extra, x)
		}
		r := newRig(t, Config{BlockSize: 8})
		cut := rapid.IntRange(0, len(e.Hashes)).Draw(t, "cut")
		head, tail := e, e
		head.Hashes, head.Tokens, head.Extra = e.Hashes[:cut], e.Tokens[:cut*size], e.Extra[:cut]
		tail.Hashes, tail.Tokens, tail.Extra = e.Hashes[cut:], e.Tokens[cut*size:], e.Extra[cut:]
		if cut > 0 {
			tail.HasParent, tail.Parent = true, e.Hashes[cut-1]
		}
		do := func(e event.Event) {
			t.Helper()
			if len(e.Hashes) == 0 {
				return
			}
			r.seq++
			must.OK(t, r.c.Apply(t.Context(), &event.Batch{Events: []event.Event{e}}, r.read))
			ch := must.Get(r.c.Take(t.Context(), r.seq, r.read))(t)
			r.sink.write(t, ch)
			r.c.Done()
			r.check()
			r.takeOver()
		}
		do(head)
		do(tail)
		if d := diff(r.sink.held, want); d != "" {
			t.Fatal(d)
		}
		// One goes and comes back.
		i := rapid.IntRange(1, len(e.Hashes)-1).Draw(t, "gone")
		do(removed(e.Hashes[i]))
		back := e
		back.Hashes, back.Tokens, back.Extra, back.HasParent, back.Parent = e.Hashes[i:i+1], e.Tokens[i*size:(i+1)*size], e.Extra[i:i+1], true, e.Hashes[i-1]
		do(back)
		if d := diff(r.sink.held, want); d != "" {
			t.Fatalf("come back: %s", d)
		}
		if s := r.c.Stats(); s.Conflicts > 0 {
			t.Fatalf("%d conflicts", s.Conflicts)
		}
	})
}

// TestObjectsOfLargeBlocks: of an object in a block of several index blocks it is
// not told where it ends.
func TestObjectsOfLargeBlocks(t *testing.T) {
	for _, c := range []struct {
		offset, blocks int
	}{{130, 3}, {128, 3}, {127, 0}, {0, 0}, {-1, 0}} {
		p := play(t, Config{BlockSize: 64})
		e := storedOf(count(0, 192), 192, 0)
		e.Extra = []event.Extra{{Objects: []event.Object{{ID: "a", Hash: 5, Offset: c.offset}}}}
		p.do(&event.Batch{Events: []event.Event{e}})
		if len(p.sink.held) != c.blocks {
			t.Errorf("an object at %d: %d index blocks, want %d", c.offset, len(p.sink.held), c.blocks)
		}
	}
}

// TestReadFails: nothing is taken in or taken out, and it goes on afterwards.
func TestReadFails(t *testing.T) {
	r := newRig(t, Config{BlockSize: 64})
	tokens := count(0, 400)
	r.do(storedOf(tokens[:200], 100, 0))
	r.takeOver()
	want := map[credit]bool{}
	for k := range r.sink.held {
		want[k] = true
	}
	boom := errors.New("boom")
	e := storedOf(tokens, 100, 2)
	r.sink.fail = boom
	if err := r.c.Apply(t.Context(), &event.Batch{Events: []event.Event{e}}, r.read); !errors.Is(err, boom) || !errors.Is(err, ErrRead) {
		t.Fatalf("Apply: %v", err)
	}
	r.sink.fail = nil
	r.apply(e)
	r.sink.fail = boom
	if _, err := r.c.Take(t.Context(), 2, r.read); !errors.Is(err, boom) || !errors.Is(err, ErrRead) {
		t.Fatalf("Take: %v", err)
	}
	if d := diff(r.sink.held, want); d != "" {
		t.Fatal(d)
	}
	r.sink.fail = nil
	r.write()
	if _, err := mustNew(t, Config{BlockSize: 64}).Take(t.Context(), 1, nil); err != nil {
		t.Fatal(err) // nothing to take, nothing to read
	}
	short := func(context.Context, ...store.MapKey) ([][]byte, error) { return nil, nil }
	if err := mustNew(t, Config{BlockSize: 64}).Apply(t.Context(), &event.Batch{}, short); !errors.Is(err, ErrRead) {
		t.Fatalf("an answer too short: %v", err)
	}
}

func TestTorn(t *testing.T) {
	r := newRig(t, Config{BlockSize: 64})
	for _, want := range []bool{false, true} {
		if torn, err := Torn(t.Context(), 0, r.read); torn != want || err != nil {
			t.Fatalf("torn is %v, %v; want %v", torn, err, want)
		}
		r.do(storedOf(count(0, 64), 16, 0))
	}
	if torn, err := Torn(t.Context(), r.seq, r.read); torn || err != nil {
		t.Fatalf("torn is %v, %v", torn, err)
	}
	r.sink.fail = errors.New("boom")
	if _, err := Torn(t.Context(), 1, r.read); err == nil {
		t.Fatal("no error")
	}
}

// TestFewReads: a process that takes over reads a little for each message, and one
// that has begun the generation nothing.
func TestFewReads(t *testing.T) {
	r := newRig(t, Config{BlockSize: 64})
	tokens := count(0, 6400)
	for i := 0; i < 400; i += 4 {
		e := storedOf(tokens[:(i+4)*16], 16, i)
		must.OK(t, r.c.Apply(t.Context(), &event.Batch{Events: []event.Event{e}}, nil))
	}
	r.write0()
	r.takeOver()
	r.sink.reads = 0
	e := storedOf(count(0, 12800), 16, 399)
	must.OK(t, r.c.Apply(t.Context(), &event.Batch{Events: []event.Event{e, removed(prompt(tokens, 16)...)}}, r.read))
	if s := r.c.Stats(); s.Reads > 6 || s.Reads != uint64(r.sink.reads) {
		t.Errorf("%d reads for a message of 800 blocks", s.Reads)
	}
}

// write0 writes without comparing.
func (r *rig) write0() {
	ch := must.Get(r.c.Take(r.t.Context(), r.seq, r.read))(r.t)
	r.sink.write(r.t, ch)
	r.c.Done()
	r.unwritten = nil
}

// TestBounded: memory keeps to its limit while a thousand times that goes through,
// and after a clear the map becomes empty.
func TestBounded(t *testing.T) {
	p := play(t, Config{BlockSize: 64, MaxRecords: 500})
	for _, m := range stream(16, 1000) {
		p.do(&m)
		if n := p.c.blocks.n; n > 500 {
			t.Fatalf("%d records", n)
		}
	}
	q := play(t, Config{BlockSize: 64, MaxRecords: 100_000})
	for _, m := range stream(100, 300) {
		q.do(&m)
	}
	q.do(&event.Batch{Events: []event.Event{{Kind: event.Cleared}}})
	for range 50 {
		q.do(&event.Batch{})
	}
	for k := range q.sink.kept {
		if k != metaKey && k != markKey && k.Hash != formHash {
			t.Fatalf("the map has %d entries after a clear", len(q.sink.kept))
		}
	}
	if s := q.c.Stats(); s.Records != 0 || len(q.c.shares) != 0 || len(q.sink.held) != 0 {
		t.Fatalf("after a clear there are %d records, %d shares", s.Records, len(q.c.shares))
	}
}

func TestConfig(t *testing.T) {
	for what, c := range map[string]Config{
		"no block size": {}, "a large one": {BlockSize: MaxIndexBlock + 1}, "few records": {BlockSize: 1, MaxRecords: 1}, "copies": {BlockSize: 1, Copies: 9},
	} {
		if _, err := New(c); !errors.Is(err, errConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestChunks: tokens of all widths come back.
func TestChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		tokens := make([]uint32, 1+r.IntN(300))
		shift := r.IntN(33)
		for i := range tokens {
			tokens[i] = uint32(uint64(r.Uint32()) >> shift)
		}
		var got []uint32
		n := 0
		for rest := tokens; len(rest) > 0; n++ {
			count, width := chunkOf(rest)
			v := appendChunk(nil, rest[:count], width)
			if len(v) > store.MaxMapValue {
				t.Fatalf("a chunk of %d bytes", len(v))
			}
			var ok bool
			if got, ok = decodeChunk(got, v); !ok {
				t.Fatalf("%x is no chunk", v)
			}
			rest = rest[count:]
		}
		if !slices.Equal(got, tokens) || n != chunks(tokens) {
			t.Fatalf("%v became %v", tokens, got)
		}
	}
}

// TestRunsBeginAnew: a run ends and begins again before it is written. It does not go on
// with entries of tokens that the former one has left in the map.
func TestRunsBeginAnew(t *testing.T) {
	const size, index = 16, 64
	chain, other := count(1<<16, index), count(1<<17, index) // so wide that 29 tokens fill an entry
	fork := slices.Concat(chain[:size], other[size:])
	for what, c := range map[string]struct {
		before, after []event.Event
		then          []uint32
	}{
		"a tail, shorter": {
			[]event.Event{storedOf(chain[:3*size], size, 0)},
			[]event.Event{removed(prompt(chain[:3*size], size)...), storedOf(chain[:size], size, 0)},
			chain,
		},
		"a tail, with other tokens": {
			[]event.Event{storedOf(chain[:3*size], size, 0)},
			[]event.Event{removed(prompt(chain[:3*size], size)...), storedOf(fork[:3*size], size, 0)},
			fork,
		},
		"a branch, shorter": {
			[]event.Event{storedOf(chain[:3*size], size, 0), storedOf(fork[:3*size], size, 1)},
			[]event.Event{removed(prompt(fork[:3*size], size)[1:]...), storedOf(fork[:2*size], size, 1)},
			fork,
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, Config{BlockSize: index})
			r.do(c.before...)
			r.do(c.after...)
			r.takeOver() // by a process that has nothing but the map
			r.do(storedOf(c.then, size, 1))
			r.want(store.GPU, 1)
		})
	}
}

// TestClearOfWhatIsHeldElsewhere: a block keeps its place when the tier is cleared that it was
// present in. Another tier has copies of it then that a group lacks.
func TestClearOfWhatIsHeldElsewhere(t *testing.T) {
	for _, size := range []int{7, 1} { // the block ends an index block, or is a part of one
		r := newRig(t, Config{BlockSize: 2, Copies: AllCopies})
		tokens := count(1, 7)
		in := func(medium string, group int, e event.Event) event.Event {
			e.Medium, e.Group, e.Spec = medium, group, "full_attention"
			return e
		}
		all := func() event.Event { return storedOf(tokens, size, 0) }
		r.do(in("CPU", 0, all()), in("CPU", 1, all()), in("GPU", 0, all()))
		r.do(in("CPU", 0, removed(prompt(tokens, size)...)))
		r.do(event.Event{Kind: event.Cleared, Medium: "GPU"})
		r.want(store.GPU, 0)
		r.takeOver()
		r.do(in("GPU", 0, all()))
		r.want(store.GPU, 3)
		r.do(in("CPU", 0, all()))
		r.want(store.CPU, 3)
		if s := r.c.Stats(); s.Conflicts != 0 {
			t.Errorf("engine blocks of %d: %d conflicts", size, s.Conflicts)
		}
	}
}

// TestUnseen has an engine report what it held before it was heard. How many copies there are
// of a block cannot be told then, until it clears its cache.
func TestUnseen(t *testing.T) {
	tokens := count(0, 96)
	hashes := prompt(tokens, 16)
	all, more := storedOf(tokens[:64], 16, 0), storedOf(tokens[:80], 16, 0)
	more.Hashes = hashes[:5]
	head := storedOf(tokens[:16], 16, 0)
	shown := []event.Event{all, storedOf(tokens[:80], 16, 4)} // a report for certain, where all is held
	orphan := storedOf(count(5000, 32), 16, 1)                // behind an unknown block
	gone := removed(hashes[0])
	for what, c := range map[string]struct {
		late   bool
		events []event.Event
		held   int // index blocks after one removal of the first
	}{
		"computed, as the last is gone":            {false, []event.Event{all, all, shown[1], removed(hashes[4]), more, gone}, 5},
		"joined late, the last was not told":       {true, []event.Event{all, all, shown[1], removed(hashes[4]), more, gone}, 4},
		"joined late, before a report is certain":  {true, []event.Event{all, more, all, shown[1], gone}, 4},
		"joined late, and cleared":                 {true, []event.Event{{Kind: event.Cleared}, all, all, shown[1], removed(hashes[4]), more, gone}, 5},
		"joined late, two stores of what has none": {true, []event.Event{head, gone}, 0},
		"a block was left out":                     {false, []event.Event{all, all, shown[1], orphan, removed(hashes[4]), more, gone}, 4},
	} {
		t.Run(what, func(t *testing.T) {
			p := play(t, Config{BlockSize: 16})
			if c.late {
				p.c.NoteUnseen()
			}
			for i := 0; i < len(c.events); i++ {
				batch := c.events[i : i+1]
				if i+1 < len(c.events) && slices.Equal(c.events[i+1].Hashes, shown[1].Hashes) { // a report and what follows it are one message
					batch = c.events[i : i+2]
					i++
				}
				p.do(&event.Batch{Events: batch})
				p.c = mustNew(t, Config{BlockSize: 16}) // the next owner judges alike
			}
			if len(p.sink.held) != c.held {
				t.Errorf("%d index blocks are held, want %d", len(p.sink.held), c.held)
			}
		})
	}
}

// TestAlone: a Chunker that is alone tells others to leave its generation, and writes all of
// it once there is too much.
func TestAlone(t *testing.T) {
	r := newRig(t, Config{BlockSize: 64, Alone: true})
	r.c.config.MaxRecords = 8 // below what New allows
	tokens := count(0, 640)
	r.do(storedOf(tokens[:128], 16, 0))
	if torn, err := Torn(t.Context(), r.seq, r.read); !torn || err != nil || !r.c.Alone() {
		t.Fatalf("torn is %v, %v; alone is %v", torn, err, r.c.Alone())
	}
	r.do(storedOf(tokens, 16, 8))
	if torn, err := Torn(t.Context(), r.seq, r.read); torn || err != nil || r.c.Alone() {
		t.Fatalf("torn is %v, %v; alone is %v", torn, err, r.c.Alone())
	}
	r.takeOver()
	r.do(removed(prompt(tokens, 16)[5]))
	r.want(store.GPU, 9)
	next := mustNew(t, Config{BlockSize: 64, Alone: true}) // not of a generation that has begun before
	if next.Alone() {
		t.Fatal("a Chunker that is not fresh is alone")
	}
}
