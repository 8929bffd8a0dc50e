package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// manifest is what is read of an object of deploy/kubernetes.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name, Namespace string
	} `yaml:"metadata"`
	Data map[string]string `yaml:"data"`
	Spec struct {
		Template struct {
			Spec struct {
				ServiceAccount string `yaml:"serviceAccountName"`
				Grace          int    `yaml:"terminationGracePeriodSeconds"`
				Containers     []struct {
					Env []struct {
						Name, Value string
						ValueFrom   any `yaml:"valueFrom"`
					}
					EnvFrom []struct {
						ConfigMap struct{ Name string } `yaml:"configMapRef"`
					} `yaml:"envFrom"`
					Ports []struct {
						Name string
						Port int `yaml:"containerPort"`
					}
				}
			}
		}
	}
	Role     struct{ Name string }              `yaml:"roleRef"`
	Subjects []struct{ Name, Namespace string } `yaml:"subjects"`
}

func manifests(t *testing.T, file string) map[string]manifest {
	t.Helper()
	text, err := os.ReadFile("../../deploy/kubernetes/" + file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]manifest{}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var m manifest
		if err := yaml.Unmarshal(doc, &m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, ok := out[m.Kind]; ok || m.Metadata.Namespace != "llm" {
			t.Errorf("%s has two of %s, or one in the namespace %q", file, m.Kind, m.Metadata.Namespace)
		}
		out[m.Kind] = m
	}
	return out
}

// TestManifests starts from the variables that the Deployment sets, with each way of
// finding pods: they are settings that there are, and what the manifests say twice is the
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
		if c.EnvFrom[0].ConfigMap.Name != found["ConfigMap"].Metadata.Name {
			t.Errorf("%s has the settings %q, the Deployment reads %q", file, found["ConfigMap"].Metadata.Name, c.EnvFrom[0].ConfigMap.Name)
		}
		var env []string
		values := map[string]string{"KVATLAS_REDIS": "redis://:secret@h:6379", "KVATLAS_PODS_KUBERNETES_NAMESPACE": "llm"}
		for _, v := range c.Env {
			if (v.Value == "") != (v.ValueFrom != nil) || v.ValueFrom != nil && values[v.Name] == "" {
				t.Errorf("%s is %+v", v.Name, v)
			}
			if v.Value != "" {
				values[v.Name] = v.Value
			}
			env = append(env, v.Name+"="+values[v.Name])
		}
		for name, v := range found["ConfigMap"].Data {
			env = append(env, name+"="+v)
		}
		var out, errs output
		p := &program{stdout: &out, stderr: &errs, env: env}
		if status := p.run(t.Context(), []string{"serve", "--print-config"}); status != exitOK {
			t.Fatalf("%s: ends with %d\n%s", file, status, errs.String())
		}
		want = append(want, "redis: redis://:***@h:6379", "pods-kubernetes-namespace: llm", "listen: 0.0.0.0:8080", "admin-listen: 0.0.0.0:9090")
		for _, line := range want {
			if !strings.Contains(out.String(), "\n"+line+" ") {
				t.Errorf("%s: no line %q in\n%s", file, line, out.String())
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
