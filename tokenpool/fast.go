package tokenpool

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/kvatlas/kvatlas/tokenpool/internal/bpe"
	"github.com/kvatlas/kvatlas/tokenpool/internal/cut"
	"github.com/kvatlas/kvatlas/tokenpool/internal/proofs"
)

// proven is an encoder that puts the fast one of package bpe in its place. It does so from
// the proof that both agree until they once do not. What the fast one leaves out goes to the
// reference.
type proven struct {
	encoder
	fast   atomic.Pointer[bpe.Tokenizer]
	memory *semaphore.Weighted // Config.WorkBytes
	most   int64
	texts  *atomic.Uint64 // counts those that the fast one did
	around frame          // what goes around a text
}

// fastBytesPerByte is what the fast encoder takes at most, for each byte of a text.
const fastBytesPerByte = 100

// encode implements encoder.
func (e *proven) encode(text string, special bool) ([]uint32, []int) {
	fast := e.fast.Load()
	if text == "" && !special {
		return nil, nil
	}
	if fast == nil || text == "" || special && !e.around.known {
		return e.encoder.encode(text, special)
	}
	if n := min(fastBytesPerByte*int64(len(text)), e.most); len(text) > unweighed && e.memory.Acquire(context.Background(), n) == nil {
		defer e.memory.Release(n)
	}
	ids, ends, ok := fast.Encode(text)
	if !ok {
		return e.encoder.encode(text, special)
	}
	e.texts.Add(1)
	if special {
		before, behind := len(e.around.before), len(e.around.behind)
		ids = slices.Concat(e.around.before, ids, e.around.behind)
		ends = slices.Concat(make([]int, before), ends, make([]int, behind))
	}
	return ids, ends
}

// memoryBytes is what the fast encoder takes. There is none in nil.
func (e *proven) memoryBytes() int64 {
	if e == nil {
		return 0
	}
	if fast := e.fast.Load(); fast != nil {
		return fast.MemoryBytes()
	}
	return 0
}

// Encode and Decode implement bpe.Reference.
func (e *proven) Encode(text string) ([]uint32, []int) { return e.encoder.encode(text, false) }

// Decode implements bpe.Reference.
func (e *proven) Decode(ids []uint32) string { return e.decode(ids, false) }

// prove checks the fast encoder of a tokenizer that has just been loaded, while the reference
// serves the first texts. That takes a second or two, in which no request waits. The tokenizer
// is held, and its memory given back at the end.
func (p *Pool) prove(t *tokenizer, data []byte) {
	defer p.release(t)
	if p.proofs.Acquire(p.ctx, 1) != nil {
		return // the pool closes
	}
	defer p.proofs.Release(1)
	if !p.wanted(t) {
		return
	}
	var fast *bpe.Tokenizer
	tables, err := bpe.Read(data)
	if err == nil {
		fast, err = bpe.New(tables)
	}
	if err == nil {
		err = fast.Check(t.proven, func() bool { return p.wanted(t) })
	}
	var differs *bpe.DifferenceError
	switch {
	case errors.As(err, &differs):
		p.differ(t, err)
	case err == nil:
		t.proven.fast.Store(fast)
		cutSpaces(t.cuts, fast)
		p.keepProof(t, &proofs.Proof{
			Tables: tables, Sum: t.made, Vocabulary: t.info.Vocabulary,
			Framed: t.frame.known, Before: t.frame.before, Behind: t.frame.behind,
		})
		fallthrough
	default:
		if err == nil || errors.Is(err, bpe.ErrUnsupported) {
			p.cfg.Observer.Proven(t.info.Name, err)
		}
	}
}

// cutSpaces has texts cut before spaces where fast says that they can be.
func cutSpaces(cuts *cut.Cutter, fast *bpe.Tokenizer) {
	if c, ok := fast.SpaceCut(); ok {
		cuts.CutSpaces(c.Put, c.Token)
	}
}

// wanted reports whether t is in use, so that a proof is of use.
func (p *Pool) wanted(t *tokenizer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !t.dropped && !p.closed
}

// differ turns the fast encoder off for all tokenizers of this content, while the pool lives. Where proofs are kept it stays off as long as
// the program is the same. The tokenizer leaves, and comes back under another name in the prefix store and among pieces. So tokens that may
// be wrong are not used any more.
func (p *Pool) differ(t *tokenizer, err error) {
	t.proven.fast.Store(nil)
	p.n.differences.Add(1)
	p.keepProof(t, &proofs.Proof{Differed: true, Sum: t.made})
	p.mu.Lock()
	p.distrusted[t.info.Fingerprint] = true
	p.idents.Remove(t.info.Name)
	var out []dropped
	if !t.dropped {
		out = append(out, p.drop(t))
	}
	p.mu.Unlock()
	p.sendOff(out, "differs")
	p.cfg.Observer.Differed(t.info.Name, err)
}

// spotCheck has the reference tokenize one in Config.CheckEvery texts as well, whole, and
// compares. The answer has been given by then.
func (p *Pool) spotCheck(f *flight, ids []uint32, ends []int) {
	t := f.tok
	if p.cfg.CheckEvery <= 0 || t.proven == nil || t.proven.fast.Load() == nil || len(f.text) > maxSpotCheck || t.cuts.MaxLines > 0 && len(f.text) > maxPartedCheck ||
		p.n.untilCheck.Add(1)%uint64(p.cfg.CheckEvery) != 0 {
		return
	}
	p.n.checked.Add(1)
	want, wantEnds := t.proven.encoder.encode(f.text, f.key.special)
	if at := firstOther(ids, ends, want, wantEnds); at >= 0 {
		p.differ(t, &bpe.DifferenceError{Text: f.text, Token: at})
	}
}

// maxSpotCheck is up to how many bytes texts are tokenized a second time: 64 KiB take 50
// ms. Those of tokenizers that are parted are not, from where parts are taken.
const (
	maxSpotCheck   = 64 << 10
	maxPartedCheck = 16 << 10
)

// firstOther returns the place of the first token that differs, or ends elsewhere; -1 if
// there is none.
func firstOther(ids []uint32, ends []int, want []uint32, wantEnds []int) int {
	for i := range max(len(ids), len(want)) {
		if i >= len(ids) || i >= len(want) || ids[i] != want[i] || ends[i] != wantEnds[i] {
			return i
		}
	}
	return -1
}
