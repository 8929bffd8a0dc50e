package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"
)

// answer is the body of an engine's answer as it passes. It belongs to one goroutine.
type answer struct {
	*attempt
	body  io.ReadCloser
	resp  *http.Response
	plain bool // it is not compressed

	ready []byte // has come, and is to be passed on
	err   error  // behind what is ready
	buf   []byte // what has come and is not passed on; ready lies in it
	used  int    // how much of it is ready, or taken out
	tail  []byte // the end of what has come
	head  []byte // the beginning, of an answer that has its usage there
}

// begin reads the first bytes of the answer. One in one piece that is not too long is read
// whole; one to HEAD has the length of a body and none.
func (b *answer) begin() error {
	x := b.x
	x.await(phaseFirst, x.g.c.FirstToken)
	if n := b.resp.ContentLength; !x.isStream && n > 0 && n <= wholeAnswer && x.method != http.MethodHead {
		b.ready = make([]byte, n)
		if _, err := io.ReadFull(b.body, b.ready); err != nil {
			return err
		}
		b.err = io.EOF
		b.note(b.ready)
		b.learn()
		return nil
	}
	b.buf = x.g.buffers.Get()[:0]
	for b.err == nil && len(b.buf) == 0 {
		b.fill()
	}
	if b.err != nil && (!errors.Is(b.err, io.EOF) || len(b.buf) == 0 && x.isStream) {
		return b.err
	}
	return nil
}

