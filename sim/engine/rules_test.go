package engine

import (
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
)

// count returns the tokens from a to b.
func count(a, b int) (out []uint32) {
	for t := a; t < b; t++ {
		out = append(out, uint32(t))
	}
	return out
}

// finish runs an engine until nothing is left to do.
func finish(t *testing.T, e *Engine) Report {
	t.Helper()
	var r Report
	for at, ok := e.Due(); ok; at, ok = e.Due() {
		e.Advance(at, &r)
	}
	return r
}

// answer is finish for one more request, whose answer is of n tokens; it returns what was
// reused and the events.
func answer(t *testing.T, e *Engine, prompt []uint32, n int) (Hit, []event.Event) {
	t.Helper()
	id := e.counts.Requests + 1
	must.OK(t, e.Submit(e.until, Request{ID: id, Tokens: prompt, Output: count(1000, 1000+n)}))
	r := finish(t, e)
	var events []event.Event
	for _, b := range r.Batches {
		events = append(events, b.Events...)
	}
	for _, o := range r.Outputs {
		if o.ID == id && o.Last {
			return o.Hit, events
		}
	}
	t.Fatal("no answer")
	return Hit{}, nil
}

func started(t *testing.T, c Config) *Engine {
	t.Helper()
	return must.Get(New(c))(t)
}

// The first hashes of the tokens 0, 1, 2... are those of the engines themselves.
func TestHashes(t *testing.T) {
	for _, x := range []struct {
		config Config
		want   uint64
	}{
		// vLLM 0.33 without PYTHONHASHSEED, and SGLang 0.5.23, as they published them.
		{Config{Kind: VLLM}, digestEnd(t, "fe8fa5dda3210d0c")},
		{Config{Kind: SGLang}, 6738917275443968386},
	} {
		e := started(t, x.config)
		q := e.sequence(Request{Tokens: count(0, 16)})
		if x.config.Kind == VLLM {
			d := q.hasher.buf[0]
			if got := hex.EncodeToString(d[:8]); got != "fe8fa5dda3210d0c" || event.Hash(d.VLLMWire()) != q.keys[0] {
				t.Errorf("%v: the first block is %x and told as %x", x.config.Kind, d, q.keys[0])
			}
			continue
		}
		if q.keys[0] != event.Hash(x.want) {
			t.Errorf("%v: the first block is %d, want %d", x.config.Kind, q.keys[0], x.want)
		}
	}
}

