package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/nearest"
)

// Command is a command of the program. The overviews, the help and the completion of shells
// are made of the one tree of them.
type Command struct {
	// Name is the word that calls it, Short what it does, in a line of an overview.
	Name, Short string
	// About stands above the overview of the commands below it; a command that runs has a
	// help text of its own.
	About string
	// Run runs it to its end and returns the exit status. Nil where a command below it has to
	// be named. It reads its flags with ReadFlags or ReadSettings before it does anything.
	Run func(ctx context.Context, args []string) int
	// Words are what its first argument can be, where that is a word of a list; Files says that
	// it is a file.
	Words []string
	Files bool
	// Hidden keeps it out of overviews and completions.
	Hidden bool
	// Commands are those below it.
	Commands []Command
}

// names are what can be called below the command.
func (c *Command) names() (out []string) {
	for i := range c.Commands {
		if !c.Commands[i].Hidden {
			out = append(out, c.Commands[i].Name)
		}
	}
	return out
}

// Below is the command of that name, or nil.
func (c *Command) Below(name string) *Command {
	if i := slices.IndexFunc(c.Commands, func(b Command) bool { return b.Name == name }); i >= 0 {
		return &c.Commands[i]
	}
	return nil
}

// Dispatch runs the command that args call, below c, whose own words are path.
func (p *Program) Dispatch(ctx context.Context, c *Command, path string, args []string) int {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	if b := c.Below(word); b != nil {
		if len(b.Commands) == 0 {
			return b.Run(ctx, args[1:])
		}
		return p.Dispatch(ctx, b, path+" "+word, args[1:])
	}
	near := nearest.Clause(word, c.names())
	switch {
	case c.Run != nil && near == "":
		return c.Run(ctx, args)
	case word == "":
		writeOverview(p.Stderr, c, path)
		return ExitUsage
	case word == "help" && len(args) > 1 && args[1] != "help" && !strings.HasPrefix(args[1], "-"):
		return p.Dispatch(ctx, c, path, append(slices.Clone(args[1:]), "--help"))
	case word == "help", slices.Contains(HelpFlags, word):
		writeOverview(p.Stdout, c, path)
		return ExitOK
	case strings.HasPrefix(word, "-"):
		fmt.Fprintf(p.Stderr, "%s: %q comes before a command: flags stand behind it, as in %s %s %s\n(%s --help lists the commands)\n", path, word, path, c.names()[0], word, path)
		return ExitUsage
	}
	fmt.Fprintf(p.Stderr, "%s: %q is no command%s\n(%s --help lists the commands)\n", path, word, near, path)
	return ExitUsage
}

// writeOverview writes what there is below a command.
func writeOverview(w io.Writer, c *Command, path string) {
	width := 0
	for _, n := range c.names() {
		width = max(width, len(n))
	}
	fmt.Fprintf(w, "%s\n\n", c.About)
	for i := range c.Commands {
		if b := &c.Commands[i]; !b.Hidden {
			fmt.Fprintf(w, "  %s %-*s  %s\n", path, width, b.Name, b.Short)
		}
	}
	fmt.Fprintf(w, "\n%s COMMAND --help lists the flags of a command.\n", path)
}
