package discover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/memory"
)

// kube is an API server as far as it is watched: the fake's, which lacks selectors of
// watches.
type kube struct {
	*fake.FakeDynamicClient
	t *testing.T
}

func newKube(t *testing.T) *kube {
	t.Helper()
	k := &kube{t: t, FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		podResource: "PodList", poolResources[0]: "InferencePoolList", poolResources[1]: "InferencePoolList",
	})}
	k.PrependWatchReactor("pods", func(a kubetesting.Action) (bool, watch.Interface, error) {
		action, ok := a.(kubetesting.WatchActionImpl)
		if !ok {
			return true, nil, fmt.Errorf("a watch is a %T", a)
		}
		s, err := labels.Parse(action.ListOptions.LabelSelector)
		if err != nil {
			return true, nil, err
		}
		w, err := k.Tracker().Watch(a.GetResource(), a.GetNamespace(), action.ListOptions)
		if err != nil {
			return true, nil, err
		}
		return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
			if o, ok := e.Object.(*unstructured.Unstructured); ok && !s.Matches(labels.Set(o.GetLabels())) {
				e.Type = watch.Deleted
			}
			return e, true
		}), nil
	})
	return k
}

// put creates or changes an object.
func (k *kube) put(r schema.GroupVersionResource, o *unstructured.Unstructured) {
	k.t.Helper()
	err := k.Tracker().Create(r, o, o.GetNamespace())
	if apierrors.IsAlreadyExists(err) {
		err = k.Tracker().Update(r, o, o.GetNamespace())
	}
	must.OK(k.t, err)
}

func (k *kube) remove(r schema.GroupVersionResource, name string) {
	k.t.Helper()
	must.OK(k.t, k.Tracker().Delete(r, "ns", name))
}

// kubePod is a ready pod of one container beside its proxy.
func kubePod(name, uid, ip string, restarts int64) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"volumes": []any{map[string]any{"name": "large"}},
			"containers": []any{
				map[string]any{"name": "proxy", "ports": []any{map[string]any{"containerPort": int64(15000)}}},
				map[string]any{"name": "engine", "ports": []any{map[string]any{"containerPort": int64(8000)}}},
			},
		},
		"status": map[string]any{
			"phase": "Running", "podIP": ip,
			"conditions": []any{map[string]any{"type": "Initialized", "status": "True"}, map[string]any{"type": "Ready", "status": "True"}},
			"containerStatuses": []any{
				map[string]any{"name": "proxy", "restartCount": int64(7), "state": map[string]any{"running": map[string]any{}}},
				map[string]any{"name": "engine", "restartCount": restarts, "state": map[string]any{"running": map[string]any{}}},
			},
		},
	}}
	o.SetAPIVersion("v1")
	o.SetKind("Pod")
	o.SetNamespace("ns")
	o.SetName(name)
	o.SetUID(types.UID(uid))
	o.SetLabels(map[string]string{"app": "vllm"})
	return o
}

// set changes a field of a copy of a pod: the status of Ready, or the engine's state.
func set(o *unstructured.Unstructured, what, to string) *unstructured.Unstructured {
	o = o.DeepCopy()
	status, _ := o.Object["status"].(map[string]any)
	list, _ := status[map[string]string{"ready": "conditions", "state": "containerStatuses"}[what]].([]any)
	m, _ := list[1].(map[string]any)
	if what == "ready" {
		m["status"] = to
	} else {
		m["state"] = map[string]any{to: map[string]any{}}
	}
	return o
}

func kubePool(version schema.GroupVersionResource, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(version.GroupVersion().WithKind("InferencePool"))
	o.SetNamespace("ns")
	o.SetName(name)
	return o
}

// told is what a source has told last.
type told struct {
	mu     sync.Mutex // protects all below
	pods   []Found
	failed []string
}

func (d *told) watcher() Watcher {
	return Watcher{
		Report: func(pods []Found) { d.mu.Lock(); defer d.mu.Unlock(); d.pods = pods },
		Failed: func(err error) { d.mu.Lock(); defer d.mu.Unlock(); d.failed = append(d.failed, err.Error()) },
	}
}

