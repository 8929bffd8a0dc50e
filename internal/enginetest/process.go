package enginetest

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/interop"
	"github.com/kvatlas/kvatlas/internal/must"
)

// DirVariable is the environment variable that names another folder than
// .cache/engines of the checkout.
const DirVariable = "KVATLAS_TEST_ENGINES"

// loadScript is what the other scripts begin with.
//
//go:embed load.py
var loadScript string

// dir is where fetch-engines.sh has put things.
func dir() string {
	return cmp.Or(os.Getenv(DirVariable), interop.Cache("engines"))
}

// module returns the folder of a release's modules.
func module(tb testing.TB, r Release) string {
	tb.Helper()
	interop.Need(tb)
	path := filepath.Join(dir(), r.String())
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("%v\nscripts/fetch-engines.sh prepares it", err)
	}
	return path
}

// Python returns the interpreter that has pyzmq.
func Python(tb testing.TB) string {
	tb.Helper()
	return interop.Python(tb, filepath.Join(dir(), "venv", "bin", "python"), "make engines")
}

// process is a Python script that answers commands. Its methods are for one goroutine.
type process struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  *bufio.Writer
	inC io.Closer
	out *bufio.Reader
	end sync.Once
}

// startProcess runs a script until the test ends or Kill is called. name is for messages.
func startProcess(tb testing.TB, name, script string, args []string) *process {
	tb.Helper()
	p := &process{tb: tb, cmd: exec.CommandContext(context.Background(), Python(tb), append([]string{"-c", script}, args...)...)}
	p.cmd.Stderr = os.Stderr
	// Hashes that begin with a random seed begin with this one.
	p.cmd.Env = append(os.Environ(), "PYTHONHASHSEED=0")
	in := must.Get(p.cmd.StdinPipe())(tb)
	out := must.Get(p.cmd.StdoutPipe())(tb)
	must.OK(tb, p.cmd.Start())
	p.inC, p.in, p.out = in, bufio.NewWriterSize(in, 1<<20), bufio.NewReaderSize(out, 1<<16)
	tb.Cleanup(p.Kill)
	var r struct{ Ready bool }
	p.answer(60*time.Second, &r)
	if !r.Ready {
		tb.Fatalf("%s did not start", name)
	}
	return p
}

// Kill ends the process at once, as a crash does.
func (p *process) Kill() {
	p.end.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.inC.Close()
		_ = p.cmd.Wait()
	})
}

// Pid is the process, for signals.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// tell sends a command that has no answer.
func (p *process) tell(command any) {
	p.tb.Helper()
	line, err := json.Marshal(command)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.tb.Fatalf("engine: %v", err)
	}
}

// ask sends a command and decodes its answer into a struct; nil is one of no interest.
func (p *process) ask(command any, within time.Duration, into any) {
	p.tb.Helper()
	p.tell(command)
	if err := p.in.Flush(); err != nil {
		p.tb.Fatalf("engine: %v", err)
	}
	p.answer(within, into)
}

func (p *process) answer(within time.Duration, into any) {
	p.tb.Helper()
	type read struct {
		line []byte
		err  error
	}
	ch := make(chan read, 1)
	go func() {
		line, err := p.out.ReadBytes('\n')
		ch <- read{line, err}
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	var r read
	select {
	case r = <-ch:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-ch
		r.err = fmt.Errorf("no answer within %v", within)
	}
	if r.err == nil && into != nil {
		r.err = json.Unmarshal(r.line, into)
	}
	if r.err != nil {
		p.tb.Fatalf("engine: %v", r.err)
	}
}
