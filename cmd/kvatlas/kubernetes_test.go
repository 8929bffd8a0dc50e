package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
)

// container is what is read of a container.
type container struct {
	Image   string
	Env     []environmentVariable
	EnvFrom []envFrom `yaml:"envFrom"`
	// Resources has the limit of memory.
	Resources struct{ Limits struct{ Memory string } }
	Ports     []struct {
		Name string
		Port int `yaml:"containerPort"`
	}
}

// environmentVariable is one that a container sets, or is given from elsewhere.
type environmentVariable struct {
	Name, Value string
	ValueFrom   any `yaml:"valueFrom"`
}

// envFrom is a ConfigMap that a container reads.
type envFrom struct {
	ConfigMap struct {
		Name     string
		Optional bool
	} `yaml:"configMapRef"`
}

// manifest is what is read of an object of deploy/kubernetes.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name, Namespace string
	} `yaml:"metadata"`
	Data map[string]string `yaml:"data"`
	Spec struct {
		Replicas int
		Strategy struct{ Type string }
		Selector map[string]any // of a Service the labels themselves
		Ports    []struct {     // of a Service
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				ServiceAccount string `yaml:"serviceAccountName"`
				Grace          int    `yaml:"terminationGracePeriodSeconds"`
				Containers     []container
			}
		}
	}
	Role     struct{ Name string }              `yaml:"roleRef"`
	Subjects []struct{ Name, Namespace string } `yaml:"subjects"`
}

// environment is what the container is started with, by name. It has what the container sets
// itself, with the values that come from elsewhere, and the ConfigMaps, which it has to name.
func (c *container) environment(t *testing.T, configs ...manifest) map[string]string {
	t.Helper()
	env := map[string]string{"KVATLAS_REDIS": "redis://:secret@h:6379", "KVATLAS_PODS_KUBERNETES_NAMESPACE": "llm", "HF_TOKEN": "hf_secret"}
	for _, v := range c.Env {
		if (v.Value == "") != (v.ValueFrom != nil) || v.ValueFrom != nil && env[v.Name] == "" {
			t.Errorf("%s is %+v", v.Name, v)
		}
		if v.Value != "" {
			env[v.Name] = v.Value
		}
	}
	for _, from := range c.EnvFrom {
		i := slices.IndexFunc(configs, func(m manifest) bool { return m.Metadata.Name == from.ConfigMap.Name })
		switch {
		case i >= 0:
			maps.Copy(env, configs[i].Data)
		case !from.ConfigMap.Optional:
			t.Errorf("the container reads %q, which no manifest has", from.ConfigMap.Name)
		}
	}
	for _, m := range configs {
		if !slices.ContainsFunc(c.EnvFrom, func(f envFrom) bool { return f.ConfigMap.Name == m.Metadata.Name }) {
			t.Errorf("nobody reads the settings %q", m.Metadata.Name)
		}
	}
	return env
}

// printed is the configuration that follows from an environment.
func printed(t *testing.T, env map[string]string) string {
	t.Helper()
	var out, errs output
	p := &program{&cli.Program{Stdout: &out, Stderr: &errs}}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		p.Env = append(p.Env, name+"="+env[name])
	}
	if status := p.run(t.Context(), []string{"serve", "--print-config"}); status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, errs.String())
	}
	return out.String()
}

// port is the number of a container's port, 0 if it has none of that name.
func (c *container) port(name string) int {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.Port
		}
	}
	return 0
}

func manifests(t *testing.T, file string) map[string]manifest {
	t.Helper()
	text := must.Get(os.ReadFile("../../deploy/kubernetes/" + file))(t)
	out := map[string]manifest{}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var m manifest
		if err := yaml.Unmarshal(doc, &m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		namespace := m.Metadata.Namespace
		if m.Kind == "Namespace" {
			namespace = m.Metadata.Name
		}
		if _, ok := out[m.Kind]; ok || namespace != "llm" {
			t.Errorf("%s has two of %s, or one in the namespace %q", file, m.Kind, m.Metadata.Namespace)
		}
		out[m.Kind] = m
	}
	return out
}

// deployed is the container of a Deployment, with its variables.
type deployed struct {
	container
	env map[string]string
}

// deployments are those of the manifests that run on every cluster, by file.
func deployments(t *testing.T) map[string]deployed {
	t.Helper()
	out := map[string]deployed{}
	labels := manifests(t, "labels.yaml")
	for _, file := range []string{"kvatlas.yaml", "lmcache.yaml"} {
		found := manifests(t, file)
		c := found["Deployment"].Spec.Template.Spec.Containers[0]
		configs := []manifest{labels["ConfigMap"]}
		if m, ok := found["ConfigMap"]; ok {
			configs = append(configs, m)
		}
		out[file] = deployed{c, c.environment(t, configs...)}
	}
	return out
}

