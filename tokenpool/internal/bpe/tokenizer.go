package bpe

import (
	"math/rand/v2"
	"sync"
	"unsafe"
)

// Tokenizer gives the tokens of texts. It is safe for concurrent use.
type Tokenizer struct {
	splitter splitter
	nfc      bool
	merges   *merges
	bridges  *bridges
	byteIDs  [256]uint32
	// whole has the tokens that a word of the same spelling is, whatever the merges make of
	// it. It is nil if the tokenizer has no such rule.
	whole *vocabulary
	// lengths has the number of bytes of each token.
	lengths []uint16
	// raw are the added tokens that are looked for in the text as it stands. Those in
	// normalized are looked for in what is left, after normalization.
	raw, normalized *matcher
	// added are the added tokens' texts.
	added []string
	// chars is what SentencePiece's BPE has in place of words and bytes, nil for another tokenizer.
	chars  *chars
	spaces spaces
	// spaceTokens says that an added token touches a space, as in touchesSpace.
	spaceTokens bool

	mu   sync.Mutex // protects idle
	idle []*worker
}

// worker is the memory for one text at a time, and what it remembers of words.
type worker struct {
	text  []byte
	ids   []uint32
	ends  []int
	piece int
	// bars are the places of U+2581 that are written as spaces.
	bars []int
	merger
	words wordCache
}

// maxIdle is how many workers are kept. More texts than that at a time get new ones.
const maxIdle = 8

func (t *Tokenizer) worker() *worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.idle); n > 0 {
		w := t.idle[n-1]
		t.idle = t.idle[:n-1]
		return w
	}
	return &worker{words: wordCache{seed: rand.Uint64()}}
}

// MemoryBytes is what the tables take, and the words that are remembered: those of up to
// 8 texts at a time.
func (t *Tokenizer) MemoryBytes() int64 {
	t.mu.Lock()
	n := int64(len(t.idle)) * int64(unsafe.Sizeof(worker{}))
	t.mu.Unlock()
	n += t.bridges.memoryBytes() + 2*int64(cap(t.lengths))
	n += 4*int64(cap(t.merges.bytes)+cap(t.merges.joined)) + 8*int64(cap(t.merges.table))
	return n + t.whole.memoryBytes() + t.chars.memoryBytes()
}

func (t *Tokenizer) release(w *worker) {
	const kept = 256 << 10
	if cap(w.text) > kept {
		w.text = nil
	}
	if cap(w.bars) > kept/8 {
		w.bars = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle) < maxIdle {
		t.idle = append(t.idle, w)
	}
}

// Encode returns the tokens of a text, without those that go around it, and the byte at which each ends. An
// end in the middle of a character is moved up to its end. The text must be valid UTF-8. It returns false for
// one that normalization changes.
func (t *Tokenizer) Encode(text string) ([]uint32, []int, bool) {
	if t.nfc && !isNFC(text) {
		return nil, nil, false
	}
	w := t.worker()
	defer t.release(w)
	w.ids = make([]uint32, 0, len(text)/3+8)
	w.ends = make([]int, 0, len(text)/3+8)
	if t.chars != nil {
		t.encodeChars(w, text)
	} else {
		t.encodeBytes(w, text)
	}
	ids, ends := w.ids, w.ends
	w.ids, w.ends = nil, nil
	return ids, ends, true
}

// encodeBytes is Encode of byte-level BPE.
func (t *Tokenizer) encodeBytes(w *worker, text string) {
	w.text = append(append(w.text[:0], text...), make([]byte, padding)...)
	t.raw.each(w.text, 0, len(text), func(i, j int) {
		t.normalized.each(w.text, i, j, func(i, j int) { t.plain(w, i, j) }, w.add)
	}, w.add)
}

// plain tokenizes a text without added tokens.
func (t *Tokenizer) plain(w *worker, i, end int) {
	w.piece = 0
	for i < end {
		j := t.splitter.next(w.text, i, end, &w.piece)
		t.word(w, i, j)
		i = j
	}
}

// word adds the tokens of a word.
func (t *Tokenizer) word(w *worker, i, j int) {
	if j-i <= maxCached {
		t.short(w, i, j, 0)
		return
	}
	if id, ok := t.whole.find(w.text[i:j]); ok {
		w.add(id, j)
		return
	}
	for i < j {
		if i = t.singles(w, i, j); i == j {
			return
		}
		part := t.bridges.next(w.text, i, j)
		if part-i <= maxCached {
			t.short(w, i, part, partOfWord)
		} else {
			t.spell(w, i, w.merge(t.merges, &t.byteIDs, w.text[i:part]), 0)
		}
		i = part
	}
}

// singles adds the tokens of characters of three bytes, as long as each is one token that
// stands apart. It returns where the first other character begins, or j. No token may reach to
// i.
func (t *Tokenizer) singles(w *worker, i, j int) int {
	if !isWide(w.text[i]) {
		return i
	}
	wide := t.bridges.wide
	for r := wideAt(w.text, i); ; {
		token, next, behind := wide.of[r]&wideToken, i+3, uint32(0)
		if token == 0 {
			return i
		}
		if next < j {
			if !isWide(w.text[next]) {
				return i
			}
			if behind = wideAt(w.text, next); !wide.apart(r, behind) {
				return i
			}
		}
		w.add(token-1, next)
		if next == j {
			return j
		}
		i, r = next, behind
	}
}

// partOfWord sets parts of words apart from words in the cache. A word may be a token
// whatever the merges make of it; a part of one may not.
const partOfWord = 1 << 63

// short adds the tokens of up to maxCached bytes.
func (t *Tokenizer) short(w *worker, i, j int, part uint64) {
	low, high := wordKey(w.text, i, j)
	high |= part
	set := w.words.set(low, high)
	if c := find(set, low, high); c != nil {
		if c.n == 1 {
			w.add(c.tokens[0], j)
			return
		}
		t.spell(w, i, c.tokens[:c.n], 0)
		return
	}
	var tokens []uint32
	if id, ok := t.whole.find(w.text[i:j]); ok && part == 0 {
		tokens = append(w.merger.ids[:0], id)
	} else {
		tokens = w.merge(t.merges, &t.byteIDs, w.text[i:j])
	}
	t.spell(w, i, tokens, 0)
	if len(tokens) <= maxCachedTokens {
		keep(set, low, high, tokens)
	}
}

// spell adds tokens of a word or a part that begins at i. In front of the text stand so many
// bytes that were not sent, which ends do not count.
func (t *Tokenizer) spell(w *worker, i int, tokens []uint32, front int) {
	for _, id := range tokens {
		i += int(t.lengths[id])
		end := i
		for w.text[end]&0xc0 == 0x80 { // the padding ends it
			end++
		}
		w.add(id, end-front)
	}
}

func (w *worker) add(id uint32, end int) {
	w.ids = append(w.ids, id)
	w.ends = append(w.ends, end)
}
