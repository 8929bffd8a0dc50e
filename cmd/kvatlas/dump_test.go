package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
)

// holds returns the best pod for tokens(n).
func holds(t *testing.T, c *client.Client, n int) string {
	t.Helper()
	resp := must.Get(c.Score(t.Context(), client.ScoreRequest{Model: "m", Tokens: tokens(n)}))(t)
	return resp.Best
}

func give(t *testing.T, c *client.Client, pod string, n int) {
	t.Helper()
	must.Get(c.Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: pod, Tokens: tokens(n)}))(t)
}

// A dump goes from a server into Redis, from there into another server, with
// every form of file and of place.
func TestDumpAndRestore(t *testing.T) {
	server := redistest.Start(t)
	dir := t.TempDir()
	plain, packed := filepath.Join(dir, "d.ndjson"), filepath.Join(dir, "d.ndjson.gz")
	run := func(stdin string, args ...string) string {
		t.Helper()
		status, stdout, stderr := call(t, stdin, args...)
		if status != cli.ExitOK {
			t.Fatalf("%v ends with %d\n%s%s", args, status, stdout, stderr)
		}
		return stdout + stderr
	}

	from := start(t)
	give(t, from.client(), "a", 6400)
	if out := run("", "dump", "--server", from.url, "-o", packed); !strings.Contains(out, "100 blocks in ") {
		t.Errorf("got %s", out)
	}
	if out := run("", "restore", "--redis", server.URL(), packed); !strings.Contains(out, "100 blocks, and 1 pods") {
		t.Errorf("got %s", out)
	}
	run("", "dump", "--redis", server.URL(), "--rate=1000000", "-o", plain)
	text, err := os.ReadFile(plain)
	if err != nil || !bytes.HasPrefix(text, []byte(`{"kvatlas":"dump"`)) {
		t.Fatalf("%.100s, %v", text, err)
	}
	piped := run("", "dump", "--redis", server.URL(), "--model", "m", "--pod", "a")
	to := start(t)
	run(piped, "restore", "--server", to.url, "-")
	if best := holds(t, to.client(), 6400); best != "a" {
		t.Errorf("the best pod is %q", best)
	}
	over := start(t, "--redis="+server.URL(), "--score-budget=5s")
	if best := holds(t, over.client(), 6400); best != "a" {
		t.Errorf("the best pod of Redis is %q", best)
	}

	// Replace asks.
	give(t, to.client(), "b", 12800)
	status, _, stderr := call(t, "no\n", "restore", "--server", to.url, "--mode=replace", plain)
	if status != cli.ExitFailed || !strings.Contains(stderr, "Type all to go on") || !strings.Contains(stderr, "nothing was changed") || holds(t, to.client(), 12800) != "b" {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	run("all\n", "restore", plain, "--server", to.url, "--mode=replace")
	if best := holds(t, to.client(), 12800); best != "a" {
		t.Errorf("the best pod is %q", best)
	}

	// What is not a dump is refused before anything is sent.
	bad := filepath.Join(dir, "bad")
	must.OK(t, os.WriteFile(bad, text[:len(text)-50], 0o600))
	status, _, stderr = call(t, "", "restore", "--server", to.url, "--mode=replace", "--yes", bad)
	if status != cli.ExitFailed || !strings.Contains(stderr, "cut off") || !strings.Contains(stderr, bad) || holds(t, to.client(), 6400) != "a" {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.part"))
	if err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
}

func TestDumpResumes(t *testing.T) {
	redis := redistest.Start(t)
	over := start(t, "--redis="+redis.URL(), "--max-tokens=4000000", "--max-body-bytes=64MiB")
	// More than a page: blocks of 64 tokens.
	for i := range 4 {
		var keys []string
		for j := range 8192 {
			keys = append(keys, fmt.Sprintf("%016x", uint64(i*8192+j+1)*0x9e3779b97f4a7c15))
		}
		must.Get(over.client().Blocks(t.Context(), client.BlocksRequest{Op: client.OpAdd, Model: "m", Pod: "a", BlockKeys: keys}))(t)
	}
	for _, name := range []string{"d.ndjson", "d.ndjson.gz"} {
		file := filepath.Join(t.TempDir(), name)
		if status, _, stderr := call(t, "", "dump", "--server", over.url, "-o", file); status != cli.ExitOK {
			t.Fatalf("ends with %d\n%s", status, stderr)
		}
		whole := must.Get(os.ReadFile(file))(t)
		for _, n := range []int{0, 10, len(whole) * 3 / 4, len(whole)} {
			must.OK(t, os.Remove(file))
			must.OK(t, os.WriteFile(file+".part", whole[:n], 0o600))
			// Another machine goes on, without the server.
			status, _, stderr := call(t, "", "dump", "--redis", redis.URL(), "-o", file, "--resume")
			if status != cli.ExitOK {
				t.Fatalf("cut at %d of %d: ends with %d\n%s", n, len(whole), status, stderr)
			}
			if again := strings.Contains(stderr, "beginning anew"); again != (n <= 10) {
				t.Errorf("cut at %d of %d: %s", n, len(whole), stderr)
			}
			to := start(t)
			status, _, stderr = call(t, "", "restore", "--server", to.url, file)
			if status != cli.ExitOK {
				t.Errorf("cut at %d of %d: ends with %d\n%s", n, len(whole), status, stderr)
			}
			if _, metrics := get(t, to.url+"/metrics"); !strings.Contains(metrics, "kvatlas_index_blocks 32768\n") {
				t.Errorf("cut at %d of %d: the index is another\n%s", n, len(whole), stderr)
			}
			to.end()
		}
		// What it is limited to cannot change on the way.
		must.OK(t, os.WriteFile(file+".part", whole[:len(whole)*3/4], 0o600))
		status, _, stderr := call(t, "", "dump", "--redis", redis.URL(), "-o", file, "--resume", "--pod=b")
		if status != cli.ExitFailed || !strings.Contains(stderr, "was begun with --pod") {
			t.Errorf("ends with %d\n%s", status, stderr)
		}
	}

	// The index in memory does not outlive its server.
	file := filepath.Join(t.TempDir(), "d")
	to := start(t)
	give(t, to.client(), "a", 64)
	status, _, _ := call(t, "", "dump", "--server", over.url, "-o", file)
	whole, err := os.ReadFile(file)
	if err != nil || status != cli.ExitOK {
		t.Fatal(status, err)
	}
	must.OK(t, os.WriteFile(file+".part", whole[:len(whole)*3/4], 0o600))
	status, _, stderr := call(t, "", "dump", "--server", to.url, "-o", file, "--resume")
	if status != cli.ExitFailed || !strings.Contains(stderr, "dump anew, without --resume") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}

func TestReset(t *testing.T) {
	redis := redistest.Start(t)
	r := start(t, "--redis="+redis.URL(), "--score-budget=5s")
	c := r.client()
	for _, at := range [][]string{{"--server", r.url}, {"--redis", redis.URL()}} {
		reset := func(stdin string, args ...string) (int, string) {
			status, _, stderr := call(t, stdin, append(append([]string{"reset"}, at...), args...)...)
			return status, stderr
		}
		give(t, c, "a", 640)
		give(t, c, "b", 1280)
		for _, stdin := range []string{"", "\n", "a\n", "y\n"} {
			if status, stderr := reset(stdin, "--pod=b"); status != cli.ExitFailed || !strings.Contains(stderr, "Type b to go on") || !strings.Contains(stderr, "nothing was changed") {
				t.Errorf("%q: ends with %d\n%s", stdin, status, stderr)
			}
		}
		if best := holds(t, c, 1280); best != "b" {
			t.Fatalf("the best pod is %q", best)
		}
		if status, stderr := reset("b\n", "--pod=b"); status != cli.ExitOK || !strings.Contains(stderr, "1 pods removed") {
			t.Errorf("ends with %d\n%s", status, stderr)
		}
		if best := holds(t, c, 1280); best != "a" {
			t.Errorf("the best pod is %q", best)
		}
		for _, yes := range [][]string{{"--yes"}, nil} {
			status, stderr := reset("", append(yes, "--pod=b")...)
			if status != cli.ExitFailed || strings.Contains(stderr, "Type b") || !strings.Contains(stderr, "pod") {
				t.Errorf("%v: ends with %d\n%s", yes, status, stderr)
			}
		}
		if status, stderr := reset("m", "--model=m"); status != cli.ExitOK || !strings.Contains(stderr, "1 pods cleared, 1 models forgotten") {
			t.Errorf("ends with %d\n%s", status, stderr)
		}
		if best := holds(t, c, 1280); best != "" {
			t.Errorf("the best pod is %q", best)
		}
		if pods, err := c.Pods(t.Context()); err != nil || len(pods) != 1 {
			t.Errorf("got %v, %v", pods, err)
		}
		if status, stderr := reset("", "--model=m2", "--yes"); status != cli.ExitFailed || !strings.Contains(stderr, "m2") {
			t.Errorf("ends with %d\n%s", status, stderr)
		}
		if status, stderr := reset("", "--all", "--yes"); status != cli.ExitOK || !strings.Contains(stderr, "1 pods removed") {
			t.Errorf("ends with %d\n%s", status, stderr)
		}
		if pods, err := c.Pods(t.Context()); err != nil || len(pods) != 0 {
			t.Errorf("got %v, %v", pods, err)
		}
	}
}

func TestDumpMisuse(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"dump x", "it takes flags only"},
		{"dump --resume", "name it with -o"},
		{"dump --rate=-1 --redis=redis://x", "must not be negative"},
		{"dump --rate=1", "--rate is for --redis"},
		{"dump --server=ftp://x", "--server:"},
		{"dump --redis=x", "--redis: the URL has no scheme"},
		{"dump --redis=-", "$KVATLAS_REDIS is not set"},
		{"dump --redis=redis://x --server=http://x", "both given"},
		{"dump --redis-prefix=x", "is for --redis"},
		{"dump --timeout=0s", "must be positive"},
		{"dump --none", "none"},
		{"restore", "0 arguments"},
		{"restore a b", "2 arguments"},
		{"restore --mode=x a", "is not one of merge, replace"},
		{"restore --mode=replace -", "give --yes"},
		{"reset", "give one of"},
		{"reset --all --pod=a", "give one of"},
		{"reset x --all", "flags only"},
	} {
		status, _, stderr := call(t, "", strings.Fields(c.args)...)
		if status != cli.ExitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: ends with %d\n%s\nwant %s", c.args, status, stderr, c.want)
		}
	}
	for _, command := range []string{"dump", "restore", "reset"} {
		if status, stdout, _ := call(t, "", command, "--help"); status != cli.ExitOK || !strings.Contains(stdout, "kvatlas "+command+" --redis") && command != "reset" || !strings.Contains(stdout, "-redis-prefix") {
			t.Errorf("%s --help: ends with %d\n%s", command, status, stdout)
		}
	}
	nobody := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	for _, args := range [][]string{
		{"dump", "--server=http://" + nobody}, {"dump", "--redis=redis://" + nobody, "--timeout=100ms"},
		{"reset", "--all", "--yes", "--server=http://" + nobody}, {"restore", "nofile"},
	} {
		if status, _, stderr := call(t, "", args...); status != cli.ExitFailed || stderr == "" || strings.Contains(stderr, "line 0") {
			t.Errorf("%v: ends with %d\n%s", args, status, stderr)
		}
	}
}

