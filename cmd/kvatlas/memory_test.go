package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
)

// TestMemoryOfRaisedLimits floods a process of its own, whose limit of a body is raised, with
// chats that take 80 bytes of memory for each of the body. It stays within the bytes in
// flight: one such chat is worked on at a time.
func TestMemoryOfRaisedLimits(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("the peak of a process's memory is read from /proc")
	}
	const budget = 150 << 20 // of one such chat, and the bodies of all
	cmd := exec.Command(os.Args[0], "serve", "--listen=127.0.0.1:0", "--hub-offline", "--hub-cache="+t.TempDir(), "--tokenizers="+tokenizers(t), "--drain-delay=0s",
		"--preload="+demo.Model, "--max-body-bytes=64MiB", fmt.Sprintf("--max-in-flight-bytes=%d", budget), "--request-timeout=5m")
	cmd.Env = []string{runAsProgram + "=1"}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, drained := "", make(chan struct{})
	lines := bufio.NewScanner(stderr)
	for url == "" && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), `"address":"`); ok {
			address, _, _ := strings.Cut(rest, `"`)
			url = "http://" + address
		}
	}
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, stderr) // it ends with the process
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-drained; _ = cmd.Wait() })
	if url == "" {
		t.Fatal("it does not listen")
	}
	post := func(documents string) (status int, answer string) {
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"a"}],"documents":[{"a":[%s]}],"mode":"sync"}`, demo.Model, documents)
		resp, err := http.Post(url+"/v1/score", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(text)
	}
	peak := func() (kib int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "VmHWM:")
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Fatal(err)
		}
		return kib
	}
	if status, _ := post("1"); status != 200 {
		t.Fatalf("a small chat: %d", status)
	}
	before := peak()
	lists := func(n int) string {
		return strings.TrimSuffix(strings.Repeat(strings.Repeat("[", 180)+strings.Repeat("]", 180)+",", n), ",")
	}
	nested := lists(3000) // 540,000 values take 82 MiB
	var flood sync.WaitGroup
	var mu sync.Mutex // protects got
	got := map[int]int{}
	for range 8 {
		flood.Go(func() {
			status, _ := post(nested)
			mu.Lock()
			defer mu.Unlock()
			got[status]++
		})
	}
	flood.Wait()
	if got[200] == 0 || got[200]+got[503] != 8 {
		t.Errorf("the answers are %v", got)
	}
	limit := budget >> 10
	if raceDetector { // the race detector keeps shadows of what is used
		limit += limit / 3
	}
	if grown := peak() - before; grown > limit {
		t.Errorf("it has grown by %d MiB, the limit is %d", grown>>10, limit>>10)
	}
	// What would take more than all is refused, and nothing is made of it: no more values
	// than a chat may have, which take 159 MiB.
	if status, answer := post(lists(5800)); status != http.StatusRequestEntityTooLarge || !strings.Contains(answer, "all requests together may take") {
		t.Errorf("a chat of more than all: %d %s", status, answer)
	}
}
