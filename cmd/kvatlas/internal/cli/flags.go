package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
)

// ReadFlags reads the flags of a command, which may stand behind its arguments too,
// and returns the arguments. It writes the help that is asked for, and says of a
// wrong flag what is near it.
func (p *Program) ReadFlags(fs *flag.FlagSet, args []string, usage string) (words []string, err error) {
	fs.SetOutput(io.Discard)
	words, err = parseInterspersed(fs, args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.Stdout, usage)
		fs.SetOutput(p.Stdout)
		fs.PrintDefaults()
	}
	if err != nil {
		return nil, config.FlagError(fs, err)
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
	case errors.Is(err, flag.ErrHelp):
		return ExitOK, true
	case err != nil:
		return p.Misuse(command, err), true
	case len(words) > 0:
		return p.Misuse(command, fmt.Errorf("%q: it takes flags only", words[0])), true
	}
	return ExitOK, false
}

// FlagGiven reports whether one of the flags stands on the command line.
func FlagGiven(fs *flag.FlagSet, names ...string) bool {
	given := false
	fs.Visit(func(f *flag.Flag) {
		for _, n := range names {
			given = given || f.Name == n
		}
	})
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
