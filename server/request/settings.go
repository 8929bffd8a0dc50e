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
	return check(param, object, reflect.TypeFor[route.Settings]())
}

// check is CheckSettings for an object that encoding/json puts into a t.
func check(param string, object []byte, t reflect.Type) error {
	if !json.Valid(object) {
		return nil
	}
	object = bytes.TrimSpace(object)
	if string(object) == "null" {
		return refusal.Invalid(param, "expected an object, found null")
	}
	return checkValue(scan.New(param, object), t)
}

func checkValue(s *scan.Scanner, t reflect.Type) error {
	seen := map[string]bool{}
	switch {
	case s.IsAt('{'):
		fields, exact := fieldsOf(t)
		return s.Members("an object", math.MaxInt, func(name string) error {
			if exact && fields[name] == nil {
				return s.Unknown(name, slices.Collect(maps.Keys(fields)))
			}
			if seen[name] {
				return s.Wrong("is given twice")
			}
			seen[name] = true
			return checkValue(s, fields[name])
		})
	case s.IsAt('['):
		return s.Array("an array", math.MaxInt, func() error { return checkValue(s, nil) })
	case s.IsAt('n'):
		return s.Unexpected("a value")
	}
	_, err := s.Raw("a value")
	return err
}

// fieldsOf are the fields of a struct in JSON, by name. Exact is false for what can have any: a
// map, or no struct at all.
func fieldsOf(t reflect.Type) (fields map[string]reflect.Type, exact bool) {
	if t == nil || t.Kind() != reflect.Struct {
		return nil, false
	}
	fields = map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = f.Type
	}
	return fields, true
}
