package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/ingest/discover"
	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

// podSettings are how the pods are found whose events are read.
type podSettings struct {
	// Pods are pods that are always there, as host:port?model=NAME; other parameters
	// are in docs/operations.md. Others register over HTTP.
	Pods Names `name:"pods" section:"Pods"`
	// PodsDNS are names that are resolved to pods, as host:port for A and AAAA records
	// or _service._proto.name for SRV records, with the same parameters. They are
	// resolved every 5 seconds.
	PodsDNS Names `name:"pods-dns"`
	// PodsKubernetes are the labels of the pods to find in Kubernetes, as kubectl takes them.
	PodsKubernetes string `name:"pods-kubernetes"`
	// PodsKubernetesPool is the name of an InferencePool whose pods are found instead,
	// at its target ports.
	PodsKubernetesPool string `name:"pods-kubernetes-pool"`
	// PodsKubernetesNamespace is the namespace of both. Empty is all, but not for a pool.
	PodsKubernetesNamespace string `name:"pods-kubernetes-namespace"`
	// PodsPortKubernetes is the port at which the engines of pods found by labels serve.
	PodsPortKubernetes int `name:"pods-port-kubernetes" default:"8000" min:"1" max:"65535"`
	// PodsKubernetesConfig is a kubeconfig file whose current context names the
	// cluster. Empty is the cluster that this process runs in.
	PodsKubernetesConfig string `name:"pods-kubernetes-config"`
	// PodsLease is how long a pod stays once it is no longer found.
	PodsLease time.Duration `name:"pods-lease" default:"30s" min:"1s" max:"24h"`
	// PodsAsk lets engines be asked for what is not known of a pod: its model, and
	// where its events are.
	PodsAsk bool `name:"pods-ask" default:"false"`
	// PodsApproximate says that pods of which no endpoint of events is known have none: what
	// was sent there lately counts as held.
	PodsApproximate bool `name:"pods-approximate" default:"false"`
	// PodsMetrics lets the metrics of pods be read for what runs there, by one of all servers
	// each, while requests of their model are routed. It takes the engines vllm, sglang and trtllm.
	PodsMetrics bool `name:"pods-metrics" default:"true"`
	// PodsModel is the model of pods of which nothing else says it.
	PodsModel string `name:"pods-model"`
	// PodsEngine is the kind of their engine: vllm, sglang, trtllm or another word.
	PodsEngine string `name:"pods-engine"`
	// PodsPortEvents is the port of their events; 0 means none. Rank n has the nth port
	// after it.
	PodsPortEvents int `name:"pods-port-events" default:"0" min:"0" max:"65535"`
	// PodsPortReplay is the port of their replay sockets; 0 means none.
	PodsPortReplay int `name:"pods-port-replay" default:"0" min:"0" max:"65535"`
	// PodsRanks is the number of data-parallel ranks that they have.
	PodsRanks int `name:"pods-ranks" default:"1" min:"1" max:"1024"`
}

// Kubernetes is where pods of Kubernetes are looked for, without the client; ok is false
// when they are not.
func (c *Config) Kubernetes() (k discover.KubernetesConfig, ok bool) {
	k = discover.KubernetesConfig{
		Namespace: c.PodsKubernetesNamespace, Selector: c.PodsKubernetes, Pool: c.PodsKubernetesPool, Port: c.PodsPortKubernetes,
		EventsPort: c.PodsPortEvents, ReplayPort: c.PodsPortReplay,
	}
	return k, k.Selector != "" || k.Pool != ""
}

