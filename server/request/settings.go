package request

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// CheckOnce refuses in an object that encoding/json reads, such as routing settings, what is
// refused elsewhere: a field that is given twice, and null. Param is what the object is called,
// empty for a body. All else, and what is no JSON, is for its reader to judge.
func CheckOnce(param string, object []byte) error {
	if !json.Valid(object) {
		return nil
	}
	object = bytes.TrimSpace(object)
	if string(object) == "null" {
		return refusal.Invalid(param, "expected an object, found null")
	}
	return checkValue(scan.New(param, object))
}

// checkValue reads a value, and refuses fields that are given twice and null in it.
func checkValue(s *scan.Scanner) error {
	seen := map[string]bool{}
	switch {
	case s.IsAt('{'):
		return s.Members("an object", math.MaxInt, func(name string) error {
			if seen[name] {
				return s.Wrong("is given twice")
			}
			seen[name] = true
			return checkValue(s)
		})
	case s.IsAt('['):
		return s.Array("an array", math.MaxInt, func() error { return checkValue(s) })
	case s.IsAt('n'):
		return s.Unexpected("a value")
	}
	_, err := s.Raw("a value")
	return err
}
