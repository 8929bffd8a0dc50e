package feed

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
	ErrConfig = errors.New("feed: invalid config")
	// ErrUnmapped says that no pod is known for an instance; the message says why, and
	// what to set.
	ErrUnmapped = errors.New("feed: no pod is known for the instance")
	// ErrShared says that several processes that cannot be told apart use one id; the
	// message names them.
	ErrShared = errors.New("feed: several processes use the id")
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

// Find returns the targets of an instance that tells this IP. They are those that are set,
// else the pod that is called like the instance. Else it is the one pod whose host is the
// IP, if there is only one. Pods that are not registered, and cache workers, are never
// returned.
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
	found, model := p.at(reg, ip)
	switch len(found) {
	case 1:
		return []Target{{Pod: found[0], Model: model}}, nil
	case 0:
		return nil, fmt.Errorf("%w %q: no pod is called so, and none is at %s", ErrUnmapped, instance, ip)
	}
	return nil, fmt.Errorf("%w %q: there are %d pods at %s, such as %s and %s; set which one it is", ErrUnmapped, instance, len(found), ip, found[0], found[1])
}

// Names reports whether the id alone leads to the target. Other instances of that id would
// lead to the same one; those that their addresses lead to a pod need not.
func (p *Pods) Names(instance string, t Target) bool {
	return len(p.Map[instance]) > 0 || t.Pod == instance
}

// At reports whether the target's pod is registered at this IP.
func (t Target) At(reg *store.Registry, ip string) bool {
	pod := engine(reg, t.Pod)
	return pod != nil && hosts(pod, ip)
}

// Doubt is ErrUnmapped for an instance that has the name of one pod and the address of
// another. It has got that pod's id by mistake. It is nil for any other.
func (p *Pods) Doubt(reg *store.Registry, instance, ip string) error {
	pod := engine(reg, instance)
	if pod == nil || len(p.Map[instance]) > 0 || !p.fits(pod) || !elsewhere(pod, ip) {
		return nil
	}
	found, _ := p.at(reg, ip)
	if len(found) != 1 {
		return nil
	}
	return fmt.Errorf("%w %q: it is called like %s, and is at the address of %s (%s); give each engine an id of its own, or set which pod it is", ErrUnmapped, instance, pod.Name, found[0], ip)
}

// at returns the pods at an IP, and the model of the last of them.
func (p *Pods) at(reg *store.Registry, ip string) (found []string, model string) {
	for i := range reg.Pods {
		if pod := &reg.Pods[i]; p.fits(pod) && hosts(pod, ip) {
			found = append(found, pod.Name)
			model = pod.Model
		}
	}
	return found, model
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

// hosts reports whether the pod's address or name has this host.
func hosts(p *store.Pod, ip string) bool {
	if ip == "" {
		return false
	}
	return slices.ContainsFunc([]string{p.Address, p.Name}, func(text string) bool {
		bare := withoutPath(text)
		return bare == ip || hostOf(bare) == ip
	})
}

// elsewhere reports whether the pod is known to be at another IP than this one.
func elsewhere(p *store.Pod, ip string) bool {
	if hosts(p, ip) {
		return false
	}
	for _, text := range []string{p.Address, p.Name} {
		bare := withoutPath(text)
		if net.ParseIP(bare) != nil || net.ParseIP(hostOf(bare)) != nil {
			return true
		}
	}
	return false
}

// withoutPath is what stands between the scheme and the path of an address.
func withoutPath(text string) string {
	if _, rest, found := strings.Cut(text, "://"); found {
		text = rest
	}
	text, _, _ = strings.Cut(text, "/")
	return text
}

// hostOf is the host of host:port, "" of anything else.
func hostOf(text string) string {
	host, _, err := net.SplitHostPort(text)
	if err != nil {
		return ""
	}
	return host
}

// Labels of a worker's registration.
const (
	// LabelInstance is LMCache's instance id.
	LabelInstance = "lmcache.instance"
	// LabelIP is the IP that the worker has told.
	LabelIP = "lmcache.ip"
	// LabelHost is the host that the worker's connections come from.
	LabelHost = "lmcache.host"
	// LabelShared names the processes that use the worker's id and cannot be told apart,
	// so that nothing is kept of what they say. It is not there when only one process
	// does.
	LabelShared = "lmcache.shared"
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
