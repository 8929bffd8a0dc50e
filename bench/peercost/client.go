package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// idMark is where a request has the name of what it books: as long as names are.
const idMark = "r000000000"

// request is a request as bytes, cut where the name of a booking goes. They are made before
// anything is measured, so that a call costs this process little.
type request struct{ before, behind []byte }

func newRequest(method, path, kind string, body []byte) request {
	text := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: bench\r\n", method, path)
	if kind != "" {
		text = fmt.Appendf(text, "Content-Type: %s\r\nContent-Length: %d\r\n", kind, len(body))
	}
	text = append(append(text, "\r\n"...), body...)
	if at := bytes.Index(text, []byte(idMark)); at >= 0 {
		return request{before: text[:at], behind: text[at+len(idMark):]}
	}
	return request{before: text}
}

// conn is a connection on which one request follows the other. It is for one goroutine.
type conn struct {
	nc net.Conn
	r  *bufio.Reader
}

func dial(ctx context.Context, address string) (*conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{nc: nc, r: bufio.NewReaderSize(nc, 64<<10)}, nil
}

// ask sends a request with the name of a booking, and reads the answer to its end. An answer other
// than 2xx is an error.
func (c *conn) ask(r *request, id string) ([]byte, error) {
	if err := c.nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	parts := net.Buffers{r.before}
	if r.behind != nil {
		parts = append(parts, []byte(id), r.behind)
	}
	if _, err := parts.WriteTo(c.nc); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %.300s", resp.Status, answer)
	}
	return answer, err
}

// closeAll closes connections on which nothing is under way.
func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.nc.Close() // all answers have been read
	}
}
