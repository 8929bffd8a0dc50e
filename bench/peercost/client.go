package main

import (
	"bytes"
	"fmt"

	"github.com/kvatlas/kvatlas/bench/internal/traffic"
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

// with returns the parts of a request that books under a name.
func (r *request) with(id string) [][]byte {
	if r.behind == nil {
		return [][]byte{r.before}
	}
	return [][]byte{r.before, []byte(id), r.behind}
}

// closeAll closes connections on which nothing is under way.
func closeAll(conns []*traffic.Conn) {
	for _, c := range conns {
		c.Close()
	}
}
