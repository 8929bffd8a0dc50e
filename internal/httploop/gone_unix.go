//go:build unix

package httploop

import (
	"net"
	"syscall"
)

// hasGone reports whether the client of a connection has closed it, or its side of it.
// Nothing is read.
func hasGone(nc net.Conn) (gone bool) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err == syscall.ECONNRESET || err == syscall.EPIPE || err == syscall.ETIMEDOUT
	})
	return gone || err != nil
}