// want waits, and compares the pods as name=life, and whether there were faults.
func (d *told) want(t *testing.T, after time.Duration, pods, fault string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	got := make([]string, len(d.pods))
	for i, p := range d.pods {
		got[i] = p.Pod.Name + "=" + p.Life
	}
	if s := strings.Join(got, " "); s != pods {
		t.Errorf("got %q, want %q", s, pods)
	}
	if s := strings.Join(d.failed, "; "); (s == "") != (fault == "") || !strings.Contains(s, fault) {
		t.Errorf("got the faults %q, want %q", s, fault)
	}
	d.failed = nil
}

// watching runs a source over f, which may cancel nothing; all of it ends with f.
func watching(t *testing.T, c KubernetesConfig, f func(d *told)) {
	t.Helper()
	s := must.Get(NewKubernetes(c))(t)
	d := &told{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx, d.watcher()) }()
	f(d)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestKubernetesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKube(t)
		a, b := kubePod("a", "u1", "10.0.0.1", 0), kubePod("b", "u2", "10.0.0.2", 3)
		other := kubePod("other", "u3", "10.0.0.3", 0)
		other.SetLabels(map[string]string{"app": "web"})
		k.put(podResource, a)
		k.put(podResource, set(b, "ready", "False"))
		k.put(podResource, other)
		watching(t, KubernetesConfig{Client: k, Namespace: "ns", Selector: "app=vllm", Port: 8000}, func(d *told) {
			const first, second = "10.0.0.1:8000=u1/0", "10.0.0.2:8000=u2/3"
			d.want(t, time.Second, first, "") // b is not ready yet
			k.put(podResource, b)
			d.want(t, time.Second, first+" "+second, "")
			k.put(podResource, set(b, "ready", "False")) // it is busy, its blocks are there
			d.want(t, time.Second, first+" "+second, "")
			k.put(podResource, set(set(b, "ready", "False"), "state", "terminated"))
			d.want(t, time.Second, first, "")
			k.put(podResource, set(kubePod("b", "u2", "10.0.0.2", 4), "ready", "False")) // it loads its model
			d.want(t, time.Second, first, "")
			k.put(podResource, kubePod("b", "u2", "10.0.0.2", 4))
			d.want(t, time.Second, first+" 10.0.0.2:8000=u2/4", "")
			k.put(podResource, kubePod("b", "u9", "10.0.0.2", 0)) // another of the same name
			d.want(t, time.Second, first+" 10.0.0.2:8000=u9/0", "")
			ends := a.DeepCopy()
			ends.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
			k.put(podResource, ends)
			d.want(t, time.Second, "10.0.0.2:8000=u9/0", "")
			k.remove(podResource, "a")
			b.SetLabels(nil)
			k.put(podResource, b)
			d.want(t, time.Second, "", "")
			k.put(podResource, kubePod("c", "u4", "fd00::1", 0))
			d.want(t, time.Second, "[fd00::1]:8000=u4/0", "")
			k.remove(podResource, "c")
			d.want(t, time.Second, "", "")
		})
	})
}

