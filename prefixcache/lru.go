package prefixcache

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// LRU is a Store that keeps the tokens of chunks of text under chained hashes. See the package comment for what it promises.
//
// The key of a chunk is a 128-bit hash over the scope, all chunks before it
// and the chunk. Its seeds are drawn when the store is made, so that no client can prepare texts whose keys
// collide. What lies behind the last full chunk, with the special tokens behind the text, is an entry of its
// own, keyed by the whole text.
//
// An entry is the difference to the chunks before it: how many of their tokens
// to take back, then which to add. A digest over these differences says which
// tokens the difference is to. An entry whose predecessor was dropped and came
// back with other tokens is not used.
//
// Entries are spread over shards by their own keys, so that a prefix which all
// texts share is no hot spot of memory or locks. A read holds the read lock of
// one shard for one probe; the tokens are copied outside of it.
//
// Lock order: no goroutine holds two shards' locks.
type LRU struct {
	chunkBytes int // length of a text's first chunks
	part       int // later ones are at most 1/part of what stands before
	maxBytes   int64
	seeds      seeds
	shards     []shard // a power of two
	bytes      atomic.Int64
	clock      atomic.Uint64 // ticks with every placing of an entry
	counters   counters
}

// seeds separate the uses of the hash.
type seeds struct {
	scope, chunk, whole, digest uint64
}

// key names a chunk together with the scope and all text before it.
type key = xxh3.Uint128

// chunk is an entry: the tokens that one chunk, or the rest of a text, adds to
// those of the chunks before it. All but ref and tick is fixed once it is in
// a shard.
type chunk struct {
	ref    atomic.Bool // read since it was last placed
	drop   uint32      // tokens of the chunks before it to take back
	tick   uint64      // when it was last placed; guarded by its shard's mu
	parent uint64      // digest of the chunk before it
	digest uint64      // digest of this chunk and all before it
	tokens []uint32
}

// What an entry takes beside its tokens, in bytes. That is the chunk itself,
// the element of golang-lru's list, and its share of the map. The element has
// 80 bytes for a key of 16 and a pointer. A slot of the map has 25 bytes, and
// 44 to 88 % of them are full.
const (
	chunkSize     = 64
	elementSize   = 80
	mapSlotSize   = 48
	entryOverhead = chunkSize + elementSize + mapSlotSize
)

// The lengths of chunks: see chunkAt.
const (
	chunkBytes = 256
	chunkPart  = 64
)

// NewLRU makes an LRU.
func NewLRU(cfg Config) (*LRU, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	// One shard a 64 KiB, so that even a small store's shards are full of
	// entries, up to 64 of them.
	n := min(64, 1<<(bits.Len64(uint64(cfg.MaxBytes/minMaxBytes))-1))
	s := &LRU{
		chunkBytes: chunkBytes,
		part:       chunkPart,
		maxBytes:   cfg.MaxBytes,
		seeds:      seeds{rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()},
		shards:     make([]shard, n),
	}
	for i := range s.shards {
		s.shards[i].reset()
	}
	return s, nil
}

// Find implements Store. It allocates nothing but the growth of dst.
func (s *LRU) Find(dst []uint32, scope, text string) Match {
	var (
		m      = Match{Tokens: dst}
		k      = s.root(scope)
		parent uint64
	)
	for n := s.chunkAt(0); len(text)-m.Bytes >= n; n = s.chunkAt(m.Bytes) {
		k = next(k, text[m.Bytes:m.Bytes+n], s.seeds.chunk)
		c := s.shard(k).get(k, parent)
		if c == nil {
			s.counters.found(m, len(m.Tokens)-len(dst))
			return m
		}
		m.Tokens = append(m.Tokens[:len(m.Tokens)-int(c.drop)], c.tokens...)
		m.Bytes += n
		parent = c.digest
	}
	k = next(k, text[m.Bytes:], s.seeds.whole)
	if c := s.shard(k).get(k, parent); c != nil {
		m.Tokens = append(m.Tokens[:len(m.Tokens)-int(c.drop)], c.tokens...)
		m.Bytes, m.Whole = len(text), true
	}
	s.counters.found(m, len(m.Tokens)-len(dst))
	return m
}

