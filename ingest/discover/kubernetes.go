package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kvatlas/kvatlas/store"
)

// The resources that are read. The pool's second is its name before it was settled.
var (
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	poolResources = []schema.GroupVersionResource{
		{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"},
		{Group: "inference.networking.x-k8s.io", Version: "v1alpha2", Resource: "inferencepools"},
	}
)

// KubernetesConfig says which pods of a cluster are found: those with the labels of
// Selector, or of the selector of an InferencePool.
type KubernetesConfig struct {
	// Client reads the cluster; see KubernetesClient.
	Client dynamic.Interface
	// Namespace is where the pods are; "" means all, for a user that may read all. A Pool needs it.
	Namespace string
	// Selector are labels as kubectl takes them: app=vllm,tier in (a,b).
	Selector string
	// Pool is the name of an InferencePool (Gateway API Inference Extension), in place
	// of Selector and Port.
	Pool string
	// Port is where the engines serve requests.
	Port int
	// EventsPort and ReplayPort are needed with a Pool of several target ports, which
	// are an engine each: those of the nth are n ports higher.
	EventsPort, ReplayPort int
}

// Kubernetes is a source of the pods of a cluster that are ready. The API server sends it changes at once. A
// pod that is being deleted, or whose engine does not run, has ended. One whose container was restarted
// begins a new life when it is ready. One that is not ready any more, but runs, stays: its blocks are still
// there.
//
// Labels and annotations kvatlas.io/model, /engine, /role, /ranks, /events-port and
// /replay-port of a pod say what is true of it alone. llm-d.ai/role and
// llm-d.ai/engine-type are understood.
type Kubernetes struct {
	c    KubernetesConfig
	seen map[string]string // the last fault of pods, by life, that have been ready; belongs to Watch
}

// Check tells what is wrong with it, but for the client, as an ErrSpec.
func (c *KubernetesConfig) Check() error {
	switch {
	case (c.Selector == "") == (c.Pool == ""):
		return fmt.Errorf("%w: kubernetes: give either a selector of labels or the name of an InferencePool", ErrSpec)
	case c.Pool != "" && c.Namespace == "":
		return fmt.Errorf("%w: kubernetes: an InferencePool needs its namespace", ErrSpec)
	case c.Selector != "" && (c.Port < 1 || c.Port > 65535):
		return fmt.Errorf("%w: kubernetes: the port of the engines is %d, it can be 1 to 65535", ErrSpec, c.Port)
	}
	if _, err := labels.Parse(c.Selector); err != nil {
		return fmt.Errorf("%w: kubernetes: %w", ErrSpec, err)
	}
	return nil
}

// NewKubernetes returns a source.
func NewKubernetes(c KubernetesConfig) (*Kubernetes, error) {
	if c.Client == nil {
		return nil, fmt.Errorf("%w: kubernetes: no client", errConfig)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	return &Kubernetes{c: c, seen: map[string]string{}}, nil
}

// quiet keeps klog, which client-go logs to, from stderr: what matters comes as errors.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// KubernetesClient is a client for the cluster that this process runs in or, with a
// file, the one that its current context names.
func KubernetesClient(kubeconfig string) (dynamic.Interface, error) {
	quiet()
	var c *rest.Config
	var err error
	if kubeconfig == "" {
		c, err = rest.InClusterConfig()
	} else {
		c, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("discover: kubernetes: %w", err)
	}
	c.UserAgent = "kvatlas"
	return dynamic.NewForConfig(c)
}

// Ends implements Source.
func (k *Kubernetes) Ends() bool { return true }

// String implements Source.
func (k *Kubernetes) String() string {
	if k.c.Pool != "" {
		return fmt.Sprintf("kubernetes %s/inferencepool/%s", k.c.Namespace, k.c.Pool)
	}
	return fmt.Sprintf("kubernetes %s/%s", cmp.Or(k.c.Namespace, "*"), k.c.Selector)
}

// Watch implements Source.
func (k *Kubernetes) Watch(ctx context.Context, w Watcher) error {
	quiet()
	if k.c.Pool == "" {
		return k.watchPods(ctx, w, target{selector: k.c.Selector, ports: []int{k.c.Port}})
	}
	return k.watchPool(ctx, w)
}

// target is which pods there are to find, and where their engines serve.
type target struct {
	selector string
	ports    []int
}

func (t target) equal(u target) bool {
	return t.selector == u.selector && slices.Equal(t.ports, u.ports)
}

// watchPool watches the pool, and the pods that it selects at the time.
func (k *Kubernetes) watchPool(ctx context.Context, w Watcher) error {
	var pods sync.WaitGroup
	defer pods.Wait()
	stop := func() {}
	defer func() { stop() }()
	last := target{}
	see := func(objects []*unstructured.Unstructured) {
		i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() == k.c.Pool })
		if i < 0 {
			stop()
			pods.Wait()
			last = target{}
			w.failed(fmt.Errorf("discover: %s: there is no such pool", k))
			w.Report(nil)
			return
		}
		t, err := poolTarget(objects[i])
		if err != nil {
			w.failed(fmt.Errorf("discover: %s: %w", k, err))
			return
		}
		if t.equal(last) {
			return
		}
		stop()
		pods.Wait() // k.seen is one's at a time
		last = t
		var inner context.Context
		inner, stop = context.WithCancel(ctx)
		pods.Go(func() { _ = k.watchPods(inner, w, t) }) // it ends with inner
	}
	for {
		resource, err := k.poolResource(ctx)
		if err == nil {
			return k.watch(ctx, w, resource, "", fields.OneTermEqualSelector("metadata.name", k.c.Pool).String(), see)
		}
		w.failed(fmt.Errorf("discover: %s: %w", k, err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Second):
		}
	}
}

