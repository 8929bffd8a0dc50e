package request

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/server/scan"
)

// CheckSettings refuses in routing settings, which encoding/json reads, what is refused elsewhere:
// a field that is given twice, null, and a field that there is not, or is in another case only.
// Param is what the object is called, empty for a body. All else, and what is no JSON, is for its
// reader to judge.
func CheckSettings(param string, object []byte) error {
	return check(param, object, settingsFields)
}

// fields are what an object can have, by name, with the fields of each; nil where it can have any.
type fields map[string]fields

var settingsFields = fieldsOf(reflect.TypeFor[route.Settings]())

// fieldsOf returns the fields of a struct in JSON. A map, or what is no object, has none of its own.
func fieldsOf(t reflect.Type) fields {
	if t.Kind() != reflect.Struct {
		return nil
	}
	of := fields{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of[name] = fieldsOf(f.Type)
	}
	return of
}

// check is CheckSettings for an object that can have these fields.
func check(param string, object []byte, of fields) error {
	if !json.Valid(object) {
		return nil
	}
	object = bytes.TrimSpace(object)
	if string(object) == "null" {
		return refusal.Invalid(param, "expected an object, found null")
	}
	return checkValue(scan.New(param, object), of)
}

func checkValue(s *scan.Scanner, of fields) error {
	switch {
	case s.IsAt('{'):
		seen := map[string]bool{}
		return s.Members("an object", math.MaxInt, func(name string) error {
			its, known := of[name]
			if of != nil && !known {
				return s.Unknown(name, slices.Collect(maps.Keys(of)))
			}
			if seen[name] {
				return s.Wrong("is given twice")
			}
			seen[name] = true
			return checkValue(s, its)
		})
	case s.IsAt('['):
		return s.Array("an array", math.MaxInt, func() error { return checkValue(s, nil) })
	case s.IsAt('n'):
		return s.Unexpected("a value")
	}
	_, err := s.Raw("a value")
	return err
}