// validatePods checks where pods are looked for.
func (c *Config) validatePods() error {
	var errs []error
	bad := func(setting string, err error) {
		errs = append(errs, fmt.Errorf("%s: %s", setting, strings.TrimPrefix(err.Error(), "discover: ")))
	}
	list, err := discover.ParseList(c.Pods)
	if err != nil {
		bad("pods", err)
	}
	for i := range list {
		errs = append(errs, c.validateEvents(c.Pods[i], list[i]), c.validateModel("pods", c.Pods[i], list[i].Model))
	}
	for _, text := range c.PodsDNS {
		d, err := discover.NewDNS(text, nil, PodsDNSInterval, c.IndexMaxPods)
		if err != nil {
			bad("pods-dns", err)
			continue
		}
		errs = append(errs, c.validateModel("pods-dns", text, d.Model()))
	}
	for _, p := range []struct {
		setting string
		port    int
	}{{"pods-port-events", c.PodsPortEvents}, {"pods-port-replay", c.PodsPortReplay}} {
		if last := p.port + c.PodsRanks - 1; p.port != 0 && last > 65535 {
			errs = append(errs, fmt.Errorf("%s: %d is rank 0's, and the last of pods-ranks (%d) would have port %d", p.setting, p.port, c.PodsRanks, last))
		}
	}
	if c.portsMeet() {
		errs = append(errs, fmt.Errorf("pods-port-replay: from %d on, as pods-port-events from %d on, the ports of pods-ranks (%d) would be of both; each socket has a port of its own", c.PodsPortReplay, c.PodsPortEvents, c.PodsRanks))
	}
	if k, ok := c.Kubernetes(); ok {
		if err := k.Check(); err != nil {
			bad("pods-kubernetes", err)
		}
	}
	return errors.Join(errs...)
}

// portsMeet reports whether ports of all pods would be of events and of replay sockets.
func (c *Config) portsMeet() bool {
	apart := c.PodsPortReplay - c.PodsPortEvents
	return c.PodsPortEvents != 0 && c.PodsPortReplay != 0 && max(apart, -apart) < c.PodsRanks
}

// validateModel says that pods of this text could never be registered, as nothing will say
// which model they serve.
func (c *Config) validateModel(setting, text, model string) error {
	if model != "" || c.PodsModel != "" || c.PodsAsk || !c.Roles.Has(RoleIngest) { // the ingesting process registers them
		return nil
	}
	sep := "?"
	if strings.Contains(text, "?") {
		sep = "&"
	}
	return fmt.Errorf("%s: %s: nothing says which model it serves: write %s%smodel=NAME, or set pods-model for all pods, or pods-ask to ask the engine", setting, text, text, sep)
}

// validateEvents says why the events of a pod of the list could never be read by this
// process. Pods that register over HTTP are asked by fleet.Check, which knows no process;
// one that stands here is the operator's, to be corrected at once.
func (c *Config) validateEvents(text string, p store.Pod) error {
	w := fleet.Wiring{Topic: c.IngestTopic, Bind: c.IngestBind}
	switch {
	case !c.Roles.Has(RoleIngest): // another process reads them
		return nil
	case w.Validate() != nil: // that is told by itself
		w = fleet.Wiring{Bind: "*"}
	}
	if c.IngestCurveKeys != "" {
		w.Curve = &zmq.Curve{} // the keys are read later, and how they are used is known now
	}
	p.Model = cmp.Or(p.Model, c.PodsModel, "to be found out")
	if p.Events == "" && c.PodsPortEvents != 0 && !c.PodsAsk {
		p.Events = fmt.Sprintf("tcp://*:%d", c.PodsPortEvents) // at the pod's own host
		if p.Replay == "" && c.PodsPortReplay != 0 && !c.portsMeet() {
			p.Replay = fmt.Sprintf("tcp://*:%d", c.PodsPortReplay)
		}
	}
	if p.Ranks == 0 {
		p.Ranks = c.PodsRanks
		if c.PodsAsk { // the engine knows better
			p.Ranks = 1 + strings.Count(p.Events, ",")
		}
	}
	_, err := w.Sources(&p)
	if err == nil {
		return nil
	}
	why := err.Error()
	if bad, ok := errors.AsType[*fleet.EndpointError](err); ok {
		why = bad.Why()
	}
	switch {
	case strings.HasPrefix(p.Events, "bind "):
		why += "; a + is a space here, as in all URLs: write bind%2Btcp"
	case c.IngestBind == "" && strings.HasPrefix(p.Events, "bind+"):
		why += "; ingest-bind lets them"
	}
	return fmt.Errorf("pods: %s: %s", text, why)
}