// poolResource is the kind of pools that ours is of.
func (k *Kubernetes) poolResource(ctx context.Context) (schema.GroupVersionResource, error) {
	var errs []error
	for _, r := range poolResources {
		_, err := k.c.Client.Resource(r).Namespace(k.c.Namespace).Get(ctx, k.c.Pool, metav1.GetOptions{})
		if err == nil {
			return r, nil
		}
		errs = append(errs, err)
	}
	return schema.GroupVersionResource{}, errors.Join(errs...)
}

// poolTarget reads the selector and the ports of a pool: spec.selector.matchLabels and
// spec.targetPorts, or spec.selector and spec.targetPortNumber of v1alpha2.
func poolTarget(o *unstructured.Unstructured) (target, error) {
	match, ok, err := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
	if !ok || err != nil {
		match, _, err = unstructured.NestedStringMap(o.Object, "spec", "selector")
	}
	if err != nil || len(match) == 0 {
		return target{}, fmt.Errorf("the pool has no selector of labels (%w)", cmp.Or(err, errors.New("it is empty")))
	}
	t := target{selector: labels.SelectorFromSet(match).String()}
	list, _, err := unstructured.NestedSlice(o.Object, "spec", "targetPorts")
	if err != nil {
		return target{}, err
	}
	for _, e := range list {
		m, _ := e.(map[string]any)
		if n, ok := m["number"].(int64); ok {
			t.ports = append(t.ports, int(n))
		}
	}
	if n, ok, _ := unstructured.NestedInt64(o.Object, "spec", "targetPortNumber"); ok && len(t.ports) == 0 {
		t.ports = append(t.ports, int(n))
	}
	for _, p := range t.ports {
		if p < 1 || p > 65535 {
			return target{}, fmt.Errorf("the pool has the port %d", p)
		}
	}
	if len(t.ports) == 0 {
		return target{}, errors.New("the pool has no target port")
	}
	return t, nil
}

func (k *Kubernetes) watchPods(ctx context.Context, w Watcher, t target) error {
	return k.watch(ctx, w, podResource, t.selector, "", func(objects []*unstructured.Unstructured) {
		var found []Found
		seen := map[string]string{}
		for _, o := range objects {
			life, list, err := k.found(o, t)
			if life == "" {
				continue
			}
			if err != nil {
				seen[life] = err.Error()
			} else {
				seen[life] = ""
			}
			if fault := seen[life]; fault != "" && fault != k.seen[life] { // once, not at each change
				w.failed(fmt.Errorf("discover: the pod %s/%s: %w", o.GetNamespace(), o.GetName(), err))
			}
			found = append(found, list...)
		}
		k.seen = seen
		w.Report(found)
	})
}

// watch keeps a copy of the objects and calls see with all of them, when the first are
// there and whenever they have changed.
func (k *Kubernetes) watch(ctx context.Context, w Watcher, r schema.GroupVersionResource, byLabel, byField string, see func([]*unstructured.Unstructured)) error {
	client := k.c.Client.Resource(r).Namespace(k.c.Namespace)
	choose := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = byLabel, byField }
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			return client.Watch(ctx, o)
		},
	}, k.c.Client), &unstructured.Unstructured{}, 0, cache.Indexers{})
	if err := informer.SetTransform(slim); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		// The server closes watches now and then, and forgets old versions.
		if ctx.Err() == nil && !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			w.failed(fmt.Errorf("discover: %s: %s: %w", k, r.Resource, err))
		}
	}); err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handle, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
	})
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), handle.HasSynced) {
		return ctx.Err()
	}
	for {
		var objects []*unstructured.Unstructured
		for _, o := range informer.GetStore().List() {
			if u, ok := o.(*unstructured.Unstructured); ok {
				objects = append(objects, u)
			}
		}
		slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
			return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
		})
		see(objects)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// slim leaves out what takes most of the memory of an object and is not looked at.
