package zmq

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Flags of a frame (RFC 37, "Framing").
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
)

// step is up to how many bytes are allocated before any have come. A peer that states
// a large size and sends nothing gets no more than this.
const step = 64 << 10

// readFrame reads a frame of at most limit bytes into memory of its own.
func readFrame(r *bufio.Reader, limit int) (flags byte, body []byte, err error) {
	head, err := peek(r, 2)
	if err != nil {
		return 0, nil, err
	}
	flags = head[0]
	size, n := uint64(head[1]), 2
	if flags&flagLong != 0 {
		if head, err = peek(r, 9); err != nil {
			return 0, nil, err
		}
		size, n = binary.BigEndian.Uint64(head[1:]), 9
	}
	if _, err := r.Discard(n); err != nil {
		return 0, nil, err
	}
	switch {
	case flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagCommand != 0 && flags&flagMore != 0:
		return 0, nil, fmt.Errorf("%w: a frame has the flags %#x", ErrProtocol, flags)
	case size > uint64(limit):
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes, the limit is %d", ErrProtocol, size, limit)
	}
	body, err = readBody(r, int(size))
	return flags, body, err
}

// peek returns the next n bytes without taking them. As with io.ReadFull the error is
// io.EOF only where there are none.
func peek(r *bufio.Reader, n int) ([]byte, error) {
	head, err := r.Peek(n)
	if errors.Is(err, io.EOF) && len(head) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return head, err
}

// readBody reads n bytes, and allocates no more than twice what has come.
func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, min(n, step))
	for have := 0; ; {
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			return nil, err
		}
		have = len(body)
		if have == n {
			return body, nil
		}
		next := make([]byte, min(n, 4*have))
		copy(next, body)
		body = next
	}
}

// appendFrame appends a frame.
func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		dst = append(dst, flags, byte(len(body)))
	} else {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	}
	return append(dst, body...)
}

// command splits a command's body into its name and data.
func command(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || int(body[0]) >= len(body) || body[0] == 0 {
		return "", nil, fmt.Errorf("%w: a command of %d bytes without a name", ErrProtocol, len(body))
	}
	n := int(body[0])
	return string(body[1 : 1+n]), body[1+n:], nil
}

// newCommand makes the body of a command.
func newCommand(name string, data ...[]byte) []byte {
	dst := []byte{byte(len(name))}
	dst = append(dst, name...)
	for _, d := range data {
		dst = append(dst, d...)
	}
	return dst
}

// metadata are the properties that a peer tells in the handshake, by their names in
// lower case: the names are case-insensitive.
type metadata map[string]string

// appendMetadata appends the two properties that we tell.
func appendMetadata(dst []byte, socket string) []byte {
	for _, p := range [][2]string{{"Socket-Type", socket}, {"Identity", ""}} {
		dst = append(dst, byte(len(p[0])))
		dst = append(dst, p[0]...)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(p[1])))
		dst = append(dst, p[1]...)
	}
	return dst
}

func parseMetadata(b []byte) (metadata, error) {
	m := metadata{}
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || len(b) < 1+n+4 {
			return nil, fmt.Errorf("%w: a property of the handshake is cut off", ErrProtocol)
		}
		name := lower(b[1 : 1+n])
		size := binary.BigEndian.Uint32(b[1+n:])
		b = b[1+n+4:]
		if uint64(size) > uint64(len(b)) {
			return nil, fmt.Errorf("%w: property %q of the handshake states %d bytes and has %d", ErrProtocol, name, size, len(b))
		}
		m[name] = string(b[:size])
		b = b[size:]
	}
	return m, nil
}

// lower is the ASCII text in lower case, with other bytes made visible.
func lower(b []byte) string {
	out := make([]byte, len(b))
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		out[i] = c
	}
	return string(out)
}
