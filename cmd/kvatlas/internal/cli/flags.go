package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/internal/nearest"
)

// Flags are those of a command. Loader has the settings among them, and is nil where there
// are none.
type Flags struct {
	Set    *flag.FlagSet
	Loader *config.Loader
}

// ReadFlags reads the flags of a command, which may stand behind its arguments too,
// and returns the arguments. It writes the help that is asked for, usage and the flags, and
// says of a wrong flag what is near it.
func (p *Program) ReadFlags(fs *flag.FlagSet, args []string, usage string) (words []string, err error) {
	return p.read(Flags{Set: fs}, args, func(w io.Writer) {
		fmt.Fprint(w, usage)
		WriteFlags(w, fs, nil)
	})
}

// ReadSettings is ReadFlags for a command that takes the settings of kvatlas serve, which are
// loader's, and nothing but flags. help writes its help.
func (p *Program) ReadSettings(fs *flag.FlagSet, loader *config.Loader, args []string, help func(io.Writer)) error {
	words, err := p.read(Flags{fs, loader}, args, help)
	if err == nil && len(words) > 0 {
		return fmt.Errorf("%q: it takes flags only", words[0])
	}
	return err
}

func (p *Program) read(f Flags, args []string, help func(io.Writer)) (words []string, err error) {
	if p.OnFlags != nil {
		p.OnFlags(f)
		return nil, flag.ErrHelp
	}
	f.Set.SetOutput(io.Discard)
	words, err = parseInterspersed(f.Set, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(p.Stdout)
		return nil, err
	case err != nil && f.Loader != nil:
		return nil, f.Loader.FlagError(err)
	case err != nil:
		return nil, config.FlagError(f.Set, err)
	}
	return words, nil
}

// parseInterspersed is fs.Parse for flags that may stand behind arguments too;
// it returns the arguments.
func parseInterspersed(fs *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		rest := fs.Args()
		if len(rest) == 0 {
			return words, nil
		}
		if i := len(args) - len(rest); i > 0 && args[i-1] == "--" {
			return append(words, rest...), nil
		}
		words = append(words, rest[0])
		args = rest[1:]
	}
}

// ParseFlags reads the flags of a command that takes nothing else. Where done is true the
// command ends with the status.
func (p *Program) ParseFlags(command, usage string, fs *flag.FlagSet, args []string) (status int, done bool) {
	switch words, err := p.ReadFlags(fs, args, usage); {
	case err != nil:
		return p.Misuse(command, err), true
	case len(words) > 0:
		return p.Misuse(command, fmt.Errorf("%q: it takes flags only", words[0])), true
	}
	return ExitOK, false
}

// FlagGiven reports whether one of the flags stands on the command line.
func FlagGiven(fs *flag.FlagSet, names ...string) (given bool) {
	fs.Visit(func(f *flag.Flag) { given = given || slices.Contains(names, f.Name) })
	return given
}

// SplitList splits at commas and drops spaces; an empty list has no members.
func SplitList(s string) []string {
	out := []string{}
	if strings.TrimSpace(s) == "" {
		return out
	}
	for w := range strings.SplitSeq(s, ",") {
		out = append(out, strings.TrimSpace(w))
	}
	return out
}

// OneOf is an error, with what was probably meant, unless the flag's value is one of the words.
func OneOf(flag, value string, words []string) error { return WordOf("--"+flag, value, words) }

// WordOf is OneOf for a value that what names.
func WordOf(what, value string, words []string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%s: %.40q is not one of %s%s", what, value, strings.Join(words, ", "), nearest.Clause(value, words))
}

// IsSwitch reports whether a flag needs no value.
func IsSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool }) // package flag's own way to tell
	return ok && b.IsBoolFlag()
}
