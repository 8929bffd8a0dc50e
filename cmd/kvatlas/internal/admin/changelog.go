package admin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
	"github.com/kvatlas/kvatlas/store/redis/changelog"
)

const changelogUsage = `kvatlas changelog switches the log of changes of an index in Redis on or off, which
servers with --replica follow. It holds for all writers at once.

  kvatlas changelog --redis URL          whether it is on, and where it ends
  kvatlas changelog --redis URL --on     switch it on, for --entries changes
  kvatlas changelog --redis URL --off    switch it off, and remove it: replicas then
                                         read from Redis, and do not switch it on again

`

// Changelog is the command.
func Changelog(ctx context.Context, p *cli.Program, args []string) int {
	fs := flag.NewFlagSet("kvatlas changelog", flag.ContinueOnError)
	at := &place{}
	at.redisFlags(fs)
	on := fs.Bool("on", false, "switch it on")
	off := fs.Bool("off", false, "switch it off")
	entries := fs.Int("entries", changelog.DefaultEntries, "how many changes a log keeps at least; a cluster has 65 logs")
	if status, done := p.ParseFlags("changelog", changelogUsage, fs, args); done {
		return status
	}
	switch {
	case *on && *off:
		return p.Misuse("changelog", errors.New("--on and --off are both given"))
	case *entries < changelog.MinEntries || *entries > changelog.MaxEntries:
		return p.Misuse("changelog", fmt.Errorf("--entries is %d, it can be %d to %d", *entries, changelog.MinEntries, changelog.MaxEntries))
	case at.redis == "":
		return p.Misuse("changelog", errors.New("--redis is required: the log is in Redis"))
	}
	if err := at.open(p, fs, "changelog"); err != nil {
		return p.Misuse("changelog", err)
	}
	defer at.close()
	ctx, cancel := context.WithTimeout(ctx, at.timeout)
	defer cancel()
	var err error
	switch {
	case *on:
		err = at.index.SetLog(ctx, *entries)
	case *off:
		err = at.index.SetLog(ctx, 0)
	}
	var ends map[string]string
	if err == nil {
		ends, err = at.index.LogOffsets(ctx)
	}
	if err != nil {
		return p.Fail("changelog", at.failure(err))
	}
	if len(ends) == 0 {
		fmt.Fprintln(p.Stdout, "off")
		return cli.ExitOK
	}
	fmt.Fprintln(p.Stdout, "on")
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		fmt.Fprintf(p.Stdout, "%s ends at %s\n", terminal.Printable(name), ends[name])
	}
	return cli.ExitOK
}
