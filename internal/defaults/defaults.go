// Package defaults gives fields of configurations their defaults, and holds numbers to their
// limits. What it refuses is an error that names the field, its value and what it can be; the
// caller wraps it.
package defaults

import (
	"fmt"
	"reflect"
)

// Number is what a field can be: a count, a size in bytes, a time.
type Number interface{ ~int | ~int64 }

// Within sets a field that is zero to its default, and refuses what is not from low to high.
func Within[T Number](name string, field *T, value, low, high T) error {
	if *field == 0 {
		*field = value
	}
	if *field < low || *field > high {
		return fmt.Errorf("%s is %v, it can be %v to %v", name, *field, low, high)
	}
	return nil
}

// AtLeast is Within without an upper limit.
func AtLeast[T Number](name string, field *T, value, low T) error {
	if *field == 0 {
		*field = value
	}
	if *field < low {
		return fmt.Errorf("%s is %v, the least is %v", name, *field, low)
	}
	return nil
}

// Funcs sets each nil func of a struct, such as an Observer, to one that does nothing. The
// funcs have no results.
func Funcs[T any](of *T) {
	for _, f := range reflect.ValueOf(of).Elem().Fields() {
		if f.Kind() == reflect.Func && f.IsNil() {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value { return nil }))
		}
	}
}
