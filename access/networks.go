package access

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrNetwork refuses a connection whose other end is in none of the networks where engines may be.
var ErrNetwork = errors.New("access: this address is not within engine-networks")

// Networks are where engines and workers may be. A nil *Networks allows every address. It is
// safe for concurrent use, and a zmq.Filter.
type Networks struct {
	allowed []netip.Prefix
	text    string
}

// words are names of networks in a list.
var words = map[string][]netip.Prefix{
	"loopback": prefixes("127.0.0.0/8", "::1/128"),
	// RFC 1918, 6598 (which clouds give to pods) and 4193.
	"private": prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
	"any":     prefixes("0.0.0.0/0", "::/0"),
}

// never are addresses that no engine has: link-local, unspecified, multicast and broadcast
// ones, and those at which clouds tell a machine its secrets.
var never = prefixes(
	"169.254.0.0/16", "fe80::/10", "0.0.0.0/8", "::/128", "224.0.0.0/4", "ff00::/8", "255.255.255.255/32",
	"100.100.100.200/32",                // Alibaba Cloud
	"168.63.129.16/32",                  // Azure
	"192.0.0.192/32",                    // Oracle Cloud
	"fd00:ec2::/32", "fd20:ce::254/128", // AWS, Google Cloud
	// They reach an IPv4 address that cannot be told from them: NAT64 of an operator's own
	// (RFC 8215), Teredo (RFC 4380).
	"64:ff9b:1::/48", "2001::/32",
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		all[i] = netip.MustParsePrefix(t)
	}
	return all
}

// ParseNetworks reads a list: CIDR networks, addresses, and the words loopback, private and
// any. No list allows link-local addresses and those of clouds' metadata.
func ParseNetworks(list []string) (*Networks, error) {
	n := &Networks{text: strings.Join(list, ",")}
	for _, t := range list {
		if known, ok := words[t]; ok {
			n.allowed = append(n.allowed, known...)
			continue
		}
		p, err := netip.ParsePrefix(t)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(t); err == nil {
				p, err = a.Unmap().Prefix(a.Unmap().BitLen())
			}
		}
		if err != nil {
			return nil, fmt.Errorf("access: %q is no network such as 10.0.0.0/8, nor loopback, private or any", t)
		}
		n.allowed = append(n.allowed, p.Masked())
	}
	if len(n.allowed) == 0 {
		return nil, errors.New("access: no network at all: no engine could be reached")
	}
	return n, nil
}

// Allows reports whether an engine may be at the address. Forms of IPv6 that stand for an IPv4
// address (mapped, NAT64, translated, 6to4) are judged by that one.
func (n *Networks) Allows(a netip.Addr) bool {
	if n == nil {
		return true
	}
	a = embedded(a.WithZone(""))
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	return !slices.ContainsFunc(never, in) && slices.ContainsFunc(n.allowed, in)
}

// embedded is the IPv4 address that an IPv6 one stands for, or the address itself.
func embedded(a netip.Addr) netip.Addr {
	if a = a.Unmap(); !a.Is6() {
		return a
	}
	b := a.As16()
	switch {
	case nat64.Contains(a), translated.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	case compatible.Contains(a) && !a.IsUnspecified() && !a.IsLoopback():
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	translated = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 7915's, of old
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
	compatible = netip.MustParsePrefix("::/96")           // RFC 4291, deprecated
)

// Allow is nil when the other end of a connection may be an engine, and ErrNetwork otherwise. The
// network and the address are those that net.Conn and net.Dialer name. Sockets of this machine
// (unix) are allowed where loopback is.
func (n *Networks) Allow(network, address string) error {
	if n == nil {
		return nil
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	if !strings.HasPrefix(network, "unix") {
		var err error
		if at, err = netip.ParseAddrPort(address); err != nil {
			return fmt.Errorf("%w (%s): %s", ErrNetwork, n.text, address)
		}
	}
	if !n.Allows(at.Addr()) {
		return fmt.Errorf("%w (%s): %s", ErrNetwork, n.text, address)
	}
	return nil
}

// Control is Allow for net.Dialer. It sees the address that a name was resolved to, at each
// connection, so a name that changes its address gains nothing.
func (n *Networks) Control(network, address string, _ syscall.RawConn) error {
	return n.Allow(network, address)
}

// Bounds of Client.
const (
	dialTimeout  = 5 * time.Second
	idleTimeout  = 10 * time.Second
	maxIdle      = 256
	maxPageHeads = 64 << 10
)

// Client returns a client that asks engines: only where they may be, and wherever they say
// something else is. It keeps one connection to each.
func (n *Networks) Client() *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:  (&net.Dialer{Timeout: dialTimeout, Control: n.Control}).DialContext,
			MaxIdleConns: maxIdle, MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxPageHeads,
		},
	}
}

// Listener closes connections at once whose other end may be no engine.
func (n *Networks) Listener(l net.Listener) net.Listener { return &filtered{Listener: l, networks: n} }

type filtered struct {
	net.Listener
	networks *Networks
}

// Accept implements net.Listener.
func (f *filtered) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err != nil || f.networks.Allow(c.RemoteAddr().Network(), c.RemoteAddr().String()) == nil {
			return c, err
		}
		_ = c.Close()
	}
}
