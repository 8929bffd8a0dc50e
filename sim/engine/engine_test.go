package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/ingest/event"
	"github.com/kvatlas/kvatlas/internal/must"
)

// reader is what a reader of the events knows: how many copies of a block there are
// in a medium and group.
type reader map[place]int

type place struct {
	hash   event.Hash
	medium string
	group  int
}

// read applies a batch. What is removed must be there.
func (r reader) read(b Batch, kind Kind) error {
	for _, e := range b.Events {
		switch e.Kind {
		case event.Stored:
			// Windows and states leave blocks out, of which the tokens are told.
			if whole := len(e.Hashes) * e.BlockSize; len(e.Tokens) > 0 && (len(e.Tokens) < whole || e.Group == 0 && len(e.Tokens) > whole) {
				return fmt.Errorf("%d tokens for %d blocks", len(e.Tokens), len(e.Hashes))
			}
			// A window may have left the parent behind.
			if e.HasParent && e.Medium == mediumGPU && e.Group == full && r[place{e.Parent, e.Medium, e.Group}] == 0 {
				return fmt.Errorf("a block whose parent is not held is stored")
			}
			for _, h := range e.Hashes {
				p := place{h, e.Medium, e.Group}
				if r[p]++; r[p] > 1 && (kind != VLLM || e.Medium != mediumGPU) {
					return fmt.Errorf("a second copy in %s", e.Medium)
				}
			}
		case event.Removed:
			for _, h := range e.Hashes {
				p := place{h, e.Medium, e.Group}
				if r[p]--; r[p] < 0 {
					return fmt.Errorf("removed from %s without being there", e.Medium)
				}
			}
		default:
			for p := range r {
				if p.medium == mediumGPU || kind == SGLang && p.medium == mediumPinned {
					delete(r, p)
				}
			}
		}
	}
	return nil
}

// predict is what a request that comes would reuse, by what was read.
func (r reader) predict(c Config, keys []event.Hash, tokens int) int {
	limit := (tokens - 1) / c.BlockSize
	has := func(i, group int, media ...string) bool {
		for _, m := range media {
			if r[place{keys[i], m, group}] > 0 {
				return true
			}
		}
		return false
	}
	n := 0
	for n < limit && has(n, 0, mediumGPU) {
		n++
	}
	for ; n > 0; n-- {
		whole, group := true, 1
		if c.Window > 0 {
			for i := max(0, n-ceil(c.Window-1, c.BlockSize)); i < n; i++ {
				whole = whole && has(i, group, mediumGPU)
			}
			group++
		}
		if whole && (!c.State || has(n-1, group, mediumGPU)) {
			break
		}
	}
	if c.Kind == VLLM && c.Window == 0 {
		limit = tokens / c.BlockSize
	}
	for n < limit && has(n, 0, mediumCPU, mediumStorage, mediumPinned, mediumDisk) {
		n++
	}
	return n * c.BlockSize
}

// check holds the blocks of an engine to what must be so at any time.
func check(e *Engine) error {
	u := e.cache.usage()
	if u.Used < 0 || u.Used > u.Total || u.Host > u.HostTotal || u.Disk > u.DiskTotal {
		return fmt.Errorf("%+v", u)
	}
	if len(e.running) == 0 {
		want := 0
		switch c := e.cache.(type) {
		case *paged:
			want = len(c.occupied)
			if c.reserved != 0 {
				return fmt.Errorf("%d blocks are reserved for no request", c.reserved)
			}
		case *tree:
			want = c.occupied
			if c.reserved != 0 || c.private != 0 {
				return fmt.Errorf("%d pages are reserved and %d private for no request", c.reserved, c.private)
			}
		}
		if u.Used != want {
			return fmt.Errorf("%d blocks are used by no request", u.Used-want)
		}
	}
	switch c := e.cache.(type) {
	case *paged:
		refs := map[int32]int32{}
		for _, q := range e.running {
			for _, kind := range c.groups {
				for _, b := range q.blocks[kind] {
					if b != none {
						refs[b]++
					}
				}
			}
		}
		for _, b := range c.occupied {
			refs[b]++
		}
		queued := 0
		for i := c.queue.first; i != none; i = c.blocks[i].link.next {
			queued++
			if c.blocks[i].refs != 0 {
				return fmt.Errorf("block %d is in the queue and held", i)
			}
		}
		if queued != c.queue.n {
			return fmt.Errorf("%d blocks in the queue, it says %d", queued, c.queue.n)
		}
		for i := range c.blocks {
			if c.blocks[i].refs != refs[int32(i)] {
				return fmt.Errorf("block %d has %d references, of requests %d", i, c.blocks[i].refs, refs[int32(i)])
			}
		}
	case *tree:
		for level := range c.idle {
			seen := map[int32]bool{}
			for i := c.idle[level].first; i != none; i = c.pages[i].next {
				p := c.pages[i]
				if p.refs != 0 || int(p.level) != level {
					return fmt.Errorf("page %d is idle on level %d: %+v", i, level, p)
				}
				if p.parent != none && seen[p.parent] && c.places[c.pages[p.parent].hash] == p.parent && int(c.pages[p.parent].level) == level {
					return fmt.Errorf("page %d would be evicted behind its parent", i)
				}
				seen[i] = true
			}
			if len(seen) != c.idle[level].n {
				return fmt.Errorf("%d pages are idle, it says %d", len(seen), c.idle[level].n)
			}
		}
		if free := c.config.Blocks - c.onGPU - c.private - c.occupied; free < 0 {
			return fmt.Errorf("%d pages too many", -free)
		}
	}
	return nil
}

