package discover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/store"
)

// Resolver resolves names; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, addrs []*net.SRV, err error)
}

// DNS is a source of the pods behind a name, such as that of a headless service of
// Kubernetes. The name is resolved again and again. While it cannot be, the last answer
// stands. A name that does not exist has no pods, since a headless service without ready
// pods has no name either. The Watcher gets each once, until it is something else.
type DNS struct {
	text     string
	host     string // of A and AAAA records, with port; or
	port     string
	srv      string // of SRV records
	pod      store.Pod
	resolver Resolver
	interval time.Duration
	timeout  time.Duration
	limit    int
}

// NewDNS reads what to resolve. It is host:port for A and AAAA records, or the name of
// SRV records. Such a name begins with _ (such as _http._tcp.vllm.default.svc) and
// brings the ports along. Parameters as in ParsePod may follow, which hold for all pods.
// A nil resolver is the system's. interval is how often it is resolved, limit how many
// pods it may be.
func NewDNS(text string, r Resolver, interval time.Duration, limit int) (*DNS, error) {
	d := &DNS{text: text, resolver: r, interval: interval, timeout: min(interval, 5*time.Second), limit: limit}
	if r == nil {
		d.resolver = net.DefaultResolver
	}
	name, query, _ := strings.Cut(text, "?")
	if strings.HasPrefix(name, "_") {
		d.srv = name
	} else {
		var err error
		if d.host, d.port, err = net.SplitHostPort(name); err != nil || d.host == "" || !isPort(d.port) {
			return nil, fmt.Errorf("%w: %q is neither host:port nor the name of SRV records, such as _http._tcp.vllm.default.svc", ErrSpec, name)
		}
	}
	d.pod.Name = "x"
	if err := parameters(&d.pod, query); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSpec, name, err)
	}
	if strings.Contains("&"+query, "&name=") || d.pod.Events != "" || d.pod.Replay != "" {
		return nil, fmt.Errorf("%w: %s: name, events and replay are one pod's, and this may be many", ErrSpec, name)
	}
	if interval <= 0 || limit < 1 {
		return nil, fmt.Errorf("%w: %s: an interval of %v and a limit of %d", ErrSpec, name, interval, limit)
	}
	return d, nil
}

// Model is the model that all pods behind the name serve, "" if the text does not say.
func (d *DNS) Model() string { return d.pod.Model }

// Watch implements Source.
func (d *DNS) Watch(ctx context.Context, w Watcher) error {
	var last []string
	told := "" // the fault that is known
	tell := func(fault string, err error) {
		if fault != told && fault != "" {
			w.failed(fmt.Errorf("discover: %s: %w", d, err))
		}
		told = fault
	}
	for first := true; ; {
		names, missing, err := d.resolve(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			tell(faultOf(err), err)
		} else {
			tell(missing, fmt.Errorf("%s: no such host; is the name right? A headless service that has no ready pods has no name, too", missing))
		}
		switch {
		case err != nil:
		case first || !slices.Equal(names, last):
			last, first = names, false
			found := make([]Found, len(names))
			for i, name := range names {
				found[i].Pod = d.pod
				found[i].Pod.Name = name
			}
			w.Report(found)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d.interval):
		}
	}
}

// faultOf is what stays the same of an error while its cause does: those of the network
// name a port of ours.
func faultOf(err error) string {
	e, ok := errors.AsType[*net.DNSError](err)
	switch {
	case !ok:
		return err.Error()
	case e.IsTimeout:
		return "timeout of " + e.Name
	}
	return "failure of " + e.Name
}

// resolve returns host:port of all pods, ascending, and a name that it came upon and that
// does not exist, "" for none.
func (d *DNS) resolve(ctx context.Context) (names []string, missing string, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if d.srv == "" {
		return d.addresses(ctx, d.host, d.port)
	}
	_, records, err := d.resolver.LookupSRV(ctx, "", "", d.srv)
	if none(err) {
		return nil, d.srv, nil
	}
	if err != nil && len(records) == 0 {
		return nil, "", err
	}
	for _, r := range records {
		list, gone, err := d.addresses(ctx, strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
		if err != nil {
			return nil, "", err
		}
		missing = max(missing, gone) // the order of the records changes
		names = append(names, list...)
		if len(names) > d.limit {
			break
		}
	}
	names, err = d.bounded(names)
	return names, missing, err
}

func (d *DNS) addresses(ctx context.Context, host, port string) (names []string, missing string, err error) {
	addrs, err := d.resolver.LookupNetIP(ctx, "ip", host)
	if none(err) {
		return nil, host, nil
	}
	if err != nil {
		return nil, "", err
	}
	for _, a := range addrs {
		names = append(names, net.JoinHostPort(a.Unmap().String(), port))
	}
	names, err = d.bounded(names)
	return names, "", err
}

func (d *DNS) bounded(names []string) ([]string, error) {
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > d.limit {
		return nil, fmt.Errorf("it has %d pods and more, the limit is %d", d.limit+1, d.limit)
	}
	return names, nil
}

// none reports whether the answer was that there is no such name.
func none(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound
}

// Ends implements Source.
func (d *DNS) Ends() bool { return false }

// String implements Source.
func (d *DNS) String() string { return "dns " + d.text }
