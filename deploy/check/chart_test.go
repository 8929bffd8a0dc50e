package check

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write what the chart renders to testdata")

// monitor is what is used of a ServiceMonitor or PodMonitor, which are custom resources: only
// these fields may be there.
type monitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		Endpoints           []endpoint           `json:"endpoints"`
		PodMetricsEndpoints []endpoint           `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type endpoint struct {
	Port        string `json:"port"`
	Path        string `json:"path"`
	Interval    string `json:"interval"`
	HonorLabels bool   `json:"honorLabels"`
}

// objects are those of a set of manifests.
type objects struct {
	all      []runtime.Object
	monitors []monitor
}

// read reads manifests strictly.
func (o *objects) read(t *testing.T, name string, text []byte) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for doc := range bytes.SplitSeq(append([]byte("\n"), text...), []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Errorf("%s: %v\n%s", name, err, doc)
		}
		switch kind.Kind {
		case "": // comments alone
		case "ServiceMonitor", "PodMonitor":
			var m monitor
			if err := yaml.UnmarshalStrict(doc, &m); err != nil || m.APIVersion != "monitoring.coreos.com/v1" {
				t.Errorf("%s: %s: %v", name, kind.Kind, err)
			}
			o.monitors = append(o.monitors, m)
		default:
			object, _, err := decoder.Decode(doc, nil, nil)
			if err != nil {
				t.Errorf("%s: %s: %v", name, kind.Kind, err)
				continue
			}
			o.all = append(o.all, object)
		}
	}
}

// selected are the pods' templates that the labels select.
func (o *objects) selected(selector labels.Selector) (out []*corev1.PodTemplateSpec) {
	for _, x := range o.all {
		if d, ok := x.(*appsv1.Deployment); ok && selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			out = append(out, &d.Spec.Template)
		}
	}
	return out
}

func hasPort(pods []*corev1.PodTemplateSpec, name string) bool {
	return len(pods) == 1 && slices.ContainsFunc(pods[0].Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	})
}

// check holds what the types cannot: what refers to each other fits, and each container is
// shut in.
func (o *objects) check(t *testing.T, name string) {
	t.Helper()
	selectorOf := func(s *metav1.LabelSelector) labels.Selector {
		t.Helper()
		out, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return out
	}
	one := func(what string, s *metav1.LabelSelector) []*corev1.PodTemplateSpec {
		t.Helper()
		pods := o.selected(selectorOf(s))
		if len(pods) != 1 {
			t.Errorf("%s: %s selects the pods of %d deployments", name, what, len(pods))
		}
		return pods
	}
	for _, x := range o.all {
		switch x := x.(type) {
		case *appsv1.Deployment:
			one("deployment "+x.Name, x.Spec.Selector)
			pod := x.Spec.Template.Spec
			if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 || s.SeccompProfile == nil {
				t.Errorf("%s: deployment %s may run as root, or without seccomp", name, x.Name)
			}
			for _, c := range pod.Containers {
				s := c.SecurityContext
				if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") {
					t.Errorf("%s: container %s is not shut in", name, c.Name)
				}
				if c.ReadinessProbe == nil || c.LivenessProbe == nil || c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
					t.Errorf("%s: container %s has no probes or bounds", name, c.Name)
				}
				for _, m := range c.VolumeMounts {
					if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
						t.Errorf("%s: container %s mounts %s, which is not there", name, c.Name, m.Name)
					}
				}
			}
		case *corev1.Service:
			pods := o.selected(labels.SelectorFromSet(x.Spec.Selector))
			for _, p := range x.Spec.Ports {
				if !hasPort(pods, p.TargetPort.StrVal) {
					t.Errorf("%s: service %s has the port %s, which no pod has", name, x.Name, p.Name)
				}
			}
		case *policyv1.PodDisruptionBudget:
			one("budget "+x.Name, x.Spec.Selector)
		case *networkingv1.NetworkPolicy:
			pods := one("policy "+x.Name, &x.Spec.PodSelector)
			for _, rule := range x.Spec.Ingress {
				for _, p := range rule.Ports {
					if !hasPort(pods, p.Port.StrVal) {
						t.Errorf("%s: policy %s opens %s, which no pod has", name, x.Name, p.Port)
					}
				}
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			if !slices.ContainsFunc(o.all, func(y runtime.Object) bool {
				d, ok := y.(*appsv1.Deployment)
				return ok && d.Name == x.Spec.ScaleTargetRef.Name && d.Spec.Replicas == nil
			}) {
				t.Errorf("%s: the autoscaler's target is not there, or has a number of replicas", name)
			}
		}
	}
	for i := range o.monitors {
		m := &o.monitors[i]
		selector := selectorOf(&m.Spec.Selector)
		found := len(m.Spec.PodMetricsEndpoints) > 0 // selects pods, perhaps of several deployments
		for _, x := range o.all {
			if s, ok := x.(*corev1.Service); ok && selector.Matches(labels.Set(s.Labels)) {
				found = found || slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port })
			}
		}
		if !found {
			t.Errorf("%s: monitor %s finds no port", name, m.Name)
		}
	}
}

// render renders the chart as helm install does.
func render(values map[string]any) (string, error) {
	chart, err := loader.Load("../helm/kvatlas")
	if err != nil {
		return "", err
	}
	options := common.ReleaseOptions{Name: "kvatlas", Namespace: "llm", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(name) == ".yaml" && strings.TrimSpace(files[name]) != "" {
			fmt.Fprintf(&out, "---\n# %s\n%s\n", name, strings.Trim(strings.TrimPrefix(strings.TrimSpace(files[name]), "---"), "\n"))
		}
	}
	return out.String(), nil
}

// TestChart renders the chart with each set of values in testdata and reads it strictly. What
// it renders is in testdata, too, where the tests of the program read it.
func TestChart(t *testing.T) {
	sets, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(sets) < 3 {
		t.Fatalf("%d sets of values: %v", len(sets), err)
	}
	kinds := map[string]bool{}
	for _, file := range sets {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]any{}
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			t.Fatal(err)
		}
		got, err := render(values)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var o objects
		o.read(t, file, []byte(got))
		o.check(t, file)
		for _, x := range o.all {
			kinds[x.GetObjectKind().GroupVersionKind().Kind] = true
		}
		for i := range o.monitors {
			kinds[o.monitors[i].Kind] = true
		}
		golden := strings.TrimSuffix(file, ".values.yaml") + ".rendered.yaml"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != got {
			t.Errorf("%s is not what the chart renders (%v): look at the difference and run go test with -rewrite\n%s", golden, err, got)
		}
	}
	for _, kind := range []string{"Deployment", "Service", "ConfigMap", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor", "ServiceAccount", "Role", "RoleBinding"} {
		if !kinds[kind] {
			t.Errorf("no set of values makes a %s", kind)
		}
	}
}

// TestChartRefuses has values that cannot work refused with what is missing.
func TestChartRefuses(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"redis.existingSecret.name, or redis.bundled.enabled": {"redis": map[string]any{"existingSecret": map[string]any{"name": ""}}},
		"discovery.labels or discovery.pool":                  {"discovery": map[string]any{"labels": ""}},
	} {
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", values, err, want)
		}
	}
}

// TestStrictness is that a slip of the pen does not pass.
func TestStrictness(t *testing.T) {
	got, err := render(nil)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"readOnlyRootFilesystem": "readonlyRootFilesystem", "minAvailable: 1": "minAvailable: [1]", "targetPort": "targetport"} {
		text := strings.Replace(got, from, to, 1)
		decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
		failed := text == got
		for doc := range strings.SplitSeq(text, "\n---\n") {
			_, _, err := decoder.Decode([]byte(doc), nil, nil)
			failed = failed || err != nil
		}
		if text == got || !failed {
			t.Errorf("%s passes", to)
		}
	}
}

// TestManifests reads the manifests of deploy/kubernetes in the same way.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../kubernetes/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d manifests: %v", len(files), err)
	}
	var o objects
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		o.read(t, file, text)
	}
	o.check(t, "deploy/kubernetes")
}
