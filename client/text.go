package client

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// ErrNotUTF8 says that a text of a request is not UTF-8, which JSON cannot
// carry as it is.
var ErrNotUTF8 = errors.New("client: text is not UTF-8")

// checkTexts takes names and texts by turns.
func checkTexts(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		name, text := pairs[i], pairs[i+1]
		if utf8.ValidString(text) {
			continue
		}
		at := 0
		for at < len(text) {
			r, n := utf8.DecodeRuneInString(text[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return fmt.Errorf("%w: %s at byte %d", ErrNotUTF8, name, at)
	}
	return nil
}

// named makes pairs for checkTexts of the members of a list.
func named(list string, texts []string) []string {
	pairs := make([]string, 0, 2*len(texts))
	for i, t := range texts {
		pairs = append(pairs, list+"["+strconv.Itoa(i)+"]", t)
	}
	return pairs
}
