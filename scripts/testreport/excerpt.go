package main

import (
	"fmt"
	"io"
	"strings"
)

// excerptBytes bounds how much of the output of a test is kept from its beginning, and
// how much from its end.
const excerptBytes = 16 << 10

// excerpt keeps the beginning and the end of an output, whose middle is left out if it
// is long. The zero value is ready.
type excerpt struct {
	head, tail []byte
	left       int // bytes left out
}

func (e *excerpt) write(s string) {
	if n := min(len(s), excerptBytes-len(e.head)); n > 0 {
		e.head, s = append(e.head, s[:n]...), s[n:]
	}
	e.tail = append(e.tail, s...)
	if len(e.tail) > 2*excerptBytes { // not at each write, so that the cost stays linear
		e.cut(excerptBytes)
	}
}

// cut shortens the tail to n bytes.
func (e *excerpt) cut(n int) {
	drop := len(e.tail) - n
	e.left += drop
	e.tail = e.tail[:copy(e.tail, e.tail[drop:])]
}

// print writes the excerpt and says what is missing in it. What is left out is made up of whole lines,
// so far as the lines are not longer than the excerpt.
func (e *excerpt) print(out io.Writer) {
	if len(e.tail) > excerptBytes {
		e.cut(excerptBytes)
	}
	head, tail := string(e.head), string(e.tail)
	left := e.left
	if left > 0 {
		if i := strings.LastIndexByte(head, '\n'); i >= 0 {
			left += len(head) - i - 1
			head = head[:i+1]
		}
		if i := strings.IndexByte(tail, '\n'); i >= 0 {
			left += i + 1
			tail = tail[i+1:]
		}
		head = endLine(head)
		head += fmt.Sprintf("    ... %d bytes are left out ...\n", left)
	}
	fmt.Fprint(out, endLine(head+tail))
}

// endLine ends the last line.
func endLine(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}
