package admin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

const restoreUsage = `kvatlas restore loads a dump into an index.

  kvatlas restore FILE               into that of the server at --server
  kvatlas restore --redis URL FILE   into Redis itself

FILE may be compressed; - is standard input. A file is read through before the
first of it is loaded.

`

// Restore is the command.
func Restore(ctx context.Context, p *cli.Program, args []string) int {
	fs := flag.NewFlagSet("kvatlas restore", flag.ContinueOnError)
	at := placeFlags(p, fs)
	modeName := fs.String("mode", "merge", "merge adds to what is there, replace resets the whole index first: `merge|replace`")
	yes := fs.Bool("yes", false, "do not ask before a replace")
	words, err := p.ReadFlags(fs, args, restoreUsage)
	switch {
	case err != nil:
		return p.Misuse("restore", err)
	case len(words) != 1:
		return p.Misuse("restore", fmt.Errorf("%d arguments: it takes the file of a dump", len(words)))
	}
	if err := cli.OneOf("mode", *modeName, []string{snapshot.Merge.String(), snapshot.Replace.String()}); err != nil {
		return p.Misuse("restore", err)
	}
	mode, err := snapshot.ParseMode(*modeName)
	if err != nil {
		return p.Misuse("restore", err)
	}
	ask := mode == snapshot.Replace && !*yes
	if ask && words[0] == "-" {
		return p.Misuse("restore", errors.New("--mode replace asks on standard input, which has the dump: give --yes"))
	}
	if err := at.open(p, fs, "restore"); err != nil {
		return p.Misuse("restore", err)
	}
	defer at.close()
	in, closeIn, err := openDump(p, words[0])
	if err != nil {
		return p.Fail("restore", err)
	}
	defer closeIn()
	if ask {
		if err := confirm(p, fmt.Sprintf("All that the index at %s holds is replaced.", at), "all"); err != nil {
			return p.Fail("restore", err)
		}
	}
	start := time.Now()
	blocks, pods, skipped, err := at.restore(ctx, in, mode)
	if err != nil {
		return p.Fail("restore", at.failure(err))
	}
	fmt.Fprintf(p.Stderr, "%s: %d blocks, and %d pods that were not there, loaded in %v\n", words[0], blocks, pods, time.Since(start).Round(time.Millisecond))
	if skipped > 0 {
		fmt.Fprintf(p.Stderr, "%d (block, holder) pairs were left out, since their pods ended meanwhile\n", skipped)
	}
	return cli.ExitOK
}

// openDump opens a dump, and reads a file through.
func openDump(p *cli.Program, name string) (in io.Reader, closeIn func(), err error) {
	if name == "-" {
		if in, err = snapshot.Decompress(p.Stdin); err != nil {
			return nil, nil, err
		}
		b := bufio.NewReaderSize(in, 4096)
		return b, func() {}, notEvents(b)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	if in, err = snapshot.Decompress(f); err != nil {
		return nil, nil, err
	}
	b := bufio.NewReaderSize(in, 4096)
	if err := notEvents(b); err != nil {
		return nil, nil, err
	}
	if _, _, err = snapshot.Verify(b); err != nil {
		return nil, nil, err
	}
	if _, err = f.Seek(0, io.SeekStart); err != nil {
		return nil, nil, err
	}
	in, err = snapshot.Decompress(f)
	return in, func() { _ = f.Close() }, err
}

// notEvents is an error when what is to be read is a record of events. That is JSON by
// lines, too, and often lies beside a dump. It consumes nothing.
func notEvents(in *bufio.Reader) error {
	begin, _ := in.Peek(in.Size()) // an error shows up again when the dump is read
	line, _, _ := bytes.Cut(begin, []byte("\n"))
	// A payload may be longer than what is looked at.
	if bytes.HasPrefix(line, []byte(`{"timestamp":`)) && (bytes.Contains(line, []byte(`"payload":"`)) || bytes.Contains(line, []byte(`"event":`))) {
		return errors.New("this is a record of events, not a dump: kvatlas inspect play sends it to a server")
	}
	return nil
}

// restore loads a dump.
func (at *place) restore(ctx context.Context, in io.Reader, mode snapshot.Mode) (blocks int64, pods int, skipped int64, err error) {
	if at.client != nil {
		r, err := at.client.Restore(ctx, in, mode.String())
		if err != nil {
			return 0, 0, 0, err
		}
		return r.Blocks, r.Pods, r.Skipped, nil
	}
	r, err := snapshot.Restore(ctx, in, at.index, mode)
	return r.Blocks, r.Pods, r.Skipped, err
}
