package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// recordedRun is a record of make real, and the simulated engine that is asked the same.
type recordedRun struct {
	Engine, Sim string
	Asked       struct {
		Model string
		IDs   bool // of tokens alone
	}
	Columns []string
	Rows    [][]any

	path, pod, control string
}

// recordedRuns reads the records and starts the engines. pods is how a server follows them all.
func recordedRuns(t *testing.T) (runs []*recordedRun, pods string) {
	t.Helper()
	paths, err := filepath.Glob("../../real/recorded/*.json")
	if err != nil || len(paths) < 4 {
		t.Fatalf("%d records: %v", len(paths), err)
	}
	var all []string
	for _, path := range paths {
		b := must.Get(os.ReadFile(path))(t)
		r := &recordedRun{path: path}
		must.OK(t, json.Unmarshal(b, r))
		port := redistest.FreePort(t)
		args := append(strings.Fields(r.Sim), "--model="+r.Asked.Model, "--speed=1000",
			fmt.Sprintf("--port=%d", port), fmt.Sprintf("--events-port=%d", redistest.FreePort(t)), fmt.Sprintf("--replay-port=%d", redistest.FreePort(t)))
		if !r.Asked.IDs {
			args = append(args, "--tokenizers=../../.cache/tokenizers")
		}
		own, control := startSim(t, args...)
		r.pod, r.control = fmt.Sprintf("127.0.0.1:%d", port), control
		runs, all = append(runs, r), append(all, own)
	}
	return runs, strings.Join(all, ",")
}

// The driver of make real asks a simulated engine what it once asked a real vLLM, and finds the
// same. Of each request as many tokens are cached, and as many were predicted. A cache that is too
// small, a clear, a restart, chats, tools, adapters, salts and offloading are in the records. The
// servers follow the engines of all records: to load a tokenizer takes longer than the rest.
func TestSimulatedAsRecorded(t *testing.T) {
	python := enginetest.Python(t)
	runs, pods := recordedRuns(t)
	columns := runs[0].Columns[3:]
	if len(columns) < 3 {
		t.Fatalf("servers %v", columns)
	}
	var servers []string
	for _, column := range columns {
		size := strings.TrimPrefix(column, "predicted, ")
		r := start(t, "--pods="+pods, "--block-size="+size, "--tokenizers=../../.cache/tokenizers", "--tokenizer-budget=1m", "--request-timeout=5m")
		servers = append(servers, "--kvatlas="+size+"="+r.url)
	}
	for _, r := range runs {
		t.Run(filepath.Base(r.path), func(t *testing.T) {
			if !slices.Equal(r.Columns[3:], columns) {
				t.Fatalf("servers %v, those of another record are %v", r.Columns[3:], columns)
			}
			args := append([]string{"../../real/drive.py", "--engine=http://" + r.pod, "--pod=" + r.pod, "--control=http://" + r.control, "--expect=" + r.path}, servers...)
			out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
			if err != nil {
				t.Errorf("%v, against %s:\n%s", err, r.Engine, out)
			}
			if said := fmt.Sprintf("%d requests, %[1]d as in the record\n", len(r.Rows)); len(r.Rows) < 100 || !strings.HasSuffix(string(out), said) {
				t.Errorf("%d requests; it ends without %q:\n%s", len(r.Rows), said, out)
			}
		})
	}
}
