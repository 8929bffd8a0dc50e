package prefixcache

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// The kinds of store that New makes.
const (
	KindLRU  = "lru"
	KindTrie = "trie"
)

// Defaults and limits of Config.
const (
	defaultMaxBytes = 256 << 20
	minMaxBytes     = 64 << 10
)

// maxText bounds a text in bytes and in tokens, so that both fit the 32-bit
// fields of an entry. MaxBytes is the limit that matters in practice.
const maxText = math.MaxInt32

// Errors that callers tell apart with errors.Is.
var (
	// ErrConfig says that a Config or a kind cannot be used as it stands.
	ErrConfig = errors.New("prefixcache: invalid configuration")
	// ErrInvalid says that Put was given a text, tokens and ends that do not
	// belong together. It also refuses a text that tokenizers do not take as it
	// stands.
	ErrInvalid = errors.New("prefixcache: not to be cached")
	// ErrTooLarge says that a text would not fit into the store if it were
	// there alone. Raise Config.MaxBytes, or do not cache texts of this size.
	ErrTooLarge = errors.New("prefixcache: text is too large for the store")
)

// Config configures a store. The zero value is usable.
type Config struct {
	// MaxBytes bounds the memory that the store takes, in bytes, keys and
	// bookkeeping included. 0 is 256 MiB; at least 64 KiB.
	MaxBytes int64
}

// validate fills in the defaults and checks the limits.
func (c *Config) validate() error {
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultMaxBytes)
	if c.MaxBytes < minMaxBytes {
		return fmt.Errorf("%w: MaxBytes is %d, at least %d is needed", ErrConfig, c.MaxBytes, minMaxBytes)
	}
	return nil
}

// New makes a store of the kind KindLRU or KindTrie.
func New(kind string, cfg Config) (Store, error) {
	switch kind {
	case KindLRU:
		return NewLRU(cfg)
	case KindTrie:
		return NewTrie(cfg)
	}
	return nil, fmt.Errorf("%w: kind %q is neither %q nor %q", ErrConfig, kind, KindLRU, KindTrie)
}

// check refuses what could not be given back rightly. It returns the ends made
// monotone, and how many leading tokens they cover: the tokens from body on
// are special tokens behind the text. Errors never quote the text.
func check(text string, tokens []uint32, ends []int) (monotone []int, body int, err error) {
	if len(ends) != len(tokens) {
		return nil, 0, fmt.Errorf("%w: %d tokens with %d ends", ErrInvalid, len(tokens), len(ends))
	}
	if len(text) > maxText || len(tokens) > maxText {
		return nil, 0, fmt.Errorf("%w: %d bytes and %d tokens, at most %d of each", ErrTooLarge, len(text), len(tokens), maxText)
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		// The tokenizer takes a C string: it would have cut the text here.
		return nil, 0, fmt.Errorf("%w: NUL byte at offset %d", ErrInvalid, i)
	}
	if !utf8.ValidString(text) {
		// The tokenizer's offsets would count in a converted text.
		return nil, 0, fmt.Errorf("%w: invalid UTF-8 at offset %d", ErrInvalid, invalidAt(text))
	}
	if text != "" && len(tokens) == 0 {
		// This is how a tokenizer that swallows its errors reports one.
		return nil, 0, fmt.Errorf("%w: no tokens for a text of %d bytes", ErrInvalid, len(text))
	}
	top, inner := 0, false
	for i, end := range ends {
		switch {
		case end < 0 || end > len(text):
			return nil, 0, fmt.Errorf("%w: token %d ends at %d in a text of %d bytes", ErrInvalid, i, end, len(text))
		case end == 0:
			continue
		case end < top:
			return nil, 0, fmt.Errorf("%w: token %d ends at %d, before %d where one before it ends", ErrInvalid, i, end, top)
		case end < len(text) && !utf8.RuneStart(text[end]):
			// Most likely these are offsets in characters, not in bytes.
			return nil, 0, fmt.Errorf("%w: token %d ends at %d, inside a character", ErrInvalid, i, end)
		}
		// A special token between others has end 0 as well.
		inner = inner || (top > 0 && body < i)
		top, body = end, i+1
	}
	if !inner {
		return ends, body, nil
	}
	monotone = make([]int, len(ends))
	top = 0
	for i, end := range ends {
		top = max(top, end)
		monotone[i] = top
	}
	return monotone, body, nil
}

// invalidAt returns the offset of the first byte that is not valid UTF-8.
func invalidAt(text string) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(text)
}

// counters count the calls of a store. The zero value is ready.
type counters struct {
	whole, partial, miss, refused, evicted atomic.Uint64
}

// found counts a Find call by its answer.
func (c *counters) found(m Match, given int) {
	switch {
	case m.Whole:
		c.whole.Add(1)
	case given > 0:
		c.partial.Add(1)
	default:
		c.miss.Add(1)
	}
}

// fill writes the counters into s.
func (c *counters) fill(s *Stats) {
	s.Whole, s.Partial, s.Miss = c.whole.Load(), c.partial.Load(), c.miss.Load()
	s.Refused, s.Evicted = c.refused.Load(), c.evicted.Load()
}