// chunkAt returns the length of the chunk that begins at a byte of a text: the greatest one,
// of chunkBytes doubled again and again, that is no more than a part of what stands before it.
// So a long text costs few probes, and what is not found of it is a small part.
func (s *LRU) chunkAt(from int) int {
	n := s.chunkBytes
	for 2*n*s.part <= from {
		n *= 2
	}
	return n
}

// Put implements Store. Chunks that are there already are kept as they are.
func (s *LRU) Put(scope, text string, tokens []uint32, ends []int) error {
	ends, body, err := check(text, tokens, ends)
	if err == nil {
		if need := s.estimate(text, tokens); need > s.maxBytes {
			err = fmt.Errorf("%w: needs about %d bytes of %d", ErrTooLarge, need, s.maxBytes)
		}
	}
	if err != nil {
		s.counters.refused.Add(1)
		return err
	}
	p := put{tokens: tokens, body: body}
	var (
		k       = s.root(scope)
		covered int   // tokens that end within the chunks so far
		added   []key // entries that were not there before, in order
		scratch []byte
	)
	for from := 0; ; {
		rest, n := text[from:], s.chunkAt(from)
		whole := len(rest) < n
		if whole {
			k = next(k, rest, s.seeds.whole)
			covered = len(tokens)
		} else {
			k = next(k, rest[:n], s.seeds.chunk)
			for covered < body && ends[covered] <= from+n {
				covered++
			}
		}
		sh := s.shard(k)
		c := sh.get(k, p.digest)
		// A whole text is never known by another one's tokens.
		if c == nil || whole && !p.completes(c) {
			c = p.difference(covered)
			c.digest, scratch = s.digest(c, scratch)
			kept := s.add(k, c, whole)
			if kept == nil {
				break // no room: others have taken it in the meantime
			}
			if kept == c {
				added = append(added, k)
			}
			c = kept
		}
		if whole {
			break
		}
		p.step(c)
		from += n
	}
	// Place them again, the last first: of one text the end is dropped before
	// the beginning.
	for _, k := range slices.Backward(added) {
		s.shard(k).renew(k, &s.clock)
	}
	return nil
}

// put follows the chain of entries that a text shares with others, and how far
// their tokens are its own.
type put struct {
	tokens []uint32 // of the text to be put
	body   int      // how many of them end within the text
	have   int      // tokens that the chain gives so far
	common int      // how many of these, from the first, are the text's own
	digest uint64   // of the chain so far
}

// step goes on to the next entry of the chain.
func (p *put) step(c *chunk) {
	p.digest = c.digest
	p.have -= int(c.drop)
	if p.common >= p.have {
		p.common = p.have
		p.common += sharedTokens(c.tokens, p.tokens[p.common:p.body])
	}
	p.have += len(c.tokens)
}

// difference makes the entry that turns the chain's tokens into the first n
// of the text's.
func (p *put) difference(n int) *chunk {
	same := min(p.common, n)
	return &chunk{
		drop:   uint32(p.have - same),
		parent: p.digest,
		tokens: slices.Clone(p.tokens[same:n]),
	}
}

// completes reports whether the chain and c together give exactly the text's tokens.
func (p *put) completes(c *chunk) bool {
	from := p.have - int(c.drop)
	return from <= p.common && slices.Equal(c.tokens, p.tokens[from:])
}

