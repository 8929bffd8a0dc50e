package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/interop"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/storetest"
)

const (
	testModel = "meta-llama/Llama-3.1-8B"
	scripts   = "../../../store/redis/lua"
	// isWriter makes the test's program the writer.
	isWriter = "KVATLAS_TEST_WRITER"
	// pythonVariable names another Python, which has redis-py and xxhash.
	pythonVariable = "KVATLAS_TEST_PYTHON"
)

func TestMain(m *testing.M) {
	if os.Getenv(isWriter) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// python is a Python with what the writer needs. `make test-all` prepares one.
func python(t *testing.T) string {
	t.Helper()
	if p := os.Getenv(pythonVariable); p != "" {
		return p
	}
	return interop.Python(t, "../../../.cache/venv-writers/bin/python", "scripts/venv.sh writers examples/writers/python/requirements.txt")
}

// process is a running writer.
type process struct {
	t   *testing.T
	pod string
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// start starts the writer of a language.
func start(t *testing.T, language, url, pod, lease string) *process {
	t.Helper()
	args := []string{"--redis", url, "--scripts", scripts, "--pod", pod, "--model", testModel, "--block-size", "4", "--lease"}
	var cmd *exec.Cmd
	if language == "go" {
		self := must.Get(os.Executable())(t)
		cmd = exec.Command(self, append(args, lease+"s")...)
		cmd.Env = append(os.Environ(), isWriter+"=1")
	} else {
		cmd = exec.Command(python(t), append([]string{filepath.Join("..", "python", "writer.py")}, append(args, lease)...)...)
	}
	cmd.Stderr = os.Stderr
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	p := &process{t: t, pod: pod, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	p.hears("ready")
	return p
}

func (p *process) hears(want string) {
	p.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("%s: the writer says %q, %v; want %q", p.pod, p.out.Text(), p.out.Err(), want)
	}
}

// do gives the writer a command.
func (p *process) do(format string, args ...any) {
	p.t.Helper()
	must.Get(fmt.Fprintf(p.in, format+"\n", args...))(p.t)
	p.hears("ok")
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

func hex(keys []blockkey.Key) string {
	var words []string
	for _, k := range keys {
		words = append(words, fmt.Sprintf("%016x", uint64(k)))
	}
	return strings.Join(words, " ")
}

func open(t *testing.T, url string) *redis.Index {
	t.Helper()
	x := must.Get(redis.Open(redis.Config{URL: url, NoSweep: true, SweepDuty: 1}))(t)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func find(t *testing.T, x store.Index, keys []blockkey.Key) storetest.Answer {
	t.Helper()
	c := &storetest.Collector{Keys: len(keys)}
	must.OK(t, x.Lookup(t.Context(), &store.Query{Model: blockkey.ModelOf(testModel), Keys: keys, Fold: c}))
	must.OK(t, c.Err())
	return c.Answer
}

// TestWriters plays a random history to a writer in Go, one in Python and kvatlas
// itself, all on one index. It compares what the index then says with the model of
// the contract.
func TestWriters(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	x := open(t, s.URL())
	m := storetest.NewModel()
	writers := []*process{start(t, "go", s.URL(), "10.0.0.1:8000", "60"), start(t, "python", s.URL(), "10.0.0.2:8000", "60")}
	for _, w := range writers {
		m.Register(store.Pod{Name: w.pod, Model: testModel})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pool := make([]blockkey.Key, 1200)
	for i := range pool {
		pool[i] = blockkey.Key(rng.Uint64())
	}
	for step := range 250 {
		w := writers[rng.IntN(len(writers))]
		rank, tier := rng.IntN(3), store.Tier(rng.IntN(store.NumTiers))
		from := rng.IntN(40)
		keys := pool[from : from+1+rng.IntN(20)]
		if rng.IntN(20) == 0 {
			keys = pool // more than a call takes
		}
		batch := store.Batch{Pod: w.pod, Rank: rank, Model: testModel}
		what := "add"
		switch rng.IntN(12) {
		default:
			batch.Ops = []store.Op{{Kind: store.Add, Tier: tier, Keys: keys}}
			w.do("add %d %s %s", rank, tier, hex(keys))
		case 0, 1, 2:
			what = "remove"
			batch.Ops = []store.Op{{Kind: store.Remove, Tier: tier, Keys: keys}}
			w.do("remove %d %s %s", rank, tier, hex(keys))
		case 3:
			what = "clear of a tier"
			batch.Ops = []store.Op{{Kind: store.Clear, Tier: tier}}
			w.do("clear %d %s", rank, tier)
		case 4:
			what = "clear of all"
			batch.Ops = []store.Op{{Kind: store.Clear, Tier: store.AllTiers, AllRanks: true}}
			w.do("clear * *")
		case 5:
			what = "retirement"
			m.Retire(w.pod)
			w.do("retire")
		case 6: // by kvatlas, behind the writer's back
			what = "clear by somebody else"
			batch.Ops = []store.Op{{Kind: store.Clear, Tier: tier}}
			must.OK(t, x.Apply(t.Context(), batch))
		}
		if len(batch.Ops) > 0 {
			must.OK(t, m.Apply(batch))
		}
		if rng.IntN(25) == 0 {
			must.OK(t, plain.ScriptFlush(t.Context()).Err())
		}
		if rng.IntN(50) == 0 {
			must.Get(x.Sweep(t.Context()))(t)
		}
		look := pool[:64]
		if step%20 == 0 {
			look = pool
		}
		if got, want := find(t, x, look), m.Lookup(blockkey.ModelOf(testModel), look); !got.Equal(want) {
			t.Fatalf("step %d, %s of %s: found\n%v, want\n%v", step, what, w.pod, got, want)
		}
	}
}

// each runs a test for the writer of each language.
func each(t *testing.T, test func(t *testing.T, language string)) {
	for _, language := range []string{"go", "python"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			test(t, language)
		})
	}
}

// TestTokens: the writers hash tokens as kvatlas does.
func TestTokens(t *testing.T) {
	each(t, func(t *testing.T, language string) {
		s := redistest.Start(t)
		x := open(t, s.URL())
		w := start(t, language, s.URL(), "a:1", "60")
		tokens := []uint32{18038, 95411, 87593, 48849, 40269, 54969, 126870, 44865, 7}
		w.do("tokens 2 cpu %s", strings.Trim(fmt.Sprint(tokens), "[]"))
		keys := blockkey.AppendNative(nil, tokens, 4, blockkey.NativeSeed("", ""))
		if len(keys) != 2 || uint64(keys[0]) != 1675479374679433266 {
			t.Fatalf("the keys are %v", keys)
		}
		at := []storetest.At{{Pod: "a:1", Rank: 2, Tier: store.CPU}}
		if got := find(t, x, keys); !got.Equal([][]storetest.At{at, at}) {
			t.Errorf("found\n%v", got)
		}
		r, err := x.Registry(t.Context())
		if err != nil || r.Models[testModel].BlockSize != 4 || time.Duration(r.Pods[0].Lease) != time.Minute {
			t.Errorf("registered: %+v, %v", r, err)
		}
	})
}

// TestLease: the writer keeps the pod alive, and the pod does not outlive it by
// more than the lease.
func TestLease(t *testing.T) {
	each(t, func(t *testing.T, language string) {
		s := redistest.Start(t)
		x := open(t, s.URL())
		w := start(t, language, s.URL(), "a:1", "5")
		keys := []blockkey.Key{1}
		w.do("add 0 gpu %s", hex(keys))
		at := [][]storetest.At{{{Pod: "a:1", Tier: store.GPU}}}
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 80 { // longer than the lease, which is of real time: two processes and Redis go by it
			if got := find(t, x, keys); !got.Equal(at) {
				t.Fatalf("the writer lives and the index finds\n%v", got)
			}
			<-tick.C
		}
		w.kill()
		eventually.True(t, "the end of the pod", func() bool { return find(t, x, keys).Equal([][]storetest.At{nil}) })
	})
}

// TestPlain: what is written in the plain form is found, and by the next life not.
func TestPlain(t *testing.T) {
	each(t, func(t *testing.T, language string) {
		s := redistest.Start(t)
		x := open(t, s.URL())
		w := start(t, language, s.URL(), "10.0.0.7:8000", "60")
		keys := []blockkey.Key{1, 2, 3}
		w.do("plain %s", hex(keys[:2]))
		at := []storetest.At{{Pod: "10.0.0.7:8000", Tier: store.GPU}}
		if got := find(t, x, keys); !got.Equal([][]storetest.At{at, at, nil}) {
			t.Errorf("found\n%v", got)
		}
		w.do("retire")
		w.do("add 0 gpu %s", hex(keys[2:]))
		if got := find(t, x, keys); !got.Equal([][]storetest.At{nil, nil, at}) {
			t.Errorf("after the pod has come back, found\n%v", got)
		}
	})
}

// TestPlainTogether: writers of both languages add themselves to the same blocks in the plain
// form, and take themselves out, all at the same time. None erases another.
func TestPlainTogether(t *testing.T) {
	s := redistest.Start(t)
	x := open(t, s.URL())
	var keys []blockkey.Key
	for k := range blockkey.Key(50) {
		keys = append(keys, k+1)
	}
	var writers []*process
	var all []storetest.At
	for i, language := range []string{"go", "python", "go", "python"} {
		pod := fmt.Sprintf("10.0.0.%d:8000", i+1)
		writers = append(writers, start(t, language, s.URL(), pod, "60"))
		all = append(all, storetest.At{Pod: pod, Tier: store.GPU})
	}
	together := func(command func(i int) string) {
		t.Helper()
		for i, w := range writers {
			fmt.Fprintf(w.in, "%s %s\n", command(i), hex(keys))
		}
		for _, w := range writers {
			w.hears("ok")
		}
	}
	holds := func(want ...storetest.At) {
		t.Helper()
		answer := make([][]storetest.At, len(keys))
		for i := range answer {
			answer[i] = want
		}
		if got := find(t, x, keys); !got.Equal(answer) {
			t.Errorf("found\n%v, want all to be %v", got, want)
		}
	}
	for range 5 {
		together(func(int) string { return "plain" })
		holds(all...)
		together(func(int) string { return "plain" }) // again changes nothing
		holds(all...)
		together(func(i int) string { return []string{"unplain", "plain"}[i/2] })
		holds(all[2:]...)
		together(func(i int) string { return []string{"plain", "unplain"}[i/2] })
		holds(all[:2]...)
	}
	together(func(int) string { return "unplain" })
	holds()
	if n := s.Client().Exists(t.Context(), (&writer{mask: xxh3.HashStringSeed(testModel, 1337)}).key(uint64(keys[0]))).Val(); n != 0 {
		t.Error("a value without texts is left")
	}
}

// TestPlainScriptsAreDocumented: the two lines of both writers are those of the document.
func TestPlainScriptsAreDocumented(t *testing.T) {
	document := must.Get(os.ReadFile("../../../docs/redis-internals.md"))(t)
	writer := must.Get(os.ReadFile("../python/writer.py"))(t)
	for _, script := range []string{addText, removeText} {
		if !strings.Contains(string(document), `"`+script+`"`) || !strings.Contains(string(writer), script) {
			t.Errorf("not in the document, or not in writer.py: %s", script)
		}
	}
}

// TestLostRegistry: a writer goes on when the registry has been lost, and no pod inherits the blocks that are
// left.
func TestLostRegistry(t *testing.T) {
	each(t, func(t *testing.T, language string) {
		s := redistest.Start(t)
		plain := s.Client()
		x := open(t, s.URL())
		w := start(t, language, s.URL(), "a:1", "60")
		keys := []blockkey.Key{1, 2}
		w.do("add 0 gpu %s", hex(keys))
		all := plain.Keys(t.Context(), "kva{*:*").Val()
		if err := plain.Del(t.Context(), all...).Err(); err != nil || len(all) < 64 {
			t.Fatal(all, err)
		}
		w.do("add 0 gpu %s", hex(keys[:1]))
		at := []storetest.At{{Pod: "a:1", Tier: store.GPU}}
		if got := find(t, x, keys); !got.Equal([][]storetest.At{at, nil}) {
			t.Errorf("found\n%v", got)
		}
	})
}

// TestErrors: what the writers do not understand they say.
func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, language string) {
		s := redistest.Start(t)
		w := start(t, language, s.URL(), "a:1", "60")
		for _, line := range []string{"hold 0 gpu 1", "add 0 gpu", "add 0 gpu x", "clear 0", "plain g", "plain 10000000000000000", "add 0 gpu -1", "tokens 0 gpu 1 2 3 4294967296", "tokens 0 gpu 1 2 3 -4"} {
			must.Get(fmt.Fprintln(w.in, line))(t)
			if !w.out.Scan() || !strings.HasPrefix(w.out.Text(), "error ") {
				t.Errorf("%q: the writer says %q", line, w.out.Text())
			}
		}
		x := open(t, s.URL())
		places := []string{"0 xpu", "0 GPU", "0 *", "* gpu", "-1 gpu", "1024 gpu", "00 gpu", "+1 gpu", "gpu 0", "99999999999999999999 gpu"}
		for _, place := range places {
			for _, line := range []string{"tokens " + place + " 1 2 3 4", "add " + place + " 1", "remove " + place + " 1", "clear " + place} {
				if strings.HasPrefix(line, "clear") && strings.Contains(place, "*") {
					continue // all ranks, all tiers
				}
				must.Get(fmt.Fprintln(w.in, line))(t)
				if !w.out.Scan() || !strings.HasPrefix(w.out.Text(), "error rank ") && !strings.HasPrefix(w.out.Text(), "error tier ") {
					t.Errorf("%q: the writer says %q", line, w.out.Text())
				}
			}
		}
		if r, err := x.Registry(t.Context()); err != nil || len(r.Holders()) != 0 {
			t.Errorf("holders %+v, %v", r, err)
		}
		w.do("add 1023 shared 1")
	})
}
