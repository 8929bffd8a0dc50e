//go:build !unix

package httploop

import "net"

// hasGone is not known here: a request runs to its end or its deadline.
func hasGone(net.Conn) bool { return false }
