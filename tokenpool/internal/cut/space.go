package cut

import "strings"

// space is how a text is cut before a space. What allows it is found out by the fast
// tokenizer (bpe.SpaceCut), so it is known once that is proven.
type space struct {
	put   bool
	token uint32
}

// CutSpaces has texts cut from now on before spaces that have an ASCII letter or digit on
// both sides. Argument put says that the tokenizer puts a space before a text that begins
// with a letter. Then the part behind a cut is tokenized without its own; token is a
// space by itself. It may be called while others use c.
func (c *Cutter) CutSpaces(put bool, token uint32) { c.space.Store(&space{put, token}) }

// Bare reports whether the part of a text that begins at from is tokenized without the space
// there, and which token that is by itself.
func (c *Cutter) Bare(text string, from int) (token uint32, bare bool) {
	if from == 0 || text[from] != ' ' {
		return 0, false
	}
	s := c.space.Load()
	if s == nil || !s.put {
		return 0, false
	}
	return s.token, true
}

// nextSpace returns the first place behind a line feed in text[from:end], or behind
// WordsAfter bytes, that is before a space; end if there is none.
func (c *Cutter) nextSpace(text string, from, end int) int {
	if word := max(from+c.WordsAfter, 1); word < end {
		end = spaceEnd(text, word, end)
	}
	if feed := strings.IndexByte(text[min(from, end):end], '\n'); feed >= 0 {
		end = spaceEnd(text, max(from+feed, 1), end)
	}
	return end
}

// spaceEnd returns the first place, at from (1 or more) or later, before a space with a
// letter or digit on both sides. It returns end if none comes before that.
func spaceEnd(text string, from, end int) int {
	for i := from; i < min(end, len(text)-1); i++ {
		if text[i] == ' ' && isAlnum(text[i-1]) && isAlnum(text[i+1]) {
			return i
		}
	}
	return end
}
