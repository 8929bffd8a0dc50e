// Package lmcachetest runs LMCache's own code for tests, unchanged, of the releases that
// scripts/fetch-lmcache.sh has fetched. It is the code by which workers and MP servers
// report to a controller or a coordinator. There is no GPU and no engine: a test says what
// is admitted and evicted, and the client says what it holds.
package lmcachetest

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/interop"
	"github.com/kvatlas/kvatlas/internal/must"
)

// DirVariable is the environment variable that says where fetch-lmcache.sh has put
// things, if that is not .cache/lmcache.
const DirVariable = "KVATLAS_LMCACHE"

//go:embed client.py
var script string

// Options say what to run. What a kind does not need is not read.
type Options struct {
	// Kind is the release. Releases 0.3.1 and 0.5.6 are workers, and mp-0.5.6 is a server
	// of MP mode. Releases lookup-0.3.1 and lookup-0.3.6 are lookup servers. The client
	// of a remote store resp:// is resp-0.5.6, and that of MP mode's second level
	// mp-resp-0.5.6. The whole of LMCache in an engine, with a remote store redis://, is
	// engine-0.5.6.
	Kind string `json:"kind"`
	// Instance, Worker and World are LMCache's instance id, worker id and world size.
	Instance string `json:"instance"`
	Worker   int    `json:"worker"`
	World    int    `json:"world"`
	// Pull and Reply are the controller's, host:port; Port is one of the worker's own.
	Pull  string `json:"pull"`
	Reply string `json:"reply"`
	Port  int    `json:"port"`
	// Heartbeat is how often it sends heartbeats in seconds, 0 is never, as LMCache's
	// default is.
	Heartbeat int `json:"heartbeat"`
	// Coordinator is the coordinator's URL, Model and Incarnation go into what it is
	// told.
	Coordinator string `json:"coordinator"`
	Model       string `json:"model"`
	Incarnation int    `json:"incarnation"`
	// Redis is where a lookup server and a remote store put things, host:port, and Address
	// what a lookup server puts there, LMCache's distributed_url. LMCache itself hashes the
	// Prompt, and keys are numbers of its chunks.
	Redis   string   `json:"redis"`
	Address string   `json:"address"`
	Prompt  []uint32 `json:"prompt"`
}

// Client is a running client. Its methods are for one goroutine.
type Client struct {
	tb     testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	end    sync.Once
}

func dir() string {
	return cmp.Or(os.Getenv(DirVariable), interop.Cache("lmcache"))
}

// needs is for what only some machines can have: there is the file in the directory, or
// the reason why not.
func needs(tb testing.TB, dir, file string) {
	tb.Helper()
	if why, err := os.ReadFile(filepath.Join(dir, "without")); err == nil { //nolint:gosec // of the tests' own directory
		tb.Skipf("%s: %s", dir, bytes.TrimSpace(why))
	}
	if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
		tb.Fatalf("%v\nscripts/fetch-lmcache.sh prepares it.", err)
	}
}

// Start runs a client until the test ends or Kill is called.
func Start(tb testing.TB, o Options) *Client {
	tb.Helper()
	python := interop.Python(tb, filepath.Join(dir(), "venv", "bin", "python"), "make lmcache")
	tree := filepath.Join(dir(), "lmcache-"+o.Kind[strings.LastIndexByte(o.Kind, '-')+1:])
	if _, err := os.Stat(filepath.Join(tree, "lmcache")); err != nil {
		tb.Fatalf("%v\n`make lmcache` prepares it.", err)
	}
	libraries, path := filepath.Join(dir(), "native"), tree
	if strings.Contains(o.Kind, "resp") {
		needs(tb, libraries, "libc10.so")
	}
	if strings.HasPrefix(o.Kind, "engine") {
		torch := filepath.Join(dir(), "torch")
		needs(tb, libraries, "libc10.so")
		needs(tb, torch, filepath.Join("python", "torch"))
		path += ":" + filepath.Join(torch, "python")
		for _, d := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/blas", "usr/lib/x86_64-linux-gnu/lapack", "lib/x86_64-linux-gnu", "usr/lib"} {
			libraries += ":" + filepath.Join(torch, "root", d)
		}
	}
	o.World = cmp.Or(o.World, 1)
	args, err := json.Marshal(o)
	must.OK(tb, err)
	c := &Client{tb: tb, cmd: exec.CommandContext(tb.Context(), python, "-c", script, string(args))}
	c.cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "LD_LIBRARY_PATH="+libraries, "LMCACHE_TRACK_USAGE=false", "PYTHONDONTWRITEBYTECODE=1")
	c.cmd.Stderr = &c.stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out := must.Get(c.cmd.StdoutPipe())(tb)
	c.out = bufio.NewReader(out)
	must.OK(tb, c.cmd.Start())
	tb.Cleanup(c.Kill)
	c.answer()
	return c
}

// answer waits for the client's next line, a minute at most.
func (c *Client) answer() []json.RawMessage {
	c.tb.Helper()
	timer := time.AfterFunc(time.Minute, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	line, err := c.out.ReadBytes('\n')
	var r struct{ Holds []json.RawMessage }
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.tb.Fatalf("LMCache's client: %v\n%s", err, c.stderr.Bytes())
	}
	return r.Holds
}

// Do makes the client do something with keys, which are ints or, for 0.3.1 and MP mode,
// texts in hex. It returns the keys that the client holds then, as JSON. Of a lookup server
// they are pairs, of the key's name in Redis and who is named there. Of a remote store they
// are the names of the prompt's keys that LMCache finds there. The order what is admit,
// evict (resp-0.5.6 has none), lose (evict without telling), clear, deregister or holds.
// With engine-0.5.6 it may be events: holds are the KV events then, once. In MP mode it may
// be share, into a shared second level.
func (c *Client) Do(what string, keys ...any) []json.RawMessage {
	c.tb.Helper()
	if keys == nil {
		keys = []any{}
	}
	b, err := json.Marshal(map[string]any{"do": what, "keys": keys})
	if err == nil {
		_, err = c.in.Write(append(b, '\n'))
	}
	if err != nil {
		c.tb.Fatalf("LMCache's client: %v\n%s", err, c.stderr.Bytes())
	}
	return c.answer()
}

// Kill ends the process at once, as a crash does.
func (c *Client) Kill() {
	c.end.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.in.Close()
		_ = c.cmd.Wait()
	})
}
