// Package record keeps engines' messages in files and reads them back. So one can
// see later what an engine said, play it again, or hand it on.
//
// A record is JSONL. A line is a message as it came, with the time since the record
// began:
//
//	{"timestamp":1250,"topic":"kv@10.0.0.1@m","seq":7,"payload":"<base64>"}
//
// in milliseconds. The payload is to the byte what the engine sent, so that a
// decoder of tomorrow reads more of it than one of today. Files are rotated: the
// newest has the name of the record, those before .1, .2 and so on. No more than a
// given number are kept.
//
// Read are also the records of Dynamo's recorder, {"timestamp":ms,"event":{...}},
// whose events have hashes in the place of tokens; see RouterEvent.
package record

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// ErrFormat is wrapped by errors about lines that are not of a record; the message
// has the file and the line.
var ErrFormat = errors.New("record: not a record")

// Entry is one line of a record.
type Entry struct {
	// At is when it came, since the record began.
	At time.Duration
	// Message is what an engine sent; meaningful when Event is nil.
	Message zmq.Message
	// Event is that of a record of Dynamo's, else nil.
	Event *RouterEvent
}

// line is the JSON of an entry.
type line struct {
	Timestamp *int64          `json:"timestamp"`
	Topic     string          `json:"topic,omitempty"`
	Seq       *uint64         `json:"seq,omitempty"`
	Payload   *string         `json:"payload,omitempty"`
	Event     json.RawMessage `json:"event,omitempty"`
}

// Config says where a Writer writes and how much.
type Config struct {
	// Path is the file.
	Path string
	// MaxBytes is the size after which a new file is begun, 256 MiB by default.
	MaxBytes int64
	// MaxFiles is how many files are kept, the newest included, 8 by default.
	MaxFiles int
	// Now is the clock, time.Now by default.
	Now func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxFiles = cmp.Or(c.MaxFiles, 8)
	if c.Now == nil {
		c.Now = time.Now
	}
	switch {
	case c.Path == "":
		return c, errors.New("record: no path to write to")
	case c.MaxBytes < 1:
		return c, fmt.Errorf("record: the size of a file is %d bytes, the least is 1", c.MaxBytes)
	case c.MaxFiles < 1 || c.MaxFiles > maxFiles:
		return c, fmt.Errorf("record: %d files are to be kept, it can be 1 to %d", c.MaxFiles, maxFiles)
	}
	return c, nil
}

// maxFiles is how many files a record may have.
const maxFiles = 1000

// Writer writes a record. It belongs to one goroutine.
type Writer struct {
	config Config
	start  time.Time
	file   *os.File
	out    *bufio.Writer
	size   int64
	buf    []byte
}

// Create begins a record. A record of this name that exists is rotated away, as if
// it were full.
func Create(c Config) (*Writer, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Writer{config: c, start: c.Now()}
	begin := w.open
	if exists(c.Path) {
		begin = w.rotate
	}
	if err := begin(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *Writer) open() error {
	f, err := os.OpenFile(w.config.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	w.file, w.out, w.size = f, bufio.NewWriterSize(f, 64<<10), 0
	return nil
}

func rotated(path string, i int) string {
	if i == 0 {
		return path
	}
	return path + "." + strconv.Itoa(i)
}

// rotate renames the files and begins a new one.
func (w *Writer) rotate() error {
	if err := w.Close(); err != nil {
		return err
	}
	path := w.config.Path
	last := w.config.MaxFiles - 1
	if err := os.Remove(rotated(path, last)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record: %w", err)
	}
	for i := last; i > 0; i-- {
		if err := os.Rename(rotated(path, i-1), rotated(path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("record: %w", err)
		}
	}
	return w.open()
}

// Write writes a message that has come now. It is in the file after Flush.
func (w *Writer) Write(m zmq.Message) error {
	if w.file == nil {
		return fmt.Errorf("record: %w", os.ErrClosed)
	}
	w.buf = append(w.buf[:0], `{"timestamp":`...)
	w.buf = strconv.AppendInt(w.buf, w.config.Now().Sub(w.start).Milliseconds(), 10)
	topic, err := json.Marshal(m.Topic)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	w.buf = append(append(w.buf, `,"topic":`...), topic...)
	w.buf = append(w.buf, `,"seq":`...)
	w.buf = strconv.AppendUint(w.buf, m.Seq, 10)
	w.buf = append(w.buf, `,"payload":"`...)
	w.buf = base64.StdEncoding.AppendEncode(w.buf, m.Payload)
	w.buf = append(w.buf, '"', '}', '\n')
	if w.size > 0 && w.size+int64(len(w.buf)) > w.config.MaxBytes {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	w.size += int64(len(w.buf))
	if _, err := w.out.Write(w.buf); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// Flush writes out what is buffered.
func (w *Writer) Flush() error {
	if w.file == nil {
		return nil
	}
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// Close ends the record.
func (w *Writer) Close() error {
	if w.file == nil {
		return nil
	}
	err := errors.Join(w.Flush(), w.file.Close())
	w.file = nil
	return err
}

// Files returns the files of a record that exist, oldest first.
func Files(path string) ([]string, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	var files []string
	for i := range maxFiles {
		name := rotated(path, i)
		if !exists(name) {
			break
		}
		files = append(files, name)
	}
	slices.Reverse(files)
	return files, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// maxLine is the longest line that is read: a payload of 64 MiB in base64.
const maxLine = 90 << 20

// Reader reads a record. It belongs to one goroutine.
type Reader struct {
	in   *bufio.Scanner
	name string
	line int
}

// NewReader reads a record of one file. Name is what errors call it.
func NewReader(r io.Reader, name string) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &Reader{in: s, name: name}
}

// Next returns the next entry, and io.EOF behind the last. After an error that wraps
// ErrFormat reading can go on with the next line.
func (r *Reader) Next() (Entry, error) {
	for r.in.Scan() {
		r.line++
		if text := bytes.TrimSpace(r.in.Bytes()); len(text) > 0 {
			e, err := parse(text)
			if err != nil {
				return Entry{}, fmt.Errorf("%w: %s, line %d: %w", ErrFormat, r.name, r.line, err)
			}
			return e, nil
		}
	}
	if err := r.in.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return Entry{}, fmt.Errorf("record: %s, line %d has more than %d bytes", r.name, r.line+1, maxLine)
		}
		return Entry{}, fmt.Errorf("record: %s: %w", r.name, err)
	}
	return Entry{}, io.EOF
}

// maxMillis is the longest time that a record may have.
const maxMillis = int64(1<<63-1) / int64(time.Millisecond)

func parse(text []byte) (Entry, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Entry{}, err
	}
	if l.Timestamp == nil || *l.Timestamp < 0 || *l.Timestamp > maxMillis {
		return Entry{}, errors.New("no timestamp in milliseconds")
	}
	e := Entry{At: time.Duration(*l.Timestamp) * time.Millisecond}
	switch {
	case l.Event != nil:
		e.Event = new(RouterEvent)
		if err := json.Unmarshal(l.Event, e.Event); err != nil {
			return Entry{}, err
		}
	case l.Seq == nil || l.Payload == nil:
		return Entry{}, errors.New("neither an event nor a seq with a payload")
	default:
		payload, err := base64.StdEncoding.DecodeString(*l.Payload)
		if err != nil {
			return Entry{}, fmt.Errorf("payload: %w", err)
		}
		e.Message = zmq.Message{Topic: l.Topic, Seq: *l.Seq, Payload: payload}
	}
	return e, nil
}
