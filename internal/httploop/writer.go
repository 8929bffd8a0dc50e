package httploop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	// joinBytes is how long an answer is that goes out in one piece with its head.
	joinBytes = 16 << 10
	// restBytes is how much of a body that the handler left is read so that the connection
	// can have another request. It is as much as in net/http.
	restBytes = 256 << 10
)

// writer is the http.ResponseWriter of a request.
type writer struct {
	c      *conn
	body   *body
	header http.Header

	status int
	made   bool  // the head is in conn.out
	gone   bool  // it has been written
	left   int64 // what is to come of the length that was declared; -1 is not declared
	empty  bool  // the handler wrote nothing
	ends   bool  // the connection ends with this answer
	err    error
}

// Header implements http.ResponseWriter.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Informational answers are left out.
func (w *writer) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

// Write implements http.ResponseWriter. What it writes has gone when it returns.
func (w *writer) Write(p []byte) (n int, err error) {
	w.WriteHeader(http.StatusOK)
	if w.err != nil {
		return 0, w.err
	}
	if !hasBody(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if len(p) == 0 {
		return 0, nil
	}
	w.makeHead(p)
	if w.left >= 0 && int64(len(p)) > w.left {
		return 0, http.ErrContentLength
	}
	w.c.enter(writing)
	defer w.c.enter(handling)
	first := !w.gone
	w.gone = true
	switch {
	case !first:
		n, err = w.c.nc.Write(p)
	case len(p) <= joinBytes:
		w.c.out = append(w.c.out, p...)
		n = len(p)
		_, err = w.c.nc.Write(w.c.out)
	default:
		var all int64
		head := len(w.c.out)
		all, err = (&net.Buffers{w.c.out, p}).WriteTo(w.c.nc)
		n = max(0, int(all)-head)
	}
	if w.left >= 0 {
		w.left -= int64(n)
	}
	w.err = err
	return n, err
}

// FlushError writes the head, for http.ResponseController.
func (w *writer) FlushError() error {
	w.WriteHeader(http.StatusOK)
	if w.err != nil || w.gone {
		return w.err
	}
	w.makeHead(nil)
	w.gone = true
	w.c.enter(writing)
	defer w.c.enter(handling)
	_, w.err = w.c.nc.Write(w.c.out)
	return w.err
}

// finish ends the answer. Its error ends the connection.
func (w *writer) finish() error {
	w.empty = !w.made
	err := w.FlushError()
	if w.left > 0 {
		err = errors.Join(err, io.ErrShortWrite)
	}
	return err
}

// makeHead makes the head, in the order of net/http, of an answer that begins with p.
func (w *writer) makeHead(p []byte) {
	if w.made {
		return
	}
	w.made = true
	h, allowed := w.header, hasBody(w.status)
	if !allowed {
		h.Del("Content-Length")
		h.Del("Transfer-Encoding")
	}
	w.left = -1
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	switch {
	case err == nil && n >= 0:
		w.left, w.empty = n, false
	case w.empty:
		w.left = 0
	default:
		w.ends = allowed
	}
	if w.left < 0 || w.empty {
		h.Del("Content-Length")
	}
	if h.Get("Connection") == "close" || w.c.s.closing.Load() {
		w.ends = true
	}
	if !w.ends {
		w.ends = !w.readRest()
	}
	out := bytes.NewBuffer(w.c.out[:0])
	out.WriteString("HTTP/1.1 ")
	out.WriteString(strconv.Itoa(w.status))
	out.WriteByte(' ')
	if text := http.StatusText(w.status); text != "" {
		out.WriteString(text)
	} else {
		out.WriteString("status code " + strconv.Itoa(w.status))
	}
	out.WriteString("\r\n")
	if w.ends {
		h.Del("Connection")
	}
	_ = h.Write(out)
	b := out.Bytes()
	if h["Date"] == nil {
		b = append(b, "Date: "...)
		b = time.Now().UTC().AppendFormat(b, http.TimeFormat)
		b = append(b, "\r\n"...)
	}
	if allowed && w.empty {
		b = append(b, "Content-Length: 0\r\n"...)
	}
	if allowed && len(p) > 0 && h["Content-Type"] == nil && h.Get("Content-Encoding") == "" {
		b = append(append(append(b, "Content-Type: "...), http.DetectContentType(p)...), "\r\n"...)
	}
	if w.ends {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "\r\n"...)
	w.c.out = b
}

// readRest reads what the handler left of the body, and reports whether the connection can
// have another request. It is read before the answer is written, since some clients read
// nothing before they have sent all.
func (w *writer) readRest() bool {
	switch left := w.body.left; {
	case left >= restBytes:
		return false
	case left <= 0, errors.Is(w.body.err, io.ErrUnexpectedEOF): // then the next head has its end, too
		return true
	default:
		_, err := io.Copy(io.Discard, w.body)
		return err == nil
	}
}

var errOver = errors.New("httploop: the request is over")

// SetReadDeadline is for http.ResponseController. A deadline to come is in force from when
// the client has to be waited for: the body has most often been read by then.
func (w *writer) SetReadDeadline(t time.Time) error {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.request != w:
		return errOver
	case c.readOver: // nothing is waited for again
		return nil
	case t.IsZero() || time.Until(t) > 0:
		c.wanted = t
		if !c.readSet {
			return nil
		}
	default:
		c.readOver = true
	}
	c.readSet = true
	return c.nc.SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController.
func (w *writer) SetWriteDeadline(t time.Time) error {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.request != w {
		return errOver
	}
	c.writeSet = true
	return c.nc.SetWriteDeadline(t)
}

// hasBody reports whether an answer of a status has a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
