package fleet

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// ErrEndpoints says that the ranks' endpoints cannot be made of a registration.
var ErrEndpoints = errors.New("fleet: no endpoints")

// EndpointError is the ErrEndpoints of a registration whose Events or Replay cannot be read.
type EndpointError struct {
	// Field is the one to blame: events or replay.
	Field string
	err   error
}

// Error implements error.
func (e *EndpointError) Error() string { return ErrEndpoints.Error() + ": " + e.err.Error() }

// Unwrap gives ErrEndpoints and what is below it.
func (e *EndpointError) Unwrap() []error { return []error{ErrEndpoints, e.err} }

// Why says to people what is wrong, without the names of packages.
func (e *EndpointError) Why() string {
	why := e.err.Error()
	for _, said := range []string{zmq.ErrEndpoint.Error() + " ", zmq.ErrConfig.Error() + ": "} {
		why = strings.Replace(why, said, "", 1)
	}
	return why
}

func badEvents(format string, args ...any) error {
	return &EndpointError{"events", fmt.Errorf(format, args...)}
}

func badReplay(format string, args ...any) error {
	return &EndpointError{"replay", fmt.Errorf(format, args...)}
}

// Check says why no process could ever read the events of a pod that is to be registered:
// an *EndpointError. What only some processes refuse, as their Wiring is, passes: another
// one than the caller may be the reader.
func Check(p *store.Pod) error {
	w := Wiring{Bind: "*"}
	for e := range strings.SplitSeq(p.Events, ",") {
		rest, binds := strings.CutPrefix(strings.TrimSpace(e), bindScheme+"tcp://")
		if host, _, err := net.SplitHostPort(rest); binds && err == nil && net.ParseIP(host) != nil {
			w.Bind = host // it may be the reader's
			break
		}
	}
	if p.Events != "" || p.Replay == "" {
		_, err := w.Sources(p)
		return err
	}
	list, err := endpoints(p.Replay, max(1, p.Ranks), func(e string) (string, error) { return reachable(p, e) })
	if err != nil {
		return badReplay("replay of %s: %w", p.Name, err)
	}
	for r, e := range list {
		if err := (zmq.ReplayConfig{Endpoint: e}).Validate(); err != nil {
			return badReplay("replay of %s/%d: %w", p.Name, r, err)
		}
	}
	return nil
}

// Sources are the event streams of a pod's ranks, in order; none when the pod has no
// Events. Events and Replay are the endpoints of rank 0, and those of rank n are n ports
// higher. Or they are one endpoint for each rank, with commas between. A host of *,
// 0.0.0.0 or [::], with which engines bind, stands for that of the pod's Address, or of
// its Name. Events that begin with bind+ are where the engine connects to us; see
// Wiring.Bind. No endpoint can be of events and of a replay socket, whatever the ranks.
// What is wrong with them is an *EndpointError.
func (w *Wiring) Sources(p *store.Pod) ([]ingest.Source, error) {
	if p.Events == "" {
		return nil, nil
	}
	ranks := max(1, p.Ranks)
	binds := strings.HasPrefix(p.Events, bindScheme)
	resolve := func(e string) (string, error) { return reachable(p, e) }
	at := resolve
	if binds {
		at = w.bound
	}
	events, err := endpoints(p.Events, ranks, at)
	if err != nil {
		return nil, badEvents("events of %s: %w", p.Name, err)
	}
	replay := make([]string, ranks)
	if p.Replay != "" {
		if replay, err = endpoints(p.Replay, ranks, resolve); err != nil {
			return nil, badReplay("replay of %s: %w", p.Name, err)
		}
	}
	if err := apart(p.Name, events, replay); err != nil {
		return nil, err
	}
	out := make([]ingest.Source, ranks)
	for r := range out {
		out[r] = ingest.Source{
			Pod: p.Name, Rank: r, Model: p.Model, Engine: p.Engine, Events: events[r], Bind: binds, Replay: replay[r],
			Topic: w.topic(p, r), Curve: w.Curve,
		}
		alone := out[r]
		alone.Replay = ""
		if err := alone.Validate(); err != nil {
			return nil, badEvents("%w", err)
		}
		if err := out[r].Validate(); err != nil {
			return nil, badReplay("%w", err)
		}
	}
	return out, nil
}

// apart refuses a replay socket that would be where a rank's events are. An engine cannot
// bind both there: one of the two is wrong, and what was missed would be asked for in vain.
func apart(pod string, events, replay []string) error {
	at := make(map[string]int, len(events))
	for r, e := range events {
		at[e] = r
	}
	for r, e := range replay {
		if other, taken := at[e]; taken {
			return badReplay("replay of %s/%d: %q is where the events of rank %d are; the replay socket has an endpoint of its own", pod, r, e, other)
		}
	}
	return nil
}

// endpoints makes the endpoints of n ranks of a text, each of whose entries resolve makes
// one that can be used.
func endpoints(text string, n int, resolve func(string) (string, error)) ([]string, error) {
	list := strings.Split(text, ",")
	if len(list) != 1 && len(list) != n {
		return nil, fmt.Errorf("%d endpoints for %d ranks; it can be one, or one for each", len(list), n)
	}
	for i, e := range list {
		var err error
		if list[i], err = resolve(strings.TrimSpace(e)); err != nil {
			return nil, err
		}
	}
	for r := len(list); r < n; r++ {
		e, err := offset(list[0], r)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// reachable puts the pod's host in the place of one that stands for all addresses.
func reachable(p *store.Pod, endpoint string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("%q: %w", endpoint, err)
	}
	switch host {
	case "*", "", "0.0.0.0", "::":
	default:
		return endpoint, nil
	}
	host = hostOf(p)
	if host == "" {
		return "", fmt.Errorf("%q names no host, and neither does the pod's address or name", endpoint)
	}
	return "tcp://" + net.JoinHostPort(host, port), nil
}

// hostOf is the host that the pod's address or name has; "" means none.
func hostOf(p *store.Pod) string {
	for _, text := range []string{p.Address, p.Name} {
		_, rest, found := strings.Cut(text, "://")
		if !found {
			rest = text
		}
		rest, _, _ = strings.Cut(rest, "/")
		if host, _, err := net.SplitHostPort(rest); err == nil && host != "" {
			return host
		}
	}
	return ""
}

// offset is the endpoint of rank r where that of rank 0 is given.
func offset(endpoint string, r int) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%q: only tcp has ports to count from; give one endpoint for each rank", endpoint)
	}
	host, text, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("%q: %w", endpoint, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port+r > 65535 {
		return "", fmt.Errorf("%q: rank %d would have port %s+%d", endpoint, r, text, r)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port+r)), nil
}