// The admin listener has dump, restore and reset for itself, and dumps end when
// the service drains.
func TestAdminHasDump(t *testing.T) {
	r := start(t, "--admin-listen=127.0.0.1:0")
	give(t, r.client(), "a", 640)
	status, _, stderr := call(t, "", "dump", "--server", r.url)
	if status != cli.ExitFailed || !strings.Contains(stderr, "on the admin listener") {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	status, stdout, stderr := call(t, "", "dump", "--server", r.admin)
	if status != cli.ExitOK || !strings.Contains(stdout, `"kvatlas":"end"`) {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	if status, _, stderr := call(t, stdout, "restore", "--server", r.admin, "-"); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
	if status, _, stderr := call(t, stdout, "reset", "--server", r.admin, "--all", "--yes"); status != cli.ExitOK {
		t.Errorf("ends with %d\n%s", status, stderr)
	}
}

// What the index in memory has is there after a restart.
func TestSnapshotFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "index.gz")
	flags := []string{"--snapshot-file=" + file, "--snapshot-interval=20ms"}
	ready := func(r *running) {
		t.Helper()
		r.await(func() map[string]any {
			if r.client().Ready(t.Context()) == nil {
				return map[string]any{}
			}
			return nil
		})
	}
	r := start(t, flags...)
	ready(r)
	give(t, r.client(), "a", 640000) // 10,000 blocks, which are enough
	r.await(func() map[string]any { return r.logged("snapshot saved") })
	give(t, r.client(), "b", 640) // less than enough, but there is the end
	if _, metrics := get(t, r.url+"/metrics"); !strings.Contains(metrics, `kvatlas_snapshot_saves_total{result="saved"} 1`) {
		t.Error("the metric is another")
	}
	if status := r.end(); status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, r.stderr)
	}

	r = start(t, flags...)
	ready(r)
	if line := r.logged("snapshot restored"); line == nil || line["blocks"] != 10000.0 || line["pods"] != 2.0 {
		t.Errorf("logged %v\n%s", line, r.stderr)
	}
	if best := holds(t, r.client(), 6400); best != "a" {
		t.Errorf("the best pod is %q", best)
	}
	if pods, err := r.client().Pods(t.Context()); err != nil || len(pods) != 2 {
		t.Errorf("got %v, %v", pods, err)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, r.stderr)
	}

	// A file that is not right is put aside, with a line that says where.
	must.OK(t, os.WriteFile(file, []byte("x"), 0o600))
	r = start(t, flags...)
	ready(r)
	line := r.logged("snapshot not restored")
	if line == nil || !strings.Contains(fmt.Sprint(line["error"]), file+".refused-") {
		t.Errorf("logged %v", line)
	}
	if best := holds(t, r.client(), 6400); best != "" {
		t.Errorf("the best pod is %q", best)
	}
	if status := r.end(); status != cli.ExitOK {
		t.Fatalf("ends with %d\n%s", status, r.stderr)
	}

	// What an operator must look at ends the start.
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	must.OK(t, os.Mkdir(file, 0o700))
	for _, args := range [][]string{flags, {"--snapshot-file=" + filepath.Join(file, "none", "s")}, {"--snapshot-file=x", "--redis=redis://x"}} {
		began := time.Now()
		status, _, stderr := call(t, "", append([]string{"serve", "--listen=127.0.0.1:0", "--hub-offline", "--drain-delay=0s", "--hub-cache=" + t.TempDir()}, args...)...)
		if status == cli.ExitOK || !strings.Contains(stderr, "snapshot") {
			t.Errorf("%v: ends with %d after %v\n%s", args, status, time.Since(began), stderr)
		}
	}
}

