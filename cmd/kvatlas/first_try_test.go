package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
)

// What is asked and answered when something is not as it should be at the first try.

// TestServerWithoutScheme gives --server as people type it.
func TestServerWithoutScheme(t *testing.T) {
	r := start(t)
	give(t, r.client(), "a", 64)
	at := "--server=" + strings.TrimPrefix(r.url, "http://")
	file := filepath.Join(t.TempDir(), "dump")
	for _, args := range [][]string{
		{"dump", at, "-o", file}, {"restore", at, file}, {"doctor", at}, {"score", at, "--model=m", "--tokens=1,2"},
		{"inspect", "play", "../../examples/events.jsonl", at, "--pod=b", "--model=m2", "--speed=0"}, {"reset", at, "--all", "--yes"},
	} {
		if status, stdout, stderr := call(t, "", args...); status != cli.ExitOK {
			t.Errorf("%v: ends with %d\n%s%s", args, status, stdout, stderr)
		}
	}
}

func TestDumpThatFailsAtOnceLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	at := "--server=" + strings.TrimPrefix(redistest.FreeEndpoint(t, 1), "tcp://")
	status, _, stderr := call(t, "", "dump", at, "-o", filepath.Join(dir, "dump"))
	if status != cli.ExitFailed || !strings.Contains(stderr, "no server can be reached") || strings.Contains(stderr, "--resume") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("it leaves %v, %v", files, err)
	}
}

func TestRestoreKnowsARecordOfEvents(t *testing.T) {
	const record = "../../examples/events.jsonl"
	text := must.Get(os.ReadFile(record))(t)
	for _, name := range []string{record, "-"} {
		status, _, stderr := call(t, string(text), "restore", "--server=127.0.0.1:9", name)
		if status != cli.ExitFailed || !strings.Contains(stderr, "this is a record of events") || !strings.Contains(stderr, "kvatlas inspect play") {
			t.Errorf("%s: ends with %d\n%s", name, status, stderr)
		}
	}
}

// TestChatFileNamesTheModel has the body of a request to an engine.
func TestChatFileNamesTheModel(t *testing.T) {
	asked := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 1000)
		n, _ := r.Body.Read(b)
		asked <- string(b[:n])
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer s.Close()
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	for _, tc := range []struct{ flag, chat, want string }{
		{"", `{"model":"org/m",` + messages + `}`, `"model":"org/m"`},
		{"--model=other", `{"model":"org/m",` + messages + `}`, `"model":"other"`},
	} {
		args := []string{"score", "--server", s.URL, "--chat-file=-"}
		if tc.flag != "" {
			args = append(args, tc.flag)
		}
		if status, _, stderr := call(t, tc.chat, args...); status != cli.ExitOK {
			t.Fatalf("ends with %d\n%s", status, stderr)
		}
		if got := <-asked; !strings.Contains(got, tc.want) || !strings.Contains(got, `"hi"`) {
			t.Errorf("it asked %s, want %s", got, tc.want)
		}
	}
	for _, chat := range []string{`{` + messages + `}`, `[{"role":"user","content":"hi"}]`} {
		if status, _, stderr := call(t, chat, "score", "--server", s.URL, "--chat-file=-"); status != cli.ExitUsage || !strings.Contains(stderr, "--chat-file names no model") {
			t.Errorf("%s: ends with %d\n%s", chat, status, stderr)
		}
	}
}

// TestStartSaysWhatToDo starts servers that do not start.
func TestStartSaysWhatToDo(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	file := filepath.Join(t.TempDir(), "k.yaml")
	must.OK(t, os.WriteFile(file, []byte("roles: score\ntokenizers: /no/such/dir\n"), 0o600))
	for flags, want := range map[string]string{
		"--tokenizers=/no/such/dir":  "Make the directory, or correct --tokenizers\n",
		"--config=" + file:           "Make the directory, or correct tokenizers (k.yaml:2)\n",
		"--pods-kubernetes=app=vllm": "--pods-kubernetes-config",
	} {
		args := append([]string{"serve", "--listen=127.0.0.1:0", "--hub-cache=" + t.TempDir()}, strings.Fields(flags)...)
		if status, _, stderr := call(t, "", args...); status != cli.ExitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: ends with %d\n%s\nwant %s", flags, status, stderr, want)
		}
	}
}

func TestFirstSnapshotIsNone(t *testing.T) {
	r := start(t, "--snapshot-file="+filepath.Join(t.TempDir(), "s"))
	r.await(func() map[string]any { return r.logged("no snapshot yet: the index begins empty") })
	if said := r.logged("snapshot restored"); said != nil {
		t.Errorf("it says %v", said)
	}
}

// TestDoctorOfAnEngineThatIsAway has one thing to say.
func TestDoctorOfAnEngineThatIsAway(t *testing.T) {
	status, stdout, _ := call(t, "", "doctor", "--engine-events", redistest.FreeEndpoint(t, 1), "--timeout=500ms")
	if status != cli.ExitFailed || !strings.Contains(stdout, "engine connection") || strings.Contains(stdout, "none came") || strings.Contains(stdout, "hash seed") {
		t.Errorf("ends with %d\n%s", status, stdout)
	}
}
