package cli

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
)

// helpWidth is the width of the texts of flags, in columns.
const helpWidth = 88

// WriteFlags writes the flags of a command as all help texts have them, without those that
// are settings of loader, which may be nil.
func WriteFlags(w io.Writer, fs *flag.FlagSet, loader *config.Loader) {
	fs.VisitAll(func(f *flag.Flag) {
		if _, is := loader.Setting(f.Name); is {
			return
		}
		placeholder, text := PlaceholderOf(f)
		notes := ""
		switch f.DefValue {
		case "", "0", "0s", "false":
		default:
			notes = "default " + f.DefValue
		}
		writeFlag(w, f.Name, placeholder, text, notes)
	})
}

// WriteSettings writes the flags that are settings of kvatlas serve, by their sections.
func WriteSettings(w io.Writer) {
	section := ""
	for _, s := range config.Settings() {
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(w, "\n%s\n", section)
		}
		notes := "[$" + s.Env
		if s.Alias != "" {
			notes += ", $" + s.Alias
		}
		notes += "]"
		if s.Default != "" {
			notes = "default " + s.Default + " " + notes
		}
		if s.Min != "" {
			notes = s.Min + " to " + s.Max + ", " + notes
		}
		placeholder := s.Placeholder()
		if s.IsSwitch() {
			placeholder = ""
		}
		writeFlag(w, s.Name, placeholder, s.Doc(), notes)
	}
}

// PlaceholderOf is the word for a flag's value, "" for a switch, and the text about it. Words
// with | between them are all that it can be.
func PlaceholderOf(f *flag.Flag) (placeholder, text string) {
	placeholder, text = flag.UnquoteUsage(f)
	switch {
	case strings.Contains(placeholder, "|"): // said once is enough
		for _, before := range []string{": ", ", "} {
			text = strings.Replace(text, before+placeholder, "", 1)
		}
		return placeholder, text
	case placeholder == "int", placeholder == "uint", placeholder == "float":
		return "N", text
	case placeholder == "string", placeholder == "value":
		return "TEXT", text
	}
	return strings.ToUpper(placeholder), text
}

func writeFlag(w io.Writer, name, placeholder, text, notes string) {
	line := "  " + Dashed(name)
	if placeholder != "" {
		line += " " + placeholder
	}
	fmt.Fprintf(w, "%s\n%s", line, Wrap(text, "      ", helpWidth))
	if notes != "" {
		fmt.Fprintf(w, "      %s\n", notes)
	}
}

// Dashed is a flag as it is typed.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Wrap breaks a text into lines of width bytes at most, indented.
func Wrap(text, indent string, width int) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
			b.WriteString(indent)
			column = len(indent)
		case column+1+len(word) > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}
