package bpe

import (
	"unicode/utf8"
	"unsafe"
)

// chars is the vocabulary of SentencePiece's BPE, which merges characters. Merging begins
// with a character where that is a token, else with each of its bytes. A space stands for
// U+2581, by which SentencePiece writes it.
//
// It knows too between which two characters a token can reach. No expression splits a text
// into words. But where no token reaches over, merging joins nothing, so each side is
// merged by itself, to the same tokens. The places are computed from the products of all
// merges, since every token comes about by one of them. Nearly every space has such a
// place before it, so the parts are what words are to others.
type chars struct {
	// pages has each character's token plus 1, or 0 where there is none, by its upper and
	// its lower bits. A page that has no token is nil.
	pages [0x110000 >> pageBits]*[1 << pageBits]uint32
	// bytes are the tokens of bytes.
	bytes [256]uint32
	// ascii says between which two characters of ASCII a token can reach.
	ascii [128][128]bool
	// pairs is a filter of the other pairs of characters that a token reaches over. That
	// two pairs fall together only means that a text is not cut where it could be.
	pairs []uint64
	shift uint8
	// apart says that each space begins a word, whatever tokens there are.
	apart bool
}

const pageBits = 8

// newChars makes the tables for Tables that have Bytes. apart is as in chars.
func newChars(tables *Tables, apart bool) (*chars, error) {
	c := &chars{apart: apart}
	if len(tables.Bytes) != len(c.bytes) {
		return nil, unsupported("%d tokens of bytes", len(tables.Bytes))
	}
	copy(c.bytes[:], tables.Bytes)
	isByte := map[uint32]bool{}
	for _, id := range tables.Bytes {
		isByte[id] = true
	}
	made := make([]bool, len(tables.Lengths)) // by a merge
	for i, id := range tables.Merges {
		if isByte[id] {
			return nil, unsupported("a merge of token %d, which is a byte", id)
		}
		if i%3 == 2 && int(id) < len(made) {
			made[id] = true
		}
	}
	var pairs []uint64
	at := 0
	for id, n := range tables.Lengths {
		if at+int(n) > len(tables.Spelled) {
			return nil, unsupported("a vocabulary that is cut off")
		}
		token := tables.Spelled[at : at+int(n)]
		at += int(n)
		if n == 0 || isByte[uint32(id)] {
			continue
		}
		if r, size := utf8.DecodeRune(token); size == len(token) {
			page := &c.pages[r>>pageBits]
			if *page == nil {
				*page = new([1 << pageBits]uint32)
			}
			(*page)[r&(1<<pageBits-1)] = uint32(id) + 1
		}
		if made[id] {
			pairs = c.addReach(pairs, token)
		}
	}
	if c.token(' ') == 0 {
		return nil, unsupported("no token is a space")
	}
	size := 64
	c.shift = 64 - 6
	for size < 16*len(pairs) {
		size *= 2
		c.shift--
	}
	c.pairs = make([]uint64, size/64)
	for _, p := range pairs {
		word, bit := c.pair(p)
		c.pairs[word] |= 1 << bit
	}
	return c, nil
}

// addReach keeps the pairs in a token: those of ASCII in c, others are appended to pairs.
func (c *chars) addReach(pairs []uint64, token []byte) []uint64 {
	before, i := charAt(token, 0)
	for i < len(token) {
		r, n := charAt(token, i)
		if before < utf8.RuneSelf && r < utf8.RuneSelf {
			c.ascii[before][r] = true
		} else {
			pairs = append(pairs, uint64(before)<<32|uint64(r))
		}
		before = r
		i += n
	}
	return pairs
}

// pair is where a pair of characters is in the filter.
func (c *chars) pair(p uint64) (word, bit uint64) {
	h := (p * 0x9e3779b97f4a7c15) >> c.shift
	return h / 64, h % 64
}

// reach reports whether a token may reach from one character to the next.
func (c *chars) reach(before, after uint32) bool {
	if after == ' ' && c.apart {
		return false
	}
	if before < utf8.RuneSelf && after < utf8.RuneSelf {
		return c.ascii[before][after]
	}
	word, bit := c.pair(uint64(before)<<32 | uint64(after))
	return c.pairs[word]>>bit&1 == 1
}

