package discover

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goccy/go-yaml"
	kubetesting "k8s.io/client-go/testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

// role is a Role of deploy/kubernetes.
type role struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]string `yaml:"metadata"`
	Rules      []struct {
		Groups    []string `yaml:"apiGroups"`
		Resources []string `yaml:"resources"`
		Names     []string `yaml:"resourceNames"`
		Verbs     []string `yaml:"verbs"`
	} `yaml:"rules"`
}

// readRole is the one Role of a manifest, and the settings of its ConfigMap.
func readRole(t *testing.T, file string) (r role, settings map[string]string) {
	t.Helper()
	text := must.Get(os.ReadFile("../../deploy/kubernetes/" + file))(t)
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var kind struct {
			Kind string            `yaml:"kind"`
			Data map[string]string `yaml:"data"`
		}
		must.OK(t, yaml.Unmarshal(doc, &kind))
		switch kind.Kind {
		case "ConfigMap":
			settings = kind.Data
		case "Role":
			if r.Kind != "" {
				t.Fatalf("%s has two roles", file)
			}
			must.OK(t, yaml.UnmarshalWithOptions(doc, &r, yaml.Strict()))
		}
	}
	if r.APIVersion != "rbac.authorization.k8s.io/v1" || settings == nil {
		t.Fatalf("%s has no Role or no ConfigMap: %+v", file, r)
	}
	return r, settings
}

// TestManifestsGrantWhatIsUsed holds the Roles of deploy/kubernetes against what is asked
// of the API server: all of it is granted, and nothing else.
func TestManifestsGrantWhatIsUsed(t *testing.T) {
	for _, file := range []string{"labels.yaml", "pool.yaml"} {
		r, settings := readRole(t, file)
		granted := map[string]string{} // verb group/resource -> the names it is for, "" is all
		for _, rule := range r.Rules {
			for _, g := range rule.Groups {
				for _, res := range rule.Resources {
					for _, v := range rule.Verbs {
						granted[v+" "+g+"/"+res] = strings.Join(rule.Names, ",")
					}
				}
			}
		}
		pool := settings["KVATLAS_PODS_KUBERNETES_POOL"]
		used := map[string]string{}
		for i, version := range poolResources {
			synctest.Test(t, func(t *testing.T) {
				k := newKube(t)
				c := KubernetesConfig{Client: k, Namespace: "ns", Selector: settings["KVATLAS_PODS_KUBERNETES"], Port: 8000, Pool: pool}
				if pool != "" {
					spec := map[string]any{"selector": map[string]any{"app": "vllm"}, "targetPortNumber": int64(8000)}
					if i == 0 {
						spec = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "vllm"}}, "targetPorts": []any{map[string]any{"number": int64(8000)}}}
					}
					k.put(version, kubePool(version, pool, spec))
				}
				k.put(podResource, kubePod("a", "u1", "10.0.0.1", 0))
				watching(t, c, func(d *told) { d.want(t, time.Second, "10.0.0.1:8000=u1/0", "") })
				for _, a := range k.Actions() {
					name := ""
					switch a := a.(type) {
					case kubetesting.GetAction:
						name = a.GetName()
					case kubetesting.ListAction:
						name, _ = a.GetListRestrictions().Fields.RequiresExactMatch("metadata.name")
					case kubetesting.WatchAction:
						name, _ = a.GetWatchRestrictions().Fields.RequiresExactMatch("metadata.name")
					default:
						t.Errorf("it does %T", a)
					}
					key := fmt.Sprintf("%s %s/%s", a.GetVerb(), a.GetResource().Group, a.GetResource().Resource)
					if last, ok := used[key]; ok && last != name {
						t.Errorf("%s is used with %q and with %q", key, last, name)
					}
					used[key] = name
					if a.GetNamespace() != "ns" {
						t.Errorf("%s is used in the namespace %q", key, a.GetNamespace())
					}
				}
			})
		}
		if len(used) < 2 || !maps.Equal(granted, used) {
			t.Errorf("%s grants\n%v\nand what is used is\n%v\nin %v", file, granted, used, slices.Sorted(maps.Keys(settings)))
		}
	}
}
