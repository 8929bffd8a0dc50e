package bpe

// splitter finds the words that an expression splits a text into. The expressions match
// at each place of a text but for deepSeek's (see loose), so a word ends where the next
// begins. Fields are what the expressions of one family differ in.
type splitter struct {
	classes *classTable
	family  family
	// word is what `\p{L}` is in words: letters, with marks in Qwen 3.5.
	word class
	// digits is how many numbers are one word.
	digits int
	// slash says that a slash goes on what signs have begun, as line feeds do.
	slash bool
	// suffix says that 's and the like belong to the word before them (o200k).
	suffix bool
	// apart is left out of what words are made of, and is matched before them (Kimi).
	apart class
}

type family uint8

const (
	// cl100k: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
	//  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
	cl100k family = iota
	// o200k, where words are told apart by the case of their letters.
	o200k
	// gpt2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
	gpt2
	// deepSeek: three expressions, each of which splits what the one before has left.
	deepSeek
)

// next returns where the word that begins at i ends. The range b[i:end] must not be empty.
// Piece is 0 at the first word of a text, and kept from one word to the next.
func (s *splitter) next(b []byte, i, end int, piece *int) int {
	switch s.family {
	case cl100k:
		return s.nextCl100k(b, i, end)
	case o200k:
		return s.nextO200k(b, i, end)
	case gpt2:
		return s.nextGPT2(b, i, end)
	default:
		return s.nextDeepSeek(b, i, end, piece)
	}
}

func (s *splitter) nextCl100k(b []byte, i, end int) int {
	c := b[i]
	if c == '\'' {
		if n := contraction(b, i, end); n > 0 {
			return i + n
		}
	}
	cls, n := s.classes.at(b, i)
	if cls&s.word != 0 {
		return s.run(b, i+n, end, s.word)
	}
	if cls&number != 0 {
		return s.numbers(b, i+n, end)
	}
	if c != '\r' && c != '\n' && i+n < end {
		if next, m := s.classes.at(b, i+n); next&s.word != 0 {
			return s.run(b, i+n+m, end, s.word)
		}
	}
	return s.signs(b, i, end, space|letters|number|s.word)
}

func (s *splitter) nextO200k(b []byte, i, end int) int {
	cls, n := s.classes.at(b, i)
	if cls&s.apart != 0 {
		return s.run(b, i+n, end, s.apart)
	}
	// The letter that stands alone before a word may be none, so there are two places
	// where the word can begin. The alternative whose words end in lower case is tried at
	// both before the other one.
	c, bare, led := b[i], 0, 0
	if c != '\r' && c != '\n' && cls&(letters|number) == 0 && i+n < end {
		var ok bool
		if led, ok = s.cased(b, i+n, end); ok {
			return s.contracted(b, led, end)
		}
	}
	if cls&(letters|mark) != 0 {
		var ok bool
		if bare, ok = s.cased(b, i, end); ok {
			return s.contracted(b, bare, end)
		}
	}
	switch {
	case led > i+n:
		return s.contracted(b, led, end)
	case bare > i:
		return s.contracted(b, bare, end)
	case cls&number != 0:
		return s.numbers(b, i+n, end)
	}
	return s.signs(b, i, end, space|letters|number)
}

// cased matches [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at i and returns
// its end. When that is not there, it returns false and the end of the first half.
func (s *splitter) cased(b []byte, i, end int) (int, bool) {
	both := -1 // the end of the last one that either half takes
	for i < end {
		cls, n := s.classes.at(b, i)
		if cls&(upper|letter|mark) == 0 || cls&s.apart != 0 {
			break
		}
		i += n
		if cls&(letter|mark) != 0 {
			both = i
		}
	}
	first := i
	for i < end {
		cls, n := s.classes.at(b, i)
		if cls&(lower|letter|mark) == 0 || cls&s.apart != 0 {
			break
		}
		i += n
	}
	switch {
	case i > first:
		return i, true
	case both >= 0:
		return both, true
	}
	return first, false
}

// contracted returns the end of a word with the contraction that may stand behind it.
func (s *splitter) contracted(b []byte, i, end int) int {
	if s.suffix && i < end && b[i] == '\'' {
		return i + contraction(b, i, end)
	}
	return i
}

func (s *splitter) nextGPT2(b []byte, i, end int) int {
	if b[i] == '\'' {
		// Lower case only.
		if n := contraction(b, i, end); n > 0 && b[i+1] >= 'a' && b[i+1] <= 'z' && (n < 3 || b[i+2] >= 'a' && b[i+2] <= 'z') {
			return i + n
		}
	}
	at := i
	cls, n := s.classes.at(b, i)
	if b[i] == ' ' && i+1 < end {
		if next, m := s.classes.at(b, i+1); next&space == 0 {
			at, cls, n = i+1, next, m
		}
	}
	switch {
	case cls&letters != 0:
		return s.run(b, at+n, end, letters)
	case cls&number != 0:
		return s.run(b, at+n, end, number)
	case cls&space == 0:
		return s.others(b, at+n, end, space|letters|number)
	}
	return s.white(b, i, end, false)
}