// token returns the token that a character is and 1, 0 if there is none.
func (c *chars) token(r uint32) uint32 {
	if page := c.pages[r>>pageBits]; page != nil {
		return page[r&(1<<pageBits-1)]
	}
	return 0
}

// charAt is the character at b[i] and its length, of valid UTF-8.
func charAt(b []byte, i int) (r uint32, n int) {
	switch c := uint32(b[i]); {
	case c < 0x80:
		return c, 1
	case c < 0xe0:
		return c&0x1f<<6 | uint32(b[i+1])&0x3f, 2
	case c < 0xf0:
		return c&0xf<<12 | uint32(b[i+1])&0x3f<<6 | uint32(b[i+2])&0x3f, 3
	default:
		return c&7<<18 | uint32(b[i+1])&0x3f<<12 | uint32(b[i+2])&0x3f<<6 | uint32(b[i+3])&0x3f, 4
	}
}

// next returns where the part that begins at i ends: the first place behind it that no
// token reaches over, or end. Result alone reports whether it is one character, r.
func (c *chars) next(b []byte, i, end int) (to int, r uint32, alone bool) {
	r, n := charAt(b, i)
	first, before := i+n, r
	for i = first; i < end; i += n {
		var after uint32
		after, n = charAt(b, i)
		if !c.reach(before, after) {
			break
		}
		before = after
	}
	return i, r, i == first
}

// merge returns the tokens of a part. They are valid until the next call.
func (c *chars) merge(w *merger, m *merges, part []byte) []uint32 {
	if len(part) > shortWord {
		return c.mergeLong(&w.long, m, part)
	}
	n, before := 0, uint32(utf8.RuneSelf)
	for i := 0; i < len(part); {
		r, size := charAt(part, i)
		if id := c.token(r); id != 0 {
			w.ids[n] = id - 1
			if n > 0 {
				w.ranks[n-1] = m.rankOf(before, r, w.ids[n-1], w.ids[n])
			}
			n++
		} else {
			for k := range size {
				w.ids[n] = c.bytes[part[i+k]]
				if n > 0 {
					w.ranks[n-1] = noRank // no merge is of bytes
				}
				n++
			}
		}
		before = r
		i += size
	}
	w.ranks[n-1] = noRank
	return settle(m, w.ids[:n], w.ranks[:n])
}

// rankOf is rank of the tokens that two characters are.
func (m *merges) rankOf(before, after, left, right uint32) uint32 {
	if before < utf8.RuneSelf && after < utf8.RuneSelf {
		return m.bytes[before<<8|after]
	}
	return m.rank(left, right)
}

func (c *chars) mergeLong(w *longWord, m *merges, part []byte) []uint32 {
	w = w.grow(len(part))
	n, last := 0, uint32(0)
	put := func(id uint32) {
		if n > 0 {
			w.put(n-1, last, m.rank(last, id))
		}
		n, last = n+1, id
	}
	for i := 0; i < len(part); {
		r, size := charAt(part, i)
		if id := c.token(r); id != 0 {
			put(id - 1)
		} else {
			for k := range size {
				put(c.bytes[part[i+k]])
			}
		}
		i += size
	}
	w.put(n-1, last, noRank)
	return w.settle(m, n)
}

// asciiIDs are the tokens of ASCII, by which merges finds their ranks.
func (c *chars) asciiIDs() (ids [256]uint32) {
	for i := range ids {
		ids[i] = maxToken - 1 // none
		if id := c.token(uint32(i)); i < utf8.RuneSelf && id != 0 {
			ids[i] = id - 1
		}
	}
	return ids
}

// memoryBytes is what it takes.
func (c *chars) memoryBytes() int64 {
	if c == nil {
		return 0
	}
	n := int64(unsafe.Sizeof(*c)) + 8*int64(cap(c.pairs))
	for _, page := range &c.pages {
		if page != nil {
			n += int64(unsafe.Sizeof(*page))
		}
	}
	return n
}