func slim(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	u.SetManagedFields(nil)
	if u.GetKind() == "Pod" {
		unstructured.RemoveNestedField(u.Object, "spec", "volumes")
		unstructured.RemoveNestedField(u.Object, "spec", "affinity")
	}
	return u, nil
}

// found returns what a pod of the cluster is. That is its life, "" when it has none or was not ready yet,
// and one engine for each port. What err is about is left out of them.
func (k *Kubernetes) found(o *unstructured.Unstructured, t target) (life string, out []Found, err error) {
	text := func(path ...string) string { s, _, _ := unstructured.NestedString(o.Object, path...); return s }
	ip := text("status", "podIP")
	if ip == "" || text("status", "phase") != "Running" || o.GetDeletionTimestamp() != nil {
		return "", nil, nil
	}
	restarts, runs := engineOf(o, t.ports[0])
	life = string(o.GetUID()) + "/" + strconv.FormatInt(restarts, 10)
	if _, seen := k.seen[life]; !runs || !ready(o) && !seen {
		return "", nil, nil
	}
	said := func(names ...string) string {
		for _, n := range names {
			if v := cmp.Or(o.GetAnnotations()[n], o.GetLabels()[n]); v != "" {
				return v
			}
		}
		return ""
	}
	number := func(name string, limit int) (n int) {
		if v := said(name); v != "" {
			var bad error
			if n, bad = strconv.Atoi(v); bad != nil || n < 0 || n > limit {
				err = errors.Join(err, fmt.Errorf("%s is %q, it can be 0 to %d", name, v, limit))
				return 0
			}
		}
		return n
	}
	events := cmp.Or(number("kvatlas.io/events-port", 65535), k.c.EventsPort)
	replay := cmp.Or(number("kvatlas.io/replay-port", 65535), k.c.ReplayPort)
	for i, port := range t.ports {
		p := store.Pod{
			Name: net.JoinHostPort(ip, strconv.Itoa(port)), Model: said("kvatlas.io/model"), Ranks: number("kvatlas.io/ranks", store.MaxRanks),
			Engine: said("kvatlas.io/engine", "llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"),
			Role:   roleOf(said("kvatlas.io/role", "llm-d.ai/role")),
			Labels: map[string]string{"kubernetes.io/namespace": o.GetNamespace(), "kubernetes.io/pod": o.GetName()},
		}
		if events != 0 && (i > 0 || said("kvatlas.io/events-port") != "") {
			p.Events = endpoint(ip, events+i)
			if replay != 0 {
				p.Replay = endpoint(ip, replay+i)
			}
		}
		out = append(out, Found{Pod: p, Life: life})
	}
	return life, out, err
}

// roleOf reads the roles of llm-d too.
func roleOf(s string) string {
	switch s {
	case "prefill", "decode", "both":
		return s
	case "prefill-decode":
		return "both"
	}
	return ""
}

// ready reports whether the condition Ready of a pod is true.
func ready(o *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, e := range list {
		if m, ok := e.(map[string]any); ok && m["type"] == "Ready" {
			return m["status"] == "True"
		}
	}
	return false
}

// engineOf tells how often the engine's container was restarted, and whether it may run:
// the container that has the port, or the first.
func engineOf(o *unstructured.Unstructured, port int) (restarts int64, runs bool) {
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
	engine := ""
	for i, e := range containers {
		m, _ := e.(map[string]any)
		name, _ := m["name"].(string)
		if i == 0 {
			engine = name
		}
		ports, _ := m["ports"].([]any)
		for _, e := range ports {
			if p, ok := e.(map[string]any); ok && p["containerPort"] == int64(port) {
				engine = name
			}
		}
	}
	statuses, _, _ := unstructured.NestedSlice(o.Object, "status", "containerStatuses")
	for _, e := range statuses {
		if m, ok := e.(map[string]any); ok && m["name"] == engine {
			restarts, _ = m["restartCount"].(int64)
			state, _ := m["state"].(map[string]any)
			return restarts, state["waiting"] == nil && state["terminated"] == nil
		}
	}
	return 0, true // its readiness decides
}
