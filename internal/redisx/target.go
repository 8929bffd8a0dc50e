package redisx

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Topology is how the servers behind a URL stand to each other.
type Topology uint8

// The topologies.
const (
	Standalone Topology = iota
	Cluster
	Sentinel
)

// Target is a parsed URL.
type Target struct {
	// Topology is how its servers stand to each other.
	Topology Topology
	network  string // tcp or unix
	// Addrs are host:port, or the socket's path.
	Addrs []string
	// Master is the name of the master, of sentinels.
	Master             string
	db                 int
	username, password string
	// sentinelUsername and sentinelPassword are for the sentinels themselves.
	sentinelUsername, sentinelPassword string
	tls                                *tls.Config
}

// TLS reports whether connections are encrypted.
func (t *Target) TLS() bool { return t.tls != nil }

// String names the target without what is secret.
func (t *Target) String() string {
	s := strings.Join(t.Addrs, ",")
	switch t.Topology {
	case Standalone:
	case Cluster:
		s = "cluster " + s
	case Sentinel:
		s = "master " + t.Master + " of sentinels " + s
	}
	if t.tls != nil {
		s += " (TLS)"
	}
	if t.db != 0 {
		s += " db " + strconv.Itoa(t.db)
	}
	return s
}

// urlForms are the forms of a URL, for messages.
const urlForms = "redis://[user:password@]host[:port][/db], rediss://..., unix://[user:password@]/path[?db=n], " +
	"redis+cluster://[user:password@]host:port[,host:port...], redis+sentinel://[user:password@]host:port[,host:port...]/master[/db]"

// ParseURL reads a URL. It does no I/O but the reading of TLS files that the URL names.
// The forms are
//
//	redis://[user:password@]host[:port][/db]
//	unix://[user:password@]/path/of/socket[?db=n]
//	redis+cluster://[user:password@]host[:port][,host[:port]...]
//	redis+sentinel://[user:password@]host[:port][,host[:port]...]/master[/db]
//
// with rediss in place of redis for TLS. User and password are percent-encoded
// where need be. Parameters: db; sentinel_username and sentinel_password; and
// for TLS ca, cert and key (paths of PEM files), server_name, and
// insecure=true, which checks no certificate. Errors do not show the password.
func ParseURL(s string) (*Target, error) {
	t, err := readURL(s)
	if err != nil && unquoted(s) {
		// The error may show a part of the password.
		return nil, errors.New("redis: the URL cannot be read: a ? in the password is written %3F")
	}
	return t, err
}

// unquoted reports whether the URL looks as if its password had a bare question
// mark.
func unquoted(s string) bool {
	head, query, _ := strings.Cut(s, "?")
	return strings.Contains(query, "@") && !strings.Contains(head, "@")
}

func readURL(s string) (*Target, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return nil, fmt.Errorf("redis: the URL has no scheme; the forms are %s", urlForms)
	}
	t := &Target{network: "tcp"}
	port := "6379"
	var secure bool
	switch scheme {
	case "redis":
	case "rediss":
		secure = true
	case "unix":
		t.network = "unix"
	case "redis+cluster", "rediss+cluster":
		t.Topology, secure = Cluster, scheme[5] == 's'
	case "redis+sentinel", "rediss+sentinel":
		t.Topology, secure = Sentinel, scheme[5] == 's'
		port = "26379"
	default:
		return nil, fmt.Errorf("redis: the URL's scheme %q is unknown; the forms are %s", Clip(scheme), urlForms)
	}

	rest, query, _ := strings.Cut(rest, "?")
	// A password may hold an @ that is not encoded, a host cannot.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if err := t.parseUser(rest[:i]); err != nil {
			return nil, err
		}
		rest = rest[i+1:]
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		// The error quotes a part of the query, which may be a password.
		return nil, fmt.Errorf("redis: the URL's parameters cannot be read: a %% or ; is not encoded")
	}

	var path string
	if t.network == "unix" {
		if !strings.HasPrefix(rest, "/") {
			return nil, fmt.Errorf("redis: the path %q of a unix socket does not begin with /", Clip(rest))
		}
		if rest, err = url.PathUnescape(rest); err != nil {
			return nil, fmt.Errorf("redis: the path of the unix socket: %w", err)
		}
		t.Addrs = []string{rest}
	} else {
		hosts, p, _ := strings.Cut(rest, "/")
		path = p
		for h := range strings.SplitSeq(hosts, ",") {
			a, err := address(h, port)
			if err != nil {
				return nil, err
			}
			t.Addrs = append(t.Addrs, a)
		}
		if len(t.Addrs) > 1 && t.Topology == Standalone {
			return nil, fmt.Errorf("redis: %d hosts in the URL of a single server; several are a redis+cluster:// or redis+sentinel:// URL", len(t.Addrs))
		}
	}
	if err := t.parsePath(path); err != nil {
		return nil, err
	}
	if err := t.parseParams(params, secure); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Target) parseUser(s string) error {
	user, password, hasPassword := strings.Cut(s, ":")
	var err error
	if t.username, err = url.PathUnescape(user); err != nil {
		return fmt.Errorf("redis: the user name in the URL has a %% that encodes nothing")
	}
	if t.password, err = url.PathUnescape(password); err != nil {
		return fmt.Errorf("redis: the password in the URL has a %% that encodes nothing; write %%25 for it")
	}
	if !hasPassword && user != "" {
		return fmt.Errorf("redis: the URL has a user name without a password; a password alone is :password@")
	}
	return nil
}

