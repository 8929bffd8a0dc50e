// Package completion completes what is typed in a shell: commands, flags, and the words that
// are known for their values. The shell's part is a script that asks the program itself, so
// that what is offered is what this version takes.
package completion

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
)

//go:embed kvatlas.bash kvatlas.zsh kvatlas.fish
var scripts embed.FS

// shells are those that there is a script for.
var shells = []string{"bash", "zsh", "fish"}

const usage = `kvatlas completion writes a script that completes commands, flags and values of
kvatlas when Tab is pressed.

  source <(kvatlas completion bash)       in ~/.bashrc
  source <(kvatlas completion zsh)        in ~/.zshrc, behind compinit
  kvatlas completion fish | source        in ~/.config/fish/config.fish

`

// Command is kvatlas completion.
func Command(p *cli.Program) cli.Command {
	return cli.Command{Name: "completion", Short: "write a script that completes commands in a shell", Words: shells, Run: func(_ context.Context, args []string) int {
		words, err := p.ReadFlags(flag.NewFlagSet("kvatlas completion", flag.ContinueOnError), args, usage)
		switch {
		case err == nil && len(words) != 1:
			err = fmt.Errorf("it takes the name of a shell: %s", strings.Join(shells, ", "))
		case err == nil:
			err = cli.WordOf("the shell", words[0], shells)
		}
		if err != nil {
			return p.Misuse("completion", err)
		}
		script, err := scripts.ReadFile("kvatlas." + words[0])
		if err == nil {
			_, err = p.Stdout.Write(script)
		}
		if err != nil {
			return p.Fail("completion", err)
		}
		return cli.ExitOK
	}}
}

// asked is the command that the scripts call, with the words of the line up to the one that is
// to be completed.
const asked = "__complete"

// Asked is the command that the scripts call. root is the tree with it; it is run to see the
// flags of its commands.
func Asked(p *cli.Program, root func(*cli.Program) *cli.Command) cli.Command {
	return cli.Command{Name: asked, Hidden: true, Run: func(ctx context.Context, args []string) int {
		if len(args) == 0 {
			args = []string{""}
		}
		quiet := *p
		quiet.Stdout, quiet.Stderr = io.Discard, io.Discard
		for _, c := range complete(ctx, &quiet, root, args) {
			fmt.Fprintf(p.Stdout, "%s\t%s\n", c.word, c.about)
		}
		return cli.ExitOK
	}}
}

// candidate is what a word can be, and what that is.
type candidate struct{ word, about string }

// files says that the word is the name of a file, which shells complete themselves.
var files = []candidate{{word: ":files"}}

// complete returns what the last of the words can be.
func complete(ctx context.Context, p *cli.Program, root func(*cli.Program) *cli.Command, words []string) []candidate {
	c := root(p)
	words, current := words[:len(words)-1], words[len(words)-1]
	if len(words) > 0 && words[0] == "help" {
		words = words[1:]
	}
	for len(words) > 0 {
		b := c.Below(words[0])
		if b == nil {
			break
		}
		c, words = b, words[1:]
	}
	if c.Hidden || c.Run == nil && len(words) > 0 {
		return nil
	}
	var out []candidate
	if len(words) == 0 {
		for i := range c.Commands {
			if b := &c.Commands[i]; !b.Hidden {
				out = append(out, candidate{b.Name, b.Short})
			}
		}
	}
	if c.Run != nil {
		f, at := flagsOf(ctx, p, c), argument{}
		at.pass(f, words)
		name, begin, isValue := strings.Cut(current, "=")
		switch {
		case at.flag != "":
			return matching(valuesOf(f, at.flag), current)
		case !at.dashes && isValue && strings.HasPrefix(name, "-"):
			return valuesWithName(f, name, begin)
		case !at.dashes && strings.HasPrefix(current, "-"):
			return matching(flagsFor(f), current)
		case at.count == 0:
			for _, w := range c.Words {
				out = append(out, candidate{word: w})
			}
			if c.Files {
				return files
			}
		}
	}
	return matching(out, current)
}

// flagsOf runs the command up to where it reads its flags.
func flagsOf(ctx context.Context, p *cli.Program, c *cli.Command) (f cli.Flags) {
	p.OnFlags = func(its cli.Flags) { f = its }
	c.Run(ctx, cli.HelpFlags[:1])
	p.OnFlags = nil
	if f.Set == nil {
		f.Set = flag.NewFlagSet("", flag.ContinueOnError)
	}
	return f
}

// argument is where in the arguments of a command a word stands.
type argument struct {
	flag   string // whose value it is, or ""
	dashes bool   // behind --
	count  int    // arguments before it
}

// pass reads the words before it as package flag does.
func (a *argument) pass(f cli.Flags, words []string) {
	for _, w := range words {
		switch {
		case a.flag != "":
			a.flag = ""
		case a.dashes || len(w) < 2 || w[0] != '-':
			a.count++
		case w == "--":
			a.dashes = true
		case !strings.Contains(w, "="):
			name := strings.TrimLeft(w, "-")
			if known := f.Set.Lookup(name); known != nil && !cli.IsSwitch(known) {
				a.flag = name
			}
		}
	}
}

// flagsFor are the flags.
func flagsFor(f cli.Flags) (out []candidate) {
	f.Set.VisitAll(func(one *flag.Flag) {
		_, about := cli.PlaceholderOf(one)
		out = append(out, candidate{cli.Dashed(one.Name), summary(about)})
	})
	return append(out, candidate{"--help", "list the flags"})
}

// maxSummary is how much of a flag's help stands beside it, in bytes.
const maxSummary = 60

// summary is the beginning of a text, in a line.
func summary(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if first, _, more := strings.Cut(text, ". "); more {
		text = first
	}
	if len(text) <= maxSummary {
		return strings.TrimSuffix(text, ".")
	}
	end := strings.LastIndexByte(text[:maxSummary], ' ')
	return strings.TrimRight(text[:max(end, 0)], ",;:") + " ..."
}

// valuesOf are the values that a flag can have, as far as they are known.
func valuesOf(f cli.Flags, name string) (out []candidate) {
	one := f.Set.Lookup(name)
	if one == nil {
		return nil
	}
	placeholder, _ := cli.PlaceholderOf(one)
	if s, ok := f.Loader.Setting(name); ok {
		placeholder = s.Placeholder()
	}
	switch {
	case strings.Contains(placeholder, "|"):
		for w := range strings.SplitSeq(placeholder, "|") {
			out = append(out, candidate{word: w})
		}
		return out
	case slices.Contains([]string{"N", "DURATION", "SIZE"}, placeholder):
		return nil
	}
	return files
}

// valuesWithName are values in the form --name=value.
func valuesWithName(f cli.Flags, name, begin string) (out []candidate) {
	values := matching(valuesOf(f, strings.TrimLeft(name, "-")), begin)
	if len(values) > 0 && values[0] == files[0] {
		return files
	}
	for _, v := range values {
		out = append(out, candidate{name + "=" + v.word, v.about})
	}
	return out
}

// matching are those that begin so.
func matching(all []candidate, begin string) []candidate {
	if len(all) > 0 && all[0] == files[0] {
		return files
	}
	return slices.DeleteFunc(all, func(c candidate) bool { return !strings.HasPrefix(c.word, begin) })
}
