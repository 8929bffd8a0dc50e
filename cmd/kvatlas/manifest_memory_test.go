package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/internal/must"
)

const (
	// loadedTokenizers is what two tokenizers take outside of Go's heap (docs/sizing.md).
	loadedTokenizers = 180 << 20
	// idleProgram is what the program takes that does nothing.
	idleProgram = 64 << 20
)

// bytesOf is a size of a manifest: 2Gi, 2g or 1450MiB.
func bytesOf(t *testing.T, text string) int64 {
	t.Helper()
	digits := strings.TrimRight(text, "gGMiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	shift := map[string]int{"Gi": 30, "g": 30, "MiB": 20, "Mi": 20}[text[len(digits):]]
	if err != nil || shift == 0 {
		t.Fatalf("the size %q: %v", text, err)
	}
	return n << shift
}

// settingsOf is the configuration that follows from flags and an environment.
func settingsOf(t *testing.T, flags []string, env map[string]string) *config.Loaded {
	t.Helper()
	var vars []string
	for name, value := range env {
		vars = append(vars, name+"="+value)
	}
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	loader := config.NewLoader(fs)
	must.OK(t, fs.Parse(flags))
	c := must.Get(loader.Load(vars, config.ReadFile))(t)
	return c
}

// chartObjects are kvatlas's own Deployment and settings of what deploy/check has rendered the
// Helm chart to.
func chartObjects(t *testing.T, file string) (deployment, settings manifest) {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	for doc := range bytes.SplitSeq(text, []byte("---\n")) {
		var m manifest
		if err := yaml.Unmarshal(doc, &m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		switch {
		case m.Metadata.Name != "kvatlas":
		case m.Kind == "Deployment":
			deployment = m
		case m.Kind == "ConfigMap":
			settings = m
		}
	}
	if len(deployment.Spec.Template.Spec.Containers) != 1 || len(settings.Data) == 0 {
		t.Fatalf("%s: %+v %+v", file, deployment, settings)
	}
	return deployment, settings
}

// TestManifestsHaveTheMemory holds the limits of memory in the manifests, in the Helm chart and in compose's file
// against what the settings there allow. Go's part fits its own limit, and that fits with the tokenizers into the
// container's.
func TestManifestsHaveTheMemory(t *testing.T) {
	hold := func(name, goLimit, limit string, c *config.Loaded) {
		t.Helper()
		heap, native := c.MemoryBounds()
		if at := bytesOf(t, goLimit); heap+idleProgram > at {
			t.Errorf("%s: GOMEMLIMIT is %s, and the settings allow %d MiB of heap", name, goLimit, heap>>20)
		} else if at+native+loadedTokenizers > bytesOf(t, limit) {
			t.Errorf("%s: the limit is %s, and GOMEMLIMIT, the tokenizers' share of %d MiB and the tokenizers are %d MiB", name, limit, native>>20, (at+native+loadedTokenizers)>>20)
		}
		var out bytes.Buffer
		log := zerolog.New(&out)
		if warnOfMemory(log, &c.Config, bytesOf(t, goLimit)); out.Len() > 0 {
			t.Errorf("%s: %s", name, out.String())
		}
		if warnOfMemory(log, &c.Config, heap-1); !strings.Contains(out.String(), "GOMEMLIMIT is below") {
			t.Errorf("%s: no warning below %d", name, heap)
		}
	}
	for file, c := range deployments(t) {
		hold(file, c.env["GOMEMLIMIT"], c.Resources.Limits.Memory, settingsOf(t, nil, c.env))
	}

	rendered, err := filepath.Glob("../../deploy/check/testdata/*.rendered.yaml")
	if err != nil || len(rendered) < 3 {
		t.Fatalf("the chart is rendered to %q: %v", rendered, err)
	}
	for _, file := range rendered {
		deployment, settings := chartObjects(t, file)
		c := deployment.Spec.Template.Spec.Containers[0]
		env := c.environment(t, settings)
		hold(file, env["GOMEMLIMIT"], c.Resources.Limits.Memory, settingsOf(t, nil, env))
	}

	text := must.Get(os.ReadFile("../../docker-compose.yml"))(t)
	var compose struct {
		Scorer struct {
			Command     []string
			Environment map[string]string
			Memory      string `yaml:"mem_limit"`
		} `yaml:"x-scorer"`
	}
	must.OK(t, yaml.Unmarshal(text, &compose))
	s := compose.Scorer
	if i := slices.Index(s.Command, "serve"); i != 0 {
		t.Fatalf("compose starts %q", s.Command)
	}
	delete(s.Environment, "HF_TOKEN")
	hold("docker-compose.yml", s.Environment["GOMEMLIMIT"], s.Memory, settingsOf(t, s.Command[1:], s.Environment))
}
