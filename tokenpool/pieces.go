package tokenpool

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/zeebo/xxh3"
)

// pieceBytes is how long a piece of a text is at least, in bytes, but for the
// last. Shorter ones would cost more to keep than to tokenize.
const pieceBytes = 512

// pieces remembers the tokens of pieces of texts, so that of a text which goes on
// only what is new is tokenized. The pieces begin where the cutter of their
// tokenizer allows it, and end at the next such place at least pieceBytes later.
// So the beginning of a text is cut in the same way whatever follows.
//
// A piece is found by a 128-bit hash of its bytes under seeds that are drawn when
// the process begins. It is safe for concurrent use.
type pieces struct {
	max    int64  // in bytes, of all shards
	fleet  *fleet // nil asks no other
	seed   uint64
	shards [pieceShards]pieceShard
	bytes  atomic.Int64
}

const pieceShards = 16

type pieceShard struct {
	mu    sync.Mutex // protects the rest
	lru   *simplelru.LRU[xxh3.Uint128, *piece]
	bytes int64
}

// piece has the tokens of a piece, and by how many bytes each ends behind the one
// before it.
type piece struct {
	tokens []uint32
	steps  []uint16
}

// pieceOverhead is what an entry takes beside its tokens. It counts the piece, its
// element of the list, and its share of the map and of rounded-up allocations.
const pieceOverhead = 48 + 80 + 48 + 32

func (p *piece) cost() int64 { return pieceOverhead + 6*int64(len(p.tokens)) }

// newPieces makes a store of at most so many bytes.
func newPieces(maxBytes int64) *pieces {
	s := &pieces{max: maxBytes, seed: rand.Uint64()}
	for i := range s.shards {
		l, err := simplelru.NewLRU[xxh3.Uint128, *piece](math.MaxInt, nil)
		if err != nil {
			panic(err) // the size is positive
		}
		s.shards[i].lru = l
	}
	return s
}

// size is what all pieces take, in bytes. A nil store has none.
func (s *pieces) size() int64 {
	if s == nil {
		return 0
	}
	return s.bytes.Load()
}

func (s *pieces) shard(k xxh3.Uint128) *pieceShard { return &s.shards[k.Hi%pieceShards] }

func (s *pieces) get(k xxh3.Uint128) *piece {
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p, _ := sh.lru.Get(k)
	return p
}

// put keeps a piece, and drops old ones of its shard for it.
func (s *pieces) put(k xxh3.Uint128, p *piece) {
	limit := s.max / pieceShards
	if p.cost() > limit {
		return
	}
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.lru.Contains(k) {
		return
	}
	sh.lru.Add(k, p)
	s.bytes.Add(p.cost())
	for sh.bytes += p.cost(); sh.bytes > limit; {
		_, old, _ := sh.lru.RemoveOldest()
		sh.bytes -= old.cost()
		s.bytes.Add(-old.cost())
	}
}

// tokenize is tokenize of t's encoder, piece by piece, with the tokens of those that are
// known. Result fresh is how many tokens the tokenizer has made for it. Func together has
// other goroutines help with a long text.
func (s *pieces) tokenize(t *tokenizer, text string, special bool, together func(work func(leave func() bool))) (ids []uint32, ends []int, fresh int, err error) {
	first := t.cuts.Next(text, min(pieceBytes, len(text)))
	if s == nil || first == len(text) || special && !t.frame.known {
		ids, ends, err = tokenize(t.enc, text, special)
		return ids, ends, len(ids), err
	}
	parts := s.cut(t, text, first)
	if s.fleet != nil {
		s.fleet.fetch(t, text, parts)
	}
	if chunks := chunksOf(parts); len(chunks) > 1 {
		var next atomic.Int64
		together(func(leave func() bool) {
			for !leave() {
				i := next.Add(1) - 1
				if i >= int64(len(chunks)) {
					return
				}
				for j := range chunks[i] {
					s.fill(t, text, &chunks[i][j])
				}
			}
		})
	}
	ids = make([]uint32, 0, len(text)/3)
	ends = make([]int, 0, len(text)/3)
	if special {
		ids = append(ids, t.frame.before...)
		ends = append(ends, make([]int, len(t.frame.before))...)
		fresh = len(t.frame.before) + len(t.frame.behind)
	}
	for i := range parts {
		p := &parts[i]
		if !p.filled {
			s.fill(t, text, p)
		}
		if p.err != nil {
			return nil, nil, fresh, p.err
		}
		fresh += p.fresh
		if p.piece == nil {
			ids = append(ids, p.ids...)
			for _, e := range p.ends {
				ends = append(ends, p.from+e)
			}
			p.ids, p.ends = nil, nil
			continue
		}
		ids = append(ids, p.piece.tokens...)
		end := p.from
		for _, n := range p.piece.steps {
			end += int(n)
			ends = append(ends, end)
		}
	}
	if special {
		ids = append(ids, t.frame.behind...)
		ends = append(ends, make([]int, len(t.frame.behind))...)
	}
	if s.fleet != nil {
		s.fleet.offer(t, text, parts)
	}
	return ids, ends, fresh, nil
}