// Read implements io.Reader.
func (b *answer) Read(p []byte) (int, error) {
	for len(b.ready) == 0 && b.err == nil {
		if b.filters() {
			b.x.await(phaseIdle, b.x.g.c.Idle)
			b.fill()
			continue
		}
		b.x.await(phaseIdle, b.x.g.c.Idle)
		n, err := b.body.Read(p)
		b.noteRead(p[:n], err)
		b.err = err
		return n, b.passed(err)
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	if len(b.ready) > 0 {
		return n, nil
	}
	return n, b.passed(b.err)
}

// passed is the error of a read. One that is no end has its cause.
func (b *answer) passed(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if cause := context.Cause(b.work.ctx); cause != nil {
		return cause
	}
	return err
}

// filters reports whether something is to be taken out of the answer.
func (b *answer) filters() bool { return b.x.asks && b.x.isStream && b.plain }

// fill reads what comes next, and makes ready what is to be passed on of it.
func (b *answer) fill() {
	b.buf = b.buf[:copy(b.buf, b.buf[b.used:])]
	b.used = 0
	if cap(b.buf)-len(b.buf) < copyBytes/4 {
		b.buf = append(make([]byte, 0, 2*cap(b.buf)), b.buf...)
	}
	old := len(b.buf)
	n, err := b.body.Read(b.buf[old:cap(b.buf)])
	b.noteRead(b.buf[old:old+n], err)
	b.buf, b.err = b.buf[:old+n], err
	b.used = len(b.buf)
	if b.filters() {
		if err == nil && len(b.buf) < maxEvent {
			b.used = wholeEvents(b.buf, old)
		}
		b.ready = withoutUsage(b.buf[:b.used:b.used])
		return
	}
	b.ready = b.buf
}

// noteRead notes what a read has brought.
func (b *answer) noteRead(p []byte, err error) {
	if len(p) > 0 {
		b.pod.heard.Store(b.x.g.c.Now().UnixNano())
		b.note(p)
	}
	if errors.Is(err, io.EOF) {
		b.learn()
	}
}

// note looks at what passes.
func (b *answer) note(p []byte) {
	x := b.x
	if k := x.booking.Load(); x.isStream && k != nil {
		k.output.Add(int64(bytes.Count(p, []byte("\ndata:"))) + int64(bytes.Count(p[:min(len(p), 5)], []byte("data:"))))
	}
	if x.of == apiOther || !b.plain {
		return
	}
	if x.of == apiMessages && len(b.head) < tailBytes {
		b.head = append(b.head, p[:min(len(p), tailBytes-len(b.head))]...)
	}
	if b.tail == nil {
		b.tail = b.x.g.buffers.Get()[:0]
	}
	if len(p) >= tailBytes {
		b.tail = append(b.tail[:0], p[len(p)-tailBytes:]...)
		return
	}
	if len(b.tail)+len(p) > cap(b.tail) {
		n := copy(b.tail, b.tail[len(b.tail)-(tailBytes-len(p)):])
		b.tail = b.tail[:n]
	}
	b.tail = append(b.tail, p...)
}

// learn finds out how many tokens of the prompt were cached.
func (b *answer) learn() {
	x := b.x
	x.delivered = cachedTokens(b.tail)
	if x.delivered < 0 {
		x.delivered = cachedTokens(b.head)
	}
	if _, announced := b.resp.Trailer[headerDelivered]; !announced {
		return
	}
	if x.delivered < 0 {
		delete(b.resp.Trailer, headerDelivered)
		return
	}
	b.resp.Trailer[headerDelivered] = []string{strconv.Itoa(x.delivered)}
}

// Close implements io.Closer.
func (b *answer) Close() error {
	if !errors.Is(b.err, io.EOF) || len(b.ready) > 0 {
		b.x.cut = true
	}
	err := b.release()
	b.end()
	return err
}

// release gives back what the answer takes.
func (b *answer) release() error {
	for _, buf := range [][]byte{b.buf, b.tail} {
		if cap(buf) == copyBytes {
			b.x.g.buffers.Put(buf[:copyBytes])
		}
	}
	b.buf, b.tail, b.ready = nil, nil, nil
	return b.body.Close()
}

// usageKey begins the usage of an answer. In a text of the answer its quotes would be escaped.
var usageKey = []byte(`"usage":`)

// maxPrompt bounds the tokens of a prompt that an engine may say it had cached. It is far beyond
// what any engine takes.
const maxPrompt = 1 << 31

// cachedTokens returns how many tokens of the prompt were cached by the last usage in b, -1
// where none says. A count that is no whole number up to maxPrompt says nothing. No more were
// cached than the same usage says that the prompt has; Anthropic's form counts the cached apart.
func cachedTokens(b []byte) int {
	for at := bytes.LastIndex(b, usageKey); at >= 0; at = bytes.LastIndex(b[:at], usageKey) {
		u := gjson.ParseBytes(bytes.TrimLeft(b[at+len(usageKey):], " "))
		if !u.IsObject() {
			continue
		}
		for _, path := range cachedPaths {
			if n, ok := tokensAt(&u, path.cached); ok {
				if most, ok := tokensAt(&u, path.prompt); ok {
					n = min(n, most)
				}
				return n
			}
		}
	}
	return -1
}

// cachedPaths are where a usage has the cached tokens of a prompt, and all tokens of it.
var cachedPaths = []struct{ cached, prompt string }{
	{"prompt_tokens_details.cached_tokens", "prompt_tokens"},
	{"input_tokens_details.cached_tokens", "input_tokens"},
	{"cache_read_input_tokens", ""},
}

// tokensAt returns the count of tokens at a path of a usage, and whether a sane one is there.
func tokensAt(usage *gjson.Result, path string) (n int, ok bool) {
	if path == "" {
		return 0, false
	}
	v := usage.Get(path)
	if v.Type != gjson.Number || !(v.Num >= 0 && v.Num <= maxPrompt) || v.Num != math.Trunc(v.Num) {
		return 0, false
	}
	return int(v.Num), true
}

// wholeEvents returns the length of the events of a stream that have come whole. Before old
// there is no end of one.
func wholeEvents(b []byte, old int) (end int) {
	from := max(0, old-3)
	for _, empty := range [][]byte{[]byte("\n\n"), []byte("\n\r\n")} {
		if at := bytes.LastIndex(b[from:], empty); at >= 0 {
			end = max(end, from+at+len(empty))
		}
	}
	return end
}

// noChoices is in the chunk that a stream has for its usage alone.
var noChoices = []byte(`"choices":[]`)

// withoutUsage takes the chunk with the usage of a stream out of whole events.
func withoutUsage(events []byte) []byte {
	if !bytes.Contains(events, noChoices) {
		return events
	}
	out := make([]byte, 0, len(events))
	for len(events) > 0 {
		n := endOfEvent(events)
		if !isUsage(events[:n]) {
			out = append(out, events[:n]...)
		}
		events = events[n:]
	}
	return out
}

// endOfEvent returns the length of the first event with the empty line behind it, or of all
// where none has ended.
func endOfEvent(b []byte) int {
	for at := 0; ; {
		line := bytes.IndexByte(b[at:], '\n')
		if line < 0 {
			return len(b)
		}
		at += line + 1
		if bytes.HasPrefix(b[at:], []byte("\n")) {
			return at + 1
		}
		if bytes.HasPrefix(b[at:], []byte("\r\n")) {
			return at + 2
		}
	}
}

// isUsage reports whether an event of a stream has its usage, and no part of the answer.
func isUsage(event []byte) bool {
	data, ok := bytes.CutPrefix(event, []byte("data:"))
	return ok && bytes.Contains(data, noChoices) && gjson.GetBytes(data, "usage").IsObject()
}