// TestManifests starts from the variables that the Deployment sets, with each way of
// finding pods. They are settings that there are, and what the manifests say twice is the
// same.
func TestManifests(t *testing.T) {
	base := manifests(t, "kvatlas.yaml")
	spec := base["Deployment"].Spec.Template.Spec
	c := spec.Containers[0]
	if spec.ServiceAccount != base["ServiceAccount"].Metadata.Name || spec.ServiceAccount == "" {
		t.Errorf("the service account is %q", spec.ServiceAccount)
	}
	for file, want := range map[string][]string{
		"labels.yaml": {"pods-kubernetes: app=vllm", "pods-port-kubernetes: 8000", "pods-ask: true", "pods-port-events: 5557"},
		"pool.yaml":   {"pods-kubernetes-pool: vllm", `pods-kubernetes: ""`, "pods-port-replay: 5558"},
	} {
		found := manifests(t, file)
		bound := found["RoleBinding"]
		if bound.Role.Name != found["Role"].Metadata.Name || len(bound.Subjects) != 1 || bound.Subjects[0].Name != spec.ServiceAccount || bound.Subjects[0].Namespace != "llm" {
			t.Errorf("%s binds %+v", file, bound)
		}
		values := c.environment(t, found["ConfigMap"])
		config := printed(t, values)
		want = append(want, "redis: redis://:***@h:6379", "pods-kubernetes-namespace: llm", "listen: 0.0.0.0:8080", "admin-listen: 0.0.0.0:9090")
		for _, line := range want {
			if !strings.Contains(config, "\n"+line+" ") {
				t.Errorf("%s: no line %q in\n%s", file, line, config)
			}
		}
		for i, port := range []string{"LISTEN", "ADMIN_LISTEN"} {
			if want := values["KVATLAS_"+port]; !strings.HasSuffix(want, ":"+strconv.Itoa(c.Ports[i].Port)) {
				t.Errorf("the port %+v is not that of %s", c.Ports[i], want)
			}
		}
		var drain time.Duration
		for _, name := range []string{"KVATLAS_DRAIN_DELAY", "KVATLAS_DRAIN_TIMEOUT"} {
			d, err := time.ParseDuration(values[name])
			if err != nil {
				t.Error(err)
			}
			drain += d
		}
		if drain >= time.Duration(spec.Grace)*time.Second {
			t.Errorf("it is killed after %d s and drains for %v", spec.Grace, drain)
		}
	}
}

// TestLMCacheManifest starts from what lmcache.yaml sets: there is one process, the Service ends at its
// ports, and its labels say what it is.
func TestLMCacheManifest(t *testing.T) {
	base, own, labels := manifests(t, "kvatlas.yaml"), manifests(t, "lmcache.yaml"), manifests(t, "labels.yaml")
	d, service := own["Deployment"], own["Service"]
	if d.Spec.Replicas != 1 || d.Spec.Strategy.Type != "Recreate" {
		t.Errorf("the connections of a worker may reach several of %d replicas (%s)", d.Spec.Replicas, d.Spec.Strategy.Type)
	}
	c := d.Spec.Template.Spec.Containers[0]
	others := base["Deployment"].Spec.Template.Spec
	if c.Image != others.Containers[0].Image || d.Spec.Template.Spec.ServiceAccount != others.ServiceAccount {
		t.Errorf("it runs %s as %s", c.Image, d.Spec.Template.Spec.ServiceAccount)
	}
	// Each Service has its own pods.
	for _, s := range []manifest{service, base["Service"]} {
		for _, pods := range []manifest{d, base["Deployment"]} {
			matches := len(s.Spec.Selector) > 0
			for k, v := range s.Spec.Selector {
				matches = matches && pods.Spec.Template.Metadata.Labels[k] == v
			}
			if matches != (s.Metadata.Name == pods.Metadata.Name) {
				t.Errorf("the Service %s has the pods of %s: %v", s.Metadata.Name, pods.Metadata.Name, matches)
			}
		}
	}
	env := c.environment(t, labels["ConfigMap"], own["ConfigMap"])
	config := printed(t, env)
	for _, line := range []string{"roles: score,ingest", "pods-kubernetes: app=vllm", "lmcache-write: off"} {
		if !strings.Contains(config, "\n"+line+" ") {
			t.Errorf("no line %q in\n%s", line, config)
		}
	}
	// What is listened at is in the Service, and nothing else is.
	at := map[string]string{"pull": "CONTROLLER_PULL", "reply": "CONTROLLER_REPLY", "heartbeat": "CONTROLLER_HEARTBEAT", "coordinator": "COORDINATOR_LISTEN"}
	if len(service.Spec.Ports) != len(at) {
		t.Errorf("the Service has %d ports", len(service.Spec.Ports))
	}
	for _, p := range service.Spec.Ports {
		listen := env["KVATLAS_LMCACHE_"+at[p.Name]]
		if port := c.port(p.TargetPort); p.Port != port || !strings.HasSuffix(listen, ":"+strconv.Itoa(port)) {
			t.Errorf("the Service has %+v, the container %d, and it listens at %q", p, port, listen)
		}
		if p.Name == "heartbeat" {
			if told, want := env["KVATLAS_LMCACHE_CONTROLLER_HEARTBEAT_URL"], fmt.Sprintf("%s.llm.svc:%d", service.Metadata.Name, p.Port); told != want {
				t.Errorf("workers are told of %s for heartbeats, and the Service is %s", told, want)
			}
		}
	}
	// Scorers know how the engines run LMCache, too; without the file they do without.
	scorer := others.Containers[0].environment(t, labels["ConfigMap"], own["ConfigMap"])
	models := own["ConfigMap"].Data["KVATLAS_LMCACHE_MODELS"]
	if config := printed(t, scorer); models == "" || !strings.Contains(config, models) {
		t.Errorf("no %q in\n%s", models, config)
	}
}