// sharedTokens returns the length of the common prefix of a and b.
func sharedTokens(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// root is the key that the first chunk's is chained to.
func (s *LRU) root(scope string) key {
	return xxh3.HashString128Seed(scope, s.seeds.scope)
}

// next chains text to the key of all before it. The lower half of prev enters
// through the seed and the upper half is added, so that two chains meet only
// when both halves do.
func next(prev key, text string, seed uint64) key {
	h := xxh3.HashString128Seed(text, seed^prev.Lo)
	h.Hi += bits.RotateLeft64(prev.Hi, 31) * 0x9e3779b97f4a7c15
	return h
}

// digest hashes what c adds to the chain before it. It never gives 0, which
// stands for the chain of no chunks. scratch is reused and returned.
func (s *LRU) digest(c *chunk, scratch []byte) (uint64, []byte) {
	scratch = binary.LittleEndian.AppendUint32(scratch[:0], c.drop)
	for _, t := range c.tokens {
		scratch = binary.LittleEndian.AppendUint32(scratch, t)
	}
	return xxh3.HashSeed(scratch, s.seeds.digest^c.parent) | 1, scratch
}

// shard returns the shard of k.
func (s *LRU) shard(k key) *shard {
	return &s.shards[k.Hi&uint64(len(s.shards)-1)]
}

// cost is what an entry takes, in bytes.
func (c *chunk) cost() int64 {
	return entryOverhead + int64(cap(c.tokens))*4
}

// estimate bounds from above what the entries of a text take together.
func (s *LRU) estimate(text string, tokens []uint32) int64 {
	entries := int64(1)
	for at := s.chunkAt(0); at <= len(text); at += s.chunkAt(at) {
		entries++
	}
	return entries*(entryOverhead+allocSlack) + padded(int64(len(tokens))*4)
}

// Allocations are rounded up to the runtime's size classes: by less than a
// quarter, or by less than allocSlack when they are small.
const allocSlack = 32

// padded bounds from above what an allocation of n bytes takes, allocSlack
// aside.
func padded(n int64) int64 { return n + n/4 }

// add puts c under k, unless there is an entry with the same predecessor
// already (and, where exact is set, with the same tokens). It returns the one
// that is there now, or nil if there is no room.
func (s *LRU) add(k key, c *chunk, exact bool) *chunk {
	if !s.reserve(c.cost()) {
		return nil
	}
	kept, freed := s.shard(k).add(k, c, exact, &s.clock)
	s.bytes.Add(-freed)
	return kept
}

// reserve takes n bytes of the bound, dropping old entries to make room.
func (s *LRU) reserve(n int64) bool {
	for {
		now := s.bytes.Load()
		if now+n > s.maxBytes {
			if !s.evict() {
				return false
			}
			continue
		}
		if s.bytes.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

// evict drops the entry that was placed longest ago and not read since. It
// returns false when there is none at all. Entries read since are placed anew.
// Readers cannot keep it going for ever: after as many of these as there were
// entries it drops the next one, read or not.
func (s *LRU) evict() bool {
	chances := s.entries()
	for {
		var oldest *shard
		at := uint64(math.MaxUint64)
		for i := range s.shards {
			if t := s.shards[i].oldest.Load(); t < at {
				oldest, at = &s.shards[i], t
			}
		}
		if oldest == nil {
			return false
		}
		freed := oldest.evict(chances > 0, &s.clock)
		if freed > 0 {
			s.bytes.Add(-freed)
			s.counters.evicted.Add(1)
			return true
		}
		chances--
	}
}

// entries returns the number of entries.
func (s *LRU) entries() int64 {
	var n int64
	for i := range s.shards {
		n += s.shards[i].entries.Load()
	}
	return n
}

// Stats implements Store.
func (s *LRU) Stats() Stats {
	st := Stats{Entries: s.entries(), Bytes: s.bytes.Load(), MaxBytes: s.maxBytes}
	s.counters.fill(&st)
	return st
}

// Purge implements Store. A Put under way may leave entries behind it.
func (s *LRU) Purge() {
	for i := range s.shards {
		s.bytes.Add(-s.shards[i].purge())
	}
}