func digestEnd(t *testing.T, s string) uint64 {
	t.Helper()
	b := must.Get(hex.DecodeString(s))(t)
	var n uint64
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// At least the last token of a prompt is computed.
func TestLastBlockIsComputedAgain(t *testing.T) {
	for _, k := range []Kind{VLLM, SGLang, TRTLLM} {
		e := started(t, Config{Kind: k})
		answer(t, e, count(0, 64), 1)
		for _, x := range []struct{ prompt, want int }{{64, 48}, {65, 64}, {63, 48}, {16, 0}, {17, 16}, {1, 0}} {
			if hit, _ := answer(t, e, count(0, x.prompt), 1); hit != (Hit{GPU: x.want}) {
				t.Errorf("%v: of %d tokens %+v were reused, want %d", k, x.prompt, hit, x.want)
			}
		}
	}
}

// vLLM computes the last block again into another block, and reports a second copy. A tree
// has one.
func TestCopies(t *testing.T) {
	for k, want := range map[Kind]int{VLLM: 2, SGLang: 1, TRTLLM: 1} {
		e := started(t, Config{Kind: k})
		_, first := answer(t, e, count(0, 32), 1)
		_, second := answer(t, e, count(0, 32), 1)
		last := first[0].Hashes[1]
		n := 0
		for _, ev := range slices.Concat(first, second) {
			for _, h := range ev.Hashes {
				if h == last && ev.Kind == event.Stored {
					n++
				}
			}
		}
		if n != want {
			t.Errorf("%v: block 1 was stored %d times, want %d", k, n, want)
		}
	}
}

// Two requests that come together share what the engine shares by then: vLLM what a step
// has room for, the others what was computed before.
func TestTwoAtOnce(t *testing.T) {
	for k, want := range map[Kind]int{VLLM: 48, SGLang: 0, TRTLLM: 0} {
		e := started(t, Config{Kind: k})
		for id := range uint64(2) {
			must.OK(t, e.Submit(0, Request{ID: id, Tokens: count(0, 64), Output: []uint32{1}}))
		}
		r := finish(t, e)
		if len(r.Outputs) != 2 || r.Outputs[1].Hit.GPU != want {
			t.Errorf("%v: %+v, want the second to reuse %d", k, r.Outputs, want)
		}
	}
}

// What was generated is in the cache too, but for the last token, which was not computed.
func TestAnswersAreReused(t *testing.T) {
	for _, k := range []Kind{VLLM, SGLang, TRTLLM} {
		for _, x := range []struct{ said, want int }{{16, 16}, {17, 32}, {18, 32}} {
			e := started(t, Config{Kind: k})
			answer(t, e, count(0, 16), x.said)
			next := slices.Concat(count(0, 16), count(1000, 1000+x.said), count(2000, 2010))
			if hit, _ := answer(t, e, next, 1); hit.GPU != x.want {
				t.Errorf("%v: behind an answer of %d tokens %+v is reused, want %d", k, x.said, hit, x.want)
			}
		}
	}
}

// The tail of a chain goes before its head; SGLang gives up a whole node at once.
func TestEviction(t *testing.T) {
	for k, want := range map[Kind]int{VLLM: 48, SGLang: 0, TRTLLM: 48} {
		e := started(t, Config{Kind: k, Blocks: 9 + int(1-min(k, 1))}) // vLLM keeps one
		answer(t, e, count(0, 96), 1)                                  // 6 blocks
		answer(t, e, count(500, 596), 1)                               // and 6 more
		if hit, _ := answer(t, e, count(0, 96), 1); hit.GPU != want {
			t.Errorf("%v: %+v is left, want %d", k, hit, want)
		}
	}
}

// The host has what the GPU has lost, and gives it back in the time that it takes.
func TestHost(t *testing.T) {
	for _, k := range []Kind{VLLM, SGLang, TRTLLM} {
		e := started(t, Config{Kind: k, Blocks: 10, HostBlocks: 40, Timing: Timing{Prefill: -1, Decode: -1, Host: time.Millisecond}})
		answer(t, e, count(0, 96), 1)
		answer(t, e, count(500, 630), 1) // 9 blocks
		before := e.until
		hit, _ := answer(t, e, count(0, 97), 1)
		if hit.Tokens() != 96 || hit.Host < 80 {
			t.Errorf("%v: %+v is reused, want 96 tokens, most of them from the host", k, hit)
		}
		if took := e.until - before; took != time.Duration(hit.Host)*time.Millisecond {
			t.Errorf("%v: it took %v to bring up %d tokens", k, took, hit.Host)
		}
		if again, _ := answer(t, e, count(0, 97), 1); again != (Hit{GPU: 96}) {
			t.Errorf("%v: afterwards %+v is reused", k, again)
		}
	}
}

// vLLM offloads prompts, not what was said to them. What comes up from the host may be all of a
// prompt, of which the last token is computed again.
func TestOffloadsPrompts(t *testing.T) {
	for k, want := range map[Kind][2]int{VLLM: {96, 96}, SGLang: {128, 80}, TRTLLM: {128, 80}} {
		for i, again := range [][]uint32{append(count(0, 96), count(1000, 1034)...), count(0, 96)} {
			e := started(t, Config{Kind: k, Blocks: 11, HostBlocks: 40})
			answer(t, e, count(0, 96), 33)   // says 1000 to 1032
			answer(t, e, count(500, 650), 1) // and the GPU has all but forgotten it
			hit, _ := answer(t, e, again, 1)
			if hit.Tokens() != want[i] || hit.Host < 16 {
				t.Errorf("%v, %d: %+v is reused, want %d tokens", k, i, hit, want[i])
			}
		}
	}
}

// The host of vLLM forgets tails before heads, and takes nothing where other blocks than a
// request's own cannot make room for all of it.
func TestHostOrder(t *testing.T) {
	held := func(e *Engine, tokens []uint32) int {
		e.Clear()
		return e.Reusable(Request{Tokens: tokens, Output: []uint32{1}}).Tokens()
	}
	a, b, c := count(0, 64), count(1000, 1064), count(2000, 2032)
	for _, x := range []struct {
		ask     [][]uint32
		a, b, c int
	}{
		{[][]uint32{a, b}, 64, 64, 0},
		{[][]uint32{a, b, c}, 32, 64, 32},
		{[][]uint32{a, b, count(0, 65), c}, 64, 32, 32},
		{[][]uint32{a, b, a, c}, 16, 64, 32}, // its last block came up, the others are not offered again
		{[][]uint32{a, b, c[:16], c[:16]}, 48, 64, 16},
		{[][]uint32{a, append(count(3000, 3064), append(count(4000, 4064), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)...)}, 64, 0, 0},
	} {
		e := started(t, Config{Blocks: 40, HostBlocks: 8})
		for _, tokens := range x.ask {
			answer(t, e, tokens, 1)
		}
		for _, y := range []struct {
			tokens []uint32
			want   int
		}{{a, x.a}, {b, x.b}, {c, x.c}} {
			if got := held(e, y.tokens); got != y.want {
				t.Errorf("%d requests: %d tokens of %d.. are held, want %d", len(x.ask), got, y.tokens[0], y.want)
			}
		}
	}
}

// What leaves the host goes to the disk.
func TestDisk(t *testing.T) {
	for _, k := range []Kind{VLLM, SGLang} {
		e := started(t, Config{Kind: k, Blocks: 10, HostBlocks: 8, DiskBlocks: 40})
		answer(t, e, count(0, 96), 1)
		answer(t, e, count(500, 630), 1)
		if hit, _ := answer(t, e, count(0, 97), 1); hit.Tokens() != 96 || hit.Disk < 80 {
			t.Errorf("%v: %+v is reused, want 96 tokens, most of them from the disk", k, hit)
		}
	}
}

// An idle vLLM does not report a clear before its next iteration.
func TestClear(t *testing.T) {
	for k, want := range map[Kind]int{VLLM: 0, SGLang: 1, TRTLLM: 1} {
		e := started(t, Config{Kind: k})
		answer(t, e, count(0, 64), 1)
		must.OK(t, e.Submit(e.until, Request{ID: 9, Tokens: count(0, 64), Output: []uint32{1, 2}}))
		e.Advance(e.until, &Report{})
		if e.Clear() {
			t.Errorf("%v: cleared under a request", k)
		}
		finish(t, e)
		if !e.Clear() {
			t.Errorf("%v: it is idle and was not cleared", k)
		}
		if r := finish(t, e); len(r.Batches) != want {
			t.Errorf("%v: %+v has a clear at once, want %d batches", k, r.Batches, want)
		}
		if hit, _ := answer(t, e, count(0, 64), 1); hit != (Hit{}) {
			t.Errorf("%v: %+v is reused of a cleared cache", k, hit)
		}
	}
}

// SGLang reports what happens while it only generates with its 40th iteration.
func TestEventsWhileGenerating(t *testing.T) {
	e := started(t, Config{Kind: SGLang, Blocks: 6, BlockSize: 4})
	answer(t, e, count(0, 12), 1)
	// Generating evicts the page of the prompt before.
	must.OK(t, e.Submit(e.until, Request{ID: 9, Tokens: count(50, 54), Output: count(100, 118)}))
	r := finish(t, e)
	if n := len(r.Batches); n != 2 || r.Batches[1].At != r.Outputs[17].At {
		t.Errorf("%d batches, the last at %v: want one of the prompt and one of the end", n, r.Batches[n-1].At)
	}
}

// The times are those of the model: prompts in chunks, and generation by how full it is.
func TestTiming(t *testing.T) {
	e := started(t, Config{Timing: Timing{Prefill: 1, Decode: 1}})
	must.OK(t, e.Submit(0, Request{ID: 1, Tokens: count(0, 10_000), Output: []uint32{1, 2}}))
	r := finish(t, e)
	ms := func(c, n float64) float64 {
		return prefillSquare*((c+n)*(c+n)-c*c) + prefillToken*n + prefillBatch
	}
	first := milliseconds(ms(0, 8192)) + milliseconds(ms(8192, 1808))
	if got := r.Outputs[0].At; got.Round(time.Microsecond) != first.Round(time.Microsecond) {
		t.Errorf("the first token comes after %v, want %v", got, first)
	}
	p := 10_000.0 / float64((1<<16-1)*16)
	second := milliseconds(-25.74*p*p + 54.01*p + 5.74)
	if got := r.Outputs[1].At - r.Outputs[0].At; got != second {
		t.Errorf("the second token takes %v, want %v", got, second)
	}
	if c := e.Stats().Counts; c.Busy != r.Outputs[1].At || c.Prefilling != r.Outputs[0].At {
		t.Errorf("%+v", c)
	}
}

// Where there is no room for another token the last that came waits again, and goes on
// with what is left of it. An engine that reserves lets it wait from the start.
func TestPreemption(t *testing.T) {
	for _, x := range []struct {
		config Config
		want   bool
	}{
		{Config{Kind: VLLM, Blocks: 11}, true},
		{Config{Kind: SGLang, Blocks: 10}, true},
		{Config{Kind: VLLM, Blocks: 11, Reserve: true}, false},
		{Config{Kind: TRTLLM, Blocks: 10}, false},
	} {
		e := started(t, x.config)
		for id := range 2 {
			must.OK(t, e.Submit(0, Request{ID: uint64(id), Tokens: count(100*id, 100*id+60), Output: count(1000, 1040)}))
		}
		r := finish(t, e)
		var said [2][]uint32
		for _, o := range r.Outputs {
			said[o.ID] = append(said[o.ID], o.Token)
		}
		if !slices.Equal(said[0], count(1000, 1040)) || !slices.Equal(said[1], count(1000, 1040)) {
			t.Errorf("%+v: the answers are %v", x.config, said)
		}
		if got := e.Stats().Preempted > 0; got != x.want {
			t.Errorf("%+v: preempted %d times", x.config, e.Stats().Preempted)
		}
		if n := e.Stats().Requests; n != 2 {
			t.Errorf("%+v: %d requests are counted", x.config, n)
		}
	}
}

// The same calls give the same outputs and events.
func TestDeterministic(t *testing.T) {
	for name, c := range configs() {
		run := func() Report {
			e := started(t, c)
			for id := range 40 {
				must.OK(t, e.Submit(time.Duration(id)*time.Millisecond, Request{ID: uint64(id), Tokens: count(id%7, id%7+30), Output: count(0, 9)}))
			}
			return finish(t, e)
		}
		if !reflect.DeepEqual(run(), run()) {
			t.Errorf("%s: two runs differ", name)
		}
	}
}

// A request that can never be done is refused, and one without room waits.
func TestSubmit(t *testing.T) {
	for _, k := range []Kind{VLLM, SGLang, TRTLLM} {
		e := started(t, Config{Kind: k, Blocks: 11})
		for _, x := range []struct {
			prompt, output int
			want           error
		}{{0, 1, ErrEmpty}, {1, 0, ErrEmpty}, {200, 1, ErrTooLong}, {1, 200, ErrTooLong}, {150, 10, nil}} {
			if err := e.Submit(0, Request{Tokens: count(0, x.prompt), Output: count(0, x.output)}); !errors.Is(err, x.want) {
				t.Errorf("%v: %d and %d tokens: %v, want %v", k, x.prompt, x.output, err, x.want)
			}
		}
		if got := e.Occupy(1 << 20); got < 10 {
			t.Errorf("%v: %d blocks can be occupied", k, got)
		}
		if r := finish(t, e); len(r.Outputs) > 0 || e.Stats().Waiting != 1 {
			t.Errorf("%v: a full cache has answered %d", k, len(r.Outputs))
		}
		e.Occupy(0)
		if r := finish(t, e); len(r.Outputs) != 10 {
			t.Errorf("%v: %d tokens of the answer", k, len(r.Outputs))
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Kind: 9}, {BlockSize: -1}, {BlockSize: MaxBlockSize + 1}, {Blocks: 1}, {Blocks: MaxBlocks + 1}, {DiskBlocks: 1},
		{Kind: SGLang, Window: 4}, {Window: 4, HostBlocks: 1}, {Kind: TRTLLM, State: true}, {State: true, HostBlocks: 1}, {State: true, Reserve: true}, {Window: 4, Retention: 3}, {Retention: -3}, {Kind: TRTLLM, HostBlocks: 1, DiskBlocks: 1}, {Kind: SGLang, BatchTokens: 8},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// An engine of another's configuration is like it.
	first := started(t, Config{Timing: Timing{Prefill: -1, Disk: -1}}).Config()
	if second := started(t, first).Config(); second != first {
		t.Errorf("%+v became %+v", first, second)
	}
	for _, k := range []Kind{VLLM, SGLang, TRTLLM} {
		if got, err := ParseKind(k.String()); got != k || err != nil {
			t.Errorf("%v is read as %v, %v", k, got, err)
		}
	}
	if _, err := ParseKind("tgi"); err == nil {
		t.Error("tgi is a kind")
	}
}

// A state is there where a chunk of a prompt ends: before its last token, and where a prompt
// that came before left it. The third that begins like that goes on from there.
func TestStates(t *testing.T) {
	prompt := func(shared, n int) []uint32 {
		return append(count(0, shared), count(10_000*shared+n, 10_000*shared+n+n)...)
	}
	for _, c := range []struct {
		retention int
		kept      [][]int // of the first prompt's blocks, by event of the second group
		wants     []int   // what each of the prompts reuses
	}{
		{RetainEnds, [][]int{{3}, {}, {}}, []int{0, 64, 0, 32, 64}},
		{RetainAll, [][]int{{3}, {4}, {5}}, []int{0, 64, 0, 32, 64}},
		{32, [][]int{{3}, {}, {5}}, []int{0, 64, 0, 32, 64}},
	} {
		e := started(t, Config{State: true, Retention: c.retention})
		first := append(count(0, 79), 7)
		for i, p := range [][]uint32{first, first, prompt(40, 50), prompt(40, 60), append(slices.Clone(first[:70]), 9)} {
			hit, events := answer(t, e, p, 20)
			if hit != (Hit{GPU: c.wants[i]}) {
				t.Errorf("retention %d, prompt %d: %+v is reused, want %d", c.retention, i, hit, c.wants[i])
			}
			if i > 0 {
				continue
			}
			keys := e.sequence(Request{Tokens: slices.Concat(first, count(1000, 1020))}).keys
			var kept [][]int
			tokens := 0
			for _, ev := range events {
				if ev.Kind != event.Stored || ev.Group != 1 {
					continue
				}
				blocks := []int{}
				for _, h := range ev.Hashes {
					blocks = append(blocks, slices.Index(keys, h))
				}
				kept, tokens = append(kept, blocks), tokens+len(ev.Tokens)
				if ev.Spec != "mamba" || ev.SlidingWindow != 0 || ev.HasParent != (len(kept) > 1) {
					t.Errorf("%+v", ev)
				}
			}
			if !reflect.DeepEqual(kept, c.kept) || tokens != 96 {
				t.Errorf("retention %d: of %d tokens %v are kept, want %v", c.retention, tokens, kept, c.kept)
			}
		}
		if u := e.Stats(); u.Used != 0 {
			t.Errorf("%d blocks are used by no request", u.Used)
		}
	}
}

// What vLLM 0.30 keeps of a window is before the end of a prompt, not of its answer.
func TestWindowBeforeEnds(t *testing.T) {
	for retention, want := range map[int]int{RetainEnds: 64, RetainAll: 96, 32: 96} {
		e := started(t, Config{Window: 17, Retention: retention})
		first := append(count(0, 79), 7)
		answer(t, e, first, 20)
		next := slices.Concat(first, count(1000, 1020), []uint32{5})
		if hit, _ := answer(t, e, next, 1); hit.GPU != want {
			t.Errorf("retention %d: %d tokens are reused, want %d", retention, hit.GPU, want)
		}
		// And then it is kept there, too.
		if hit, _ := answer(t, e, append(slices.Clone(next), 6), 1); hit.GPU != 96 {
			t.Errorf("retention %d: %d tokens are reused at last, want 96", retention, hit.GPU)
		}
	}
}
