package tokenpool

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// checkText refuses what the tokenizer library would silently change. The
// library cuts a text at the first NUL, since it takes a C string. It replaces
// invalid UTF-8, and its offsets then count in a text that was not sent.
func checkText(text string, limit int) error {
	if len(text) > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLong, len(text), limit)
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		return fmt.Errorf("%w: NUL byte at byte %d", ErrInvalidText, i)
	}
	if !utf8.ValidString(text) {
		i := invalidAt(text)
		return fmt.Errorf("%w: invalid UTF-8 at byte %d (0x%02x)", ErrInvalidText, i, text[i])
	}
	return nil
}

// invalidAt returns where text, which is not valid UTF-8, stops being so.
func invalidAt(text string) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(text) - 1 // not reached: the text is known to be invalid
}