// part is a part of a text.
type part struct {
	from, to int
	// bare says that it is tokenized without the space that it begins with, which by
	// itself is token space.
	bare  bool
	space uint32
	// keep says that it is a piece. The last part of a text is none: it ends with the text,
	// not at a cut, and is no piece of any other text.
	keep  bool
	key   xxh3.Uint128
	piece *piece // nil if it is not known
	// shared says that the fleet knew it, made that it was tokenized here.
	shared, made bool

	// Of fill, for one that is no piece: its tokens, and their ends within the part. fresh
	// is how many tokens were made.
	filled bool
	ids    []uint32
	ends   []int
	fresh  int
	err    error
}

// fill finds the tokens of a part.
func (s *pieces) fill(t *tokenizer, text string, p *part) {
	p.filled = true
	if p.piece == nil && p.keep {
		p.piece = s.get(p.key) // made meanwhile, perhaps for a part before
	}
	if p.piece != nil {
		if p.shared {
			s.put(p.key, p.piece)
		}
		return
	}
	ids, ends, err := p.tokenize(t.enc, text)
	if p.fresh, p.err = len(ids), err; err != nil {
		return
	}
	if p.keep {
		if p.piece = pack(ids, ends); p.piece != nil {
			p.made = true
			s.put(p.key, p.piece)
			return
		}
	}
	p.ids, p.ends = ids, ends
}

// tokenize tokenizes a part, whose ends are counted from its beginning.
func (p *part) tokenize(e encoder, text string) (ids []uint32, ends []int, err error) {
	if !p.bare {
		return tokenize(e, text[p.from:p.to], false)
	}
	ids, ends, err = tokenize(e, text[p.from+1:p.to], false)
	for i := range ends {
		ends[i]++
	}
	if len(ids) > 0 && ids[0] == p.space {
		ends[0] = 1 // where the space is, which was put before the text
	}
	return ids, ends, err
}

// sum is what tells the pieces of a tokenizer apart: those of which the space is put there
// from others of the same text.
func (p *part) sum(t *tokenizer) uint64 {
	if p.bare {
		return ^t.sum
	}
	return t.sum
}

// chunkBytes is how much of a text one goroutine takes at a time, in bytes. That is about
// 0.3 ms of a fast tokenizer, and 20 ms of the reference.
const chunkBytes = 32 << 10

// chunksOf are stretches of parts that have chunkBytes or more to be tokenized, but for the
// last.
func chunksOf(parts []part) (chunks [][]part) {
	from, unknown := 0, 0
	for i := range parts {
		if parts[i].piece == nil {
			unknown += parts[i].to - parts[i].from
		}
		if unknown >= chunkBytes {
			chunks = append(chunks, parts[from:i+1])
			from, unknown = i+1, 0
		}
	}
	if unknown > 0 {
		chunks = append(chunks, parts[from:])
	}
	return chunks
}

// cut cuts a text, the first part of which ends at first, and finds what is known.
func (s *pieces) cut(t *tokenizer, text string, first int) []part {
	parts := make([]part, 0, len(text)/pieceBytes+1)
	for from, to := 0, first; from < len(text); from, to = to, t.cuts.Next(text, min(to+pieceBytes, len(text))) {
		p := part{from: from, to: to, keep: to < len(text)}
		p.space, p.bare = t.cuts.Bare(text, from)
		if p.keep {
			p.key = xxh3.HashString128Seed(text[from:to], s.seed^p.sum(t))
			p.piece = s.get(p.key)
		}
		parts = append(parts, p)
	}
	return parts
}

// frame is what a tokenizer puts around every text: its special tokens.
type frame struct {
	known          bool
	before, behind []uint32
}

// newFrame finds out the frame by two texts.
func newFrame(e encoder) frame {
	var f frame
	for i, text := range []string{"a", "Some words, 1 number"} {
		bare, _ := e.encode(text, false)
		whole, _ := e.encode(text, true)
		n := len(whole) - len(bare)
		at := 0
		for at < n && !slices.Equal(whole[at:at+len(bare)], bare) {
			at++
		}
		if n < 0 || len(bare) == 0 || !slices.Equal(whole[at:at+len(bare)], bare) {
			return frame{}
		}
		g := frame{known: true, before: whole[:at], behind: whole[at+len(bare):]}
		if i > 0 && (!slices.Equal(f.before, g.before) || !slices.Equal(f.behind, g.behind)) {
			return frame{}
		}
		f = g
	}
	return f
}

// pack makes what is kept of a piece. It is nil if the ends are not ascending or
// too far apart for it.
func pack(ids []uint32, ends []int) *piece {
	p := &piece{tokens: slices.Clone(ids), steps: make([]uint16, len(ends))}
	last := 0
	for i, e := range ends {
		if e < last || e-last > math.MaxUint16 {
			return nil
		}
		p.steps[i] = uint16(e - last)
		last = e
	}
	return p
}
