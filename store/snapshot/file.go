package snapshot

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Compressed reports whether a file of this name is written with gzip: its name ends
// with .gz.
func Compressed(name string) bool { return strings.HasSuffix(name, ".gz") }

// Writer writes a dump, with gzip or without. With it, every page is a member of its
// own, which gzip's readers join. So a file that was cut off can be gone on with
// behind its last whole member.
type Writer struct {
	w  io.Writer
	gz *gzip.Writer
	in bool // within a member
}

// NewWriter returns a Writer.
func NewWriter(w io.Writer, compress bool) *Writer {
	d := &Writer{w: w}
	if compress {
		d.gz, _ = gzip.NewWriterLevel(w, gzip.BestSpeed) // a right level
	}
	return d
}

// Write implements io.Writer.
func (d *Writer) Write(b []byte) (int, error) {
	if d.gz == nil {
		return d.w.Write(b)
	}
	if !d.in {
		d.gz.Reset(d.w)
		d.in = true
	}
	return d.gz.Write(b)
}

// EndPage ends a member. It is to be called behind the line of a page's end and
// behind that of the dump's.
func (d *Writer) EndPage() error {
	if !d.in {
		return nil
	}
	d.in = false
	return d.gz.Close()
}

// pages is a Writer for Dump, which writes a page in one call.
type pages struct{ w *Writer }

func (p pages) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	return n, errors.Join(err, p.w.EndPage())
}

// Decompress returns what r has, without gzip if r begins as gzip does.
func Decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(head) != "\x1f\x8b" {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, fmt.Errorf("%w: it begins as gzip does, and is none: %w", ErrCorrupt, err)
	}
	return gzipErrors{z}, nil
}

// gzipErrors makes what gzip does not understand a corrupt dump.
type gzipErrors struct{ r io.Reader }

// Read implements io.Reader.
func (g gzipErrors) Read(b []byte) (int, error) {
	n, err := g.r.Read(b)
	_, broken := errors.AsType[flate.CorruptInputError](err)
	if broken || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) {
		err = fmt.Errorf("%w: gzip: %w", ErrCorrupt, err)
	}
	return n, err
}

// Save writes a dump into a file, compressed if its name ends with .gz. The file is
// the old one or the new one at every moment, also when the machine fails. The dump
// goes into a file beside it, which then takes its place.
func Save(ctx context.Context, name string, from Source, o Options) (sum Summary, err error) {
	f, err := os.OpenFile(name+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return sum, fmt.Errorf("snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	sum, err = Dump(ctx, pages{NewWriter(f, Compressed(name))}, from, o)
	if err != nil {
		return sum, err
	}
	if err := f.Sync(); err != nil {
		return sum, fmt.Errorf("snapshot: %w", err)
	}
	if at, err := f.Seek(0, io.SeekCurrent); err == nil {
		sum.Bytes = at
	}
	return sum, Replaces(f, name)
}

// Replaces closes a file and gives it the place of another in the same folder,
// for good: the folder is synced.
func Replaces(f *os.File, name string) error {
	if err := f.Close(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// Resume prepares a file that a dump was written into, and that was cut off, for
// the rest. It cuts the file behind the last whole page, where the rest is to be
// written. It returns the header of its last segment and the cursor of the rest.
// With the cursor "" there is no whole page, and the file is empty now. A dump
// that is whole is io.EOF.
func Resume(f *os.File) (h Header, cursor string, err error) {
	in := &countingReader{r: bufio.NewReaderSize(f, 64<<10)}
	var ends *members
	var text io.Reader = in
	if head, _ := in.r.Peek(2); string(head) == "\x1f\x8b" {
		ends = &members{in: in, at: map[int64]int64{}}
		text = ends
	}
	r := NewReader(text)
	for err == nil {
		_, err = r.Next()
	}
	switch {
	case errors.Is(err, io.EOF):
		return r.Header(), "", io.EOF
	case errors.Is(err, ErrVersion):
		return h, "", err
	}
	good, cursor := r.Resume()
	if ends != nil {
		good = ends.at[good] // 0 where a page does not end a member
	}
	if good == 0 || cursor == "" {
		good, cursor = 0, ""
	}
	if err := f.Truncate(good); err != nil {
		return h, "", fmt.Errorf("snapshot: %w", err)
	}
	if _, err := f.Seek(good, io.SeekStart); err != nil {
		return h, "", fmt.Errorf("snapshot: %w", err)
	}
	return r.Header(), cursor, nil
}

// countingReader counts what is read, to the byte: gzip takes no more than it
// needs of a reader that gives single bytes.
type countingReader struct {
	r *bufio.Reader
	n int64
}

// Read implements io.Reader.
func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// ReadByte implements io.ByteReader.
func (c *countingReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

// members reads the members of a gzip file as one, and notes where they end.
type members struct {
	in *countingReader
	z  *gzip.Reader
	n  int64           // bytes read
	at map[int64]int64 // the end of a member in the file, by the end of what it has
}

// Read implements io.Reader.
func (m *members) Read(b []byte) (n int, err error) {
	if m.z == nil {
		m.z, err = gzip.NewReader(m.in)
		if err != nil {
			return 0, err
		}
		m.z.Multistream(false)
	}
	for {
		n, err = m.z.Read(b)
		m.n += int64(n)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		m.at[m.n] = m.in.n
		if err := m.z.Reset(m.in); err != nil {
			return n, err
		}
		m.z.Multistream(false)
		if n > 0 {
			return n, nil
		}
	}
}
