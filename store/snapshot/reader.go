package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

// Errors that callers tell apart with errors.Is. Their messages have the number
// of the line.
var (
	// ErrCorrupt says that a dump is not what was written.
	ErrCorrupt = errors.New("snapshot: not a right dump")
	// ErrCut says that a dump ends before its end. What was read until then is
	// right.
	ErrCut = errors.New("snapshot: the dump has been cut off")
	// ErrVersion says that another version of kvatlas wrote the dump.
	ErrVersion = errors.New("snapshot: a dump of another version")
)

// Reader reads a dump line by line and holds it against its own sums and counts.
type Reader struct {
	in   *bufio.Reader
	long []byte // a line that in has no room for
	line Line

	lines  int   // read so far
	bytes  int64 // the same
	header Header
	sum    *xxh3.Hasher
	open   bool // within a segment
	count  End  // what the segment has had so far
	page   int  // blocks of the page so far
	keys   int  // memory of the page so far
	hold   int  // the same
	next   string
	whole  bool  // the last segment said that there is no more
	good   int64 // bytes up to the last whole page
	paged  bool  // the last line ended a page
}

// NewReader returns a Reader of a dump that is not compressed.
func NewReader(r io.Reader) *Reader {
	return &Reader{in: bufio.NewReaderSize(r, 64<<10), sum: xxh3.New()}
}

// Lines is how many lines have been read, the one that an error is about
// included.
func (r *Reader) Lines() int { return r.lines }

// Header is the header of the segment that the last line belongs to.
func (r *Reader) Header() Header { return r.header }

// Resume is where a dump that was cut off can be gone on with. Its first so many
// bytes are right and end a page, and the rest follows the cursor. It is 0 when
// there is no such place.
func (r *Reader) Resume() (bytes int64, cursor string) { return r.good, r.next }

// Next returns the next line, which is valid until the call after. At the end of
// a whole dump the error is io.EOF. ErrCut, ErrCorrupt, ErrVersion and the errors
// of what is read end the reading.
func (r *Reader) Next() (*Line, error) {
	raw, err := r.readLine()
	switch {
	case errors.Is(err, io.EOF):
		return nil, r.end()
	case err != nil:
		return nil, err
	}
	r.lines++
	r.bytes += int64(len(raw))
	l := &r.line
	err = l.parse(raw)
	if err != nil && raw[0] == '{' && raw[len(raw)-1] != '\n' && raw[len(raw)-1] != '}' {
		return nil, fmt.Errorf("%w: in the middle of line %d", ErrCut, r.lines)
	}
	if err != nil {
		if l.failed {
			return nil, fmt.Errorf("%w: line %d: %w", ErrCut, r.lines, err)
		}
		return nil, r.bad("%w", err)
	}
	switch {
	case l.Kind == KindHeader:
		err = r.begin(l)
	case !r.open:
		err = r.bad("a dump, or a part of it, begins with {\"kvatlas\":\"dump\",...}; this is %s", clip(raw))
	default:
		err = r.check(l)
	}
	if err != nil {
		return nil, err
	}
	_, _ = r.sum.Write(raw) // never fails
	return l, nil
}

func (r *Reader) bad(format string, args ...any) error {
	return fmt.Errorf("%w: line %d: "+format, append([]any{ErrCorrupt, r.lines}, args...)...)
}

// readLine returns a line with its end, which only the last one can lack.
func (r *Reader) readLine() ([]byte, error) {
	r.long = r.long[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		if err == nil && len(r.long) == 0 {
			return part, nil
		}
		if len(r.long)+len(part) > MaxLine {
			r.lines++
			return nil, r.bad("it is longer than %d bytes, the limit", MaxLine)
		}
		r.long = append(r.long, part...)
		switch {
		case err == nil:
			return r.long, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(r.long) > 0:
			return r.long, nil
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		case errors.Is(err, io.ErrUnexpectedEOF): // of gzip
			return nil, fmt.Errorf("%w: behind line %d", ErrCut, r.lines)
		case r.lines == 0: // what is to be read could not be had at all
			return nil, fmt.Errorf("snapshot: %w", err)
		default:
			return nil, fmt.Errorf("snapshot: behind line %d: %w", r.lines, err)
		}
	}
}