// TestDumpUsers dumps from Redis as each of the documented users that may. Nothing is
// refused, and the line for dumps has nothing that a reader's dump does without.
func TestDumpUsers(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	do := func(words ...string) {
		t.Helper()
		redistest.Do(t, c, words...)
	}
	own := redistest.DocumentedACL(t, "../../docs/operations.md", "acl-dump")
	if len(own) != 1 || own[0][2] != "kvatlas-reader" {
		t.Fatalf("documented is %v", own)
	}
	for _, line := range slices.Concat(redistest.DocumentedACL(t, "../../docs/operations.md", "acl"), redistest.DocumentedACL(t, "../../docs/operations.md", "acl-replica")[:1], own) {
		if len(line) > 0 {
			do(line...)
		}
	}
	writer, reader := "redis://kvatlas-writer:WRITER_PASSWORD@"+s.Addr, "redis://kvatlas-reader:READER_PASSWORD@"+s.Addr
	// A rank that has a generation, with a lease, and blocks.
	x := must.Get(redis.Open(redis.Config{URL: writer, NoSweep: true}))(t)
	t.Cleanup(func() { _ = x.Close() })
	must.Get(x.Register(t.Context(), store.Pod{Name: "a", Model: "m", Lease: store.Seconds(time.Hour)}))(t)
	gen := must.Get(x.Begin(t.Context(), "a", 0, 1))(t)
	for pod := range 150 { // more than a script returns: they are read in pages
		b := store.Batch{Pod: fmt.Sprint("more", pod), Model: "m", Ops: []store.Op{{Kind: store.Add, Keys: []blockkey.Key{1, 2}}}}
		if pod == 0 {
			b.Pod, b.Guard = "a", &store.Guard{Generation: gen, Fence: 1, Seq: 1}
		}
		must.OK(t, x.Apply(t.Context(), b))
	}
	dump := func(url string, flags ...string) (int, string) {
		t.Helper()
		status, stdout, stderr := call(t, "", append([]string{"dump", "--redis", url}, flags...)...)
		return status, stdout + stderr
	}
	for _, url := range []string{reader, writer} {
		do("ACL", "LOG", "RESET")
		do("SCRIPT", "FLUSH")
		status, out := dump(url)
		if refused := c.Do(t.Context(), "ACL", "LOG").Val(); status != cli.ExitOK || fmt.Sprint(refused) != "[]" || !strings.Contains(out, `"blocks":2,`) || !strings.Contains(out, `{"seq":{`) {
			t.Errorf("%s ends with %d, refused %v\n%.300s", url, status, refused, out)
		}
	}
	for _, right := range own[0][3:] {
		if right == "+xrevrange" {
			continue // names the place of the log of changes, if there is one
		}
		do("ACL", "SETUSER", "kvatlas-reader", "-"+strings.TrimPrefix(right, "+"))
		// Of what a script lacks, Redis says nothing but that.
		if status, out := dump(reader, "--timeout=1s"); status == cli.ExitOK || !strings.Contains(out, "refused") && !strings.Contains(out, "can't run this command") {
			t.Errorf("without %s the dump ends with %d\n%.300s", right, status, out)
		}
		do("ACL", "SETUSER", "kvatlas-reader", right)
	}

	// The writer may put it back.
	do("ACL", "LOG", "RESET")
	_, whole := dump(reader)
	for _, args := range [][]string{{"reset", "--redis", writer, "--all", "--yes"}, {"restore", "--redis", writer, "-"}, {"reset", "--redis", writer, "--model=m", "--yes"}, {"reset", "--redis", writer, "--pod=a", "--yes"}} {
		if status, stdout, stderr := call(t, whole, args...); status != cli.ExitOK {
			t.Errorf("%v ends with %d\n%.300s%.300s", args, status, stdout, stderr)
		}
	}
	if refused := c.Do(t.Context(), "ACL", "LOG").Val(); fmt.Sprint(refused) != "[]" {
		t.Errorf("refused %v", refused)
	}
}

// A last snapshot that cannot be written fails the process with an error; one that was not needed does not.
func TestCaseSmallOnesUnderAttackLastSnapshot(t *testing.T) {
	for name, changed := range map[string]bool{"changed": true, "unchanged": false} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "index")
			r := start(t, "--snapshot-file="+file, "--snapshot-interval=1h")
			r.await(func() map[string]any { return r.logged("no snapshot yet: the index begins empty") })
			if changed {
				give(t, r.client(), "a", 640)
			}
			// A folder in the place of the file that is written first stands for a full disk.
			must.OK(t, os.Mkdir(file+".tmp", 0o700))
			status, line := r.end(), r.logged("snapshot not saved")
			if failed := status == cli.ExitFailed; failed != changed || (line != nil) != changed {
				t.Errorf("ends with %d, logged %v\n%s", status, line, r.stderr)
			}
			if changed && !strings.Contains(r.stderr.String(), "kvatlas serve: the last snapshot could not be saved") {
				t.Errorf("it does not say what is lost\n%s", r.stderr)
			}
		})
	}
}
