package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/nearest"
)

// envPrefix begins the name of every environment variable of kvatlas.
const envPrefix = "KVATLAS_"

// Setting describes one field of Config.
type Setting struct {
	// Name is the flag without its dashes, and the key in the file.
	Name string
	// Env is the environment variable, Alias one of another tool that is
	// honoured when Env is not set (empty when there is none).
	Env, Alias string
	// Section is the heading under which documents list the setting.
	Section string
	// Default is the text of the default.
	Default string
	// Min and Max are the bounds of a number, a size or a duration, both
	// included; empty where there is none.
	Min, Max string
	// OneOf are the words allowed; nil allows any text.
	OneOf []string

	index []int // of the field in Config
	typ   reflect.Type
}

// Settings lists all settings in the order in which documents show them.
func Settings() []Setting {
	fields := reflect.VisibleFields(reflect.TypeFor[Config]())
	out := make([]Setting, 0, len(fields))
	section := ""
	for _, f := range fields {
		if f.Anonymous { // its fields come next
			continue
		}
		if s, ok := f.Tag.Lookup("section"); ok {
			section = s
		}
		s := Setting{
			Name:    f.Tag.Get("name"),
			Alias:   f.Tag.Get("alias"),
			Section: section,
			Default: f.Tag.Get("default"),
			Min:     f.Tag.Get("min"),
			Max:     f.Tag.Get("max"),
			index:   f.Index,
			typ:     f.Type,
		}
		s.Env = variableOf(s.Name)
		if words := f.Tag.Get("oneof"); words != "" {
			s.OneOf = strings.Split(words, ",")
		}
		out = append(out, s)
	}
	return out
}

// IsSwitch says whether the setting is true or false, so that its flag needs
// no value.
func (s *Setting) IsSwitch() bool { return s.typ.Kind() == reflect.Bool }

// Placeholder is a word for the setting's value in a usage line.
func (s *Setting) Placeholder() string {
	switch {
	case s.OneOf != nil:
		return strings.Join(s.OneOf, "|")
	case s.typ == reflect.TypeFor[time.Duration]():
		return "DURATION"
	case s.typ == reflect.TypeFor[Bytes]():
		return "SIZE"
	case s.typ.Kind() == reflect.Int:
		return "N"
	case s.typ.Kind() == reflect.Bool:
		return "true|false"
	case s.typ == reflect.TypeFor[Roles](), s.typ == reflect.TypeFor[Weights]():
		return "LIST"
	default:
		return "TEXT"
	}
}

// set parses text, checks it against the setting's own limits and puts it
// into the field of c. An empty text is the zero value of what is a text, and
// an error elsewhere.
func (s *Setting) set(c *Config, text string) error {
	if i := strings.IndexFunc(text, unicode.IsControl); i >= 0 {
		// Most often the line end of a file that became a variable.
		return fmt.Errorf("its value has a control character at byte %d of %d", i, len(text))
	}
	if !utf8.ValidString(text) {
		return errors.New("its value is not UTF-8")
	}
	v := reflect.ValueOf(c).Elem().FieldByIndex(s.index)
	if err := parseInto(v, text); err != nil {
		return err
	}
	if s.OneOf != nil {
		return s.checkWord(text)
	}
	for _, bound := range []struct {
		limit string
		sign  int
		word  string
	}{{s.Min, -1, "at least"}, {s.Max, 1, "at most"}} {
		if bound.limit == "" {
			continue
		}
		limit := reflect.New(s.typ).Elem()
		if err := parseInto(limit, bound.limit); err != nil {
			return fmt.Errorf("limit of the setting: %w", err)
		}
		if d := v.Int() - limit.Int(); d != 0 && (d < 0) == (bound.sign < 0) {
			return fmt.Errorf("%s is out of range, it must be %s %s", format(v), bound.word, bound.limit)
		}
	}
	return nil
}

func (s *Setting) checkWord(text string) error {
	if slices.Contains(s.OneOf, text) {
		return nil
	}
	return fmt.Errorf("%q is not one of %s%s", text, strings.Join(s.OneOf, ", "), nearest.Clause(text, s.OneOf))
}

// text returns the setting's value in c as it would be written in a file,
// secrets masked.
func (s *Setting) text(c *Config) string {
	return format(reflect.ValueOf(c).Elem().FieldByIndex(s.index))
}

func parseInto(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *string:
		*p = text
	case *bool:
		b, err := parseBool(text)
		if err != nil {
			return err
		}
		*p = b
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is no duration such as 250ms, 2s or 1m30s", text)
		}
		*p = d
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is no whole number", text)
		}
		*p = n
	default:
		return fmt.Errorf("a setting cannot be of type %s", v.Type())
	}
	return nil
}

func format(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		if err != nil {
			return err.Error()
		}
		return string(b)
	case time.Duration:
		return formatDuration(x)
	default:
		return fmt.Sprint(x)
	}
}

// formatDuration leaves out the zeros of time.Duration.String: 1m0s is 1m.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Doc returns the doc comment of the setting's field without the field's name:
// "the address that ...". It is in docs.go, which a test makes of the comments.
func (s *Setting) Doc() string {
	field := reflect.TypeFor[Config]().FieldByIndex(s.index).Name
	return strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(docs[field], field+" "), "is "), "are ")
}
