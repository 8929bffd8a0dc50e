package tokenpool

import (
	"unicode"
	"unicode/utf8"
)

// parted is an encoder of a family that does not tokenize long texts at once, as
// its Python code does not, for fear of tiktoken's stack: what is between two added
// tokens is cut behind maxPart characters, and a run with or without white space
// behind maxRun of them.
type parted struct {
	encoder
	added           *cutter
	maxPart, maxRun int
}

func (p parted) encode(text string, special bool) (ids []uint32, ends []int) {
	from := 0
	for _, to := range append(p.cuts(text), len(text)) {
		got, at := p.encoder.encode(text[from:to], special)
		if len(got) == 0 && from < to {
			return nil, nil // it has failed
		}
		if from == 0 {
			ids, ends = got, at
		} else {
			for _, e := range at {
				ends = append(ends, from+e)
			}
			ids = append(ids, got...)
		}
		from = to
	}
	return ids, ends
}

// check implements encoder, for each part of a text.
func (p parted) check(text string) error {
	if p.encoder.check(text) == nil {
		return nil
	}
	from := 0
	for _, to := range append(p.cuts(text), len(text)) {
		if err := p.encoder.check(text[from:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// cuts says where a text is cut. Added tokens are none of a part.
func (p parted) cuts(text string) (out []int) {
	if len(text) <= p.maxRun {
		return nil
	}
	part, run, space := 0, 0, false
	for i := 0; i < len(text); {
		if n := p.added.at(text, i); n > 0 {
			i += n
			part, run = 0, 0
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		now := isPythonSpace(r)
		if part == p.maxPart || run == p.maxRun && now == space {
			if part == p.maxPart {
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