// Faults of lists and watches are told, and both are tried again.
func TestKubernetesFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKube(t)
		k.put(podResource, kubePod("a", "u1", "10.0.0.1", 0))
		var mu sync.Mutex
		verbs := map[string]bool{"list": true}
		fail := func(verb string, yes bool) { mu.Lock(); defer mu.Unlock(); verbs[verb] = yes }
		refuse := func(a kubetesting.Action) error {
			mu.Lock()
			defer mu.Unlock()
			if verbs[a.GetVerb()] {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("not you"))
			}
			return nil
		}
		k.PrependReactor("list", "pods", func(a kubetesting.Action) (bool, runtime.Object, error) {
			err := refuse(a)
			return err != nil, nil, err
		})
		var last watch.Interface // the one that goes on
		k.PrependWatchReactor("pods", func(a kubetesting.Action) (bool, watch.Interface, error) {
			if err := refuse(a); err != nil {
				return true, nil, err
			}
			action, _ := a.(kubetesting.WatchActionImpl)
			w, err := k.Tracker().Watch(a.GetResource(), a.GetNamespace(), action.ListOptions)
			mu.Lock()
			defer mu.Unlock()
			last = w
			return true, w, err
		})
		watching(t, KubernetesConfig{Client: k, Selector: "app=vllm", Port: 8000}, func(d *told) {
			d.want(t, 5*time.Second, "", "not you")
			fail("list", false)
			fail("watch", true)
			d.want(t, time.Minute, "10.0.0.1:8000=u1/0", "not you")
			fail("watch", false)
			time.Sleep(2 * time.Minute)
			d.mu.Lock()
			d.failed = nil
			d.mu.Unlock()
			k.put(podResource, kubePod("b", "u2", "10.0.0.2", 0))
			d.want(t, time.Second, "10.0.0.1:8000=u1/0 10.0.0.2:8000=u2/0", "")
			mu.Lock()
			w := last
			mu.Unlock()
			w.Stop() // the server closes it
			k.put(podResource, kubePod("c", "u3", "10.0.0.3", 0))
			d.want(t, 2*time.Minute, "10.0.0.1:8000=u1/0 10.0.0.2:8000=u2/0 10.0.0.3:8000=u3/0", "")
			bad := kubePod("c", "u3", "10.0.0.3", 0)
			bad.SetAnnotations(map[string]string{"kvatlas.io/ranks": "many"})
			k.put(podResource, bad)
			d.want(t, time.Second, "10.0.0.1:8000=u1/0 10.0.0.2:8000=u2/0 10.0.0.3:8000=u3/0", `the pod ns/c: kvatlas.io/ranks is "many"`)
			k.remove(podResource, "b")
			d.want(t, time.Second, "10.0.0.1:8000=u1/0 10.0.0.3:8000=u3/0", "") // told once
		})
	})
}

func TestKubernetesPool(t *testing.T) {
	for i, r := range poolResources {
		spec := func(app string, ports ...int64) map[string]any {
			if i == 1 {
				return map[string]any{"selector": map[string]any{"app": app}, "targetPortNumber": ports[0]}
			}
			var list []any
			for _, p := range ports {
				list = append(list, map[string]any{"number": p})
			}
			return map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}, "targetPorts": list}
		}
		synctest.Test(t, func(t *testing.T) {
			k := newKube(t)
			web := kubePod("web", "u2", "10.0.0.2", 0)
			web.SetLabels(map[string]string{"app": "web"})
			k.put(podResource, kubePod("a", "u1", "10.0.0.1", 0))
			k.put(podResource, web)
			k.put(r, kubePool(r, "another", spec("x", 1)))
			c := KubernetesConfig{Client: k, Namespace: "ns", Pool: "pool", EventsPort: 5557, ReplayPort: 5600}
			watching(t, c, func(d *told) {
				d.want(t, time.Second, "", "not found")
				k.put(r, kubePool(r, "pool", spec("vllm", 8000)))
				d.want(t, 10*time.Second, "10.0.0.1:8000=u1/0", "")
				k.put(r, kubePool(r, "pool", spec("web", 8000)))
				d.want(t, time.Second, "10.0.0.2:8000=u2/0", "")
				k.put(r, kubePool(r, "pool", map[string]any{"selector": map[string]any{}}))
				d.want(t, time.Second, "10.0.0.2:8000=u2/0", "no selector") // the last stands
				k.put(r, kubePool(r, "pool", spec("web", 70000)))
				d.want(t, time.Second, "10.0.0.2:8000=u2/0", "port 70000")
				k.put(r, kubePool(r, "pool", spec("vllm", 8000, 8001)))
				if i == 0 {
					d.want(t, time.Second, "10.0.0.1:8000=u1/0 10.0.0.1:8001=u1/0", "")
					if p := d.pods[1].Pod; p.Events != "tcp://10.0.0.1:5558" || p.Replay != "tcp://10.0.0.1:5601" || d.pods[0].Pod.Events != "" {
						t.Errorf("the endpoints are %+v", d.pods)
					}
				}
				k.remove(r, "pool")
				d.want(t, time.Second, "", "there is no such pool")
				k.put(r, kubePool(r, "pool", spec("web", 8000)))
				d.want(t, time.Second, "10.0.0.2:8000=u2/0", "")
			})
		})
	}
}

