package zmq

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// maxPath is the longest path of a unix socket, which the kernel limits.
const maxPath = 107

// endpoint is an address for package net.
type endpoint struct{ network, address string }

// parseEndpoint reads an endpoint as ZeroMQ writes it.
func parseEndpoint(s string, bind bool) (endpoint, error) {
	kind, rest, ok := strings.Cut(s, "://")
	bad := func(format string, args ...any) (endpoint, error) {
		return endpoint{}, fmt.Errorf("%w %q: %s", ErrEndpoint, s, fmt.Sprintf(format, args...))
	}
	if !ok {
		return bad("it is not of the form tcp://host:port or ipc://path")
	}
	switch kind {
	case "ipc":
		if rest == "" || len(rest) > maxPath {
			return bad("a path has 1 to %d bytes", maxPath)
		}
		if rest[0] == '@' && len(rest) == 1 {
			return bad("the abstract socket has no name")
		}
		return endpoint{"unix", rest}, nil
	case "tcp":
	default:
		return bad("transport %q is not one of tcp and ipc", kind)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return bad("%v", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return bad("the port is %q, it can be 1 to 65535", port)
	}
	if host == "*" || host == "" {
		if !bind {
			return bad("there is no host to connect to: * is for the side that binds")
		}
		host = ""
	}
	return endpoint{"tcp", net.JoinHostPort(host, port)}, nil
}
