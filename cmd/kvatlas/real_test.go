package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/enginetest"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// The driver of make real, asked of a simulated engine what it once asked a real vLLM, finds
// the same: of each request as many tokens are cached, and as many were predicted. A cache
// that is too small, a clear, a restart, chats, tools, adapters, salts and offloading are in the
// records.
func TestSimulatedAsRecorded(t *testing.T) {
	python := enginetest.Python(t)
	records, err := filepath.Glob("../../real/recorded/*.json")
	if err != nil || len(records) < 4 {
		t.Fatalf("%d records: %v", len(records), err)
	}
	for _, path := range records {
		t.Run(filepath.Base(path), func(t *testing.T) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var record struct {
				Engine, Sim string
				Asked       struct {
					Model string
					IDs   bool // of tokens alone
				}
				Columns []string
				Rows    [][]any
			}
			if err := json.Unmarshal(b, &record); err != nil {
				t.Fatal(err)
			}
			var tokenizers []string
			if !record.Asked.IDs {
				tokenizers = []string{"--tokenizers=../../.cache/tokenizers"}
			}
			port := redistest.FreePort(t)
			pods, control := startSim(t, append(append(strings.Fields(record.Sim), tokenizers...), "--model="+record.Asked.Model, "--speed=1000",
				fmt.Sprintf("--port=%d", port), fmt.Sprintf("--events-port=%d", redistest.FreePort(t)), fmt.Sprintf("--replay-port=%d", redistest.FreePort(t)))...)
			pod := fmt.Sprintf("127.0.0.1:%d", port)
			args := []string{"../../real/drive.py", "--engine=http://" + pod, "--pod=" + pod, "--control=http://" + control, "--expect=" + path}
			servers := record.Columns[3:]
			for _, column := range servers {
				size := strings.TrimPrefix(column, "predicted, ")
				args = append(args, "--kvatlas="+size+"="+start(t, append(tokenizers, "--pods="+pods, "--block-size="+size, "--tokenizer-budget=1m", "--request-timeout=5m")...).url)
			}
			out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
			if err != nil {
				t.Errorf("%v, against %s:\n%s", err, record.Engine, out)
			}
			if said := fmt.Sprintf("%d requests, %[1]d as in the record\n", len(record.Rows)); len(record.Rows) < 100 || len(servers) < 3 || !strings.HasSuffix(string(out), said) {
				t.Errorf("%d requests, servers %v; it ends without %q:\n%s", len(record.Rows), servers, said, out)
			}
		})
	}
}
