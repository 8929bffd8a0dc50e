package filing

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/store"
)

// Errors.
var (
	// ErrConfig says that a setting cannot be right.
	ErrConfig = errors.New("filing: invalid config")
	// ErrUnmapped says that no pod is known for an instance; the message says why, and
	// what to set.
	ErrUnmapped = errors.New("filing: no pod is known for the instance")
)

// Target is the rank of a pod that an instance works for.
type Target struct {
	Pod  string
	Rank int
	// Model is the pod's.
	Model string
}

// Pods finds the pods of instances.
type Pods struct {
	// Map has the targets of instances that are set; those that it lists several of
	// serve several pods from one memory. Their Model is that of the registered pod.
	Map map[string][]Target
	// Model is the model of the pods that are looked at for others; "" is any.
	Model string
}

// ParseMap reads texts of the form instance=pod or instance=pod#rank. An instance that
// stands in several has several targets.
func ParseMap(texts []string) (map[string][]Target, error) {
	m := map[string][]Target{}
	for _, text := range texts {
		instance, pod, ok := strings.Cut(text, "=")
		if !ok || instance == "" || pod == "" {
			return nil, fmt.Errorf("%w: %q is not of the form instance=pod or instance=pod#rank", ErrConfig, text)
		}
		t := Target{Pod: pod}
		if i := strings.LastIndexByte(pod, '#'); i >= 0 {
			rank, err := strconv.Atoi(pod[i+1:])
			if err != nil || store.CheckRank(rank) != nil {
				return nil, fmt.Errorf("%w: the rank of %q is %q, it can be 0 to %d", ErrConfig, text, pod[i+1:], store.MaxRanks-1)
			}
			t = Target{Pod: pod[:i], Rank: rank}
		}
		if err := store.CheckPodName(t.Pod); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrConfig, text, err)
		}
		if slices.Contains(m[instance], t) {
			return nil, fmt.Errorf("%w: %q is there twice", ErrConfig, text)
		}
		m[instance] = append(m[instance], t)
	}
	return m, nil
}

// Find returns the targets of an instance that tells this IP: those that are set; else
// the pod that is called like the instance; else the one whose host is the IP, if it is
// the only one. Pods that are not registered, and cache workers, are none.
func (p *Pods) Find(reg *store.Registry, instance, ip string) ([]Target, error) {
	if set := p.Map[instance]; len(set) > 0 {
		out := slices.Clone(set)
		for i := range out {
			pod := engine(reg, out[i].Pod)
			if pod == nil {
				return nil, fmt.Errorf("%w %q: it is set to %s, which is not registered", ErrUnmapped, instance, out[i].Pod)
			}
			out[i].Model = pod.Model
		}
		return out, nil
	}
	if pod := engine(reg, instance); pod != nil && p.fits(pod) {
		return []Target{{Pod: pod.Name, Model: pod.Model}}, nil
	}
	var found []string
	var model string
	for i := range reg.Pods {
		if pod := &reg.Pods[i]; p.fits(pod) && hosts(pod, ip) {
			found = append(found, pod.Name)
			model = pod.Model
		}
	}
	switch len(found) {
	case 1:
		return []Target{{Pod: found[0], Model: model}}, nil
	case 0:
		return nil, fmt.Errorf("%w %q: no pod is called so, and none is at %s", ErrUnmapped, instance, ip)
	}
	return nil, fmt.Errorf("%w %q: there are %d pods at %s, such as %s and %s; set which one it is", ErrUnmapped, instance, len(found), ip, found[0], found[1])
}

func (p *Pods) fits(pod *store.Pod) bool {
	return pod.PartOf == nil && (p.Model == "" || pod.Model == p.Model)
}

// engine is the engine of a name, nil if there is none.
func engine(reg *store.Registry, name string) *store.Pod {
	if i, ok := reg.PodIndex(name); ok && reg.Pods[i].PartOf == nil {
		return &reg.Pods[i]
	}
	return nil
}

// hosts tells whether the pod's address or name has this host.
func hosts(p *store.Pod, ip string) bool {
	if ip == "" {
		return false
	}
	for _, text := range []string{p.Address, p.Name} {
		if _, rest, found := strings.Cut(text, "://"); found {
			text = rest
		}
		text, _, _ = strings.Cut(text, "/")
		if host, _, err := net.SplitHostPort(text); err == nil && host == ip || text == ip {
			return true
		}
	}
	return false
}

// Labels of a worker's registration.
const (
	// LabelInstance is LMCache's instance id.
	LabelInstance = "lmcache.instance"
	// LabelIP is the IP that the worker has told.
	LabelIP = "lmcache.ip"
	// LabelPeer is where its peers fetch chunks; not there when they do not.
	LabelPeer = "lmcache.peer"
	// LabelIncarnation numbers the lives of an instance of MP mode.
	LabelIncarnation = "lmcache.incarnation"
)

// Workers returns how many workers of the instance the registry knows for the target:
// one more than the highest number of them.
func Workers(reg *store.Registry, instance string, t Target) int {
	n := 0
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.PartOf != nil && p.PartOf.Pod == t.Pod && p.PartOf.Rank == t.Rank && p.Labels[LabelInstance] == instance {
			n = max(n, p.PartOf.Worker+1)
		}
	}
	return n
}

// Registered returns how many workers the registry knows, of all instances.
func Registered(reg *store.Registry) (n int) {
	for i := range reg.Pods {
		if reg.Pods[i].PartOf != nil {
			n++
		}
	}
	return n
}
