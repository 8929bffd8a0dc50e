package httploop

import (
	"bufio"
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// parse returns the request that the first n bytes are the head of; nil if it is not plain.
// It is good until the next call, and for reading.
func (c *conn) parse(n int) *http.Request {
	head := c.in[:n]
	if r := c.last.repeat(head); r != nil {
		return r
	}
	r := readRequest(head)
	if r == nil || !c.isPlain(r) {
		return nil
	}
	r.RemoteAddr = c.nc.RemoteAddr().String()
	c.last.remember(head, r)
	return r
}

// headReader is what net/http reads a head from.
type headReader struct {
	head bytes.Reader
	text *bufio.Reader
}

// headReaders are those that wait for their next use.
var headReaders = sync.Pool{New: func() any {
	h := new(headReader)
	h.text = bufio.NewReaderSize(&h.head, headBytes)
	return h
}}

// readRequest returns the request, without a body, of which net/http takes all of the bytes as
// the head; nil if there is none.
func readRequest(head []byte) *http.Request {
	h, _ := headReaders.Get().(*headReader)
	defer headReaders.Put(h)
	h.head.Reset(head)
	h.text.Reset(&h.head)
	r, err := http.ReadRequest(h.text)
	if err != nil || h.text.Buffered() > 0 || h.head.Len() > 0 {
		return nil
	}
	r.Body = http.NoBody
	return r
}

// known is the last request of a connection. Most clients send each with the head of the one
// before, or with one in which only the digits of Content-Length differ. Then net/http's parser
// is not asked again, which takes a tenth of what a short request costs.
type known struct {
	r             *http.Request // nil for none; no handler has it
	before, after []byte        // the head, around the digits
	digits        string        // of a Content-Length; empty where there is none
}

// maxDigits is how long a length is at most that fits an int64 whatever its digits are.
const maxDigits = 18

// remember takes a request that was read from a head, if another one like it can be recognized.
func (k *known) remember(head []byte, r *http.Request) {
	at := len(head)
	k.digits = ""
	if length := r.Header["Content-Length"]; len(length) > 0 {
		k.digits = length[0]
		at = digitsIn(head, k.digits)
	}
	if k.r = nil; at < 0 {
		return
	}
	k.before = append(k.before[:0], head[:at]...)
	k.after = append(k.after[:0], head[at+len(k.digits):]...)
	k.r = r
}

// digitsIn returns where in a head the digits stand that its only Content-Length is. It is -1
// where they are no plain number, or where the head has more lines of that name.
func digitsIn(head []byte, digits string) int {
	const name = "content-length:"
	if !areDigits(digits) {
		return -1
	}
	found, from := -1, 0
	for line := range bytes.Lines(head) {
		if len(line) >= len(name) && strings.EqualFold(string(line[:len(name)]), name) {
			value := bytes.TrimSpace(line[len(name):])
			if found >= 0 || string(value) != digits {
				return -1
			}
			found = from + bytes.Index(line, value)
		}
		from += len(line)
	}
	return found
}

// areDigits reports whether a length is of digits alone, and fits.
func areDigits[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxDigits
}

// repeat returns the request of a head that is known but for its digits, else nil.
func (k *known) repeat(head []byte) *http.Request {
	n := len(head) - len(k.before) - len(k.after) // of digits
	if k.r == nil || n < 0 || !bytes.HasPrefix(head, k.before) || !bytes.HasSuffix(head, k.after) {
		return nil
	}
	digits := head[len(k.before):][:n]
	if string(digits) == k.digits {
		return k.r
	}
	if k.digits == "" || !areDigits(digits) {
		return nil
	}
	k.digits = string(digits)
	k.r.ContentLength, _ = strconv.ParseInt(k.digits, 10, 64) // 18 digits fit
	k.r.Header["Content-Length"] = []string{k.digits}
	return k.r
}

// isPlain reports whether a request is one to serve here. It is for one of the paths, and
// has nothing in it that net/http treats in a way of its own.
func (c *conn) isPlain(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Close || len(r.TransferEncoding) > 0 || len(r.Trailer) > 0 || r.URL.Host != "" {
		return false
	}
	if r.Host == "" || !httpguts.ValidHostHeader(r.Host) {
		return false
	}
	for k, values := range r.Header {
		switch k {
		case "Expect", "Upgrade", "Te", "Transfer-Encoding", "Trailer":
			return false
		case "Connection":
			if len(values) != 1 || !strings.EqualFold(values[0], "keep-alive") {
				return false
			}
		}
		if !httpguts.ValidHeaderFieldName(k) {
			return false
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return false
			}
		}
	}
	return r.Method != http.MethodHead && c.s.plain(r.Method, r.URL.Path)
}