// What a pod says of itself is registered, and its end retires it.
func TestKubernetesRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKube(t)
		x := must.Get(memory.New(memory.Config{}))(t)
		s := must.Get(NewKubernetes(KubernetesConfig{Client: k, Selector: "app in (vllm)", Port: 8000}))(t)
		r := must.Get(New(Config{Index: x, Sources: []Source{s}, Template: Template{Model: "m", EventsPort: 5557}}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		pods := func() []store.Pod {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			reg := must.Get(x.Registry(t.Context()))(t)
			return reg.Pods
		}
		o := kubePod("a", "u1", "10.0.0.1", 0)
		o.SetAnnotations(map[string]string{"kvatlas.io/model": "n", "kvatlas.io/ranks": "2", "kvatlas.io/events-port": "6000", "kvatlas.io/replay-port": "6100"})
		o.SetLabels(map[string]string{"app": "vllm", "llm-d.ai/role": "prefill-decode", "llm-d.ai/engine-type": "vllm"})
		k.put(podResource, o)
		got := pods()
		if len(got) != 1 || got[0].Model != "n" || got[0].Ranks != 2 || got[0].Events != "tcp://10.0.0.1:6000" || got[0].Replay != "tcp://10.0.0.1:6100" ||
			got[0].Role != "both" || got[0].Engine != "vllm" || got[0].Labels[LifeLabel] != "u1/0" || got[0].Labels["kubernetes.io/pod"] != "a" || got[0].Labels["kubernetes.io/namespace"] != "ns" {
			t.Fatalf("got %+v", got)
		}
		gen := must.Get(x.Begin(t.Context(), "10.0.0.1:8000", 0, 1))(t)
		k.put(podResource, kubePod("a", "u1", "10.0.0.1", 1))
		if got := pods(); len(got) != 1 || got[0].Labels[LifeLabel] != "u1/1" || got[0].Events != "tcp://10.0.0.1:5557" {
			t.Errorf("after a restart: got %+v", got)
		}
		if _, err := x.TakeOver(t.Context(), gen, 2); !errors.Is(err, store.ErrEnded) {
			t.Errorf("the life before the restart goes on: %v", err)
		}
		// Another replica has seen the next pod of this address first.
		next := store.Pod{Name: "10.0.0.1:8000", Model: "m", Labels: map[string]string{LifeLabel: "u2/0"}}
		must.Get(x.Register(t.Context(), next))(t)
		k.remove(podResource, "a")
		if got := pods(); len(got) != 1 || got[0].Labels[LifeLabel] != "u2/0" {
			t.Errorf("the next life was retired: %+v", got)
		}
		k.put(podResource, kubePod("b", "u2", "10.0.0.1", 0))
		pods()
		k.remove(podResource, "b")
		if got := pods(); len(got) != 0 {
			t.Errorf("a deleted pod stays: %+v", got)
		}
		cancel()
		running.Wait()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestKubernetesConfig(t *testing.T) {
	k := newKube(t)
	for want, c := range map[string]KubernetesConfig{
		"no client":           {Selector: "a", Port: 1},
		"give either":         {Client: k},
		"either a selector":   {Client: k, Selector: "a", Pool: "b"},
		"needs its namespace": {Client: k, Pool: "b"},
		"port of the engines": {Client: k, Selector: "a", Port: 70000},
		"found '=='":          {Client: k, Selector: "a==b==c", Port: 1},
	} {
		if _, err := NewKubernetes(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := KubernetesClient(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := KubernetesClient(""); err == nil {
		t.Error("this is in no cluster")
	}
	file := filepath.Join(t.TempDir(), "config")
	const text = `{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}`
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	if _, err := KubernetesClient(file); err != nil {
		t.Error(err)
	}
}
