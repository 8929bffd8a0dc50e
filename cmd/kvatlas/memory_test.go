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
	"github.com/kvatlas/kvatlas/internal/must"
)

// TestMemoryOfRaisedLimits floods a process of its own, whose limit of a body is raised. The
// chats take 80 bytes of memory for each of the body. It stays within the bytes in flight: one
// such chat is worked on at a time.
func TestMemoryOfRaisedLimits(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("the peak of a process's memory is read from /proc")
	}
	const budget = 150 << 20 // of one such chat, and the bodies of all
	// A fast tokenizer is proven behind the first answers, which takes memory that is not of these chats.
	url, peak := startLimited(t, "--tokenizer-fast=false", "--max-body-bytes=64MiB", fmt.Sprintf("--max-in-flight-bytes=%d", budget))
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
	// What would take more than all is refused, and nothing is made of it. It has no more
	// values than a chat may have, which take 159 MiB.
	if status, answer := post(lists(5800)); status != http.StatusRequestEntityTooLarge || !strings.Contains(answer, "all requests together may take") {
		t.Errorf("a chat of more than all: %d %s", status, answer)
	}
}

// startLimited runs a server of its own until the test ends. It returns its URL, and a func
// that tells the most resident memory that it has had, in KiB.
func startLimited(t *testing.T, args ...string) (url string, peak func() int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"serve", "--listen=127.0.0.1:0", "--hub-offline", "--hub-cache=" + t.TempDir(), "--tokenizers=" + tokenizers(t),
		"--drain-delay=0s", "--preload=" + demo.Model, "--request-timeout=5m"}, args...)...)
	cmd.Env = []string{runAsProgram + "=1"}
	stderr := must.Get(cmd.StderrPipe())(t)
	must.OK(t, cmd.Start())
	drained := make(chan struct{})
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
	return url, func() (kib int) {
		t.Helper()
		b := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)))(t)
		_, rest, _ := strings.Cut(string(b), "VmHWM:")
		must.Get(fmt.Sscan(rest, &kib))(t)
		return kib
	}
}

// TestMemoryOfTextsThatCannotBeCut floods a process of its own, whose limit of a text is raised.
// The tokenizers' library takes up to 350 bytes for each byte of these texts. What they take
// together stays within one share; a text that would take more is refused.
func TestMemoryOfTextsThatCannotBeCut(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("the peak of a process's memory is read from /proc")
	}
	const budget, work = 64 << 20, 350 << 20
	url, peak := startLimited(t, "--max-body-bytes=16MiB", "--max-prompt-bytes=8MiB", fmt.Sprintf("--max-in-flight-bytes=%d", budget), "--tokenizer-workers=8", "--prefix-cache-bytes=1MiB")
	post := func(text string) (int, string) {
		resp, err := http.Post(url+"/v1/score", "application/json", strings.NewReader(fmt.Sprintf(`{"model":%q,"prompt":%q,"mode":"sync"}`, demo.Model, text)))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(answer)
	}
	if status, answer := post("a"); status != http.StatusOK {
		t.Fatalf("a short text: %d %s", status, answer)
	}
	before := peak()
	const size = 384 << 10 // two of them at a time
	var flood sync.WaitGroup
	for i := range 12 {
		units := []string{"7", " ", "z", "e\u0301", "?!"}
		unit := units[i%len(units)]
		text := string(rune('a'+i)) + strings.Repeat(unit, size/len(unit))
		flood.Go(func() {
			if status, answer := post(text); status != http.StatusOK && status != http.StatusServiceUnavailable {
				t.Errorf("%d %.200s", status, answer)
			}
		})
	}
	flood.Wait()
	limit := (budget + work) >> 10
	if raceDetector {
		limit += limit / 3
	}
	if grown := peak() - before; grown > limit {
		t.Errorf("it has grown by %d MiB, the limit is %d", grown>>10, limit>>10)
	}
	// Prose of any length is cut; what cannot be is refused before anything is made of it.
	before = peak()
	if status, answer := post(strings.Repeat("7", 2<<20)); status != http.StatusRequestEntityTooLarge || !strings.Contains(answer, "cannot be cut") {
		t.Errorf("a text that takes more than all: %d %.200s", status, answer)
	}
	if status, answer := post(strings.Repeat("Words and more words.\n", 2<<20/22)); status != http.StatusOK {
		t.Errorf("two mebibytes of prose: %d %.200s", status, answer)
	}
	if grown := peak() - before; grown > work>>11 {
		t.Errorf("it has grown by %d MiB for texts that take little", grown>>10)
	}
}
