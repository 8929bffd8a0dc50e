package redistest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/internal/must"
)

// programVariable is the environment variable that names another program to
// test with than the redis-server on PATH: another version, or valkey-server.
const programVariable = "KVATLAS_TEST_REDIS_SERVER"

// startTimeout is how long a server may take to answer its first PING. It is
// long because test machines are shared and slow.
const startTimeout = 30 * time.Second

// Server is one redis-server process. Its methods are for the goroutine of the
// test.
type Server struct {
	// Addr is the TCP address, host:port.
	Addr string
	// Socket is the path of the unix socket.
	Socket string

	tb   testing.TB
	bin  string
	args []string
	dir  string
	cmd  *exec.Cmd
	log  *logTail
	done chan struct{} // closed when the process has ended
}

// Prepare prepares a redis-server without persistence that Run starts. Further
// args are given to it as they are, e.g. "--maxmemory", "10mb", or those of
// Authority.Args.
func Prepare(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return prepare(tb, "", args...)
}

// Start prepares a server and runs it.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := Prepare(tb, args...)
	s.Run()
	return s
}

func prepare(tb testing.TB, mode string, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, bin: program(tb), dir: shortDir(tb)}
	port := strconv.Itoa(FreePort(tb))
	s.Addr = net.JoinHostPort("127.0.0.1", port)
	s.Socket = filepath.Join(s.dir, "s")
	if mode == "sentinel" {
		s.args = append(s.args, filepath.Join(s.dir, "sentinel.conf"), "--sentinel")
	}
	if slices.Contains(args, "--tls-cert-file") {
		s.args = append(s.args, "--port", "0", "--tls-port", port)
	} else {
		s.args = append(s.args, "--port", port)
	}
	s.args = append(s.args, "--bind", "127.0.0.1", "--unixsocket", s.Socket, "--dir", s.dir)
	if mode != "sentinel" {
		s.args = append(s.args, "--save", "", "--appendonly", "no")
		if Version(tb) >= 7 {
			s.args = append(s.args, "--enable-debug-command", "yes", "--latency-tracking", "no")
		}
	}
	s.args = append(s.args, args...)
	tb.Cleanup(s.Kill)
	return s
}

// program is the server program.
func program(tb testing.TB) string {
	tb.Helper()
	name := cmp.Or(os.Getenv(programVariable), "redis-server")
	bin, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("redistest: there is no %s: `make test` installs redis-server (on Debian: apt-get install redis-server): %v", name, err)
	}
	return bin
}

// versions are the major versions of programs, by path.
var versions sync.Map

// Version is the major version of the server program: 7 for Redis 7.0.15, 8 for
// Valkey 8.0.1.
func Version(tb testing.TB) int {
	tb.Helper()
	bin := program(tb)
	if v, ok := versions.Load(bin); ok {
		return v.(int)
	}
	out, err := exec.Command(bin, "--version").Output()
	_, rest, _ := bytes.Cut(out, []byte(" v="))
	major, _, _ := bytes.Cut(rest, []byte("."))
	v, wrong := strconv.Atoi(string(major))
	if err := errors.Join(err, wrong); err != nil {
		tb.Fatalf("redistest: the version of %s is %q: %v", bin, out, err)
	}
	versions.Store(bin, v)
	return v
}

