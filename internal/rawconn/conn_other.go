//go:build !linux

package rawconn

import "net"

// New returns c: elsewhere calls are the runtime's.
func New(c net.Conn) net.Conn { return c }

// Unwrap returns the connection that New got.
func Unwrap(c net.Conn) net.Conn { return c }

// IsQuiet reports whether it is known that a socket has nothing to read. Here it never is.
func IsQuiet(uintptr) bool { return false }
