package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"unicode"

	"github.com/kvatlas/kvatlas/access"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
)

const tokenUsage = `kvatlas token makes a credential for a caller.

  kvatlas token --role read scheduler >> credentials

It writes the line for the file of credentials to the output, and the token, which is shown
only here, to the terminal. With --token it makes the line of a token that you have. With --salt
all that the caller asks runs under a cache salt of its own, which engines hash into their blocks:
it learns nothing of what others have sent. Give new for a random one, and when you replace a
token the salt of its line, or what is cached is lost. Roles:

  read    score, route, book and report; list pods, models and loads; metrics
  write   also change blocks, pods, loads and settings
  admin   also dump, restore and reset, and see what engines' events hold

`

// token is the command.
func (p *program) token(_ context.Context, args []string) int {
	fs := flag.NewFlagSet("kvatlas token", flag.ContinueOnError)
	role := fs.String("role", "read", "what the caller may do: `read|write|admin`")
	token := fs.String("token", "", "the token, of at least 20 characters that cannot be guessed; else one is made")
	salt := fs.String("salt", "", "the cache salt of all that the caller asks, new makes one; role read only")
	words, err := p.ReadFlags(fs, args, tokenUsage)
	switch {
	case err != nil:
		return p.Misuse("token", err)
	case len(words) != 1:
		return p.Misuse("token", fmt.Errorf("it takes one name of a caller, such as scheduler, and has %d", len(words)))
	case words[0] == "" || strings.ContainsFunc(words[0], func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return p.Misuse("token", fmt.Errorf("%q is no name: one word", words[0]))
	}
	if err := cli.OneOf("role", *role, []string{access.Read.String(), access.Write.String(), access.Admin.String()}); err != nil {
		return p.Misuse("token", err)
	}
	last := ""
	if cli.FlagGiven(fs, "salt") {
		if *salt == "" { // of a variable that is not set, it may be
			return p.Misuse("token", errors.New("--salt is empty: the caller would have no salt; give one, or new, or leave --salt out"))
		}
		if *role != access.Read.String() {
			return p.Misuse("token", fmt.Errorf("--salt: a caller with a salt has role read: with %s it could reach what others have", *role))
		}
		if *salt == "new" {
			*salt = access.NewSalt()
		}
		if err := access.CheckSalt(*salt); err != nil {
			return p.Misuse("token", err)
		}
		last = " salt=" + *salt
	}
	given := *token != ""
	if !given {
		*token = access.NewToken()
	}
	digest, err := access.Digest(*token)
	if err != nil {
		return p.Misuse("token", err)
	}
	fmt.Fprintf(p.Stdout, "%s %s %s%s\n", *role, digest, words[0], last)
	if !given {
		fmt.Fprintf(p.Stderr, "%s\n", *token)
	}
	return cli.ExitOK
}