// begin begins a segment.
func (r *Reader) begin(l *Line) error {
	h := &l.Header
	if err := h.validate(); err != nil {
		return fmt.Errorf("%w (line %d)", err, r.lines)
	}
	switch {
	case r.lines == 1:
		// A dump may begin anywhere, since a part of one is a dump as well.
	case r.whole:
		return r.bad("the dump is complete, but another one begins here")
	case !r.paged || h.After == "" || h.After != r.next:
		return r.bad("another part of the dump begins here, which does not go on from the end of the last whole page")
	}
	r.header, r.open, r.paged, r.count, r.page, r.keys, r.hold = *h, true, false, End{}, 0, 0, 0
	r.sum.Reset()
	return nil
}

// check holds a line against what came before.
func (r *Reader) check(l *Line) error {
	sum := Sum(r.sum.Sum64())
	switch l.Kind {
	case KindHeader, KindSeq:
	case KindModel:
		r.count.Models++
	case KindPod:
		r.count.Pods++
	case KindHolder:
		r.count.Holders++
	case KindBlocks:
		r.page += len(l.Keys)
		r.keys += len(l.Keys)
		r.hold += len(l.Holders)
		if len(l.Keys) == 0 || len(l.Holders) == 0 {
			return r.bad("blocks without keys or without holders")
		}
		if r.keys > maxPageKeys || r.hold > maxPageHolders {
			return r.bad("a page of more than %d keys or %d holders, the limits", maxPageKeys, maxPageHolders)
		}
	case KindPage:
		r.count.Pages++
		r.count.Blocks += int64(r.page)
		if p := &l.Page; p.Sum != sum || p.Page != r.count.Pages || p.Blocks != r.page {
			return r.bad("page %d with %d blocks and the sum %016x ends here, what is read is page %d with %d and %016x: lines before this one were changed or lost",
				p.Page, p.Blocks, uint64(p.Sum), r.count.Pages, r.page, uint64(sum))
		}
		r.page, r.keys, r.hold = 0, 0, 0
		if l.Raw[len(l.Raw)-1] == '\n' { // else what follows would stand behind it
			r.good, r.next = r.bytes, l.Page.Next
		}
	case KindEnd:
		want := r.count
		want.Kvatlas, want.Sum, want.Next = kvatlasEnd, sum, l.End.Next
		if r.page > 0 || l.End != want {
			return r.bad("the end says %+v, what is read is %+v: lines were changed or lost", l.End, want)
		}
		r.open = false
		r.whole = l.End.Next == ""
		r.next = l.End.Next
		if l.Raw[len(l.Raw)-1] == '\n' {
			r.good = r.bytes
		} else if r.next != "" {
			return fmt.Errorf("%w: in the middle of line %d", ErrCut, r.lines)
		}
	}
	r.paged = l.Kind == KindPage || l.Kind == KindEnd
	return nil
}

// end is what the end of the input means.
func (r *Reader) end() error {
	switch {
	case r.lines == 0:
		return fmt.Errorf("%w: it is empty", ErrCut)
	case r.open:
		return fmt.Errorf("%w: it ends behind line %d, without the line {\"kvatlas\":\"end\",...}", ErrCut, r.lines)
	case !r.whole:
		return fmt.Errorf("%w: it ends behind line %d, which says that there is more", ErrCut, r.lines)
	}
	return io.EOF
}

// Verify reads a dump to its end and returns what its last segment says of it.
// blocks is how many blocks all segments have.
func Verify(r io.Reader) (end End, blocks int64, err error) {
	d := NewReader(r)
	for {
		l, err := d.Next()
		if errors.Is(err, io.EOF) {
			return end, blocks, nil
		}
		if err != nil {
			return end, blocks, err
		}
		switch l.Kind {
		case KindPage:
			blocks += int64(l.Page.Blocks)
		case KindEnd:
			end = l.End
		default:
		}
	}
}
