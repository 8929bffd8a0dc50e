package cut

import (
	"unicode"
	"unicode/utf8"
)

// Parts cuts texts as the Python code of some families does, which does not tokenize long
// texts at once, for fear of tiktoken's stack. What is between two added tokens is cut
// behind Most characters. A run with or without white space is cut behind Run of them.
type Parts struct {
	Added     *Cutter // has the added tokens
	Most, Run int
}

// Cuts returns where a text is cut. Added tokens belong to no part.
func (p Parts) Cuts(text string) (out []int) {
	if len(text) <= p.Run {
		return nil
	}
	part, run, space := 0, 0, false
	for i := 0; i < len(text); {
		if n := p.Added.At(text, i); n > 0 {
			i += n
			part, run = 0, 0
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		now := isPythonSpace(r)
		if part == p.Most || run == p.Run && now == space {
			if part == p.Most {
				part = 0
			}
			out = append(out, i)
			run = 0
		}
		if run == 0 || now != space {
			run, space = 0, now
		}
		part++
		run++
		i += n
	}
	return out
}

// isPythonSpace is str.isspace.
func isPythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
