// Package admin is the commands that write down, load and empty an index, at a server or
// in Redis itself: dump, restore, reset and changelog.
package admin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

const dumpUsage = `kvatlas dump writes all that an index holds, as lines of JSON.

  kvatlas dump -o FILE               of the server at --server
  kvatlas dump --redis URL -o FILE   of Redis itself
  kvatlas dump                       to standard output

A FILE that ends with .gz is compressed. It is written as FILE.part and renamed
when it is whole; --resume goes on with a FILE.part that is not.

`

// dumpCall is one call of kvatlas dump.
type dumpCall struct {
	at         *place
	file       string
	resume     bool
	model, pod string
	rate       int
	pages      int // that were written
}

// Dump is the command.
func Dump(ctx context.Context, p *cli.Program, args []string) int {
	fs := flag.NewFlagSet("kvatlas dump", flag.ContinueOnError)
	d := &dumpCall{at: placeFlags(p, fs)}
	fs.StringVar(&d.file, "o", "-", "write to `FILE`, - is standard output")
	fs.BoolVar(&d.resume, "resume", false, "go on with FILE.part")
	fs.StringVar(&d.model, "model", "", "only pods that are registered for this `model`")
	fs.StringVar(&d.pod, "pod", "", "only this `pod`")
	fs.IntVar(&d.rate, "rate", 0, "with --redis: read so many blocks a second at most; 0 is as many as there are")
	if status, done := p.ParseFlags("dump", dumpUsage, fs, args); done {
		return status
	}
	switch {
	case d.resume && d.file == "-":
		return p.Misuse("dump", errors.New("--resume goes on with a file: name it with -o FILE"))
	case d.rate < 0:
		return p.Misuse("dump", fmt.Errorf("--rate is %d, it must not be negative", d.rate))
	case d.rate > 0 && d.at.redis == "":
		return p.Misuse("dump", errors.New("--rate is for --redis; a server is read as fast as what it sends is taken"))
	}
	if err := d.at.open(p, fs, "dump"); err != nil {
		return p.Misuse("dump", err)
	}
	defer d.at.close()
	if d.file == "-" {
		if _, err := d.copy(ctx, snapshot.NewWriter(p.Stdout, false), ""); err != nil {
			return p.Fail("dump", err)
		}
		return cli.ExitOK
	}
	start := time.Now()
	blocks, bytes, err := d.toFile(ctx, p)
	if err != nil {
		return p.Fail("dump", err)
	}
	fmt.Fprintf(p.Stderr, "%s: %d blocks in %d bytes, written in %v\n", d.file, blocks, bytes, time.Since(start).Round(time.Millisecond))
	return cli.ExitOK
}

// toFile writes the dump into the file.
func (d *dumpCall) toFile(ctx context.Context, p *cli.Program) (blocks, bytes int64, err error) {
	part := d.file + ".part"
	flags := os.O_RDWR | os.O_CREATE
	if !d.resume {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(part, flags, 0o600)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close() // after an error; Replaces closes it else
	cursor := ""
	if d.resume {
		if cursor, err = d.prepare(f); errors.Is(err, io.EOF) {
			s, err := f.Stat()
			if err != nil {
				return 0, 0, err
			}
			fmt.Fprintf(p.Stderr, "%s is whole already\n", part)
			return 0, s.Size(), snapshot.Replaces(f, d.file)
		} else if err != nil {
			return 0, 0, err
		}
		if cursor == "" {
			fmt.Fprintf(p.Stderr, "%s has no whole page: beginning anew\n", part)
		}
	}
	out := snapshot.NewWriter(f, snapshot.Compressed(d.file))
	blocks, err = d.copy(ctx, out, cursor)
	if err == nil {
		err = f.Sync()
	}
	if err != nil && cursor == "" && d.pages == 0 {
		// Nothing that --resume could go on with.
		_ = os.Remove(part)
		return 0, 0, err
	}
	if err != nil {
		_ = out.EndPage() // what there is of a page may be of use to people
		return blocks, 0, fmt.Errorf("%w\n%s has what was written; --resume goes on with it", err, part)
	}
	s, err := f.Stat()
	if err != nil {
		return blocks, 0, err
	}
	return blocks, s.Size(), snapshot.Replaces(f, d.file)
}

// prepare finds where to go on. The dump keeps what it is limited to.
func (d *dumpCall) prepare(f *os.File) (cursor string, err error) {
	h, cursor, err := snapshot.Resume(f)
	if err != nil {
		return "", err
	}
	if cursor == "" {
		return "", nil
	}
	for _, c := range []struct {
		flag string
		now  *string
		was  string
	}{{"model", &d.model, h.Model}, {"pod", &d.pod, h.Pod}} {
		if *c.now != "" && *c.now != c.was {
			return "", fmt.Errorf("%s was begun with --%s %q, not %q", f.Name(), c.flag, c.was, *c.now)
		}
		*c.now = c.was
	}
	return cursor, nil
}

// copy writes what the index has, from the cursor on, and checks it on its way.
func (d *dumpCall) copy(ctx context.Context, out *snapshot.Writer, cursor string) (blocks int64, err error) {
	in, err := d.lines(ctx, cursor)
	if err != nil {
		return 0, d.failure(err)
	}
	defer in.Close()
	r := snapshot.NewReader(in)
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			return blocks, nil
		}
		if err != nil {
			return blocks, d.failure(err)
		}
		if _, err := out.Write(l.Raw); err != nil {
			return blocks, err
		}
		if l.Kind == snapshot.KindPage {
			blocks += int64(l.Page.Blocks)
			d.pages++
		}
		// The end stays in one member with the last page.
		if l.Kind == snapshot.KindEnd || l.Kind == snapshot.KindPage && l.Page.Next != "" {
			if err := out.EndPage(); err != nil {
				return blocks, err
			}
		}
	}
}

// lines opens the stream of the dump's lines.
func (d *dumpCall) lines(ctx context.Context, cursor string) (io.ReadCloser, error) {
	if d.at.client != nil {
		return d.at.client.Dump(ctx, client.DumpRequest{Model: d.model, Pod: d.pod, Cursor: cursor})
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := snapshot.Dump(ctx, w, d.at.index, snapshot.Options{Model: d.model, Pod: d.pod, After: cursor, Rate: d.rate, Logs: d.at.index.LogOffsets, Patience: d.at.timeout})
		_ = w.CloseWithError(err)
	}()
	return &pipeEnd{r, func() {
		cancel()
		_ = r.Close()
		<-done
	}}, nil
}

// pipeEnd is the reader's end of a pipe, whose close ends the writer.
type pipeEnd struct {
	*io.PipeReader
	end func()
}

// Close implements io.Closer.
func (p *pipeEnd) Close() error {
	p.end()
	return nil
}

func (d *dumpCall) failure(err error) error {
	e, refused := errors.AsType[*client.Error](err)
	if errors.Is(err, store.ErrCursor) || refused && e.Code == "invalid_cursor" {
		return errors.New("the index that was dumped has ended since, as the one in memory does with its server: dump anew, without --resume")
	}
	return d.at.failure(err)
}
