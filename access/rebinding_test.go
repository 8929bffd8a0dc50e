package access

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// resolver answers each question for an IPv4 address with the next of a list, and the last one
// for ever. It is a DNS server whose owner changes its mind between two questions.
type resolver struct {
	*net.Resolver
	mu    sync.Mutex     // protects turns
	turns [][]netip.Addr // the addresses of each answer
}

func newResolver(t *testing.T, turns ...[]netip.Addr) *resolver {
	t.Helper()
	conn := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	r := &resolver{turns: turns}
	r.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(r.answer(buf[:n]), from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return r
}

// answer makes the answer to a question (RFC 1035, section 4): the question comes back, and
// behind it an A record for each address. There are none of IPv6.
func (r *resolver) answer(question []byte) []byte {
	end := 12
	for question[end] != 0 {
		end += int(question[end]) + 1
	}
	end += 5 // the root, type and class
	var addrs []netip.Addr
	if question[end-3] == 1 { // A
		r.mu.Lock()
		addrs = r.turns[0]
		if len(r.turns) > 1 {
			r.turns = r.turns[1:]
		}
		r.mu.Unlock()
	}
	b := append([]byte{question[0], question[1], 0x81, 0x80, 0, 1, 0, byte(len(addrs)), 0, 0, 0, 0}, question[12:end]...)
	for _, a := range addrs {
		b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		b = append(b, a.AsSlice()...)
	}
	return b
}

// TestRebinding: a name is judged by the address that is connected to, whatever it meant a
// moment ago. None of several addresses lets another in.
func TestRebinding(t *testing.T) {
	l := must.Get(net.Listen("tcp", "0.0.0.0:0"))(t) // all of 127.0.0.0/8 arrive here
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	n := must.Get(ParseNetworks([]string{"127.0.0.2", "127.0.0.3"}))(t)
	good, other, inside, metadata := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")
	for name, c := range map[string]struct {
		turns [][]netip.Addr
		dials []string // where each ends; empty is nowhere
	}{
		"stays":                     {[][]netip.Addr{{good}}, []string{"127.0.0.2", "127.0.0.2"}},
		"turns inside":              {[][]netip.Addr{{good}, {inside}}, []string{"127.0.0.2", "", ""}},
		"turns to metadata":         {[][]netip.Addr{{good}, {metadata}}, []string{"127.0.0.2", "", ""}},
		"to and fro":                {[][]netip.Addr{{good}, {inside}, {other}, {metadata}, {good}}, []string{"127.0.0.2", "", "127.0.0.3", "", "127.0.0.2"}},
		"a good one behind":         {[][]netip.Addr{{inside, metadata, good}}, []string{"127.0.0.2"}},
		"a good one before":         {[][]netip.Addr{{good, inside, metadata}}, []string{"127.0.0.2"}},
		"bad ones alone":            {[][]netip.Addr{{inside, metadata}}, []string{"", ""}},
		"nothing":                   {[][]netip.Addr{{}}, []string{""}},
		"a network's own address":   {[][]netip.Addr{{netip.MustParseAddr("0.0.0.0")}}, []string{""}},
		"everybody":                 {[][]netip.Addr{{netip.MustParseAddr("255.255.255.255")}}, []string{""}},
		"many of which one is good": {[][]netip.Addr{append(slicesOf(inside, 20), good)}, []string{"127.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := net.Dialer{Resolver: newResolver(t, c.turns...).Resolver, Control: n.Control}
			for i, want := range c.dials {
				got := ""
				conn, err := d.DialContext(t.Context(), "tcp4", net.JoinHostPort("engine.example.", port))
				if err == nil {
					got, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
					_ = conn.Close()
				}
				if got != want {
					t.Errorf("dial %d ends at %q, want %q", i, got, want)
				}
				var unknown *net.DNSError
				if err != nil && !errors.Is(err, ErrNetwork) && !errors.As(err, &unknown) && !strings.Contains(err.Error(), "refused") {
					t.Errorf("dial %d: %v", i, err)
				}
			}
		})
	}
}

func slicesOf(a netip.Addr, n int) (all []netip.Addr) {
	for range n {
		all = append(all, a)
	}
	return all
}