// TestHubToken: a gated model's tokenizer is fetched with the token of a Secret, and nothing waits for the
// Secret where it is missing.
func TestHubToken(t *testing.T) {
	for file, c := range deployments(t) {
		i := slices.IndexFunc(c.Env, func(e environmentVariable) bool { return e.Name == "HF_TOKEN" })
		if i < 0 || !strings.Contains(fmt.Sprint(c.Env[i].ValueFrom), "optional:true") {
			t.Errorf("%s: no optional token in %+v", file, c.Env)
		}
		if config := printed(t, c.env); !strings.Contains(config, "# HF_TOKEN\n") || strings.Contains(config, "hf_secret") {
			t.Errorf("%s: the token is not read, or printed:\n%s", file, config)
		}
	}
}

// TestPodMonitor: it names the port that has the metrics, of all pods.
func TestPodMonitor(t *testing.T) {
	text := must.Get(os.ReadFile("../../deploy/kubernetes/podmonitor.yaml"))(t)
	var m struct {
		Metadata struct{ Namespace string }
		Spec     struct {
			Selector struct {
				Expressions []struct {
					Key, Operator string
					Values        []string
				} `yaml:"matchExpressions"`
			}
			Endpoints []struct{ Port, Path string } `yaml:"podMetricsEndpoints"`
		}
	}
	if err := yaml.Unmarshal(text, &m); err != nil || m.Metadata.Namespace != "llm" || len(m.Spec.Selector.Expressions) != 1 || len(m.Spec.Endpoints) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	s, e := m.Spec.Selector.Expressions[0], m.Spec.Endpoints[0]
	if s.Operator != "In" || len(s.Values) != 2 || e.Path != "/metrics" {
		t.Errorf("%+v of %+v", e, s)
	}
	for _, file := range []string{"kvatlas.yaml", "lmcache.yaml"} {
		d := manifests(t, file)["Deployment"].Spec.Template
		c := d.Spec.Containers[0]
		i := slices.IndexFunc(c.Env, func(e environmentVariable) bool { return e.Name == "KVATLAS_ADMIN_LISTEN" })
		if i < 0 || !strings.HasSuffix(c.Env[i].Value, ":"+strconv.Itoa(c.port(e.Port))) || !slices.Contains(s.Values, d.Metadata.Labels[s.Key]) {
			t.Errorf("%s: the metrics of %+v are not found by %+v", file, d.Metadata.Labels, m.Spec)
		}
	}
}

// TestManifestFiles checks that the docs on how to apply manifests name each one.
func TestManifestFiles(t *testing.T) {
	manifests(t, "namespace.yaml")
	text := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	files, err := os.ReadDir("../../deploy/kubernetes")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if !strings.Contains(string(text), f.Name()) {
			t.Errorf("docs/operations.md does not name %s", f.Name())
		}
	}
}
