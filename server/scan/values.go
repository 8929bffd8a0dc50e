package scan

import (
	"math"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
)

// LaxBool reads true or false in the words that engines take for them, too (pydantic's).
func (s *Scanner) LaxBool(dst *bool) error {
	if !s.IsAt('"') && !s.IsAt('0') && !s.IsAt('1') {
		return s.Bool(dst)
	}
	raw, err := s.Raw("true or false")
	if err != nil {
		return err
	}
	yes, no := []string{"1", "true", "t", "yes", "y", "on"}, []string{"0", "false", "f", "no", "n", "off"}
	switch word := strings.ToLower(strings.Trim(string(raw), `"`)); {
	case slices.Contains(yes, word):
		*dst = true
	case slices.Contains(no, word):
		*dst = false
	default:
		return s.Wrong("is " + refusal.Clip(string(raw)) + ", it takes true or false")
	}
	return nil
}

// Count reads a whole number that a 32-bit int can hold.
func (s *Scanner) Count(dst *int) error {
	n, err := s.Uint(math.MaxInt32, "a whole number")
	*dst = int(n)
	return err
}

// PodName reads the name of a pod.
func (s *Scanner) PodName(dst *string) error {
	if err := s.Text(dst); err != nil {
		return err
	}
	if err := store.CheckPodName(*dst); err != nil {
		return s.Refused(err)
	}
	return nil
}

// RefusedBy is refused where there is an error.
func (s *Scanner) RefusedBy(err error) error {
	if err == nil {
		return nil
	}
	return s.Refused(err)
}

// PeekElement returns the first byte of the first element of the array that is next, 0 at
// the end of the text.
func (s *Scanner) PeekElement() byte {
	at := s.pos + 1
	for at < len(s.data) && IsSpace(s.data[at]) {
		at++
	}
	if at == len(s.data) {
		return 0
	}
	return s.data[at]
}

// OneText reads a string, or a list of one, which SGLang takes for one prompt.
func (s *Scanner) OneText(dst *string) error {
	if !s.IsAt('[') {
		return s.Text(dst)
	}
	n := 0
	return s.Array("a string", math.MaxInt, func() error {
		if n++; n > 1 {
			return s.Wrong("is one too many: all prompts of a request have one")
		}
		if s.Null() {
			return nil
		}
		return s.Text(dst)
	})
}

// Names reads a list of models' names.
func (s *Scanner) Names(dst *[]string) error {
	*dst = nil
	return s.Array("an array of strings", store.MaxNames, func() error {
		*dst = append(*dst, "")
		return s.Text(&(*dst)[len(*dst)-1])
	})
}

// Labels reads an object of strings.
func (s *Scanner) Labels(dst *map[string]string) error {
	m := map[string]string{}
	*dst = m
	return s.Members("an object of strings", store.MaxLabels, func(name string) error {
		if _, twice := m[name]; twice {
			return s.Wrong("is given twice")
		}
		var value string
		err := s.Text(&value)
		m[name] = value
		return err
	})
}

// Seconds reads a number of seconds.
func (s *Scanner) Seconds(dst *store.Seconds) error {
	const want = "a number of seconds"
	if !s.IsAt('-') && !s.AtDigit() {
		return s.Unexpected(want)
	}
	raw, err := s.Raw(want)
	if err != nil {
		return err
	}
	if err := dst.UnmarshalJSON(raw); err != nil {
		return s.Refused(err)
	}
	return nil
}