func (t *Target) parsePath(path string) error {
	path = strings.Trim(path, "/")
	if t.Topology == Sentinel {
		master, db, _ := strings.Cut(path, "/")
		if master == "" {
			return fmt.Errorf("redis: a redis+sentinel URL names the master after the hosts: redis+sentinel://host:port/master")
		}
		var err error
		if t.Master, err = url.PathUnescape(master); err != nil {
			return fmt.Errorf("redis: the master's name in the URL: %w", err)
		}
		path = db
	}
	if path == "" {
		return nil
	}
	if t.Topology == Cluster {
		return fmt.Errorf("redis: the URL of a cluster ends with %q; a cluster has no databases", Clip("/"+path))
	}
	return t.parseDB(path)
}

func (t *Target) parseDB(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return fmt.Errorf("redis: the database %q in the URL is no number of 0 or more", Clip(s))
	}
	if n != 0 && t.Topology == Cluster {
		return fmt.Errorf("redis: database %d of a cluster, which has none but 0", n)
	}
	t.db = n
	return nil
}

func (t *Target) parseParams(params url.Values, secure bool) error {
	files := map[string]string{}
	var serverName string
	var insecure bool
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if len(params[name]) > 1 {
			return fmt.Errorf("redis: the URL has the parameter %q twice", Clip(name))
		}
		v := params[name][0]
		isTLS := false
		switch name {
		case "db":
			if err := t.parseDB(v); err != nil {
				return err
			}
		case "sentinel_username", "sentinel_password":
			if t.Topology != Sentinel {
				return fmt.Errorf("redis: the parameter %q is for redis+sentinel URLs only", name)
			}
			if name == "sentinel_username" {
				t.sentinelUsername = v
			} else {
				t.sentinelPassword = v
			}
		case "ca", "cert", "key":
			files[name], isTLS = v, true
		case "server_name":
			serverName, isTLS = v, true
		case "insecure":
			b, err := strconv.ParseBool(v)
			if err != nil {
				return fmt.Errorf("redis: the parameter insecure is %q, not true or false", Clip(v))
			}
			insecure, isTLS = b, true
		default:
			return fmt.Errorf("redis: the URL's parameter %q is unknown; there are db, sentinel_username, sentinel_password, ca, cert, key, server_name and insecure", Clip(name))
		}
		if isTLS && !secure {
			return fmt.Errorf("redis: the parameter %q is for TLS, which needs a scheme that begins with rediss", name)
		}
	}
	if !secure {
		return nil
	}
	return t.loadTLS(files, serverName, insecure)
}

func (t *Target) loadTLS(files map[string]string, serverName string, insecure bool) error {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName, InsecureSkipVerify: insecure}
	if c.ServerName == "" && len(t.Addrs) == 1 && t.Topology == Standalone {
		c.ServerName, _, _ = net.SplitHostPort(t.Addrs[0])
	}
	if f := files["ca"]; f != "" {
		pem, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("redis: the CA certificates: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("redis: %s holds no PEM certificate", f)
		}
	}
	if (files["cert"] == "") != (files["key"] == "") {
		return fmt.Errorf("redis: the parameters cert and key go together")
	}
	if files["cert"] != "" {
		pair, err := tls.LoadX509KeyPair(files["cert"], files["key"])
		if err != nil {
			return fmt.Errorf("redis: the client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	t.tls = c
	return nil
}

// address fills in the port and checks that both are there.
func address(h, port string) (string, error) {
	var host string
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		var err error
		if host, port, err = net.SplitHostPort(h); err != nil {
			return "", fmt.Errorf("redis: the host %q in the URL is not host:port (an IPv6 address goes in brackets)", Clip(h))
		}
	} else {
		host = strings.Trim(h, "[]")
	}
	if host == "" {
		return "", fmt.Errorf("redis: the URL names no host")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("redis: the port %q in the URL is none", Clip(port))
	}
	return net.JoinHostPort(host, port), nil
}
