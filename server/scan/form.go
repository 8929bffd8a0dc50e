package scan

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/server/refusal"
)

// Form is the set of fields that were given, for rules between fields.
type Form struct {
	names []string
	seen  uint64
	// Skipped is the first field of an engine that was skipped, "" if none was, and
	// refused are those that may not be skipped.
	Skipped string
	Refused []string
}

// Read reads the scanner's text as one object and nothing after it. names are those of fs.
func Read[T any](s *Scanner, fs Fields[T], names []string, dst *T) (Form, error) {
	seen, err := Decode(s, fs, dst)
	return Form{names: names, seen: seen, Skipped: s.passed.first, Refused: s.passed.refused}, err
}

// NamesOf lists the names of fs, in order.
func NamesOf[T any](fs Fields[T]) []string {
	names := make([]string, len(fs))
	for i := range fs {
		names[i] = fs[i].Name
	}
	return names
}

// Has reports whether a field was given.
func (f Form) Has(name string) bool { return f.seen&(1<<slices.Index(f.names, name)) != 0 }

// HasAny reports whether one of the fields was given. It looks at those that were, which are
// few, and not at all names.
func (f Form) HasAny(names []string) bool {
	for rest := f.seen; rest != 0; rest &= rest - 1 {
		if slices.Contains(names, f.names[bits.TrailingZeros64(rest)]) {
			return true
		}
	}
	return false
}

// With returns the form with one more field as given.
func (f Form) With(name string) Form {
	f.seen |= 1 << slices.Index(f.names, name)
	return f
}

// Need refuses a form without these fields.
func (f Form) Need(names ...string) error {
	for _, n := range names {
		if !f.Has(n) {
			return refusal.Invalid(n, "%s is missing", n)
		}
	}
	return nil
}

// One refuses a form that has not exactly one of the fields, and returns it.
func (f Form) One(names ...string) (string, error) {
	var got string
	for _, n := range names {
		switch {
		case !f.Has(n):
		case got != "":
			return "", refusal.Invalid(n, "%s and %s are both given, give one of %s", got, n, strings.Join(names, ", "))
		default:
			got = n
		}
	}
	if got == "" {
		return "", refusal.Invalid(names[0], "one of %s is needed", strings.Join(names, ", "))
	}
	return got, nil
}

// Exclude refuses a form that has one of the fields.
func (f Form) Exclude(because string, names ...string) error {
	for _, n := range names {
		if f.Has(n) {
			return refusal.Invalid(n, "%s cannot be given: %s", n, because)
		}
	}
	return nil
}