// nextDeepSeek splits by \p{N}{1,3}, then by a range of Chinese and kana. It splits each of
// the pieces by the third expression, for which a text ends with its piece.
func (s *splitter) nextDeepSeek(b []byte, i, end int, piece *int) int {
	if cls, n := s.classes.at(b, i); cls&number != 0 {
		return s.numbers(b, i+n, end)
	}
	if *piece <= i {
		*piece = s.pieceDeepSeek(b, i, end)
	}
	// What nothing matches is a word up to where something does.
	for at := i; at < *piece; {
		if j := s.matchDeepSeek(b, at, *piece); j > 0 {
			if at > i {
				return at
			}
			return j
		}
		_, n := s.classes.at(b, at)
		at += n
	}
	return *piece
}

// pieceDeepSeek returns where the piece that begins at i ends. No number stands there.
func (s *splitter) pieceDeepSeek(b []byte, i, end int) int {
	inRange := isDeepSeekRange(b, i)
	for i < end && isDeepSeekRange(b, i) == inRange {
		cls, n := s.classes.at(b, i)
		if cls&number != 0 {
			break
		}
		i += n
	}
	return i
}

// isDeepSeekRange matches [一-龥぀-ゟ゠-ヿ].
func isDeepSeekRange(b []byte, i int) bool {
	if c := b[i]; c < 0xe3 || c > 0xe9 {
		return false
	}
	r := rune(b[i]&0xf)<<12 | rune(b[i+1]&0x3f)<<6 | rune(b[i+2]&0x3f)
	return r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff
}

// matchDeepSeek returns the end of what the third expression matches at i, 0 if nothing.
func (s *splitter) matchDeepSeek(b []byte, i, end int) int {
	c := b[i]
	cls, n := s.classes.at(b, i)
	if c < 0x80 && cls&(punct|symbol) != 0 && i+1 < end && isASCIILetter(b[i+1]) {
		for i++; i < end && isASCIILetter(b[i]); i++ {
		}
		return i
	}
	if cls&(letters|mark) != 0 {
		return s.run(b, i+n, end, letters|mark)
	}
	if c != '\r' && c != '\n' && cls&(punct|symbol) == 0 && i+n < end {
		if next, m := s.classes.at(b, i+n); next&(letters|mark) != 0 {
			return s.run(b, i+n+m, end, letters|mark)
		}
	}
	at := i
	if c == ' ' && i+1 < end {
		if next, m := s.classes.at(b, i+1); next&(punct|symbol) != 0 {
			at, cls, n = i+1, next, m
		}
	}
	switch {
	case cls&(punct|symbol) != 0:
		return s.feeds(b, s.run(b, at+n, end, punct|symbol), end)
	case cls&space != 0:
		return s.white(b, i, end, true)
	}
	return 0
}

func isASCIILetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// run returns the end of what is of a class from i on.
func (s *splitter) run(b []byte, i, end int, of class) int {
	for i < end {
		cls, n := s.classes.at(b, i)
		if cls&of == 0 {
			break
		}
		i += n
	}
	return i
}

// others returns the end of what is of none of the classes from i on.
func (s *splitter) others(b []byte, i, end int, of class) int {
	for i < end {
		cls, n := s.classes.at(b, i)
		if cls&of != 0 {
			break
		}
		i += n
	}
	return i
}

// numbers goes on behind the first number of a word.
func (s *splitter) numbers(b []byte, i, end int) int {
	for n := 1; n < s.digits && i < end; n++ {
		cls, m := s.classes.at(b, i)
		if cls&number == 0 {
			break
		}
		i += m
	}
	return i
}

// signs matches ` ?[^\s\p{L}\p{N}]+[\r\n]*`, and white space where that is not at i.
func (s *splitter) signs(b []byte, i, end int, not class) int {
	at := i
	cls, n := s.classes.at(b, i)
	if b[i] == ' ' && i+1 < end {
		at = i + 1
		cls, n = s.classes.at(b, at)
	}
	if cls&not == 0 {
		return s.feeds(b, s.others(b, at+n, end, not), end)
	}
	return s.white(b, i, end, true)
}

// feeds goes over the line feeds behind signs.
func (s *splitter) feeds(b []byte, i, end int) int {
	for i < end && (b[i] == '\r' || b[i] == '\n' || s.slash && b[i] == '/') {
		i++
	}
	return i
}

// white matches \s*[\r\n]+|\s+(?!\S)|\s+ at i, without the first alternative if lines is
// false.
func (s *splitter) white(b []byte, i, end int, lines bool) int {
	at, last, feed := i, i, -1
	for at < end {
		cls, n := s.classes.at(b, at)
		if cls&space == 0 {
			break
		}
		last = at
		at += n
		if b[last] == '\r' || b[last] == '\n' {
			feed = at
		}
	}
	switch {
	case lines && feed > 0:
		return feed
	case at == end || last == i:
		return at
	}
	return last
}

// contraction returns the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at i, where an
// apostrophe stands; 0 if there is not one of them.
func contraction(b []byte, i, end int) int {
	if i+1 >= end {
		return 0
	}
	switch b[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if i+2 < end && b[i+2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if i+2 < end && b[i+2]|0x20 == 'l' {
			return 3
		}
	}
	// The long s is one to expressions that ignore case.
	if i+2 < end && b[i+1] == 0xc5 && b[i+2] == 0xbf {
		return 3
	}
	return 0
}