// configs are engines that the tests below run: small, so that all of it happens.
func configs() map[string]Config {
	out := map[string]Config{
		"vllm":                {Kind: VLLM, Blocks: 60},
		"vllm, reserving":     {Kind: VLLM, Blocks: 60, Reserve: true},
		"vllm, window":        {Kind: VLLM, Blocks: 100, Window: 20},
		"vllm, window of one": {Kind: VLLM, Blocks: 100, Window: 2},
		"vllm, ends":          {Kind: VLLM, Blocks: 100, Window: 14, Retention: RetainEnds},
		"vllm, sparse window": {Kind: VLLM, Blocks: 100, Window: 6, Retention: 12},
		"vllm, state":         {Kind: VLLM, Blocks: 80, State: true},
		"vllm, state at ends": {Kind: VLLM, Blocks: 80, State: true, Retention: RetainEnds},
		"vllm, sparse state":  {Kind: VLLM, Blocks: 80, State: true, Retention: 8},
		"vllm, wide state":    {Kind: VLLM, Blocks: 30, State: true, BlockSize: 32, Retention: RetainEnds},
		"vllm, all groups":    {Kind: VLLM, Blocks: 120, Window: 9, State: true, Retention: RetainEnds},
		"vllm, host":          {Kind: VLLM, Blocks: 60, HostBlocks: 90},
		"vllm, small host":    {Kind: VLLM, Blocks: 60, HostBlocks: 10, DiskBlocks: 40},
		"vllm, keys of 0.11":  {Kind: VLLM, Blocks: 60, Keys: blockkey.VLLMKeys9},
		"sglang":              {Kind: SGLang, Blocks: 60},
		"sglang, host":        {Kind: SGLang, Blocks: 60, HostBlocks: 90},
		"sglang, small host":  {Kind: SGLang, Blocks: 60, HostBlocks: 10, DiskBlocks: 40},
		"sglang, pages of 1":  {Kind: SGLang, Blocks: 240, BlockSize: 1},
		"trtllm":              {Kind: TRTLLM, Blocks: 60},
		"trtllm, host":        {Kind: TRTLLM, Blocks: 60, HostBlocks: 30},
	}
	for name, c := range out {
		if c.BlockSize == 0 {
			c.BlockSize = 4
		}
		c.BatchTokens, c.BatchRequests = 24, 5
		out[name] = c
	}
	return out
}

// Whatever an engine is asked, a reader of its events knows what its next request reuses.
func TestEventsTellWhatIsReused(t *testing.T) {
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { play(t, c) })
		})
	}
}