// shortDir is a temporary directory with a path short enough for a unix
// socket, which tb.TempDir is not under a long test name.
func shortDir(tb testing.TB) string {
	tb.Helper()
	dir := must.Get(os.MkdirTemp("", "rt"))(tb)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// isFree reports whether a port of the loopback interface can be listened on.
func isFree(p int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// ports are those handed out by this process: one may be found free again before its
// server has bound it.
var ports = struct {
	sync.Mutex
	given map[int]bool
}{given: map[int]bool{}}

// FreePort returns a TCP port of the loopback interface that is free, and that it has not returned before.
func FreePort(tb testing.TB) int {
	tb.Helper()
	return freePorts(tb, 1)
}

// FreeEndpoint returns the ZeroMQ endpoint of a free port, and the ports above it are free for n-1 more ranks.
func FreeEndpoint(tb testing.TB, n int) string {
	tb.Helper()
	return fmt.Sprintf("tcp://127.0.0.1:%d", freePorts(tb, n))
}

// freePorts returns the first of n ports in a row.
func freePorts(tb testing.TB, n int) int {
	tb.Helper()
	for range 1000 {
		// Below those that the kernel gives to connections, one of which could take the port
		// before its server does. A cluster node listens at port+10000 too.
		first := 10000 + rand.IntN(10000-n)
		if takePorts(first, n) {
			return first
		}
	}
	tb.Fatal("redistest: no free port found")
	return 0
}

// takePorts hands out n ports in a row, if all are free and none was handed out before.
func takePorts(first, n int) bool {
	ports.Lock()
	defer ports.Unlock()
	for p := first; p < first+n; p++ {
		if ports.given[p] || !isFree(p) || !isFree(p+10000) {
			return false
		}
	}
	for p := first; p < first+n; p++ {
		ports.given[p] = true
	}
	return true
}

// URL is the server's redis:// URL.
func (s *Server) URL() string { return "redis://" + s.Addr }

// UnixURL is the server's unix:// URL.
func (s *Server) UnixURL() string { return "unix://" + s.Socket }

// Do runs a command, given word by word, which must succeed.
func Do(tb testing.TB, c *redis.Client, words ...string) {
	tb.Helper()
	args := make([]any, len(words))
	for i, w := range words {
		args[i] = w
	}
	if err := c.Do(tb.Context(), args...).Err(); err != nil {
		tb.Fatalf("%v: %v", words, err)
	}
}

// Client returns a plain client of the server, for the test to look behind the
// curtain. It is closed when the test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true})
	s.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Run starts the process, which must not be running, and waits until it
// answers. What it held in memory before is gone unless args made it persist.
func (s *Server) Run() {
	s.tb.Helper()
	s.log = &logTail{}
	s.done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		// Pdeathsig is sent when the thread that started the child ends, so
		// this goroutine keeps its thread until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(s.bin, s.args...)
		cmd.Stdout, cmd.Stderr = s.log, s.log
		cmd.SysProcAttr = dieWithParent()
		s.cmd = cmd
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(s.done)
	}()
	if err := <-started; err != nil {
		s.tb.Fatalf("redistest: starting redis-server: %v", err)
	}
	s.wait()
}

// wait returns when the server answers a PING, whatever it answers but that it
// is still loading.
func (s *Server) wait() {
	s.tb.Helper()
	end := time.Now().Add(startTimeout)
	for {
		answer, err := ping(s.Socket)
		if err == nil && !strings.HasPrefix(answer, "-LOADING") {
			return
		}
		select {
		case <-s.done:
			s.tb.Fatalf("redistest: redis-server ended at once:\n%s", s.log)
		case <-time.After(10 * time.Millisecond):
			if time.Now().After(end) {
				s.tb.Fatalf("redistest: redis-server does not answer: %q, %v\n%s", answer, err, s.log)
			}
		}
	}
}

func ping(socket string) (string, error) {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

// Kill ends the process with SIGKILL, as a crash does, and waits for its end.
// It may be called when the process is not running.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM and waits for its end.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

func (s *Server) end(sig syscall.Signal) {
	if s.done == nil {
		return
	}
	s.signal(sig)
	select {
	case <-s.done:
	case <-time.After(startTimeout):
		s.signal(syscall.SIGKILL)
		<-s.done
	}
}

// running reports whether the process runs.
func (s *Server) running() bool {
	if s.done == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// Freeze stops the process without ending it: connections stay open and
// nothing answers.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.tb.Errorf("redistest: signal %v: %v", sig, err)
	}
}

// logTail keeps the last part of what a server prints.
type logTail struct {
	mu  sync.Mutex // protects buf
	buf []byte
}

const logTailBytes = 4096

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if n := len(l.buf) - logTailBytes; n > 0 {
		l.buf = append(l.buf[:0], l.buf[n:]...)
	}
	return len(p), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("last words of the server:\n%s", bytes.TrimSpace(l.buf))
}
