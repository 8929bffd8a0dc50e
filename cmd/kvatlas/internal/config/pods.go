package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/kvatlas/kvatlas/ingest/discover"
	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/ingest/zmq"
	"github.com/kvatlas/kvatlas/store"
)

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
		errs = append(errs, c.validateEvents(c.Pods[i], list[i]))
	}
	for _, text := range c.PodsDNS {
		if _, err := discover.NewDNS(text, nil, c.PodsDNSInterval, c.IndexMaxPods); err != nil {
			bad("pods-dns", err)
		}
	}
	if k, ok := c.Kubernetes(); ok {
		if err := k.Check(); err != nil {
			bad("pods-kubernetes", err)
		}
	}
	return errors.Join(errs...)
}

// validateEvents says why the events of a pod of the list could never be read. Pods that
// register themselves are told of in the log, when somebody is to read them; one that
// stands here is the operator's, who is still there to correct it.
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
		p.Events = anyHost(c.PodsPortEvents)
		if p.Replay == "" && c.PodsPortReplay != 0 {
			p.Replay = anyHost(c.PodsPortReplay)
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
	for _, said := range []string{fleet.ErrEndpoints.Error() + ": ", zmq.ErrEndpoint.Error() + " ", zmq.ErrConfig.Error() + ": "} {
		why = strings.Replace(why, said, "", 1)
	}
	switch {
	case strings.HasPrefix(p.Events, "bind "):
		why += "; a + is a space here, as in all URLs: write bind%2Btcp"
	case c.IngestBind == "" && strings.HasPrefix(p.Events, "bind+"):
		why += "; ingest-bind lets them"
	}
	return fmt.Errorf("pods: %s: %s", text, why)
}

// anyHost is an endpoint at the pod's own host.
func anyHost(port int) string { return fmt.Sprintf("tcp://*:%d", port) }
