package fleet

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// Wiring is how the engines of a fleet are reached, beside what the registrations of
// their pods say. The zero value connects to them, in the clear, and reads all topics.
type Wiring struct {
	// Bind is the address of this machine, without a port, at which engines may connect whose pod's
	// endpoint is bind+tcp://*:PORT; * is all of its addresses. With "" such pods are refused: a
	// registration would otherwise open ports here.
	Bind string
	// Topic is the prefix of the topics that are read, in which {pod}, {host}, {model}
	// and {rank} stand for those of each stream. "" reads all.
	Topic string
	// Curve are the keys of publishers that take CURVE, nil for none.
	Curve *zmq.Curve
}

// bindScheme begins the endpoint of an engine that connects to us.
const bindScheme = "bind+"

// topicWords are those that a topic can have in braces.
var topicWords = []string{"pod", "host", "model", "rank"}

// Validate says what cannot be right.
func (w *Wiring) Validate() error {
	for rest := w.Topic; ; {
		_, after, ok := strings.Cut(rest, "{")
		if !ok {
			break
		}
		word, after, ok := strings.Cut(after, "}")
		if !ok || !slices.Contains(topicWords, word) {
			return fmt.Errorf("%w: the topic %q has {%s}, it can be {%s}", errConfig, w.Topic, word, strings.Join(topicWords, "}, {"))
		}
		rest = after
	}
	if w.Bind != "" && w.Bind != "*" && net.ParseIP(w.Bind) == nil {
		return fmt.Errorf("%w: %q is no address of this machine to bind: it is an IP address, or *", errConfig, w.Bind)
	}
	return nil
}

// topic is that of a rank of a pod.
func (w *Wiring) topic(p *store.Pod, rank int) string {
	if !strings.Contains(w.Topic, "{") {
		return w.Topic
	}
	return strings.NewReplacer("{pod}", p.Name, "{host}", hostOf(p), "{model}", p.Model, "{rank}", strconv.Itoa(rank)).Replace(w.Topic)
}

// bound is where an engine of the endpoint connects to us.
func (w *Wiring) bound(endpoint string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, bindScheme+"tcp://")
	if !ok {
		return "", fmt.Errorf("%q: only %stcp://*:PORT can be bound", endpoint, bindScheme)
	}
	host, port, err := net.SplitHostPort(rest)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q: %w", endpoint, err)
	case w.Bind == "":
		return "", fmt.Errorf("%q: this replica lets no engine connect to it", endpoint)
	case host != "*" && host != w.Bind:
		return "", fmt.Errorf("%q: engines can connect to %s, write *", endpoint, w.Bind)
	}
	return "tcp://" + net.JoinHostPort(w.Bind, port), nil
}