// play has an engine do random things.
func play(t *rapid.T, c Config) {
	e := must.Get(New(c))(t)
	c = e.Config()
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	known := reader{}
	texts := [][]uint32{{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	open := map[uint64]int{} // how many tokens are to come
	var id uint64
	now := time.Duration(0)
	advance := func() {
		var r Report
		e.Advance(now, &r)
		for _, b := range r.Batches {
			must.OK(t, known.read(b, c.Kind))
		}
		for _, o := range r.Outputs {
			if open[o.ID]--; (open[o.ID] == 0) != o.Last || open[o.ID] < 0 {
				t.Fatalf("request %d: %d tokens to come, last %v", o.ID, open[o.ID], o.Last)
			}
			if o.Last {
				delete(open, o.ID)
			}
		}
		must.OK(t, check(e))
	}
	request := func() Request {
		p := texts[rng.IntN(len(texts))]
		p = slices.Clone(p[:1+rng.IntN(len(p))])
		for range rng.IntN(12) {
			p = append(p, rng.Uint32N(4))
		}
		r := Request{Tokens: p}
		if c.Kind != TRTLLM {
			r.LoRA, r.Salt = []string{"", "", "", "law"}[rng.IntN(4)], []string{"", "", "", "a"}[rng.IntN(4)]
		}
		return r
	}
	steps := rapid.IntRange(1, 150).Draw(t, "steps")
	for range steps {
		switch n := rng.IntN(20); {
		case n < 9:
			id++
			r := request()
			r.ID = id
			for range 1 + rng.IntN(20) {
				r.Output = append(r.Output, 100+rng.Uint32N(100))
			}
			must.OK(t, e.Submit(now, r))
			open[id] = len(r.Output)
			if texts = append(texts, slices.Concat(r.Tokens, r.Output)); len(texts) > 12 {
				texts = texts[1:]
			}
		case n < 10 && id > 0:
			some := 1 + rng.Uint64N(id)
			e.Cancel(some)
			delete(open, some)
		case n < 11:
			for at, ok := e.Due(); ok; at, ok = e.Due() {
				now = max(now, at)
				advance()
			}
			e.Clear()
		case n < 12:
			e.Occupy(rng.IntN(c.Blocks / 3))
		case n < 13:
			e.Occupy(0)
		default:
			if at, ok := e.Due(); ok {
				now = max(now, at)
			}
		}
		advance()
	}
	e.Occupy(0)
	for at, ok := e.Due(); ok; at, ok = e.Due() {
		now = max(now, at)
		advance()
	}
	if len(open) > 0 || e.Stats().Running+e.Stats().Waiting > 0 {
		t.Fatalf("%d requests have not ended: %+v", len(open), e.Stats())
	}
	// A request by itself, so that an idle vLLM reports a clear.
	must.OK(t, e.Submit(now, Request{ID: id + 1, Tokens: []uint32{77}, Output: []uint32{1}}))
	open[id+1] = 1
	for at, ok := e.Due(); ok; at, ok = e.Due() {
		now = at
		advance()
	}
	for range 20 {
		r := request()
		want := known.predict(c, e.sequence(r).keys, len(r.Tokens))
		if got := e.Reusable(r); got.Tokens() != want {
			t.Fatalf("%d tokens: %+v are reused, by the events %d", len(r.Tokens), got, want)
		}
	}
	// What is said to be reused is.
	r := request()
	r.ID, r.Output = id+2, []uint32{1}
	open[id+2] = 1
	want := e.Reusable(r)
	must.OK(t, e.Submit(now, r))
	var report Report
	for at, ok := e.Due(); ok; at, ok = e.Due() {
		e.Advance(at, &report)
	}
	if o := report.Outputs[len(report.Outputs)-1]; o.Hit != want {
		t.Fatalf("%+v was reused, %+v could be", o.Hit, want)
	}
	if !e.Clear() {
		t.Fatal("an idle engine is not cleared")
	}
}

// A throttled engine takes so many times as long for the same, until that is over.
func TestThrottle(t *testing.T) {
	e := must.Get(New(Config{Blocks: 1000}))(t)
	at := time.Duration(0)
	took := func() time.Duration {
		began := at
		must.OK(t, e.Submit(at, Request{ID: 1, Tokens: []uint32{1, 2, 3}, Output: []uint32{4, 5}}))
		for {
			due, ok := e.Due()
			if !ok {
				return at - began
			}
			at = due
			e.Advance(at, &Report{})
		}
	}
	plain := took()
	e.Throttle(10)
	if slow := took(); plain <= 0 || slow != 10*plain {
		t.Errorf("it takes %v, and %v when it is throttled", plain, slow)
	}
	e.Throttle(0)
	if again := took(); again != plain {
		t.Errorf("it takes %v again, %v before", again, plain)
	}
}
