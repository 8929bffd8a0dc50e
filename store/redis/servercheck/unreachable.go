package servercheck

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
)

// Unreachable says why servers cannot be reached and what to do about it.
func Unreachable(t *redisx.Target, err error) check.Finding {
	f := check.Finding{
		Level: check.Fail, What: "connection", Found: t.String() + ": " + strings.TrimPrefix(err.Error(), "redis: "),
		Means: "scores are 0 and marked as degraded, and nothing can be written, until it works; then all goes on by itself",
	}
	said := func(what string) bool { return strings.Contains(err.Error(), what) }
	_, unknownCA := errors.AsType[x509.UnknownAuthorityError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, noHost := errors.AsType[*net.DNSError](err)
	switch {
	case said("WRONGPASS"), said("invalid password"):
		f.Do = "correct user and password in the URL; a special character in them is percent-encoded"
	case said("NOAUTH"):
		f.Do = "put the user and the password into the URL: redis://user:password@host; a password alone is :password@"
	case said("NOPERM"):
		f.Do = "allow the user client|setname, and select when the URL names a database; docs/operations.md has the whole list"
	case said("DB index is out of range"), said("SELECT is not allowed"):
		f.Do = "use a database that the server has: the number at the end of the URL, 0 without one"
	case said("cluster support disabled"):
		f.Do = "the server is no cluster: begin the URL with redis:// in place of redis+cluster://"
	case said("CLUSTERDOWN"):
		f.Do = "some slots have no master: CLUSTER INFO and CLUSTER NODES tell which; start the masters that are down, or fail over to their replicas"
	case said("LOADING"):
		f.Do = "wait: the server is reading its data"
	case said("MASTERDOWN"):
		f.Do = "the server is a replica without its master: start the master, or fail over"
	case unknownCA:
		f.Do = "name the file of the authority that signed the server's certificate in the URL: ?ca=/path/ca.crt"
	case otherName:
		f.Do = "use a host name that the server's certificate has, or say which it has: ?server_name=NAME"
	case said("certificate required"), said("bad certificate"), said("unknown certificate authority"):
		f.Do = "the server wants a client certificate that it knows: ?cert=/path/client.crt&key=/path/client.key"
	case noTLS:
		f.Do = "this port does not speak TLS: begin the URL with redis in place of rediss, or use the server's tls-port"
	case noHost:
		f.Do = "the host is not known here: correct the name in the URL, or the resolver"
	case errors.Is(err, fs.ErrPermission):
		f.Do = "let this user read and write the socket (unixsocketperm)"
	case errors.Is(err, fs.ErrNotExist):
		f.Do = "there is no such socket: correct the path in the URL, or set unixsocket on the server"
	case errors.Is(err, syscall.ECONNREFUSED) && t.Topology != redisx.Sentinel:
		f.Do = "nothing listens there: start the server, or correct host and port in the URL"
	case t.Topology == redisx.Sentinel:
		f.Do = "ask a sentinel who it thinks is master: redis-cli -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME " + t.Master + "; correct hosts and name in the URL when it does not answer"
	case !t.TLS() && (said("EOF") || errors.Is(err, syscall.ECONNRESET)):
		f.Do = "the server hangs up: if the port speaks TLS, begin the URL with rediss in place of redis"
	case t.TLS() && (said("timeout") || errors.Is(err, context.DeadlineExceeded)):
		f.Do = "no handshake in time: if the port does not speak TLS, begin the URL with redis in place of rediss; else see whether a firewall is in between"
	case errors.Is(err, context.DeadlineExceeded), said("i/o timeout"):
		f.Do = "no answer in time: see whether a firewall is in between, and whether the server is stopped or overloaded"
	default:
		f.Do = "try redis-cli with the same host, port and user from this machine"
	}
	return f
}
