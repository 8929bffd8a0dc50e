package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

// ErrSpec says that the text of a pod, or of where to look for pods, cannot be right.
var ErrSpec = errors.New("discover: invalid text")

// Found is a pod that a source has found.
type Found struct {
	// Pod is its registration, without a lease. What is empty in it is asked for or
	// comes from the Template.
	Pod store.Pod
	// Life names one life of the engine's process as far as the source knows; ""
	// when it does not. When it has changed the pod's blocks are gone.
	Life string
}

// Source finds pods.
type Source interface {
	// Watch reports all pods that there are, at first and whenever they change, until
	// ctx is done; it returns ctx's error. It goes on through faults, which it tells
	// the Watcher. report keeps nothing of the slice.
	Watch(ctx context.Context, w Watcher) error
	// Ends says whether a pod that is not reported any more has ended. Otherwise it
	// just is not seen, and lives until its lease is over.
	Ends() bool
	// String says what the source is, for people.
	String() string
}

// Watcher is what a source tells.
type Watcher struct {
	// Report receives all pods.
	Report func(pods []Found)
	// Failed receives faults; it may be nil.
	Failed func(err error)
}

func (w Watcher) failed(err error) {
	if w.Failed != nil {
		w.Failed(err)
	}
}

// Template has what is the same for all pods of a fleet and is not told otherwise.
type Template struct {
	// Model is the name of the model; "" must be found out.
	Model string
	// Engine is the engine's kind as in store.Pod.
	Engine string
	// EventsPort and ReplayPort are the ports of rank 0's endpoints on the pod's host;
	// 0 means none.
	EventsPort, ReplayPort int
	// Ranks is the number of data-parallel ranks; 0 is 1.
	Ranks int
	// Approximate says that pods of which no endpoint of events is known have none.
	Approximate bool
}

// fill gives a pod what it lacks.
func (t *Template) fill(p *store.Pod) {
	defer func() { p.Approximate = p.Approximate || t.Approximate && p.Events == "" }()
	p.Model = cmp.Or(p.Model, t.Model)
	p.Engine = cmp.Or(p.Engine, t.Engine)
	p.Ranks = cmp.Or(p.Ranks, t.Ranks)
	host, _, err := net.SplitHostPort(p.Name)
	if p.Address != "" {
		host, _, err = net.SplitHostPort(p.Address)
	}
	if err != nil || p.Events != "" || store.PlainName(p.Name) != p.Name {
		return // a registration that names events names the replay socket too, and the ports are of a pod's own model
	}
	if t.EventsPort != 0 {
		p.Events = endpoint(host, t.EventsPort)
		if t.ReplayPort != 0 && p.Replay == "" {
			p.Replay = endpoint(host, t.ReplayPort)
		}
	}
}

func endpoint(host string, port int) string {
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// ParsePod reads the text of a pod. It is host:port of its engine, which is its name, and
// perhaps parameters as in a URL, with the names and meaning of store.Pod:
//
//	10.0.0.1:8000?model=m&events=tcp://10.0.0.1:5557&replay=tcp://10.0.0.1:5558&ranks=2
//
// The parameters are name, model, aliases and adapters, with commas between names, role, ranks, engine, events, replay and block_size.
func ParsePod(text string) (store.Pod, error) {
	var p store.Pod
	address, query, _ := strings.Cut(text, "?")
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || !isPort(port) {
		return p, fmt.Errorf("%w: %q is no host:port", ErrSpec, address)
	}
	p.Name = address
	if err := parameters(&p, query); err != nil {
		return p, fmt.Errorf("%w: %s: %w", ErrSpec, address, err)
	}
	if p.Name != address {
		p.Address = address
	}
	return p, nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// parameters sets what a query says of a pod.
func parameters(p *store.Pod, query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for name, list := range values {
		v := list[0]
		number := func(to *int, limit int) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || n > limit {
				return fmt.Errorf("%s is %q, it can be 0 to %d", name, v, limit)
			}
			*to = n
			return nil
		}
		if len(list) > 1 {
			return fmt.Errorf("%s is there twice", name)
		}
		switch name {
		case "name":
			p.Name = v
		case "model":
			p.Model = v
		case "aliases":
			p.Aliases = strings.Split(v, ",")
		case "adapters":
			p.Adapters = strings.Split(v, ",")
		case "role":
			p.Role = v
		case "engine":
			p.Engine = v
		case "events":
			p.Events = v
		case "replay":
			p.Replay = v
		case "ranks":
			err = number(&p.Ranks, store.MaxRanks)
		case "block_size":
			err = number(&p.BlockSize, store.MaxBlockSize)
		default:
			err = fmt.Errorf("%s is not one of name, model, aliases, adapters, role, ranks, engine, events, replay, block_size", name)
		}
		if err != nil {
			return err
		}
	}
	probe := *p
	probe.Model = cmp.Or(probe.Model, "to be found out")
	return probe.Validate()
}

// List is a source of pods that are always there.
type List []store.Pod

// ParseList reads texts of pods; see ParsePod. The second of one name, with another model, is a
// further model of the pod.
func ParseList(texts []string) (List, error) {
	var l List
	for _, t := range texts {
		p, err := ParsePod(t)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(l, func(q store.Pod) bool { return q.Name == p.Name }); i >= 0 && p.Model != "" && l[i].Model != "" && p.Model != l[i].Model {
			if p.Events != "" && p.Events == l[i].Events {
				return nil, fmt.Errorf("%w: %s: events of %s are of one model", ErrSpec, p.Name, p.Events)
			}
			if err := standBeside(&p); err != nil {
				return nil, err
			}
		}
		if slices.ContainsFunc(l, func(q store.Pod) bool { return q.Name == p.Name }) {
			return nil, fmt.Errorf("%w: the pod %s is there twice", ErrSpec, p.Name)
		}
		l = append(l, p)
	}
	return l, nil
}

// standBeside makes a pod of the list one of a further model of the pod of the same name.
func standBeside(p *store.Pod) error {
	name, err := store.BesideName(p.Name, p.Model)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrSpec, p.Name, err)
	}
	p.Address = cmp.Or(p.Address, p.Name)
	p.Name = name
	return nil
}

// Watch implements Source.
func (l List) Watch(ctx context.Context, w Watcher) error {
	found := make([]Found, len(l))
	for i := range l {
		found[i].Pod = l[i]
	}
	w.Report(found)
	<-ctx.Done()
	return ctx.Err()
}

// Ends implements Source.
func (l List) Ends() bool { return false }

// String implements Source.
func (l List) String() string { return fmt.Sprintf("a list of %d pods", len(l)) }
